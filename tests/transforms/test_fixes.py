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
