"""What it costs to build a model: eagerly, each parameter drawn by itself, and in one compiled program.

Compilations are not in it: every case was built before. The limit of eager construction is equinox, whose layers draw a
key each and fill their arrays by operations that JAX has compiled; `weft.init` should take half of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import weft
from flax import nnx
from harness import Case, compare, read_arguments, time_cases

LIMIT = "equinox (the limit)"
EQX_EAGER = "equinox, eagerly (the limit)"
LINEARS, BLOCKS, WIDTH, HEADS = 24, 12, 64, 4


def nnx_linears(lib: Any) -> list[Any]:
    rngs = lib.Rngs(0)
    return [lib.Linear(32, 32, rngs=rngs) for _ in range(LINEARS)]


def linears(linear: Callable[..., Any]) -> list[Any]:
    return [linear(32, 32, key=key) for key in jax.random.split(jax.random.key(0), LINEARS)]


def nnx_transformer(lib: Any) -> list[Any]:
    rngs = lib.Rngs(0)
    return [
        (
            lib.LayerNorm(WIDTH, rngs=rngs),
            lib.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs),
            lib.LayerNorm(WIDTH, rngs=rngs),
            lib.Linear(WIDTH, 4 * WIDTH, rngs=rngs),
            lib.Linear(4 * WIDTH, WIDTH, rngs=rngs),
        )
        for _ in range(BLOCKS)
    ]


def transformer(lib: Any, attention: Callable[..., Any], linear: Callable[..., Any], key: Any = None) -> list[Any]:
    blocks: list[Any] = []
    for own in jax.random.split(jax.random.key(0) if key is None else key, BLOCKS):
        keys = jax.random.split(own, 3)
        parts = attention(key=keys[0]), linear(WIDTH, 4 * WIDTH, key=keys[1]), linear(4 * WIDTH, WIDTH, key=keys[2])
        blocks.append((lib.LayerNorm(WIDTH), lib.LayerNorm(WIDTH), *parts))
    return blocks


def eqx_attention(key: Any) -> Any:
    biases = dict.fromkeys(("use_query_bias", "use_key_bias", "use_value_bias", "use_output_bias"), True)
    return eqx.nn.MultiheadAttention(HEADS, WIDTH, key=key, **biases)


def weft_attention(key: Any) -> Any:
    return weft.MultiHeadAttention(WIDTH, HEADS, key=key)


def weft_transformer(*, key: Any) -> list[Any]:
    return transformer(weft, weft_attention, weft.Linear, key)


@eqx.filter_jit
def compiled_by_equinox(key: Any) -> list[Any]:
    return transformer(eqx.nn, eqx_attention, eqx.nn.Linear, key)


MODELS: dict[str, dict[str, Callable[[], Any]]] = {
    f"{LINEARS} x Linear(32, 32)": {
        LIMIT: lambda: linears(eqx.nn.Linear),
        "weft records": lambda: linears(weft.Linear),
        "weft.nnx": lambda: nnx_linears(weft.nnx),
        "flax.nnx": lambda: nnx_linears(nnx),
    },
    f"a transformer of {BLOCKS} blocks, {WIDTH} wide": {
        LIMIT: lambda: transformer(eqx.nn, eqx_attention, eqx.nn.Linear),
        "weft records": lambda: transformer(weft, weft_attention, weft.Linear),
        "weft.nnx": lambda: nnx_transformer(weft.nnx),
        "flax.nnx": lambda: nnx_transformer(nnx),
    },
}


COMPILED: dict[str, Callable[[], Any]] = {
    EQX_EAGER: lambda: transformer(eqx.nn, eqx_attention, eqx.nn.Linear),
    "weft records, eagerly": lambda: weft_transformer(key=jax.random.key(0)),
    "weft.init": lambda: weft.init(weft_transformer, key=jax.random.key(0)),
    "equinox.filter_jit": lambda: compiled_by_equinox(jax.random.key(0)),
}


def building(make: Callable[[], Any]) -> Callable[[Any], Any]:
    def advance(_: Any) -> None:
        make()

    return advance


def main() -> None:
    arguments = read_arguments(__doc__)
    rounds = arguments.rounds or (3 if arguments.quick else 20)
    for title, makes in MODELS.items():
        cases = [Case(name, building(make)) for name, make in makes.items()]
        print(f"\n### Built eagerly: {title}\n")
        print(compare(time_cases(cases, rounds), LIMIT))
    print(f"\n### Built in one program: a transformer of {BLOCKS} blocks, {WIDTH} wide\n")
    print(compare(time_cases([Case(name, building(make)) for name, make in COMPILED.items()], rounds), EQX_EAGER))


if __name__ == "__main__":
    main()
