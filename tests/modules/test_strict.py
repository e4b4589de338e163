"""Layers neither promote dtypes nor broadcast ranks behind the user's back."""

import jax
import jax.numpy as jnp
import pytest
from weft.core.records.keys import Keys
from weft.modules import (
    BatchNorm,
    Conv,
    Dropout,
    Embed,
    LayerNorm,
    Linear,
    RMSNorm,
    avg_pool,
    max_pool,
    min_pool,
)

KEY = jax.random.key(0)
CALLS = {
    "Linear": lambda x: Linear(3, 4, key=KEY)(x),
    "Conv": lambda x: Conv(3, 4, (3, 3), padding="CIRCULAR", key=KEY)(x),
    "BatchNorm": lambda x: BatchNorm(3)(x),
    "BatchNorm, masked": lambda x: BatchNorm(3)(x, mask=jnp.ones((2, 4, 4, 1), bool)),
    "LayerNorm": lambda x: LayerNorm(3)(x),
    "RMSNorm": lambda x: RMSNorm(3)(x),
    "Dropout": lambda x: Dropout(0.5, broadcast_dims=(0,))(x, key=KEY),
    "Embed": lambda x: Embed(5, 3, key=KEY)(jnp.arange(3)),
    "attend": lambda x: Embed(5, 3, key=KEY).attend(x),
    "max_pool": lambda x: max_pool(x, (2, 2)),
    "min_pool": lambda x: min_pool(x, (2, 2)),
    "avg_pool": lambda x: avg_pool(x, (2, 2), padding="SAME", count_include_pad=False),
    "Keys": lambda x: Keys(0).fork(2),
}


@pytest.mark.parametrize("name", CALLS)
def test_layers_run_under_strict_promotion(name):
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        jax.eval_shape(CALLS[name], jnp.ones((2, 4, 4, 3)))
