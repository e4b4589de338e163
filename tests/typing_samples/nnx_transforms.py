"""What static checkers see of the transforms of nnx, in the forms that programs for flax.nnx write them in."""

from typing import Any, reveal_type

from jax import Array
from weft import nnx


class Model(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.w = nnx.Param(rngs.params())

    def __call__(self, x: Array) -> Array:
        return x

    @nnx.jit
    def compiled(self, x: Array) -> Array:
        return x

    @nnx.remat
    def again(self, x: Array) -> Array:
        return x


def loss(model: Model, x: Array) -> Array:
    return model(x)


def loss_and_aux(model: Model, x: Array) -> tuple[Array, str]:
    return model(x), "aux"


@nnx.jit
def step(model: Model, x: Array) -> Array:
    return x


@nnx.jit(static_argnames="train", donate_argnums=0)
def donated(model: Model, x: Array, *, train: bool = True) -> Array:
    return x


@nnx.vmap(in_axes=(nnx.StateAxes({nnx.Param: 0, ...: None}), 0), axis_name="batch")
def mapped(model: Model, x: Array) -> Array:
    return x


@nnx.vmap(in_axes=0, out_axes=0)
def create(rngs: nnx.Rngs) -> Model:
    return Model(rngs=rngs)


@nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, transform_metadata={nnx.PARTITION_NAME: "layers"})
def forward(x: Array, model: Model) -> Array:
    return model(x)


@nnx.value_and_grad(has_aux=True)
def differentiated(model: Model, x: Array) -> tuple[Array, str]:
    return loss_and_aux(model, x)


@nnx.custom_vjp(nondiff_argnums=(1,))
def custom(model: Model, n: int) -> Array:
    return model(model.w[...])


def call(model: Model, x: Array) -> None:
    reveal_type(step)  # JitWrapped[(model: Model, x: Array), Array]
    reveal_type(step(model, x))  # Array
    reveal_type(donated)  # JitWrapped[(model: Model, x: Array, *, train: bool = True), Array]
    reveal_type(model.compiled)  # (x: Array) -> Array
    reveal_type(model.again(x))  # Array
    reveal_type(mapped)  # (model: Model, x: Array) -> Array
    reveal_type(nnx.pmap(loss, axis_name="d"))  # (model: Model, x: Array) -> Array
    reveal_type(create(nnx.Rngs(0)))  # Model
    reveal_type(forward)  # (x: Array, model: Model) -> Array
    reveal_type(nnx.grad(loss))  # (model: Model, x: Array) -> Any
    reveal_type(nnx.grad(loss, argnums=nnx.DiffState(0, nnx.Param)))  # (model: Model, x: Array) -> Any
    reveal_type(nnx.value_and_grad(loss)(model, x))  # tuple[Array, Any]
    reveal_type(differentiated(model, x))  # tuple[tuple[Array, str], Any]
    reveal_type(nnx.vjp(loss, model, x))  # tuple[Array, (...) -> Any]
    reveal_type(nnx.vjp(loss_and_aux, model, x, has_aux=True))  # tuple[Array, (...) -> Any, str]
    reveal_type(nnx.vjp(loss))  # (model: Model, x: Array) -> Any
    reveal_type(nnx.jvp(loss, (model, x), (model, x)))  # tuple[Array, Any]
    reveal_type(nnx.jvp(loss_and_aux, (model, x), (model, x), has_aux=True))  # tuple[Array, Any, str]
    reveal_type(nnx.remat(loss, prevent_cse=False))  # (model: Model, x: Array) -> Array
    reveal_type(nnx.shard_map(loss, mesh=None, in_specs=None, out_specs=None))  # (model: Model, x: Array) -> Array
    reveal_type(custom)  # CustomVjp[(model: Model, n: int), Array]
    reveal_type(nnx.jit_partial(loss, model)(x))  # Array
    reveal_type(nnx.cond(True, loss, loss, model, x))  # Array
    reveal_type(nnx.switch(0, [loss, loss], model, x))  # Array
    reveal_type(nnx.while_loop(lambda c: c[1] < 3, lambda c: c, (model, x)))  # tuple[Model, Array]
    reveal_type(nnx.fori_loop(0, 3, lambda i, c: c, (model, x)))  # tuple[Model, Array]
    reveal_type(nnx.eval_shape(lambda: Model(rngs=nnx.Rngs(0))))  # Model
    reveal_type(nnx.checkify(loss)(model, x))  # tuple[Error, Array]
    reveal_type(nnx.make_jaxpr(loss))  # (model: Model, x: Array) -> Any
    reveal_type(nnx.transform_metadata(loss, in_axes=0, partition="layers"))  # (model: Model, x: Array) -> Array
    reveal_type(nnx.jit(nnx.value_and_grad(loss)))  # JitWrapped[(model: Model, x: Array), tuple[Array, Any]]


def refused(model: Model, x: Array) -> Any:
    step(x, model)  # error: Argument of type "Array" cannot be assigned to parameter "model"
    mapped(model)  # error: Argument missing for parameter "x"
    model.compiled("x")  # error: Argument of type "Literal['x']" cannot be assigned to parameter "x"
    nnx.grad(loss)(model)  # error: Argument missing for parameter "x"
    donated(model, x, train="yes")  # error: cannot be assigned to parameter "train"
    nnx.vmap(loss, in_axis=0)  # error: No overloads for "vmap"
    nnx.while_loop(lambda c: True, lambda c: "x", x)  # error: "Array" is not assignable to "str"
