"""A transformed record in a field of a model is part of the model: trained, saved, selected and copied like a record.

What holds arrays and cannot be a pytree is refused when it is put into a field.
"""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from weft.core.paths import format_path
from weft.core.records.leaves import iter_leaves
from weft.errors import StaticError

X = jnp.ones((2, 3))
ARRAY = jnp.ones(2)


class Sub(weft.Module):
    weight: jax.Array
    power: int = 1

    def __call__(self, x: Any) -> Any:
        return self.weight @ x**self.power

    def apply(self, x: Any) -> Any:
        return self(x)

    def loss(self, x: Any) -> Any:
        return (self(x) ** 2).sum()

    def step(self, carry: Any, x: Any) -> Any:
        return self(carry), x


class Model(weft.Module):
    sub: Any
    scale: jax.Array


def sub(value: float = 1.0) -> Sub:
    return Sub(jnp.full((3, 3), value, jnp.float32))


def with_rule(record: Any) -> Any:
    function = weft.custom_vjp(record)
    function.defvjp(forward, backward)
    return function


def forward(x: Any) -> Any:
    return x, None


def backward(saved: Any, g: Any) -> Any:
    return (g,)


# Each takes the record, and the path of its weight in the field.
TREES: dict[str, tuple[Callable[[Sub], Any], str]] = {
    "vmap": (weft.vmap, "function.weight"),
    "vmap with options that cannot be hashed": (lambda s: weft.vmap(s, in_axes=[0]), "function.weight"),
    "pmap": (weft.pmap, "function.weight"),
    "jit": (weft.jit, "function.weight"),
    "remat": (weft.remat, "function.weight"),
    "checkify": (weft.checkify, "function.weight"),
    "custom_vjp": (with_rule, "function.weight"),
    "custom_jvp": (weft.custom_jvp, "function.weight"),
    "jacfwd": (weft.jacfwd, "function.weight"),
    "jacrev": (weft.jacrev, "function.weight"),
    "make_jaxpr": (weft.make_jaxpr, "function.weight"),
    "transform_metadata": (weft.transform_metadata, "function.weight"),
    "grad of a method": (lambda s: weft.grad(s.loss), "function.__self__.weight"),
    "value_and_grad": (lambda s: weft.value_and_grad(s.loss), "function.__self__.weight"),
    "hessian": (lambda s: weft.hessian(s.loss), "function.__self__.weight"),
    "scan of a method": (lambda s: weft.scan(s.step), "function.__self__.weight"),
    "a transform of a transform": (lambda s: weft.jit(weft.vmap(s)), "function.function.weight"),
    "a partial application": (lambda s: functools.partial(s.step, jnp.ones((2, 3))), "func.__self__.weight"),
    "a partial application of a transform": (lambda s: functools.partial(weft.vmap(s)), "func.function.weight"),
    "a transform of a partial application": (
        lambda s: weft.vmap(functools.partial(s.step, jnp.ones(3))),
        "function.func.__self__.weight",
    ),
    "JAX's partial application of a record": (jax.tree_util.Partial, "func.weight"),
    "a method": (lambda s: s.apply, "__self__.weight"),
    "a special method": (lambda s: s.__call__, "args[0].weight"),
}


@pytest.mark.parametrize(("make", "path"), TREES.values(), ids=TREES)
def test_a_transformed_record_is_part_of_the_model(make: Callable[[Sub], Any], path: str):
    model = Model(make(sub()), jnp.ones(()))
    paths = [format_path(leaf.path) for leaf in iter_leaves(model)]
    assert [place for place in paths if place.endswith("weight")] == [f"sub.{path}"]
    # As the same program makes it again, in this process or another.
    again = Model(make(sub()), jnp.ones(()))
    assert weft.tree.equal(model, again)
    assert hash(jax.tree.structure(model)) == hash(jax.tree.structure(again))
    assert weft.tree.equal(pickle.loads(pickle.dumps(model)), model)
    # Through each of the trees that tools make of a model.
    assert jax.tree.structure(jax.tree.map(lambda _: None, model)).num_leaves == 0
    doubled = jax.tree.map(lambda leaf: 2 * leaf, model)
    assert len(jax.tree.leaves(weft.tree.select(doubled, weft.filters.PathContains("weight")))) == 1
    at_once = weft.at(model, Sub).weight.set(jnp.full((3, 3), 2.0))
    assert weft.tree.size(at_once) == weft.tree.size(model)
    copied = copy.deepcopy(model)
    weft.jit(lambda m: jax.tree.map(lambda leaf: leaf + 1, m), donate_argnums=0)(model)
    assert weft.tree.equal(copied, again)


CALLED: dict[str, Callable[[Sub], Any]] = {
    "vmap": weft.vmap,
    "jit": lambda s: weft.jit(weft.vmap(s)),
    "remat": lambda s: weft.vmap(weft.remat(s)),
    "partial": lambda s: functools.partial(weft.vmap(lambda s, x: s(x), in_axes=(None, 0)), s),
    "method": lambda s: weft.vmap(s.apply),
}


@pytest.mark.parametrize("make", CALLED.values(), ids=CALLED)
def test_it_is_trained_saved_and_loaded(make: Callable[[Sub], Any], tmp_path: Any):
    model = Model(make(sub(0.0)), jnp.ones(()))
    opt = weft.Optimizer(model, optax.adam(0.1))

    def loss(model: Model) -> Any:
        return ((1 - model.scale * model.sub(X)) ** 2).sum()

    step = weft.jit(lambda model, opt: opt.minimize(loss, model))
    for _ in range(100):
        value, model, opt = step(model, opt)
    assert float(value) < 1e-2
    assert step._cache_size() == 1
    weft.save_checkpoint(tmp_path / "model.safetensors", model)
    loaded = weft.load_checkpoint(tmp_path / "model.safetensors", Model(make(sub(7.0)), jnp.zeros(())))
    np.testing.assert_array_equal(loaded.sub(X), model.sub(X))
    squared = Model(make(Sub(jnp.zeros((3, 3)), 2)), jnp.zeros(()))
    with pytest.raises(weft.CheckpointError, match=r"power"):
        weft.load_checkpoint(tmp_path / "model.safetensors", squared)


def test_it_goes_through_transforms_as_argument_and_carry():
    model = Model(weft.vmap(sub()), jnp.ones(()))

    def advance(model: Model, x: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf / 2, model), model.sub(x).sum()

    assert weft.scan(advance)(model, jnp.stack([X, X]))[1].tolist() == [18.0, 9.0]
    assert weft.vmap(lambda m, x: m.sub(x).sum(), in_axes=(None, 0))(model, X[None]).tolist() == [18.0]
    assert float(jax.jit(lambda m: m.sub(X).sum())(model)) == 18.0
    gradient = weft.grad(lambda m: m.sub(X).sum())(model)
    assert gradient.sub.function.weight.tolist() == [[2.0] * 3] * 3
    assert model.replace(sub=weft.jit(sub())).sub(X[0]).shape == (3,)


def test_its_options_are_part_of_the_structure():
    rows, columns = (Model(weft.vmap(sub(), out_axes=axis), jnp.ones(())) for axis in (0, 1))
    assert jax.tree.structure(rows) != jax.tree.structure(columns)
    assert (rows.sub(X).shape, columns.sub(X).shape) == ((2, 3), (3, 2))


def test_a_path_leads_on_from_the_field_to_the_record():
    model = Model(weft.vmap(sub()), jnp.ones(()))
    assert weft.at(model).sub.function.weight.set(jnp.zeros((3, 3))).sub(X).sum() == 0
    with pytest.raises(weft.errors.SurgeryError, match="its fields are function"):
        weft.at(model).sub.weight  # noqa: B018
    assert repr(model) == "Model(sub=weft.vmap(Sub(weight=f32[3,3])), scale=f32[])"


def test_records_of_one_class_share_what_was_compiled():
    traces = 0

    class Counting(weft.Module):
        weight: jax.Array

        def __call__(self, x: Any) -> Any:
            nonlocal traces
            traces += 1
            return self.weight * x

    for i in range(3):
        assert float(weft.jit(weft.vmap(Counting(jnp.float32(i))))(X).sum()) == 6 * i
    assert traces == 1


def test_a_transformed_function_without_arrays_is_configuration():
    model = Model(weft.jit(jnp.tanh), jnp.ones(()))
    assert len(jax.tree.leaves(model)) == 1
    assert len(jax.tree.leaves(weft.jit(jnp.tanh))) == 1  # alone it is a leaf, as functions are


def closure(array: Any) -> Callable[..., Any]:
    return lambda x: array * x


def with_rule(custom: Any, array: Any, definer: str = "defvjp") -> Any:
    """A function whose derivative rule closes over an array, which the function itself does not."""

    def scale(residuals: Any, g: Any) -> Any:
        return (array * g,)

    function = custom(lambda x: x * 1)
    rules = (
        (lambda x: (x, None), scale) if definer == "defvjp" else (lambda primals, tangents: scale(*primals, tangents),)
    )
    getattr(function, definer)(*rules)
    return function


class Holder:
    """No pytree."""

    def __init__(self) -> None:
        self.array = jnp.ones(2)

    def method(self, x: Any) -> Any:
        return self.array * x


HIDING: dict[str, tuple[Callable[[], Any], str]] = {
    "a closure over an array": (lambda: closure(jnp.ones(2)), "Model.sub closes over array"),
    "a closure over a record": (lambda: closure(sub()), "Model.sub closes over array"),
    "a closure over a transformed record": (lambda: closure(weft.vmap(sub())), "Model.sub closes over array"),
    "a default": (lambda: lambda x, y=ARRAY: x + y, "Model.sub.__defaults__[0]"),
    "a list in a closure": (lambda: closure([jnp.ones(2)]), "Model.sub closes over array[0]"),
    "a transform of a closure": (lambda: weft.vmap(closure(sub())), "Model.sub.__wrapped__ closes over array"),
    "a partial application of a closure": (
        lambda: functools.partial(closure(jnp.ones(2)), jnp.ones(2)),
        "Model.sub.func closes over array",
    ),
    "JAX's partial application of a closure": (
        lambda: jax.tree_util.Partial(closure(jnp.ones(2))),
        "Model.sub.func closes over array",
    ),
    "a transform of JAX's": (lambda: jax.jit(sub()), "Model.sub.__wrapped__"),
    "a backward function": (lambda: with_rule(weft.custom_vjp, ARRAY), "Model.sub.definitions[2] closes over array"),
    "a record in a backward function": (lambda: with_rule(weft.custom_vjp, sub()), "Model.sub.definitions[2] closes"),
    "a jvp": (lambda: with_rule(weft.custom_jvp, ARRAY, "defjvp"), "Model.sub.definitions[1] closes over scale"),
    "a backward function of JAX's": (lambda: with_rule(jax.custom_vjp, ARRAY), "Model.sub.bwd[0] closes over array"),
    "a jvp of JAX's": (lambda: with_rule(jax.custom_jvp, ARRAY, "defjvp"), "Model.sub.jvp[0] closes over scale"),
    "a transform of such a function": (
        lambda: weft.jit(with_rule(weft.custom_vjp, ARRAY)),
        "Model.sub.__wrapped__.definitions[2] closes over array",
    ),
    "a closure over such a function": (
        lambda: closure(with_rule(weft.custom_vjp, ARRAY)),
        "Model.sub closes over array.definitions[2] closes over array",
    ),
    "an element of a list": (lambda: [jnp.tanh, closure(jnp.ones(2))], "Model.sub[1] closes over array"),
    "an object": (Holder, "Model.sub.array"),
    "a method of an object": (lambda: Holder().method, "Model.sub.__self__.array"),
    "a transform of a method of an object": (lambda: weft.jit(Holder().method), "Model.sub.__wrapped__.__self__.array"),
    "a pullback": (lambda: weft.vjp(jnp.sin, jnp.ones(2))[1], "Model.sub closes over function"),
    "a compiled function with fixed arguments": (
        lambda: weft.jit(lambda m, x: m(x)).partial(sub()),
        "Model.sub closes over function",
    ),
    "a capture": (lambda: weft.capture(sub()), "Model.sub closes over fun"),
}


@pytest.mark.filterwarnings("ignore:(?s).*Possibly assigning a JAX-transformed")
@pytest.mark.parametrize(("make", "place"), HIDING.values(), ids=HIDING)
def test_what_hides_arrays_is_refused_in_a_field(make: Callable[[], Any], place: str):
    value = make()
    with pytest.raises(StaticError, match="hides") as error:
        Model(value, jnp.ones(()))
    assert error.value.at[0].startswith(place)
    assert "weft.vmap(record)" in error.value.fix
    model = Model(None, jnp.ones(()))
    for change in (lambda: model.replace(sub=value), lambda: weft.at(model).sub.set(value)):
        with pytest.raises(StaticError, match="hides"):
            change()


def test_arrays_of_a_derivative_rule_are_refused_too():
    function = weft.custom_vjp(sub())
    function.defvjp(sub().apply, backward)
    with pytest.raises(StaticError, match="hides a BoundMethod with arrays") as error:
        Model(function, jnp.ones(()))
    assert error.value.at[0].startswith("Model.sub.definitions")


def test_constants_in_functions_are_allowed():
    table = np.ones(2)

    class Declared(weft.Module):
        function: Any = weft.static()

    assert Model(closure(table), jnp.ones(())).sub(2).tolist() == [2, 2]
    assert Declared(closure(jnp.ones(2))).function(2).tolist() == [2, 2]
    # A function that closes over traced arrays lives as long as their trace.
    assert weft.jit(lambda x: Model(closure(x), x).sub(2))(jnp.ones(())) == 2


def test_a_contract_of_a_record_is_the_record():
    record = sub()
    assert weft.typecheck.contract(record) is record
