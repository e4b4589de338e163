"""Record layers beside their twins of flax.nnx, with the same weights: outputs, gradients, bfloat16, jit, vmap, scan.

| what | tolerance |
|---|---|
| output in float32 | rtol 1e-6, atol 1e-6: an op is compiled as one, and flax's runs step by step |
| gradients in float32 | rtol 1e-5; atol 1e-5 of the input, 1e-4 of parameters: sums over all places, in another order |
| bfloat16 | atol 0.03: what is rounded between two operations that XLA fuses is up to it |
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from flax import nnx

KEY, RNGS = jax.random.key(0), nnx.Rngs(0)
X = jax.random.normal(KEY, (3, 5, 8))
LAYERS = {
    "Linear": (weft.Linear(8, 8, key=KEY), nnx.Linear(8, 8, rngs=RNGS)),
    "LinearGeneral": (weft.LinearGeneral(8, 8, key=KEY), nnx.LinearGeneral(8, 8, rngs=RNGS)),
    "Einsum": (weft.Einsum("abc,cd->abd", (8, 8), key=KEY), nnx.Einsum("abc,cd->abd", (8, 8), (8,), rngs=RNGS)),
    "Conv1d": (weft.Conv1d(8, 8, 3, key=KEY), nnx.Conv(8, 8, (3,), rngs=RNGS)),
    "ConvTranspose1d": (weft.ConvTranspose1d(8, 8, 3, key=KEY), nnx.ConvTranspose(8, 8, (3,), rngs=RNGS)),
    "LayerNorm": (weft.LayerNorm(8), nnx.LayerNorm(8, rngs=RNGS)),
    "RMSNorm": (weft.RMSNorm(8), nnx.RMSNorm(8, rngs=RNGS)),
    "GroupNorm": (weft.GroupNorm(8, groups=2), nnx.GroupNorm(8, num_groups=2, rngs=RNGS)),
    "InstanceNorm": (weft.InstanceNorm(8), nnx.InstanceNorm(8, rngs=RNGS)),
    "PReLU": (weft.PReLU(), nnx.PReLU()),
}


def twin_with_weights(layer, twin):
    for name in ("kernel", "bias", "scale", "negative_slope"):
        if getattr(layer, name, None) is not None:
            getattr(twin, name)[...] = getattr(layer, name)
    return twin


def close(ours, theirs, atol=1e-6, rtol=1e-6):
    np.testing.assert_allclose(np.asarray(ours, np.float32), np.asarray(theirs, np.float32), atol=atol, rtol=rtol)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_its_twin(name):
    layer, twin = LAYERS[name]
    graphdef, state = nnx.split(twin_with_weights(layer, twin))

    def theirs(state, x):
        return nnx.merge(graphdef, state)(x)

    def square(apply):
        return lambda model, x: (apply(model, x) ** 2).sum()

    ours = weft.jit(lambda layer, x: layer(x))
    close(layer(X), theirs(state, X))
    close(ours(layer, X), theirs(state, X))
    grads, own = jax.grad(square(lambda m, x: m(x)), argnums=(0, 1))(layer, X)
    other_grads, others = jax.grad(square(theirs), argnums=(0, 1))(state, X)
    close(own, others, atol=1e-5, rtol=1e-5)  # sums in another order
    for field in ("kernel", "bias", "scale", "negative_slope"):
        if getattr(grads, field, None) is not None:
            close(getattr(grads, field), other_grads[field][...], atol=1e-4, rtol=1e-5)
    close(layer(X.astype(jnp.bfloat16)), theirs(state, X.astype(jnp.bfloat16)), atol=0.03, rtol=0.02)
    stacked = jnp.stack([X, 2 * X])
    close(weft.vmap(layer)(stacked), jax.vmap(lambda x: theirs(state, x))(stacked))
    _, ys = weft.scan(lambda carry, x: (carry, layer(x)))(0.0, stacked)
    close(ys, jnp.stack([theirs(state, x) for x in stacked]))
