"""What errors of transforms advise mends these errors: each fix line is done as it says, on the program that failed."""

from __future__ import annotations

import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
import weft
from weft import Param, nnx
from weft.filters import All, Inside, PathContains

X = jnp.ones(3)


class Model(weft.Module):
    body: weft.Linear
    head: weft.Linear

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.body(x))


def model() -> Model:
    return Model(*(weft.Linear(3, 3, key=jax.random.key(seed)) for seed in (0, 1)))


FILTER_USES = [
    lambda wrt: weft.grad(lambda model: model(X).sum(), wrt=wrt)(model()),
    lambda wrt: weft.Optimizer(model(), optax.sgd(0.1), wrt=wrt),
    lambda wrt: weft.tree.select(model(), wrt),
    lambda wrt: weft.at(model(), wrt).apply(lambda part: part),
    lambda wrt: weft.jit(lambda model: model, in_shardings=weft.axes({wrt: None, ...: None}))(model()),
]


@pytest.mark.parametrize("use", FILTER_USES, ids=["grad", "Optimizer", "select", "at", "axes"])
@pytest.mark.parametrize(
    ("text", "written"),
    [("head", Inside("head")), ("head.kernel", Inside("head.kernel")), ("kernel", PathContains("kernel"))],
)
def test_a_path_given_for_a_tag_is_told_how_a_path_is_written(use: Any, text: str, written: Any):
    for wrong in (text, All(Param, text), weft.filters.WithTag(text)):
        with pytest.raises(weft.WeftError, match="a string is a tag: for what is there by that name write ") as caught:
            use(wrong)
        advised = re.search(r"write (\w+\(.*?\)); ", caught.value.fix)[1]
        assert eval(advised) == written
    use(written)


def test_a_tag_that_names_nothing_is_told_of_no_path():
    with pytest.raises(weft.WeftError) as caught:
        weft.tree.select(model(), "tail")
    assert "a string is a tag" not in str(caught.value)


def times(x: jax.Array, n: Any) -> jax.Array:
    return x * jnp.asarray(n)


@pytest.mark.parametrize("transform", [weft.jit, weft.nnx.jit, weft.remat, weft.make_jaxpr])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (X, r"an array in a static argument: float32\[3\]\n  at: n\n"),
        ((1, X), r"an array in a static argument: float32\[3\]\n  at: n\[1\]\n"),
    ],
)
def test_an_array_as_a_static_argument_is_told_by_its_name_and_what_to_give(transform: Any, value: Any, message: str):
    call = transform(times, static_argnums=1)
    with pytest.raises(weft.errors.StaticError, match=message) as caught:
        call(X, value)
    assert "leave the argument out of static_argnums" in caught.value.fix
    assert "or give numbers: x.item(), or a tuple of x.tolist()" in caught.value.fix
    transform(times)(X, X)
    call(X, tuple(X.tolist()))
    call(X, X[0].item())


def test_a_traced_value_as_a_static_argument_is_told_of_the_transform_around():
    inner = weft.jit(times, static_argnames="n")

    def outer(x: jax.Array, n: Any) -> jax.Array:
        return inner(x, n=n)

    with pytest.raises(
        weft.errors.StaticError, match=r"a traced array in a static argument: ~int32\[\]\n  at: n\n"
    ) as caught:
        weft.jit(outer)(X, 2)
    assert caught.value.fix.endswith("or make the value static in the transform around this call, too")
    assert "use a tuple" not in str(caught.value)
    assert weft.jit(outer, static_argnames="n")(X, 2).tolist() == [2.0] * 3


def test_remat_is_told_the_number_of_what_is_to_be_static():
    def power(x: jax.Array, n: Any) -> jax.Array:
        return x**3 if n > 2 else x

    with pytest.raises(weft.errors.TracedBoolError, match=r"make it static \(remat with static_argnums=1\)"):
        weft.remat(power)(X, jnp.array(3))
    assert weft.remat(power, static_argnums=1)(X, 3).tolist() == [1.0] * 3


def test_remat_is_not_told_to_make_a_keyword_only_argument_static_as_it_is():
    def power(x: jax.Array, *, n: Any) -> jax.Array:
        return x**3 if n > 2 else x

    advice = r"make it static \(remat with static_argnums, once n may be positional\)"
    with pytest.raises(weft.errors.TracedBoolError, match=advice):
        weft.remat(power)(X, n=jnp.array(3))


BY_KIND: Any = {Param: 0, ...: None}
BY_VARIABLE: Any = {nnx.Param: None, ...: None}


@pytest.mark.parametrize(
    ("transform", "marked"),
    [
        (lambda: weft.vmap(lambda m: m, in_axes=(BY_KIND,)), "in_axes: weft.axes({Param: 0, ...: None})"),
        (lambda: weft.vmap(lambda m: m, out_axes=BY_KIND), "out_axes: weft.axes({Param: 0, ...: None})"),
        (lambda: weft.jit(lambda m: m, in_shardings={"m": BY_KIND}), "in_shardings: weft.axes({Param: 0, ...: None})"),
        (lambda: nnx.vmap(lambda m: m, in_axes=({"m": BY_VARIABLE},)), "in_axes: nnx.StateAxes({Param: None, ...: N"),
        (lambda: nnx.scan(lambda m: m, in_axes=BY_VARIABLE), "in_axes: nnx.StateAxes({Param: None, ...: None})"),
        (lambda: nnx.jit(lambda m: m, out_shardings=BY_VARIABLE), "out_shardings: nnx.StateSharding({Param: None, ..."),
    ],
)
def test_a_bare_dict_by_kind_is_answered_with_what_to_write(transform: Any, marked: str):
    with pytest.raises(weft.errors.AxisError, match="has a dict by kind where a tree is expected") as caught:
        transform()
    option, _, text = marked.partition(": ")
    assert caught.value.what.startswith(option)
    assert text in caught.value.fix


def test_what_is_advised_for_a_dict_by_kind_works_and_an_argument_may_have_a_class_for_its_key():
    net = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    out = nnx.vmap(lambda net, x: net(x), in_axes=(nnx.StateAxes(BY_VARIABLE), 0))(net, jnp.ones((4, 2)))
    assert out.shape == (4, 3)
    assert weft.vmap(lambda x: x[int], in_axes=({int: 0},))({int: X}).shape == (3,)


def scaled(rule: Any) -> Any:
    @weft.custom_vjp
    def scale(weights: Any, x: jax.Array) -> jax.Array:
        return weights["w"] * x

    scale.defvjp(lambda weights, x: (weights["w"] * x, (weights, x)), rule)
    return lambda w: scale({"w": w}, X).sum()


def test_cotangents_of_a_wrong_shape_are_told_by_the_argument_they_belong_to():
    with pytest.raises(
        weft.errors.StructureError, match="a cotangent must have the shape and dtype of its primal"
    ) as caught:
        weft.grad(scaled(lambda saved, g: ({"w": g * saved[1]}, g * saved[0]["w"])))(1.0)
    assert "at: weights.w: ~float32[], its cotangent: float32[3]" in str(caught.value)
    assert "sum it over the axes along which the primal was broadcast" in caught.value.fix
    assert float(weft.grad(scaled(lambda saved, g: ({"w": (g * saved[1]).sum()}, None)))(1.0)) == 3.0


def doubled_jvp() -> Any:
    double = weft.custom_jvp(lambda x: {"y": 2 * x})
    double.defjvp(lambda primals, tangents: (double(*primals), {"y": jnp.ones(5)}))
    return weft.jvp(double, (X,), (X,))


@pytest.mark.parametrize(
    ("call", "place"),
    [
        (lambda: weft.jvp(lambda a: a["w"], ({"w": X},), ({"w": jnp.ones(5)},)), "a.w: float32[3], its tangent"),
        (lambda: weft.linearize(lambda a: 2 * a, X)[1](jnp.ones(5)), "a: float32[3], its tangent"),
        (lambda: weft.vjp(lambda a: {"y": 2 * a}, X)[1]({"y": jnp.ones(5)}), "output.y: float32[3], its cotangent"),
        (doubled_jvp, "output.y: float32[3], its tangent"),
    ],
    ids=["jvp", "linearize", "vjp", "custom_jvp"],
)
def test_derivatives_of_a_wrong_shape_are_told_by_the_users_path(call: Any, place: str):
    with pytest.raises(weft.errors.StructureError, match="must have the shape and dtype of its primal") as caught:
        call()
    assert f"at: {place}: float32[5]" in str(caught.value)


HALF = X.astype("float16")


@pytest.mark.parametrize(
    ("call", "place"),
    [
        (lambda: weft.jvp(lambda a: a["w"], ({"w": X},), ({"w": HALF},)), "a.w: float32[3], its tangent"),
        (lambda: weft.linearize(lambda a: 2 * a, X)[1](HALF), "a: float32[3], its tangent"),
        (lambda: weft.vjp(lambda a: {"y": 2 * a}, X)[1]({"y": HALF}), "output.y: float32[3], its cotangent"),
        (lambda: nnx.vjp(lambda a: {"y": 2 * a}, X)[1]({"y": HALF}), "output.y: float32[3], its cotangent"),
    ],
    ids=["jvp", "linearize", "vjp", "nnx.vjp"],
)
def test_derivatives_of_a_wrong_dtype_are_told_by_the_users_path(call: Any, place: str):
    with pytest.raises(weft.errors.StructureError, match="must have the shape and dtype of its primal") as caught:
        call()
    assert f"at: {place}: float16[3]" in str(caught.value)
    assert ".astype" in caught.value.fix


def test_cotangents_of_a_rule_may_be_of_another_precision_as_in_jax():
    rule = scaled(lambda saved, g: ({"w": (g * saved[1]).sum().astype("float16")}, None))
    assert float(weft.grad(rule)(1.0)) == 3.0


class Normed(weft.Module):
    norm: weft.BatchNorm

    def __call__(self, x: jax.Array) -> tuple[jax.Array, Normed]:
        y, norm = self.norm(x)
        return y, self.replace(norm=norm)


ROWS = jnp.arange(12.0).reshape(4, 3) ** 2
LABELS = jnp.zeros(4, int)


def normed() -> Normed:
    return Normed(weft.BatchNorm(3))


FORGETFUL = [
    lambda model: optax.softmax_cross_entropy_with_integer_labels(model(ROWS), LABELS).mean(),
    lambda model: optax.l2_loss(model(ROWS)).mean(),
    lambda model: jnp.mean(model(ROWS)),
    lambda model: jax.nn.relu(model(ROWS)).mean(),
    lambda model: model(ROWS).mean(),
    lambda model: (y := model(ROWS), y[:, 0].sum())[1],
]


@pytest.mark.parametrize("loss", FORGETFUL, ids=["optax", "l2_loss", "jnp", "nn", "method", "index"])
@pytest.mark.parametrize("transform", [weft.grad, weft.jit, weft.vjp, lambda f: lambda m: minimize(f, m)])
def test_a_forgotten_successor_is_told_at_the_users_line(loss: Any, transform: Any):
    with pytest.raises(weft.SuccessorError) as caught:
        weft.vjp(loss, normed()) if transform is weft.vjp else transform(loss)(normed())
    assert "a pair (value, successor of a Normed), which a call of a stateful record returns" in str(caught.value)
    assert f"at: {__file__}:{loss.__code__.co_firstlineno} in <lambda>" in str(caught.value)
    assert "take it apart, y, normed = ..." in caught.value.fix


class Outer(weft.Module):
    inner: Normed

    def both(self, x: jax.Array) -> tuple[jax.Array, Outer]:
        return x, self


UNNAMED = [
    (lambda model: (model.inner(ROWS) - LABELS[:, None]).mean(), "Normed"),
    (lambda model: (1.0 + 2 * (ROWS - model.inner(ROWS))).mean(), "Normed"),
    (lambda model: (model.both(ROWS) ** 2).mean(), "Outer"),
    (
        lambda model: (
            model.inner(ROWS)
            / ROWS
        ).mean(),
        "Normed",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("loss", "name"), UNNAMED)
@pytest.mark.parametrize("transform", [weft.grad, weft.jit])
def test_arithmetic_with_a_pair_that_has_no_name_is_told_at_the_users_line(transform: Any, loss: Any, name: str):
    with pytest.raises(
        weft.SuccessorError, match=f"the call of an? {name} returned a tuple: a call of a stateful"
    ) as caught:
        transform(loss)(Outer(normed()))
    assert f"at: {__file__}:" in str(caught.value)
    assert f"take it apart, y, {name.lower()} = ..." in caught.value.fix


def test_arithmetic_with_another_tuple_keeps_the_words_of_python():
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        weft.jit(lambda x: (x, x) - x)(X)
    assert not isinstance(caught.value, weft.WeftError)


def minimize(loss: Any, model: Any) -> Any:
    return weft.Optimizer(model, optax.sgd(0.1)).minimize(loss, model)


@pytest.mark.parametrize("transform", [weft.grad, weft.value_and_grad])
def test_a_loss_that_returns_its_successor_without_has_aux_is_told_of_it(transform: Any):
    def loss(model: Any) -> Any:
        y, model = model(ROWS)
        return y.mean(), model

    with pytest.raises(
        weft.errors.DifferentiationError, match=r"returned a pair \(value, successor of a Normed\)"
    ) as caught:
        transform(loss)(normed())
    assert caught.value.fix.startswith("return (loss, successor) with has_aux=True")
    transform(loss, has_aux=True)(normed())


def test_pairs_that_an_optimizer_is_given_are_told_to_be_taken_apart():
    model = normed()
    opt = weft.Optimizer(model, optax.sgd(0.1))

    def loss(model: Any) -> Any:
        y, model = model(ROWS)
        return y.mean(), model

    gradient, successor = weft.grad(loss, has_aux=True)(model)
    for wrong in (lambda: opt.update(model, gradient, state_of=model(ROWS)), lambda: opt.update(model(ROWS), gradient)):
        with pytest.raises(weft.WeftError, match=r"fix: take it apart, y, normed = \.\.\."):
            wrong()
    with pytest.raises(weft.errors.StructureError, match=r"unpack the pair: has_aux=True returns \(gradient, aux\)"):
        opt.update(model, (gradient, successor))
    opt.update(model, gradient, state_of=successor)


@pytest.mark.parametrize(
    "transform",
    [
        lambda axes: weft.vmap(lambda model, x: model(x), in_axes=(axes, 0)),
        lambda axes: weft.vmap(lambda model, x: model(x), in_axes=(None, 0), out_axes=axes or 0),
        lambda axes: weft.scan(lambda model, x: (model, model(x)), in_axes=(axes or weft.Carry, 0)),
    ],
    ids=["in_axes", "out_axes", "scan"],
)
def test_a_function_in_the_place_of_an_axis_is_told_of_axes(transform: Any):
    with pytest.raises(
        weft.errors.AxisError, match=r"a function cannot stand for an axis: if_array\(axis=0\)"
    ) as caught:
        transform(eqx.if_array(0))(model(), jnp.ones((4, 3)))
    assert "weft.axes({filter: axis, ...: axis})" in caught.value.fix
    transform(None)(model(), jnp.ones((4, 3)))
    by_filter = weft.axes({Inside("head"): None, ...: None})
    weft.vmap(lambda model, x: model(x), in_axes=(by_filter, 0))(model(), jnp.ones((4, 3)))


def test_a_tangent_that_is_a_tree_where_an_array_is_is_told_by_the_users_path():
    with pytest.raises(weft.errors.StructureError, match=r"at: a\.w: float32\[3\], its tangent: tuple\n"):
        weft.jvp(lambda a: a["w"], ({"w": X},), ({"w": (X,)},))


class Configured(weft.Module):
    weight: jax.Array
    sizes: Any = (1, None)


@pytest.mark.parametrize(
    "call",
    [
        lambda first, second: weft.tree.merge(weft.tree.split(first, ...)[0], second),
        lambda first, second: weft.tree.update(first, second),
        lambda first, second: weft.tree.stack([first, second]),
        lambda first, second: weft.cond(True, lambda: first, lambda: second),
        lambda first, second: weft.scan(lambda carry, x: (second, x))(first, X),
    ],
    ids=["merge", "update", "stack", "cond", "scan"],
)
def test_the_nodes_in_which_records_keep_configuration_are_told_as_it(call: Any):
    with pytest.raises(weft.WeftError, match=r"\.sizes: static \(1, None\) -> tuple") as caught:
        call(Configured(X), Configured(X, sizes=(1, X)))
    assert not re.search("Static|Mixed", str(caught.value))
