"""What XLA says a layer costs once it is compiled: FLOPs and bytes accessed, forward and with its gradients.

A layer computes the same in each library, so the limit of each row is flax's: a record or a `weft.nnx` layer costs as
much, or less. equinox's layers, which are for one example, are mapped over the batch. No clock is read: the figures are
those of `Compiled.cost_analysis()`, and hold for one version of XLA on one kind of device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import weft
from flax import nnx
from harness import read_arguments, table

KEY, WIDTH, HEADS = jax.random.key(0), 64, 4
Call = Callable[[Any, Any], Any]


class Row(NamedTuple):
    """A layer in each library, with what it is called with.

    Attributes:
        record: makes the record.
        module: makes flax.nnx's, given the library or one with its interface.
        equinox: makes equinox's, or None.
        x: the input.
        call: how the record and the module are called.
        each: how equinox's is.
    """

    record: Callable[[], Any]
    module: Callable[[Any], Any]
    equinox: Callable[[], Any] | None
    x: Any
    call: Call
    each: Call


def called(layer: Any, x: Any) -> Any:
    return layer(x)


def over(axes: int) -> Call:
    """Maps equinox's layer over the leading axes."""

    def call(layer: Any, x: Any) -> Any:
        for _ in range(axes):
            layer = jax.vmap(layer)
        return layer(x)

    return call


def over_space(layer: Any, x: Any) -> Any:
    """Over the batch; features are first there."""
    return jnp.moveaxis(jax.vmap(layer)(jnp.moveaxis(x, -1, 1)), 1, -1)


SEQUENCES, IMAGES = jnp.ones((8, 16, WIDTH)), jnp.ones((4, 16, 16, 16))


def row(
    record: Callable[[], Any],
    module: Callable[[Any], Any],
    equinox: Callable[[], Any] | None = None,
    *,
    x: Any = SEQUENCES,
    call: Call = called,
    each: Call | None = None,
) -> Row:
    return Row(record, module, equinox, x, call, each or over(2))


def cell(name: str, equinox: Callable[[], Any] | None = None) -> Row:
    whole = "LSTM" in name

    def step(cell: Any, x: Any) -> Any:
        return cell((x, x) if whole else x, x)

    def mapped(cell: Any, x: Any) -> Any:
        return jax.vmap(lambda x: cell(x, (x, x) if whole else x))(x)

    return row(
        lambda: getattr(weft, name)(WIDTH, WIDTH, key=KEY),
        lambda lib: getattr(lib, name)(WIDTH, WIDTH, rngs=lib.Rngs(0)),
        equinox,
        x=jnp.ones((8, WIDTH)),
        call=step,
        each=mapped,
    )


def attended(layer: Any, x: Any) -> Any:
    return jax.vmap(lambda x: layer(x, x, x))(x)


def linear(lib: Any) -> Any:
    return lib.Linear(WIDTH, WIDTH, rngs=lib.Rngs(0))


def record_linear() -> Any:
    return weft.Linear(WIDTH, WIDTH, key=KEY)


def first(result: Any) -> Any:
    """The output of a record with state, whose successor is not looked at."""
    return weft.drop_successor(result)[0] if isinstance(result, tuple) else result


def pool(name: str, record: Callable[..., Any], equinox: Callable[..., Any]) -> Row:
    return row(
        lambda: record((2, 2), strides=(2, 2)),
        lambda lib: lambda x: getattr(lib, name)(x, (2, 2), strides=(2, 2)),
        lambda: equinox(2, 2),
        x=IMAGES,
        each=over_space,
    )


def gru() -> Row:
    def record() -> Any:
        return weft.RNN(weft.GRUCell(WIDTH, WIDTH, key=KEY))

    return row(record, lambda lib: lib.RNN(lib.GRUCell(WIDTH, WIDTH, rngs=lib.Rngs(0))))


IDS = jnp.arange(128).reshape(8, 16)
BIASES = dict.fromkeys(("use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias"), True)
LAYERS: dict[str, Row] = {
    "Linear": row(record_linear, linear, lambda: eqx.nn.Linear(WIDTH, WIDTH, key=KEY)),
    "LinearGeneral": row(
        lambda: weft.LinearGeneral(WIDTH, (HEADS, 16), key=KEY),
        lambda lib: lib.LinearGeneral(WIDTH, (HEADS, 16), rngs=lib.Rngs(0)),
    ),
    "Einsum": row(
        lambda: weft.Einsum("abc,cd->abd", (WIDTH, WIDTH), key=KEY),
        lambda lib: lib.Einsum("abc,cd->abd", (WIDTH, WIDTH), (WIDTH,), rngs=lib.Rngs(0)),
    ),
    "Conv, 2-D": row(
        lambda: weft.Conv2d(16, 16, 3, key=KEY),
        lambda lib: lib.Conv(16, 16, (3, 3), rngs=lib.Rngs(0)),
        lambda: eqx.nn.Conv2d(16, 16, 3, padding="SAME", key=KEY),
        x=IMAGES,
        each=over_space,
    ),
    "Conv, causal": row(
        lambda: weft.Conv1d(WIDTH, WIDTH, 3, padding="CAUSAL", key=KEY),
        lambda lib: lib.Conv(WIDTH, WIDTH, (3,), padding="CAUSAL", rngs=lib.Rngs(0)),
    ),
    "Conv, circular": row(
        lambda: weft.Conv2d(16, 16, 3, padding="CIRCULAR", key=KEY),
        lambda lib: lib.Conv(16, 16, (3, 3), padding="CIRCULAR", rngs=lib.Rngs(0)),
        x=IMAGES,
    ),
    "ConvTranspose": row(
        lambda: weft.ConvTranspose2d(16, 16, 3, strides=2, padding="VALID", key=KEY),
        lambda lib: lib.ConvTranspose(16, 16, (3, 3), strides=2, padding="VALID", rngs=lib.Rngs(0)),
        lambda: eqx.nn.ConvTranspose2d(16, 16, 3, stride=2, key=KEY),
        x=IMAGES,
        each=over_space,
    ),
    "Embed": row(
        lambda: weft.Embed(128, WIDTH, key=KEY),
        lambda lib: lib.Embed(128, WIDTH, rngs=lib.Rngs(0)),
        lambda: eqx.nn.Embedding(128, WIDTH, key=KEY),
        call=lambda layer, x: layer(IDS) + x,
        each=lambda layer, x: jax.vmap(jax.vmap(layer))(IDS) + x,
    ),
    "Embed.attend": row(
        lambda: weft.Embed(128, WIDTH, key=KEY),
        lambda lib: lib.Embed(128, WIDTH, rngs=lib.Rngs(0)),
        call=lambda layer, x: layer.attend(x),
    ),
    "LayerNorm": row(
        lambda: weft.LayerNorm(WIDTH),
        lambda lib: lib.LayerNorm(WIDTH, rngs=lib.Rngs(0)),
        lambda: eqx.nn.LayerNorm(WIDTH),
    ),
    "RMSNorm": row(
        lambda: weft.RMSNorm(WIDTH),
        lambda lib: lib.RMSNorm(WIDTH, rngs=lib.Rngs(0)),
        lambda: eqx.nn.RMSNorm(WIDTH, use_bias=False),
    ),
    "GroupNorm": row(
        lambda: weft.GroupNorm(16, groups=4),
        lambda lib: lib.GroupNorm(16, 4, rngs=lib.Rngs(0)),
        lambda: eqx.nn.GroupNorm(4, 16),
        x=IMAGES,
        each=over_space,
    ),
    "InstanceNorm": row(lambda: weft.InstanceNorm(16), lambda lib: lib.InstanceNorm(16, rngs=lib.Rngs(0)), x=IMAGES),
    "BatchNorm": row(
        lambda: weft.BatchNorm(WIDTH),
        lambda lib: lib.BatchNorm(WIDTH, rngs=lib.Rngs(0)),
        call=lambda layer, x: first(layer(x)),
    ),
    "WeightNorm": row(
        lambda: weft.WeightNorm(record_linear()), lambda lib: lib.WeightNorm(linear(lib), rngs=lib.Rngs(0))
    ),
    "SpectralNorm": row(
        lambda: weft.SpectralNorm(record_linear(), key=KEY),
        lambda lib: lib.SpectralNorm(linear(lib), rngs=lib.Rngs(0)),
        call=lambda layer, x: first(layer(x)),
    ),
    "LoRA": row(
        lambda: weft.LoRA(record_linear(), 4, key=KEY),
        lambda lib: lib.LoRA(WIDTH, 4, WIDTH, base_module=linear(lib), rngs=lib.Rngs(0)),
    ),
    "PReLU": row(weft.PReLU, lambda lib: lib.PReLU(), eqx.nn.PReLU),
    "MultiHeadAttention": row(
        lambda: weft.MultiHeadAttention(WIDTH, HEADS, key=KEY),
        lambda lib: lib.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=lib.Rngs(0)),
        lambda: eqx.nn.MultiheadAttention(HEADS, WIDTH, key=KEY, **BIASES),
        each=attended,
    ),
    "SimpleCell": cell("SimpleCell"),
    "GRUCell": cell("GRUCell", lambda: eqx.nn.GRUCell(WIDTH, WIDTH, key=KEY)),
    "LSTMCell": cell("LSTMCell"),
    "OptimizedLSTMCell": cell("OptimizedLSTMCell", lambda: eqx.nn.LSTMCell(WIDTH, WIDTH, key=KEY)),
    "RNN of GRUCell": gru(),
    "MaxPool": pool("max_pool", weft.MaxPool, eqx.nn.MaxPool2d),
    "AvgPool": pool("avg_pool", weft.AvgPool, eqx.nn.AvgPool2d),
}


class Cost(NamedTuple):
    """FLOPs and bytes accessed of one program."""

    flops: float
    bytes: float


def cost(function: Callable[..., Any], *args: Any) -> Cost:
    """What XLA says of a program that it has compiled."""
    analysis: Any = jax.jit(function).lower(*args).compile().cost_analysis()
    return Cost(analysis.get("flops", 0.0), analysis.get("bytes accessed", 0.0))


def costs(call: Call, state: Any, x: Any) -> tuple[Cost, Cost]:
    """Of a layer's output; and of a loss with its gradients by all parameters and the input."""

    def loss(state: Any, x: Any) -> Any:
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(call(state, x)))

    return cost(call, state, x), cost(jax.value_and_grad(loss, argnums=(0, 1)), state, x)


def of_module(lib: Any, row: Row) -> tuple[Cost, Cost]:
    """A module's, by its parameters alone: what else it holds is not differentiated."""
    # The scales of a WeightNorm are bare arrays. As constants they would be computed with at compile time.
    trained = lib.Any(lib.Param, lib.PathContains("scales"))
    module = row.module(lib)
    if not isinstance(module, lib.Module):
        return costs(lambda _, x: row.call(module, x), (), row.x)
    graphdef, params, rest = lib.split(module, trained, ...)
    return costs(lambda params, x: row.call(lib.merge(graphdef, params, rest, copy=True), x), params, row.x)


def of_record(layer: Any, call: Call, x: Any) -> tuple[Cost, Cost]:
    structure, params, rest = weft.tree.split(layer, weft.filters.Maybe(weft.Param), weft.filters.Maybe(...))
    return costs(lambda params, x: call(weft.tree.merge(structure, params, rest), x), params, x)


def of_equinox(layer: Any, call: Call, x: Any) -> tuple[Cost, Cost]:
    arrays, rest = eqx.partition(layer, eqx.is_array)
    return costs(lambda arrays, x: call(eqx.combine(arrays, rest), x), arrays, x)


def ratio(mine: float, theirs: float) -> str:
    return f"{mine / theirs:.2f}" if theirs else ("1.00" if not mine else "more")


def ratios(measured: tuple[Cost, Cost] | None, limit: tuple[Cost, Cost]) -> list[str]:
    if measured is None:
        return [""] * 2
    return [
        f"{ratio(mine.flops, its.flops)}, {ratio(mine.bytes, its.bytes)}"
        for mine, its in zip(measured, limit, strict=True)
    ]


def main() -> None:
    arguments = read_arguments(__doc__)
    names = list(LAYERS)[:3] if arguments.quick else list(LAYERS)
    rows = []
    for name in names:
        layer = LAYERS[name]
        limit = of_module(nnx, layer)
        rows.append(
            [
                name,
                *ratios(of_record(layer.record(), layer.call, layer.x), limit),
                *ratios(of_module(weft.nnx, layer), limit),
                *ratios(layer.equinox and of_equinox(layer.equinox(), layer.each, layer.x), limit),
            ]
        )
    print("\n### Layers, compiled: FLOPs and bytes accessed, by flax.nnx's (the limit)\n")
    libraries = ("weft record", "weft.nnx", "equinox")
    print(table(("layer", *(f"{lib}, {what}" for lib in libraries for what in ("forward", "with gradients"))), rows))


if __name__ == "__main__":
    main()
