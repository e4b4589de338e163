"""Record layers, each with what its twin of equinox.nn gives for the same arrays: `EQUINOX[name]()` is a `Pair`."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import weft

from .twins_of_flax import IDS, IMAGES, KEY, VOLUMES, Pair, X, called


def in_equinox(twin, give, call):
    """What equinox's layer gives with a record's arrays: `give` says which go where."""

    def apply(layer, x):
        places = give(layer)
        names, values = list(places), list(places.values())
        return call(eqx.tree_at(lambda twin: [at(twin, name) for name in names], twin, values), x)

    return apply


def at(tree, name):
    for part in name.split("."):
        tree = tree[int(part)] if part.isdigit() else getattr(tree, part)
    return tree


# ------------------------------------------------------------------------------ how a layer of one example is called


def each(layer, x):
    """Over all leading axes."""
    return jnp.vectorize(layer, signature="(i)->(o)")(x)


def over_space(layer, x):
    """Over the first axis; features are first there, and last here."""
    return jnp.moveaxis(jax.vmap(layer)(jnp.moveaxis(x, -1, 1)), 1, -1)


def attended(layer, x):
    return jax.vmap(lambda x: layer(x, x, x))(x)


def gru_step(cell, x):
    return jnp.vectorize(cell, signature="(i),(h)->(h)")(x, 0.1 * x[..., :4])


def lstm_step(cell, x):
    step = jnp.vectorize(lambda x, y, memory: cell(x, (y, memory))[0], signature="(i),(h),(h)->(h)")
    return step(x, 0.2 * x[..., 4:], 0.1 * x[..., :4])


# --------------------------------------------------------------------------------------------- which array goes where


def nothing(own):
    return {}


def weight_and_bias(own):
    return {"weight": own.kernel.T, "bias": own.bias}


def scale_and_bias(own):
    return {"weight": own.scale, **({} if getattr(own, "bias", None) is None else {"bias": own.bias})}


def convolved(own):
    """A kernel as equinox keeps it: features first, space last."""
    space = tuple(range(own.kernel.ndim - 2))
    return {
        "weight": jnp.transpose(own.kernel, (-1, -2, *space)),
        "bias": jnp.reshape(own.bias, (-1, *[1] * len(space))),
    }


def named(pairs):
    return {f"{at}.{name}": value for at, one in pairs for name, value in weight_and_bias(one).items()}


def weights_of_gru(own):
    weights = {"weight_ih": own.dense_i.kernel.T, "weight_hh": own.dense_h.kernel.T, "bias": own.dense_i.bias}
    return weights | {"bias_n": jnp.zeros(4)}  # which flax's cell and weft's do not have


def weights_of_lstm(own):
    return {"weight_ih": own.dense_i.kernel.T, "weight_hh": own.dense_h.kernel.T, "bias": own.dense_h.bias}


# ------------------------------------------------------------------------------------------------------ whole layers


def of(layer, twin, give=nothing, call=over_space, ours=called, x=X):
    """A pair that is made when it is asked for."""
    return lambda: Pair(layer(), ours, in_equinox(twin(), give, call), x)


def conv(rank, x, name="Conv", **options):
    return of(
        lambda: getattr(weft, f"{name}{rank}d")(8, 6, 3, padding="VALID", key=KEY, **options),
        lambda: getattr(eqx.nn, f"{name}{rank}d")(8, 6, 3, key=KEY, **({"stride": 2} if options else {})),
        convolved,
        x=x,
    )


def pool(name, twin=None):
    return of(lambda: getattr(weft, name)((2,), strides=(2,)), lambda: getattr(eqx.nn, f"{twin or name}1d")(2, 2))


def adaptive(name):
    return of(lambda: getattr(weft, name)((2, 3)), lambda: getattr(eqx.nn, f"{name}2d")((2, 3)), x=IMAGES[:, :, :3])


def batch_norm():
    """equinox averages over a mapped axis; `batch` normalises by the batch's own moments, as everybody else does."""
    twin, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(8, axis_name="batch", mode="batch")

    def normalised(twin, x):
        fresh = jax.tree.map(lambda leaf: leaf, state)  # a state is used once
        mapped = jax.vmap(lambda x: twin(x, fresh)[0], axis_name="batch")
        return jnp.reshape(mapped(jnp.reshape(x, (-1, 8))), x.shape)

    return Pair(
        weft.BatchNorm(8),
        lambda layer, x: weft.drop_successor(layer(x))[0],
        in_equinox(twin, scale_and_bias, normalised),
    )


def weight_norm():
    twin = eqx.nn.WeightNorm(eqx.nn.Linear(8, 6, key=KEY))

    def give(own):
        return {
            "layer.weight": own.layer.kernel.T,
            "layer.bias": own.layer.bias,
            "g": own.scale[:, None],
        }

    layer = weft.WeightNorm(weft.Linear(8, 6, key=KEY), epsilon=0.0).replace(scale=jnp.arange(1.0, 7.0))
    return Pair(layer, called, in_equinox(twin, give, each))


def dropout():
    return Pair(
        weft.Dropout(0.3),
        lambda layer, x: layer(x, key=KEY),
        in_equinox(eqx.nn.Dropout(0.3), nothing, lambda layer, x: layer(x, key=KEY)),
    )


def rotated():
    """Queries of one head."""
    return Pair(
        weft.RoPE(),
        lambda layer, x: layer(x[:, :, None])[:, :, 0],
        in_equinox(eqx.nn.RotaryPositionalEmbedding(8), nothing, lambda layer, x: jax.vmap(layer)(x)),
    )


def embed():
    layer, twin = weft.Embed(5, 8, key=KEY), eqx.nn.Embedding(5, 8, key=KEY)
    looked_up = in_equinox(
        twin, lambda own: {"weight": own.embedding}, lambda layer, x: jnp.vectorize(layer, signature="()->(o)")(IDS)
    )
    return Pair(layer, lambda layer, x: layer(IDS), looked_up)


BIASES = dict.fromkeys(("use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias"), True)
EQUINOX = {
    "Linear": of(lambda: weft.Linear(8, 6, key=KEY), lambda: eqx.nn.Linear(8, 6, key=KEY), weight_and_bias, each),
    "MLP": of(
        lambda: weft.MLP(8, 6, 4, key=KEY),
        lambda: eqx.nn.MLP(8, 4, 6, 1, key=KEY),
        lambda own: named((("layers.0", own.layers[0]), ("layers.1", own.layers[2]))),
        each,
    ),
    "Conv1d": conv(1, X),
    "Conv2d": conv(2, IMAGES),
    "Conv3d": conv(3, VOLUMES),
    "ConvTranspose1d": conv(1, X, "ConvTranspose"),
    "ConvTranspose2d, strides": conv(2, IMAGES, "ConvTranspose", strides=2),
    "Embed": embed,
    "LayerNorm": of(lambda: weft.LayerNorm(8, epsilon=1e-5), lambda: eqx.nn.LayerNorm(8), scale_and_bias, each),
    "RMSNorm": of(
        lambda: weft.RMSNorm(8, epsilon=1e-5), lambda: eqx.nn.RMSNorm(8, use_bias=False), scale_and_bias, each
    ),
    "GroupNorm": of(
        lambda: weft.GroupNorm(8, groups=2, batch_axes=-2, epsilon=1e-5),
        lambda: eqx.nn.GroupNorm(2, 8),
        scale_and_bias,
    ),
    "BatchNorm, training": batch_norm,
    "WeightNorm": weight_norm,
    "PReLU": of(weft.PReLU, eqx.nn.PReLU, lambda own: {"negative_slope": own.slope}, each),
    "Dropout": dropout,
    "RoPE": rotated,
    "MultiHeadAttention": of(
        lambda: weft.MultiHeadAttention(8, 2, key=KEY),
        lambda: eqx.nn.MultiheadAttention(2, 8, key=KEY, **BIASES),
        lambda own: named(
            (("query_proj", own.query), ("key_proj", own.key), ("value_proj", own.value), ("output_proj", own.out))
        ),
        attended,
    ),
    "GRUCell": of(
        lambda: weft.GRUCell(8, 4, key=KEY),
        lambda: eqx.nn.GRUCell(8, 4, key=KEY),
        weights_of_gru,
        gru_step,
        lambda cell, x: cell(0.1 * x[..., :4], x)[1],
    ),
    "OptimizedLSTMCell": of(
        lambda: weft.OptimizedLSTMCell(8, 4, key=KEY),
        lambda: eqx.nn.LSTMCell(8, 4, key=KEY),
        weights_of_lstm,
        lstm_step,
        lambda cell, x: cell((0.1 * x[..., :4], 0.2 * x[..., 4:]), x)[1],
    ),
    "MaxPool": pool("MaxPool"),
    "AvgPool": pool("AvgPool"),
    "AdaptiveMaxPool": adaptive("AdaptiveMaxPool"),
    "AdaptiveAvgPool": adaptive("AdaptiveAvgPool"),
}
