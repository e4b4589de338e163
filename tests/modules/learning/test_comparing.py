"""weft.tree.norm, equal and allclose: optax's and equinox's answers, and what they refuse."""

from __future__ import annotations

from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from weft import BatchStat, tree
from weft.core.errors import FilterError, StructureError
from weft.filters import PathContains


class Layer(weft.Module):
    weight: jax.Array
    mean: Annotated[jax.Array, BatchStat]
    keys: weft.Keys
    activation: Any = weft.static(default=jax.nn.relu)


def layer(value: float = 1.0, dtype: Any = jnp.float32) -> Layer:
    return Layer(jnp.array([3.0, 4.0], dtype) * value, jnp.ones(2), weft.Keys(0))


@pytest.mark.parametrize("seed", range(3))
def test_norm_is_that_of_optax(seed: int):
    model = weft.MLP(4, 8, 2, key=jax.random.key(seed))
    wanted = optax.tree.norm(weft.tree.select(model, weft.Param))
    np.testing.assert_allclose(tree.norm(model), wanted, rtol=1e-6)
    np.testing.assert_allclose(weft.jit(tree.norm)(model), wanted, rtol=1e-6)


def test_norm_counts_what_a_filter_chooses_and_neither_integers_nor_keys():
    assert tree.norm(layer()).item() == 5.0
    assert tree.norm(layer(), BatchStat).item() == np.sqrt(np.float32(2))
    assert tree.norm(layer(), ...).item() == np.sqrt(np.float32(27))
    assert tree.norm({"z": jnp.array([3 + 4j])}).item() == 5.0
    assert tree.norm({}).item() == 0.0
    with pytest.raises(FilterError):
        tree.norm(layer(), PathContains("nothing"))


def test_norm_of_half_precision_does_not_overflow():
    assert tree.norm({"w": jnp.full(100, 300.0, jnp.float16)}).item() == 3000.0


DIFFERENT: dict[str, Any] = {
    "a number": layer(2.0),
    "a dtype": layer(dtype=jnp.bfloat16),
    "a shape": layer().replace(weight=jnp.ones(3)),
    "configuration": layer().replace(activation=jax.nn.gelu),
    "a key": layer().replace(keys=weft.Keys(1)),
    "a structure": {"w": jnp.ones(2)},
}


@pytest.mark.parametrize("difference", DIFFERENT)
def test_what_differs_is_not_equal_as_in_equinox(difference: str):
    assert not tree.equal(layer(), DIFFERENT[difference])
    assert not eqx.tree_equal(layer(), DIFFERENT[difference])


def test_what_is_the_same_is_equal_and_under_jit_too():
    assert tree.equal(layer(), layer())
    assert eqx.tree_equal(layer(), layer())
    assert weft.jit(tree.equal)(layer(), layer())
    assert not weft.jit(tree.equal)(layer(), layer(2.0))
    assert tree.equal({"n": 1, "s": "a", "none": None}, {"n": 1, "s": "a", "none": None})
    assert not tree.equal({"n": 1}, {"n": 2})
    assert not tree.equal({"n": 1}, {"n": jnp.array(1)})
    assert not tree.equal({"x": jnp.array(jnp.nan)}, {"x": jnp.array(jnp.nan)})


def test_allclose_is_that_of_jax_array_by_array():
    a, b = layer(), layer(1 + 5e-5)
    for options in ({}, {"rtol": 1e-3}, {"rtol": 0.0, "atol": 1e-3}, {"rtol": 0.0, "atol": 1e-5}):
        wanted = bool(jnp.allclose(a.weight, b.weight, **options))
        assert bool(tree.allclose(a, b, **options)) is wanted
        assert bool(weft.jit(lambda a, b, options=options: tree.allclose(a, b, **options))(a, b)) is wanted
        assert eqx.tree_equal(a, b, rtol=options.get("rtol", 1e-5), atol=options.get("atol", 1e-8)) == wanted
    assert tree.allclose({"x": jnp.array(jnp.nan)}, {"x": jnp.array(jnp.nan)}, equal_nan=True)
    assert not tree.allclose({"x": jnp.array(jnp.nan)}, {"x": jnp.array(jnp.nan)})


def test_allclose_sees_statistics_keys_and_other_dtypes():
    assert not tree.allclose(layer(), layer().replace(mean=jnp.zeros(2)))
    assert tree.allclose(layer(), layer().replace(mean=jnp.zeros(2)), filter=weft.Param)
    assert not tree.allclose(layer(), layer().replace(keys=weft.Keys(1)))
    assert tree.allclose(layer(), tree.cast(layer(), jnp.bfloat16))
    thousandth = {"x": jnp.array(1.001)}
    assert not tree.allclose(thousandth, tree.cast(thousandth, jnp.bfloat16))
    assert tree.allclose(thousandth, tree.cast(thousandth, jnp.bfloat16), rtol=1e-2)


def test_trees_that_are_not_alike_are_not_compared():
    with pytest.raises(StructureError, match="the second tree does not fit") as caught:
        tree.allclose({"a": jnp.ones(2), "b": jnp.ones(2)}, {"a": jnp.ones(3)})
    assert "at: b: nothing there" in str(caught.value)
    assert "a: (3,), not (2,)" in str(caught.value)
    with pytest.raises(StructureError, match="the first tree does not fit"):
        tree.allclose({"a": jnp.ones(2)}, {"a": jnp.ones(2), "b": jnp.ones(2)})
