"""What saving and loading a checkpoint take: host memory beside what the program holds anyway, and seconds.

Memory is the highest resident set over that before the call, in parts of the file's size; loading counts the arrays
that come out of it, so 1 is the least. `blocks` is how long the call that saves keeps a training step waiting, beside
the time of a copy of all arrays in the host's memory. Each measurement is a process of its own, on one CPU device.
Many small arrays are measured apart, in turn with Orbax's own manager, for there the ratio counts.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import table

LIBRARIES = ("weft", "weft.Checkpoints", "orbax", "equinox", "safetensors")
Tree = dict[str, Any]
Peer = tuple[Callable[[Tree], object], Callable[[Tree], Tree], Callable[[], object]]


def peer(library: str, path: Path) -> Peer:
    """How a library saves a tree, how it loads one like another, and how one waits until what was saved is there."""
    import equinox as eqx
    import jax
    import numpy as np
    import weft

    if library == "weft":
        return lambda tree: weft.save_checkpoint(path, tree), lambda like: weft.load_checkpoint(path, like), done
    if library == "weft.Checkpoints":
        checkpoints = weft.Checkpoints(path)
        return lambda tree: checkpoints.save(0, tree), checkpoints.restore, checkpoints.wait
    if library == "equinox":
        return (
            lambda tree: eqx.tree_serialise_leaves(path, tree),
            lambda like: eqx.tree_deserialise_leaves(path, like),
            done,
        )
    if library == "safetensors":
        from safetensors.numpy import load_file, save_file

        return (
            lambda tree: save_file({name: np.asarray(array) for name, array in tree.items()}, path),
            lambda like: {name: jax.device_put(array) for name, array in load_file(path).items()},
            done,
        )
    import orbax.checkpoint as ocp

    checkpointer = ocp.StandardCheckpointer()
    return (
        lambda tree: checkpointer.save(path, tree),
        lambda like: checkpointer.restore(path, like),
        checkpointer.wait_until_finished,
    )


def done() -> None:
    """For what is there when the call that saves returns."""


def highest() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measured_memory(action: Callable[[], Any]) -> tuple[Any, str]:
    """What an action gives, and the bytes and seconds that it took."""
    import numpy as np
    import psutil

    gc.collect()
    # Memory that the process had before and has no more would hide what comes now, so it is filled up.
    ballast = np.ones(max(0, highest() - psutil.Process().memory_info().rss), np.uint8)
    before, begin = highest(), time.perf_counter()
    result = action()
    seconds = time.perf_counter() - begin
    used = highest() - before
    del ballast
    return result, f"{used} {seconds}"


def measure(library: str, leaves: int, size: int, folder: Path) -> None:
    """Prints what saving took, then what loading took, then how long saving blocked and what a copy takes."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    save, load, wait = peer(library, folder / "warm")
    warm = {"w": jnp.ones(3)}
    save(warm)
    wait()
    load(warm)
    save, load, wait = peer(library, folder / "checkpoint")
    blocked: list[float] = []

    def save_and_wait() -> None:
        begin = time.perf_counter()
        save(tree)
        blocked.append(time.perf_counter() - begin)
        wait()

    # Noise, as weights are: some compress what they write.
    shape = (size // 4 // leaves,)
    tree = {f"w{i}": jax.block_until_ready(jax.random.normal(jax.random.key(i), shape)) for i in range(leaves)}
    last = {name: float(array[-1]) for name, array in tree.items()}
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    like = {name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding) for name, array in tree.items()}
    print(measured_memory(save_and_wait)[1])
    begin = time.perf_counter()
    copies = [np.array(array) for array in tree.values()]
    copying = time.perf_counter() - begin
    del tree, copies
    loaded, took = measured_memory(lambda: jax.block_until_ready(load(like)))
    if {name: float(array[-1]) for name, array in loaded.items()} != last:
        sys.exit(f"{library} loaded something else than was saved")
    print(took)
    print(blocked[0], copying)


def measured(library: str, leaves: int, size: int) -> list[str]:
    """One row of the table."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--measure", library, str(leaves), str(size), folder]
        output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    *rows, (blocks, copy) = [list(map(float, line.split())) for line in output.splitlines()[-3:]]
    cells = [cell for used, seconds in rows for cell in (f"{used / size:.2f}", f"{seconds:.1f}")]
    return [library, str(leaves), *cells, f"{blocks:.2f}", f"{copy:.2f}"]


def race(leaves: int, folder: Path) -> None:
    """Prints what many small arrays take `Checkpoints` and Orbax's manager, which are measured in turn."""
    import jax.numpy as jnp
    import orbax.checkpoint as ocp
    import weft

    tree = {f"layer{i // 10}": {} for i in range(leaves)}
    for i in range(leaves):
        tree[f"layer{i // 10}"][f"w{i}"] = jnp.full((8, 8), float(i))
    checkpoints, manager = weft.Checkpoints(folder / "weft"), ocp.CheckpointManager(folder / "orbax")
    calls: dict[str, tuple[Callable[[int], object], Callable[[], object], Callable[[int], object]]] = {
        "weft.Checkpoints": (
            lambda step: checkpoints.save(step, tree),
            checkpoints.wait,
            lambda step: checkpoints.restore(tree, step),
        ),
        "orbax": (
            lambda step: manager.save(step, args=ocp.args.StandardSave(tree)),
            manager.wait_until_finished,
            lambda step: manager.restore(step, args=ocp.args.StandardRestore(tree)),
        ),
    }
    best = {library: [float("inf")] * 3 for library in calls}
    for step in range(3):
        for library, (save, wait, load) in calls.items():
            begin = time.perf_counter()
            save(step)
            returned = time.perf_counter()
            wait()
            written = time.perf_counter()
            load(step)
            durations = (returned - begin, written - begin, time.perf_counter() - written)
            best[library] = [min(pair) for pair in zip(best[library], durations, strict=True)]
    for library, seconds in best.items():
        print(library, *seconds)


def raced(leaves: int) -> list[list[str]]:
    """The rows of a table: seconds, and in parts of Orbax's."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--race", str(leaves), folder]
        output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    rows = {name: list(map(float, numbers)) for name, *numbers in (line.split() for line in output.splitlines()[-2:])}
    orbax = rows["orbax"]
    return [
        [
            name,
            str(leaves),
            *(cell for s, own in zip(seconds, orbax, strict=True) for cell in (f"{s:.2f}", f"{s / own:.2f}")),
        ]
        for name, seconds in rows.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small file: does it run, not how much it takes")
    parser.add_argument("--mib", type=int, default=1024, help="the size of the state (default: %(default)s)")
    parser.add_argument("--rounds", type=int, help="ignored: memory does not vary")
    parser.add_argument("--measure", nargs=4, metavar=("LIBRARY", "LEAVES", "BYTES", "FOLDER"), help="one row, here")
    parser.add_argument("--race", nargs=2, metavar=("LEAVES", "FOLDER"), help="many small arrays, here")
    arguments = parser.parse_args()
    if arguments.race:
        race(int(arguments.race[0]), Path(arguments.race[1]))
        return
    if arguments.measure:
        library, leaves, size, folder = arguments.measure
        measure(library, int(leaves), int(size), Path(folder))
        return
    size, counts = (2**22, (4,)) if arguments.quick else (arguments.mib * 2**20, (4, 1000))
    rows = [measured(library, leaves, size) for leaves in counts for library in LIBRARIES]
    print(f"\n### Checkpoints of {size // 2**20} MiB: memory beside, by the file's size\n")
    print(table(("library", "arrays", "save: memory", "s", "load: memory", "s", "blocks, s", "a copy, s"), rows))
    print("\n### Checkpoints of many small arrays: seconds, and in parts of Orbax's\n")
    rows = raced(50 if arguments.quick else 5000)
    print(table(("library", "arrays", "blocks, s", "ratio", "save, s", "ratio", "load, s", "ratio"), rows))


if __name__ == "__main__":
    main()
