"""Record layers beside their twins of flax.nnx and equinox.nn, with the same weights: outputs and gradients.

| what | tolerance |
|---|---|
| output in float32 | rtol 1e-6, atol 1e-6: an op is compiled as one, and its twin may run step by step |
| gradients in float32 | rtol 1e-5; atol 1e-5 of the input, 1e-4 of parameters: sums over all places, in another order |
| bfloat16 (beside flax) | atol 0.03: what is rounded between two operations that XLA fuses is up to it |

| layer | beside |
|---|---|
| Linear, Embed, Conv1d, LayerNorm, RMSNorm, GroupNorm, PReLU, MultiHeadAttention, GRUCell, OptimizedLSTMCell | both |
| LinearGeneral, Einsum, ConvTranspose1d, InstanceNorm, SimpleCell, LSTMCell, BatchNorm, WeightNorm, LoRA | flax.nnx |
| MLP, MaxPool, AvgPool | equinox.nn |
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from flax import nnx
from weft.core.paths import format_path
from weft.core.records.leaves import iter_leaves

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
    for name in ("kernel", "bias", "scale"):
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
    for field in ("kernel", "bias", "scale"):
        if getattr(grads, field, None) is not None:
            close(getattr(grads, field), other_grads[field][...], atol=1e-4, rtol=1e-5)
    close(layer(X.astype(jnp.bfloat16)), theirs(state, X.astype(jnp.bfloat16)), atol=0.03, rtol=0.02)
    stacked = jnp.stack([X, 2 * X])
    close(weft.vmap(layer)(stacked), jax.vmap(lambda x: theirs(state, x))(stacked))
    _, ys = weft.scan(lambda carry, x: (carry, layer(x)))(0.0, stacked)
    close(ys, jnp.stack([theirs(state, x) for x in stacked]))


# --- layers of several parts, and equinox's: the twin is given the record's arrays, and differentiated by them --------


def in_flax(twin, call=lambda twin, x: twin(x), **renamed):
    """What flax's layer gives with a record's arrays, where the record's path or its new name leads."""
    graphdef, state = nnx.split(twin)

    def apply(layer, x):
        flat = dict(nnx.to_flat_state(state))
        for leaf in iter_leaves(layer):
            name = format_path(leaf.path)
            path = tuple(part for part in flat if ".".join(map(str, part)) == renamed.get(name.replace(".", "_"), name))
            for place in path:
                value = jnp.reshape(leaf.value, flat[place].shape)
                flat[place] = flat[place].replace(value) if isinstance(flat[place], nnx.Variable) else value
        return call(nnx.merge(graphdef, nnx.from_flat_state(list(flat.items()))), x)

    return apply


def cell_twins(name):
    layer, twin = getattr(weft, name)(8, 4, key=KEY), getattr(nnx, name)(8, 4, rngs=RNGS)

    def carry(x):
        return (0.1 * x[..., :4], 0.2 * x[..., 4:]) if "LSTM" in name else 0.1 * x[..., :4]

    return layer, lambda cell, x: cell(carry(x), x), in_flax(twin, lambda cell, x: cell(carry(x), x))


IDS = jnp.array([[1, 2, 0], [3, 3, 1]])
LORA = weft.LoRA(weft.Linear(8, 6, key=KEY), 2, key=KEY).replace(up=jax.random.normal(KEY, (2, 6)))
NORMED = weft.WeightNorm(weft.Linear(8, 6, key=KEY), scale_init=lambda key, shape, dtype: jnp.full(shape, 1.5, dtype))


def called(layer, x):
    return layer(x)


def training(layer, x):
    y, successor = weft.drop(layer(x))  # a gradient does not hand it on
    # What the statistics become is not differentiated: flax stops that by itself.
    return y, jax.lax.stop_gradient((successor.mean, successor.var))


def flax_training(twin, x):
    return twin(x), (twin.mean[...], twin.var[...])


def looked_up(layer, x):
    return layer(IDS)


def attend(layer, x):
    return layer.attend(x)


CELLS = "SimpleCell", "GRUCell", "LSTMCell", "OptimizedLSTMCell"
# layer, what it gives for `x`, what flax gives with the same arrays.
PARTS = {
    "MultiHeadAttention": lambda: (
        weft.MultiHeadAttention(8, 2, key=KEY),
        called,
        in_flax(nnx.MultiHeadAttention(2, 8, decode=False, rngs=RNGS)),
    ),
    **{name: (lambda name=name: cell_twins(name)) for name in CELLS},
    "Embed": lambda: (
        weft.Embed(5, 8, key=KEY),
        lambda layer, x: layer(IDS),
        in_flax(nnx.Embed(5, 8, rngs=RNGS), lambda t, x: t(IDS)),
    ),
    "Embed.attend": lambda: (weft.Embed(5, 8, key=KEY), attend, in_flax(nnx.Embed(5, 8, rngs=RNGS), attend)),
    "BatchNorm, training": lambda: (weft.BatchNorm(8), training, in_flax(nnx.BatchNorm(8, rngs=RNGS), flax_training)),
    "BatchNorm, inference": lambda: (
        weft.BatchNorm(8).replace(mean=X[0, 0], var=X[0, 1] ** 2 + 0.5),
        lambda layer, x: layer(x, inference=True)[0],
        in_flax(nnx.BatchNorm(8, use_running_average=True, rngs=RNGS)),
    ),
    "WeightNorm": lambda: (
        NORMED,
        called,
        in_flax(
            nnx.WeightNorm(nnx.Linear(8, 6, rngs=RNGS), rngs=RNGS),
            layer_kernel="layer_instance.kernel",
            layer_bias="layer_instance.bias",
            scale="scales.('kernel',)",
        ),
    ),
    "LoRA": lambda: (
        LORA,
        called,
        in_flax(
            nnx.LoRA(8, 2, 6, base_module=nnx.Linear(8, 6, rngs=RNGS), rngs=RNGS),
            base_kernel="base_module.kernel",
            base_bias="base_module.bias",
            down="lora_a",
            up="lora_b",
        ),
    ),
}


def flipped(array):
    """A kernel as equinox keeps it: features first, space last."""
    return jnp.moveaxis(array, (-1, -2), (0, 1))


def each(layer, x):
    """An equinox layer, which is for one example of one place, over all leading axes."""
    return jnp.vectorize(layer, signature="(i)->(o)")(x)


def in_equinox(twin, give, call=each):
    """What equinox's layer gives with a record's arrays: `give` says which go where."""

    def apply(layer, x):
        places = give(layer)
        names, values = list(places), list(places.values())
        return call(eqx.tree_at(lambda twin: [at(twin, name) for name in names], twin, values), x)

    return apply


def over_space(layer, x):
    return jnp.moveaxis(jax.vmap(layer)(jnp.moveaxis(x, -1, 1)), 1, -1)


def scale_and_bias(layer):
    return {"weight": layer.scale, **({} if getattr(layer, "bias", None) is None else {"bias": layer.bias})}


def vmapped_ids(layer, x):
    return jnp.vectorize(layer, signature="()->(o)")(IDS)


def layers_of_mlp(own):
    pairs = (("layers.0", own.layers[0]), ("layers.1", own.layers[2]))
    return {f"{at}.{name}": value for at, one in pairs for name, value in weight_and_bias(one).items()}


def weight_and_bias(own):
    return {"weight": own.kernel.T, "bias": own.bias}


def projections(own):
    pairs = (("query_proj", own.query), ("key_proj", own.key), ("value_proj", own.value), ("output_proj", own.out))
    return {f"{at}.{name}": value for at, one in pairs for name, value in weight_and_bias(one).items()}


def attended(layer, x):
    return jax.vmap(lambda x: layer(x, x, x))(x)


def weights_of_gru(own):
    weights = {"weight_ih": own.dense_i.kernel.T, "weight_hh": own.dense_h.kernel.T, "bias": own.dense_i.bias}
    return weights | {"bias_n": jnp.zeros(4)}  # which flax's cell and weft's do not have


def gru_step(cell, x):
    return jnp.vectorize(cell, signature="(i),(h)->(h)")(x, 0.1 * x[..., :4])


def weights_of_lstm(own):
    return {"weight_ih": own.dense_i.kernel.T, "weight_hh": own.dense_h.kernel.T, "bias": own.dense_h.bias}


def lstm_step(cell, x):
    step = jnp.vectorize(lambda x, y, memory: cell(x, (y, memory))[0], signature="(i),(h),(h)->(h)")
    return step(x, 0.2 * x[..., 4:], 0.1 * x[..., :4])


def at(tree, name):
    for part in name.split("."):
        tree = tree[int(part)] if part.isdigit() else getattr(tree, part)
    return tree


BIASES = dict.fromkeys(("use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias"), True)
# layer, what equinox gives with the same arrays, and what the layer gives where that is not `layer(x)`.
EQUINOX = {
    "Linear": lambda: (
        weft.Linear(8, 6, key=KEY),
        in_equinox(eqx.nn.Linear(8, 6, key=KEY), weight_and_bias),
    ),
    "Conv1d": lambda: (
        weft.Conv1d(8, 6, 3, padding="VALID", key=KEY),
        in_equinox(
            eqx.nn.Conv1d(8, 6, 3, key=KEY),
            lambda own: {"weight": flipped(own.kernel), "bias": own.bias[:, None]},
            over_space,
        ),
    ),
    "LayerNorm": lambda: (weft.LayerNorm(8, epsilon=1e-5), in_equinox(eqx.nn.LayerNorm(8), scale_and_bias)),
    "RMSNorm": lambda: (weft.RMSNorm(8, epsilon=1e-5), in_equinox(eqx.nn.RMSNorm(8, use_bias=False), scale_and_bias)),
    "GroupNorm": lambda: (
        weft.GroupNorm(8, groups=2, epsilon=1e-5),
        in_equinox(eqx.nn.GroupNorm(2, 8), scale_and_bias, over_space),
    ),
    "PReLU": lambda: (weft.PReLU(), in_equinox(eqx.nn.PReLU(), lambda own: {"negative_slope": own.slope})),
    "Embed": lambda: (
        weft.Embed(5, 8, key=KEY),
        in_equinox(eqx.nn.Embedding(5, 8, key=KEY), lambda own: {"weight": own.embedding}, vmapped_ids),
        looked_up,
    ),
    "MLP": lambda: (
        weft.MLP(8, 6, 4, key=KEY),
        in_equinox(eqx.nn.MLP(8, 4, 6, 1, key=KEY), layers_of_mlp),
    ),
    "MultiHeadAttention": lambda: (
        weft.MultiHeadAttention(8, 2, key=KEY),
        in_equinox(eqx.nn.MultiheadAttention(2, 8, key=KEY, **BIASES), projections, attended),
    ),
    "GRUCell": lambda: (
        weft.GRUCell(8, 4, key=KEY),
        in_equinox(eqx.nn.GRUCell(8, 4, key=KEY), weights_of_gru, gru_step),
        lambda cell, x: cell(0.1 * x[..., :4], x)[1],
    ),
    "OptimizedLSTMCell": lambda: (
        weft.OptimizedLSTMCell(8, 4, key=KEY),
        in_equinox(eqx.nn.LSTMCell(8, 4, key=KEY), weights_of_lstm, lstm_step),
        lambda cell, x: cell((0.1 * x[..., :4], 0.2 * x[..., 4:]), x)[1],
    ),
    "MaxPool": lambda: (
        weft.MaxPool((2,), strides=(2,)),
        in_equinox(eqx.nn.MaxPool1d(2, 2), lambda own: {}, over_space),
    ),
    "AvgPool": lambda: (
        weft.AvgPool((2,), strides=(2,)),
        in_equinox(eqx.nn.AvgPool1d(2, 2), lambda own: {}, over_space),
    ),
}


def same_outputs_and_gradients(layer, ours, theirs):
    def square(apply):
        return lambda layer, x: sum((y**2).sum() for y in jax.tree.leaves(apply(layer, x)))

    jax.tree.map(close, weft.jit(ours)(layer, X), jax.jit(theirs)(layer, X))
    mine, others = (jax.jit(jax.grad(square(apply), argnums=(0, 1)))(layer, X) for apply in (ours, theirs))
    jax.tree.map(lambda own, other: close(own, other, atol=1e-4, rtol=1e-5), mine, others)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTS)
def test_a_layer_of_parts_is_flaxs_with_the_same_arrays(name):
    same_outputs_and_gradients(*PARTS[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", EQUINOX)
def test_a_layer_is_equinoxs_with_the_same_arrays(name):
    layer, theirs, *ours = EQUINOX[name]()
    same_outputs_and_gradients(layer, ours[0] if ours else called, theirs)
