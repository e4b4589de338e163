"""What errors of layers advise mends these errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft

KEY = jax.random.key(0)
IMAGES = np.arange(2 * 3 * 8 * 8, dtype=np.float32).reshape(2, 3, 8, 8)


@pytest.mark.parametrize(
    ("make", "x", "advice"),
    [
        (lambda: weft.Conv2d(3, 4, (3, 3), key=KEY), IMAGES, "jnp.moveaxis(x, 1, -1)"),
        (lambda: weft.Conv2d(3, 4, (3, 3), key=KEY), IMAGES[0], "jnp.moveaxis(x, 0, -1)"),
        (lambda: weft.Conv1d(3, 4, 3, key=KEY), IMAGES[0], "jnp.moveaxis(x, 0, -1)"),
        (lambda: weft.ConvTranspose2d(3, 4, (3, 3), key=KEY), IMAGES, "jnp.moveaxis(x, 1, -1)"),
        (lambda: weft.BatchNorm(3), IMAGES, "jnp.moveaxis(x, 1, -1)"),
        (lambda: weft.LayerNorm(3), IMAGES[0], "jnp.moveaxis(x, 0, -1)"),
        (lambda: weft.Linear(3, 2, key=KEY), IMAGES[0, :, 0], "jnp.moveaxis(x, 0, -1)"),
    ],
    ids=["Conv2d", "Conv2d of one", "Conv1d", "ConvTranspose2d", "BatchNorm", "LayerNorm", "Linear"],
)
def test_channels_that_come_first_are_told_to_be_put_last(make: Callable[[], Any], x: Any, advice: str):
    layer, x = make(), jnp.asarray(x)
    with pytest.raises(weft.ContractError) as caught:
        layer(x)
    assert caught.value.fix.endswith(f"if the channels or features come first, put them last, {advice}")
    layer(eval(advice, {"jnp": jnp, "x": x}))


def test_no_axis_is_told_to_be_moved_where_none_fits_or_several_do():
    for x in (jnp.ones((2, 5, 8)), jnp.ones((3, 3, 8))):
        with pytest.raises(weft.ContractError) as caught:
            weft.BatchNorm(3)(x)
        assert "moveaxis" not in str(caught.value)


def test_statistics_under_none_are_told_of_the_axis_name():
    x = jnp.arange(24.0).reshape(4, 2, 3) ** 2

    def run(norm: weft.BatchNorm, **options: Any) -> Any:
        return weft.vmap(lambda norm, x: norm(x), in_axes=(None, 0), out_axes=(0, None), **options)(norm, x)

    with pytest.raises(
        weft.errors.AxisError, match="BatchNorm takes leading axes of its input for the batch"
    ) as caught:
        run(weft.BatchNorm(3))
    assert 'BatchNorm(..., axis_name="batch") and vmap(..., axis_name="batch")' in caught.value.fix
    assert run(weft.BatchNorm(3, axis_name="batch"), axis_name="batch")[1].mean.shape == (3,)
