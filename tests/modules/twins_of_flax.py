"""Record layers, each with what its twin of flax.nnx gives for the same arrays: `FLAX[name]()` is a `Pair`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import weft
from flax import nnx
from weft.core.paths import format_path
from weft.core.records.leaves import iter_leaves

KEY, RNGS = jax.random.key(0), nnx.Rngs(0)
X = jax.random.normal(KEY, (3, 5, 8))
IMAGES, VOLUMES = jax.random.normal(KEY, (2, 6, 5, 8)), jax.random.normal(KEY, (2, 4, 3, 3, 8))
IDS = jnp.array([[1, 2, 0], [3, 3, 1]])
LENGTHS = jnp.array([2, 5, 3])


class Pair(NamedTuple):
    """A record, and two functions of it (its arrays) and an input that should agree."""

    layer: Any
    ours: Callable[[Any, Any], Any]
    theirs: Callable[[Any, Any], Any]
    x: Any = X


def called(layer, x):
    return layer(x)


def in_flax(twin, call=called, **renamed):
    """What flax's layer gives with a record's arrays, where the record's path or its new name leads."""
    graphdef, state = nnx.split(twin)
    places = {".".join(map(str, path)): path for path, _ in nnx.to_flat_state(state)}

    def apply(layer, x):
        flat = dict(nnx.to_flat_state(state))
        for leaf in iter_leaves(layer):
            name = format_path(leaf.path)
            path = places[renamed.get(name.replace(".", "_"), name)]  # an array without a place is an error
            same = leaf.value.shape == flat[path].shape
            value = leaf.value if same else jnp.reshape(leaf.value, flat[path].shape)
            flat[path] = flat[path].replace(value) if isinstance(flat[path], nnx.Variable) else value
        return call(nnx.merge(graphdef, nnx.from_flat_state(list(flat.items()))), x)

    return apply


def of(name, *args, twin=None, twin_args=None, x=X, norm=False, flax=None, renamed=None, **options):
    """A pair of two constructors that take the same: `flax` holds the options that have other names there."""

    def make():
        keys = {} if norm or name == "PReLU" else {"key": KEY}
        layer = getattr(weft, name)(*args, **options, **keys)
        rngs = {} if name == "PReLU" else {"rngs": RNGS}
        twins = getattr(nnx, twin or name)(
            *(args if twin_args is None else twin_args), **(options if flax is None else flax), **rngs
        )
        return Pair(layer, called, in_flax(twins, **(renamed or {})), x)

    return make


def conv(rank, window, x=X, twin="Conv", **options):
    name = f"{twin}{rank}d"
    return of(name, 8, 6, window, twin=twin, twin_args=(8, 6, (window,) * rank), x=x, **options)


# ------------------------------------------------------------------------------------------------- layers of parts


def cell(name):
    def make():
        layer, twin = getattr(weft, name)(8, 4, key=KEY), getattr(nnx, name)(8, 4, dtype=None, rngs=RNGS)
        return Pair(layer, from_carry, in_flax(twin, from_carry))

    return make


def from_carry(cell, x):
    whole = "LSTM" in type(cell).__name__
    return cell((0.1 * x[..., :4], 0.2 * x[..., 4:]) if whole else 0.1 * x[..., :4], x)


def rnn(**options):
    """An RNN of a GRU cell; both are given the carry, whose dtype flax's own would decide."""

    def make():
        layer = weft.RNN(weft.GRUCell(8, 4, key=KEY), reverse=options.get("reverse", False))
        twin = nnx.RNN(nnx.GRUCell(8, 4, rngs=RNGS), keep_order=True, **options)
        return Pair(layer, begun(length="lengths"), in_flax(twin, begun(length="seq_lengths")))

    def begun(length):
        # Of padding, flax computes outputs and weft gives zeros: only steps that are there count.
        real = (jnp.arange(5) < LENGTHS[:, None])[..., None]
        return lambda rnn, x: real * rnn(x, initial_carry=0.1 * x[:, 0, :4], **{length: LENGTHS})

    return make


def both_ways():
    layer = weft.Bidirectional(*(weft.RNN(weft.GRUCell(8, 4, key=key)) for key in jax.random.split(KEY)))
    twin = nnx.Bidirectional(*(nnx.RNN(nnx.GRUCell(8, 4, rngs=RNGS)) for _ in range(2)))
    ends = ("cell.dense_i.kernel", "cell.dense_i.bias", "cell.dense_h.kernel")
    renamed = {f"{way}_{end}".replace(".", "_"): f"{way}_rnn.{end}" for way in ("forward", "backward") for end in ends}

    def begun(rnn, x):
        return rnn(x, initial_carry=(0.1 * x[:, 0, :4], 0.2 * x[:, 0, 4:]))

    return Pair(layer, begun, in_flax(twin, begun, **renamed))


def attention(call=called, flax_call=None, *, own=None, **options):
    def make():
        layer = weft.MultiHeadAttention(8, 2, key=KEY, **(own or {}))
        twin = nnx.MultiHeadAttention(2, 8, decode=False, rngs=RNGS, **options)
        renamed = {"query_norm_scale": "query_ln.scale", "key_norm_scale": "key_ln.scale"}
        return Pair(layer, call, in_flax(twin, flax_call or call, **renamed))

    return make


def crossed(attention, x):
    return attention(x, 2 * x[:, :4], 3 * x[:, :4], mask=jnp.arange(20).reshape(5, 4) % 3 < 2)


def scale_only(features):
    return nnx.LayerNorm(features, use_bias=False, rngs=RNGS)


def embed(call):
    def make():
        calls = (lambda layer, x: layer(IDS)) if call == "look up" else (lambda layer, x: layer.attend(x))
        return Pair(weft.Embed(5, 8, key=KEY), calls, in_flax(nnx.Embed(5, 8, rngs=RNGS), calls))

    return make


def batch_norm_in_training():
    def ours(layer, x):
        y, successor = weft.drop_successor(layer(x))  # a gradient does not hand it on
        # What the statistics become is not differentiated: flax stops that by itself.
        return y, jax.lax.stop_gradient((successor.mean, successor.var))

    def theirs(twin, x):
        return twin(x), (twin.mean[...], twin.var[...])

    return Pair(weft.BatchNorm(8), ours, in_flax(nnx.BatchNorm(8, rngs=RNGS), theirs))


def batch_norm_in_inference():
    return Pair(
        weft.BatchNorm(8).replace(mean=X[0, 0], var=X[0, 1] ** 2 + 0.5),
        lambda layer, x: layer(x, inference=True)[0],
        in_flax(nnx.BatchNorm(8, use_running_average=True, rngs=RNGS)),
    )


def weight_norm():
    scaled = {"scale_init": lambda key, shape, dtype: jnp.full(shape, 1.5, dtype)}
    names = {
        "layer_kernel": "layer_instance.kernel",
        "layer_bias": "layer_instance.bias",
        "scale": "scales.('kernel',)",
    }
    twin = nnx.WeightNorm(nnx.Linear(8, 6, rngs=RNGS), rngs=RNGS)
    return Pair(weft.WeightNorm(weft.Linear(8, 6, key=KEY), **scaled), called, in_flax(twin, **names))


def spectral_norm():
    twin = nnx.SpectralNorm(nnx.Linear(8, 6, rngs=RNGS), n_steps=3, rngs=RNGS)
    names = {"layer_kernel": "layer_instance.kernel", "layer_bias": "layer_instance.bias"}
    for path, _ in nnx.to_flat_state(nnx.state(twin)):
        if path[0] == "batch_stats":
            names[path[1][-1]] = ".".join(map(str, path))

    def ours(layer, x):
        y, successor = weft.drop_successor(layer(x))
        return y, jax.lax.stop_gradient(successor.u)

    def theirs(twin, x):
        return twin(x), jax.lax.stop_gradient(twin.batch_stats["kernel", "u"][...])

    layer = weft.SpectralNorm(weft.Linear(8, 6, key=KEY), steps=3, key=KEY)
    return Pair(layer, ours, in_flax(twin, theirs, **names))


def lora():
    layer = weft.LoRA(weft.Linear(8, 6, key=KEY), 2, key=KEY).replace(up=jax.random.normal(KEY, (2, 6)))
    twin = nnx.LoRA(8, 2, 6, base_module=nnx.Linear(8, 6, rngs=RNGS), rngs=RNGS)
    names = {"base_kernel": "base_module.kernel", "base_bias": "base_module.bias", "down": "lora_a", "up": "lora_b"}
    return Pair(layer, called, in_flax(twin, **names))


def dropout():
    twin = nnx.Dropout(0.3, broadcast_dims=(1,), deterministic=False)
    key = nnx.Rngs(dropout=0).dropout()
    return Pair(
        weft.Dropout(0.3, broadcast_dims=(1,)),
        lambda layer, x: layer(x, key=key),
        in_flax(twin, lambda twin, x: twin(x, rngs=nnx.Rngs(dropout=0))),
    )


def pool(name, function):
    twin = getattr(nnx, function)
    return lambda: Pair(getattr(weft, name)((2,), strides=(2,)), called, lambda layer, x: twin(x, (2,), strides=(2,)))


FLAX = {
    "Linear": of("Linear", 8, 6),
    "LinearGeneral": of("LinearGeneral", 8, (3, 2)),
    "Einsum": of("Einsum", "abc,cd->abd", (8, 6), twin_args=("abc,cd->abd", (8, 6), (6,))),
    "Conv1d": conv(1, 3),
    "Conv1d, circular": conv(1, 3, padding="CIRCULAR"),
    "Conv1d, causal and dilated": conv(1, 3, padding="CAUSAL", kernel_dilation=2),
    "Conv1d, reflecting groups": conv(1, 3, padding="REFLECT", feature_group_count=2),
    "Conv2d, strides": conv(2, 3, x=IMAGES, strides=2),
    "Conv3d": conv(3, 2, x=VOLUMES),
    "ConvTranspose1d": conv(1, 3, twin="ConvTranspose"),
    "ConvTranspose1d, circular": conv(1, 3, twin="ConvTranspose", padding="CIRCULAR"),
    "ConvTranspose2d, strides": conv(2, 3, twin="ConvTranspose", x=IMAGES, strides=2),
    "LayerNorm": of("LayerNorm", 8, norm=True),
    "RMSNorm": of("RMSNorm", 8, norm=True),
    # Counted from the end, as a vmap over the batch needs it.
    "GroupNorm": of("GroupNorm", 8, norm=True, groups=2, batch_axes=-2, flax={"num_groups": 2}),
    "InstanceNorm": of("InstanceNorm", 8, norm=True, batch_axes=-2, flax={}),
    "PReLU": of("PReLU", renamed={"slope": "negative_slope"}),
    "Embed": embed("look up"),
    "Embed.attend": embed("attend"),
    "BatchNorm, training": batch_norm_in_training,
    "BatchNorm, inference": batch_norm_in_inference,
    "WeightNorm": weight_norm,
    "SpectralNorm": spectral_norm,
    "LoRA": lora,
    "Dropout": dropout,
    "MultiHeadAttention": attention(),
    "MultiHeadAttention, norms of queries and keys": attention(
        own={"qk_norm": lambda features: weft.LayerNorm(features, use_bias=False)}, normalize_qk=True
    ),
    "MultiHeadAttention, cross and masked": attention(crossed),
    **{name: cell(name) for name in ("SimpleCell", "GRUCell", "LSTMCell", "OptimizedLSTMCell")},
    "RNN, padded": rnn(),
    "RNN, padded and reversed": rnn(reverse=True),
    "Bidirectional": both_ways,
    **{
        name: pool(name, twin)
        for name, twin in {"MaxPool": "max_pool", "MinPool": "min_pool", "AvgPool": "avg_pool"}.items()
    },
}
