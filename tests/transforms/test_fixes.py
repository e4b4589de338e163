"""What errors of transforms advise mends these errors: each fix line is done as it says, on the program that failed."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
import weft
from weft import All, Inside, Param, PathContains

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
    lambda wrt: weft.select(model(), wrt),
    lambda wrt: weft.at(model(), wrt).apply(lambda part: part),
    lambda wrt: weft.jit(lambda model: model, in_shardings=weft.axes({wrt: None, ...: None}))(model()),
]


@pytest.mark.parametrize("use", FILTER_USES, ids=["grad", "Optimizer", "select", "at", "axes"])
@pytest.mark.parametrize(
    ("text", "written"),
    [("head", Inside("head")), ("head.kernel", Inside("head.kernel")), ("kernel", PathContains("kernel"))],
)
def test_a_path_given_for_a_tag_is_told_how_a_path_is_written(use: Any, text: str, written: Any):
    for wrong in (text, All(Param, text), weft.WithTag(text)):
        with pytest.raises(weft.WeftError, match="a string is a tag: for what is there by that name write ") as caught:
            use(wrong)
        advised = re.search(r"write (\w+\(.*?\)); ", caught.value.fix)[1]
        assert eval(advised) == written
    use(written)


def test_a_tag_that_names_nothing_is_told_of_no_path():
    with pytest.raises(weft.WeftError) as caught:
        weft.select(model(), "tail")
    assert "a string is a tag" not in str(caught.value)


def times(x: jax.Array, n: Any) -> jax.Array:
    return x * jnp.asarray(n)


@pytest.mark.parametrize("transform", [weft.jit, weft.nnx.jit, weft.remat, weft.make_jaxpr])
@pytest.mark.parametrize(
    ("value", "what"),
    [
        (X, r"an array in a static argument: float32\[3\]\n  at: n\n"),
        ((1, X), r"an array in a static argument: float32\[3\]\n  at: n\[1\]\n"),
    ],
)
def test_an_array_as_a_static_argument_is_told_by_its_name_and_what_to_give(transform: Any, value: Any, what: str):
    call = transform(times, static_argnums=1)
    with pytest.raises(weft.StaticError, match=what) as caught:
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

    with pytest.raises(weft.StaticError, match=r"a traced array in a static argument: ~int32\[\]\n  at: n\n") as caught:
        weft.jit(outer)(X, 2)
    assert caught.value.fix.endswith("or pass what is static in the transform around this call, too")
    assert "use a tuple" not in str(caught.value)
    assert weft.jit(outer, static_argnames="n")(X, 2).tolist() == [2.0] * 3
