"""What static checkers see of decorated functions: each comment is the type that they must reveal on its line."""

from typing import Any, reveal_type

import weft
from jax import Array


class Net(weft.Module):
    weight: Array

    def __call__(self, x: Array) -> tuple[Array, "Net"]:
        return x * self.weight, self

    @weft.jit
    def compiled(self, x: Array) -> Array:
        return x


def step(net: Net, x: Array, *, train: bool = True) -> tuple[Array, Net]:
    return net(x)


def loss(net: Net, x: Array) -> Array:
    return x


@weft.jit
def jitted(net: Net, x: Array) -> Array:
    return x


@weft.jit(donate_argnums=0)
def donated(net: Net, x: Array) -> Array:
    return x


@weft.vmap(in_axes=(None, 0))
def mapped(net: Net, x: Array) -> Array:
    return x


@weft.value_and_grad(has_aux=True)
def differentiated(net: Net, x: Array) -> tuple[Array, Net]:
    return net(x)


@weft.custom_vjp
def custom(net: Net, x: Array) -> Array:
    return x


def call(net: Net, x: Array) -> None:
    reveal_type(weft.jit(step))  # JitFunction[(net: Net, x: Array, *, train: bool = True), tuple[Array, Net]]
    reveal_type(jitted)  # JitFunction[(net: Net, x: Array), Array]
    reveal_type(donated(net, x))  # Array
    reveal_type(mapped)  # (net: Net, x: Array) -> Array
    reveal_type(differentiated(net, x))  # tuple[tuple[Array, Net], Any]
    reveal_type(custom)  # CustomVjp[(net: Net, x: Array), Array]
    reveal_type(weft.custom_jvp(nondiff_argnums=0)(loss))  # CustomJvp[(net: Net, x: Array), Array]
    reveal_type(weft.vmap(step))  # (net: Net, x: Array, *, train: bool = True) -> tuple[Array, Net]
    reveal_type(weft.pmap(loss, axis_name="d"))  # PmapFunction[(net: Net, x: Array), Array]
    reveal_type(weft.pmap(axis_size=2, devices=[])(loss))  # PmapFunction[(net: Net, x: Array), Array]
    reveal_type(weft.jit(loss, compiler_options={}, keep_unused=True)(net, x))  # Array
    reveal_type(weft.shard_map(loss, in_specs=None, out_specs=None))  # (net: Net, x: Array) -> Array
    reveal_type(weft.scan(step))  # (net: Net, x: Array, *, train: bool = True) -> tuple[Array, Net]
    reveal_type(weft.scan(length=3)(loss))  # (net: Net, x: Array) -> Array
    reveal_type(weft.remat(step))  # (net: Net, x: Array, *, train: bool = True) -> tuple[Array, Net]
    reveal_type(weft.remat(prevent_cse=False)(loss))  # (net: Net, x: Array) -> Array
    reveal_type(weft.grad(loss))  # (net: Net, x: Array) -> Any
    reveal_type(weft.grad(argnums=1)(loss))  # (net: Net, x: Array) -> Any
    reveal_type(weft.value_and_grad(loss))  # (net: Net, x: Array) -> tuple[Array, Any]
    reveal_type(weft.jacfwd(loss))  # (net: Net, x: Array) -> Any
    reveal_type(weft.jacrev(argnums=1)(loss))  # (net: Net, x: Array) -> Any
    reveal_type(weft.hessian(loss))  # (net: Net, x: Array) -> Any
    reveal_type(weft.checkify(loss))  # (net: Net, x: Array) -> tuple[Any, Array]
    reveal_type(weft.make_jaxpr(loss))  # (net: Net, x: Array) -> Any
    reveal_type(weft.transform_metadata(loss, in_axes=0))  # (net: Net, x: Array) -> Array
    reveal_type(weft.jit(weft.value_and_grad(weft.vmap(loss))))  # JitFunction[(net: Net, x: Array), tuple[Array, Any]]
    reveal_type(net.replace(weight=x))  # Net


def refused(net: Net, x: Array) -> Any:
    jitted(x, net)  # error: Argument of type "Array" cannot be assigned to parameter "net"
    mapped(net)  # error: Argument missing for parameter "x"
    weft.grad(loss)(net, x, x)  # error: Expected 2 positional arguments
    custom(net, "x")  # error: Argument of type "Literal['x']" cannot be assigned to parameter "x"
    weft.scan(step)(net, x, train="yes")  # error: cannot be assigned to parameter "train"
    weft.vmap(step, in_axis=0)  # error: No overloads for "vmap"
    weft.jit(step, donate_argnum=0)  # error: No overloads for "jit"
    weft.jit(step, static_argnums="net")  # error: parameter "static_argnums"
    weft.jit(donate_argnum=0)(step)  # error: No overloads for "jit"
    weft.pmap(loss, donate_argnums=0)  # error: No overloads for "pmap"
    weft.shard_map(loss, in_specs=None, out_specs=None, check_rep=False)  # error: No overloads for "shard_map"
    weft.scan(step, lenght=3)  # error: No overloads for "scan"
    weft.remat(step, policies=None)  # error: No overloads for "remat"
