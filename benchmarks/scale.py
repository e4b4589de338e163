"""How a step grows with the number of Variables and of devices: dispatch, tracing and memory, beside the peers.

Every model is a tree of pairs, a matrix and a vector, and every step adds to each; so nearly all that a call takes is
what a library does to get arrays into a compiled program and out again. `jax.jit` over a flat list of the same arrays
is the limit. The number of devices is how many a mesh has that each matrix is divided over.

    python benchmarks/scale.py --quick
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import gc
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import weft
from flax import nnx as flax_nnx
from harness import Case, read_arguments, table, time_cases
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from weft import nnx as weft_nnx

WIDTH = 8
LIMIT = "jax.jit over a list"


class Pair(weft.Module):
    w: jax.Array
    b: jax.Array


class Pairs(weft.Module):
    parts: tuple[Pair, ...]


class PlainPair(eqx.Module):
    w: jax.Array
    b: jax.Array


class PlainPairs(eqx.Module):
    parts: tuple[PlainPair, ...]


def arrays(count: int, mesh: Mesh) -> list[tuple[jax.Array, jax.Array]]:
    """`count` arrays in pairs, the matrices divided over the mesh."""
    divided, everywhere = NamedSharding(mesh, PartitionSpec("x")), NamedSharding(mesh, PartitionSpec())
    pair = jnp.zeros((WIDTH, WIDTH)), jnp.zeros(WIDTH)
    return [(jax.device_put(pair[0], divided), jax.device_put(pair[1], everywhere)) for _ in range(count // 2)]


def advance(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf + 1, tree)


def objects(nnx: Any, pairs: list[tuple[jax.Array, jax.Array]]) -> Any:
    class Layer(nnx.Module):
        def __init__(self, w: jax.Array, b: jax.Array):
            self.w, self.b = nnx.Param(w), nnx.Param(b)

    class Model(nnx.Module):
        def __init__(self) -> None:
            for i, (w, b) in enumerate(pairs):
                setattr(self, f"layer{i}", Layer(w, b))

    return Model()


def step_of_objects(nnx: Any) -> Callable[[Any], Any]:
    @nnx.jit
    def step(model: Any) -> None:
        nnx.update(model, jax.tree.map(lambda leaf: leaf + 1, nnx.state(model)))

    def run(model: Any) -> Any:
        step(model)
        return model

    return run


def contenders(count: int, mesh: Mesh) -> dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]]:
    """For each library its compiled step, and what makes the model that the step starts from."""

    def pairs() -> list[tuple[jax.Array, jax.Array]]:
        return arrays(count, mesh)

    return {
        LIMIT: (jax.jit(advance), lambda: [leaf for pair in pairs() for leaf in pair]),
        "weft records": (weft.jit(advance), lambda: Pairs(tuple(Pair(*pair) for pair in pairs()))),
        "weft.nnx": (step_of_objects(weft_nnx), lambda: objects(weft_nnx, pairs())),
        "equinox": (eqx.filter_jit(advance), lambda: PlainPairs(tuple(PlainPair(*pair) for pair in pairs()))),
        "flax.nnx": (step_of_objects(flax_nnx), lambda: objects(flax_nnx, pairs())),
    }


def first_call(step: Callable[[Any], Any], model: Any) -> tuple[float, float]:
    """Seconds of the first call, with compilation, and the megabytes of Python objects that it leaves."""
    gc.collect()
    tracemalloc.start()
    begin = time.perf_counter()
    jax.block_until_ready(jax.tree.leaves(step(model)))
    seconds = time.perf_counter() - begin
    gc.collect()
    megabytes = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    return seconds, megabytes


def rows_for(count: int, devices: int, rounds: int) -> list[tuple[object, ...]]:
    mesh = jax.make_mesh((devices,), ("x",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])
    first: dict[str, tuple[float, float]] = {}
    cases: list[Case] = []
    for name, (step, make) in contenders(count, mesh).items():
        model = make()
        first[name] = first_call(step, model)
        cases.append(Case(name, step, model))
    timings = {timing.name: timing for timing in time_cases(cases, rounds)}
    base = timings[LIMIT]
    return [
        (
            count,
            devices,
            name,
            f"{timing.median * 1e6:,.0f}",
            f"{timing.ratio(base):.2f}",
            f"{first[name][0] / first[LIMIT][0]:.2f}",
            f"{first[name][1]:.1f}",
        )
        for name, timing in timings.items()
    ]


def main() -> None:
    options = read_arguments(__doc__)
    counts = (6, 60) if options.quick else (6, 60, 600, 6000)
    rounds = options.rounds or (3 if options.quick else 9)
    rows: list[tuple[object, ...]] = []
    for count in counts:
        for devices in (1, 8):
            rows += rows_for(count, devices, rounds)
            jax.clear_caches()
    header = ("Variables", "devices", "library", "µs a call", "ratio", "first call, ratio", "MB of Python")
    print("\n### Scale: a step over many Variables and devices\n")
    print(table(header, rows))


if __name__ == "__main__":
    main()
