"""A layer computes the same on a batch and under `vmap`, or refuses."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.errors import AxisError, ConfigError

from tests.made_on_use import MadeOnUse
from tests.modules.calls import BATCH, CALLS, IMAGE, KEY

# The layers that count axes from the front, or compute something over the whole batch.
REFUSED = {
    "BatchNorm": 'name the mapped axis in both: BatchNorm(..., axis_name="batch")',
    "DropPath": "fix: batch_axes=0 if a call gets one example",
    "Flatten": "fix: Flatten(0) of one example",
    "GroupNorm": "fix: batch_axes=0 if a call gets one example",
    "InstanceNorm": "fix: batch_axes=0 if a call gets one example",
    "MoE": "capacity_factor=None",
    "StatefulParallel": 'BatchNorm(..., axis_name="batch")',
    "StatefulSequential": 'BatchNorm(..., axis_name="batch")',
}
# The same layers with an option that holds with `vmap` and without.
EITHER_WAY: MadeOnUse[Any] = MadeOnUse(
    {
        "DropPath": lambda: weft.DropPath(1.0, batch_axes=-3),
        "Flatten": lambda: weft.Flatten(-3),
        "GroupNorm": lambda: weft.GroupNorm(4, groups=2, batch_axes=-3),
        "InstanceNorm": lambda: weft.InstanceNorm(4, batch_axes=-3),
        "MoE": lambda: weft.MoE(lambda key: weft.Linear(4, 4, key=key), 3, 4, capacity_factor=None, key=KEY),
        "BatchNorm": lambda: weft.BatchNorm(4, inference=True),
    }
)
TRANSFORMS = {
    "weft.vmap": weft.vmap,
    "jax.vmap": jax.vmap,
    "vmap of jit": lambda f: jax.vmap(weft.jit(f)),
    "vmap of remat": lambda f: weft.vmap(weft.remat(f)),
    "vmap of grad": lambda f: weft.vmap(weft.grad(lambda *args: jax.tree.leaves(f(*args))[0].sum())),
    "vmap of scan": lambda f: weft.vmap(lambda *args: jax.lax.scan(lambda _, x: (0, f(*args)), 0, None, length=2)[1]),
    "grad of vmap": lambda f: weft.grad(lambda *args: jax.tree.leaves(weft.vmap(f)(*args))[0].sum()),
}


@pytest.mark.parametrize("name", sorted(CALLS.keys() - REFUSED.keys()))
def test_a_layer_computes_the_same_on_a_batch_and_under_vmap(name: str):
    row = CALLS[name]
    expected = row(row.layer, *row.args)
    mapped = weft.vmap(lambda *args: row(row.layer, *args))(*row.args)
    for a, b in zip(jax.tree.leaves(mapped), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", EITHER_WAY)
def test_axes_counted_from_the_end_hold_with_vmap_and_without(name: str):
    row, layer = CALLS[name], EITHER_WAY[name]
    expected = row(layer, *row.args)
    np.testing.assert_allclose(weft.vmap(lambda *args: row(layer, *args))(*row.args), expected, rtol=1e-4, atol=1e-5)
    each = jnp.stack([row(layer, *(arg[i] for arg in row.args)) for i in range(BATCH)])
    np.testing.assert_allclose(each, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_a_layer_that_counts_from_the_front_refuses_to_be_mapped(name: str):
    row = CALLS[name]
    with pytest.raises(AxisError, match="takes leading axes of its input for the batch") as caught:
        weft.vmap(lambda *args: row(row.layer, *args))(*row.args)
    assert REFUSED[name] in str(caught.value)
    assert "x: float32[3," in str(caught.value)


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_whatever_is_between_the_layer_and_the_vmap(transform: str):
    layer = CALLS["GroupNorm"].layer
    layer(IMAGE[0])  # so that a trace of this shape could be in a cache
    weft.jit(layer)(IMAGE[0])
    with pytest.raises(AxisError, match="GroupNorm takes leading axes"):
        TRANSFORMS[transform](layer)(IMAGE)


def test_derivatives_of_a_layer_are_no_batch():
    layer, x = CALLS["GroupNorm"].layer, IMAGE[:, :1, :1]
    forwards, backwards = jax.jacfwd(layer)(x), jax.jacrev(layer)(x)
    np.testing.assert_allclose(forwards, backwards, rtol=1e-4, atol=1e-5)


def test_models_that_are_mapped_get_batches():
    def make(key: Any) -> Any:
        layers = weft.Conv2d(4, 4, 3, key=key), weft.GroupNorm(4, groups=2), weft.DropPath(0.0), weft.Flatten()
        return weft.Sequential(*layers, weft.Linear(64, 2, key=key))

    members = weft.Ensemble(make, 2, key=KEY)
    np.testing.assert_allclose(members(IMAGE)[1], members[1](IMAGE), rtol=1e-4, atol=1e-5)
    with pytest.raises(AxisError, match="GroupNorm takes leading axes"):
        weft.vmap(members)(IMAGE)
    norms = weft.vmap(lambda key: weft.GroupNorm(4, groups=2, scale_init=jax.nn.initializers.normal(), key=key))(
        jax.random.split(KEY, 2)
    )
    mapped = weft.vmap(lambda norm, x: norm(x), in_axes=(0, None))(norms, IMAGE)
    np.testing.assert_allclose(mapped[0], weft.tree.index(norms, 0)(IMAGE), rtol=1e-4, atol=1e-5)


def test_an_example_has_as_many_axes_as_are_counted():
    with pytest.raises(AxisError, match="an example of a GroupNorm with batch_axes=-3 has 3 axes"):
        EITHER_WAY["GroupNorm"](IMAGE[0, 0])
    with pytest.raises(ConfigError, match=r"GroupNorm: batch_axes must be .*, not 'all'\n  fix: 1 for a batch"):
        weft.GroupNorm(4, groups=2, batch_axes="all")  # pyright: ignore[reportArgumentType]
