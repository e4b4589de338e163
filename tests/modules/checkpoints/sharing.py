"""Saves or restores one sharded state, as one of so many processes; `test_processes.py` starts them.

    python tests/modules/checkpoints/sharing.py save FOLDER --processes 2 --process 0 --coordinator localhost:1234

What it checks, each process for its own shards: every value, that each array is where the mesh of this run puts it, and
that no array is held whole where it was divided.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

DEVICES = 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=["save", "restore"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--coordinator")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", DEVICES // options.processes)
    if options.processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(options.coordinator, options.processes, options.process)
    assert jax.device_count() == DEVICES
    if options.way == "save":
        save(options.folder)
    else:
        restore(options.folder)
    print("fine")


def make(seed: int, axes: tuple[str | None, str | None]) -> dict[str, Any]:
    """A model of records, a graph of objects and an array, divided over all devices of all processes."""
    import weft
    from weft import nnx

    mesh = jax.make_mesh((DEVICES,), ("x",))
    sharding = jax.NamedSharding(mesh, jax.P(*axes))
    names = {weft.filters.InstanceOf(weft.Linear): ("in", "out")}
    rules = dict(zip(("in", "out"), axes, strict=True))
    model = weft.shard(weft.Linear(4, 8, key=jax.random.key(seed)), mesh, rules, names=names)
    objects = nnx.state(nnx.Linear(4, 8, rngs=nnx.Rngs(seed)))
    objects = jax.tree.map(
        lambda x: put(np.asarray(x), sharding if x.ndim == 2 else jax.NamedSharding(mesh, jax.P())), objects
    )
    return {
        "model": model,
        "objects": objects,
        "table": put(np.arange(64.0).reshape(8, 8) + seed, sharding),
        "keys": keys(seed, jax.NamedSharding(mesh, jax.P("x"))),
        "epoch": seed,
    }


def put(value: np.ndarray, sharding: jax.NamedSharding) -> jax.Array:
    return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])


def keys(seed: int, sharding: jax.NamedSharding) -> jax.Array:
    return jax.jit(lambda: jax.random.split(jax.random.key(seed), DEVICES), out_shardings=sharding)()


def save(folder: Path) -> None:
    import weft

    with weft.Checkpoints(folder) as checkpoints:
        checkpoints.save(1, make(7, ("x", None)))
        checkpoints.save(2, make(8, ("x", None)))
        if jax.process_count() > 1:
            small = make(0, ("x", None))["table"].astype(jax.numpy.uint4)
            with pytest.raises(weft.CheckpointError, match="fix: save it in another dtype"):
                checkpoints.save(3, {"small": small})
            checkpoints.save(0, {"small": small.astype(jax.numpy.uint8)})


def restore(folder: Path) -> None:
    import weft

    # The other axis is divided here, so every process needs what several others have written.
    wanted, like = make(8, (None, "x")), make(0, (None, "x"))
    with weft.Checkpoints(folder) as checkpoints:
        assert checkpoints.steps[-2:] == [1, 2], checkpoints.steps
        restored = checkpoints.restore(like | {"epoch": 8})
    assert restored.pop("epoch") == wanted.pop("epoch")
    pairs = zip(jax.tree.leaves_with_path(restored), jax.tree.leaves_with_path(wanted), strict=True)
    for (path, array), (_, expected) in pairs:
        assert array.sharding.is_equivalent_to(expected.sharding, array.ndim), (path, array.sharding, expected.sharding)
        for mine, theirs in zip(array.addressable_shards, expected.addressable_shards, strict=True):
            assert mine.data.shape == theirs.data.shape, path
            if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
                assert np.array_equal(*map(jax.random.key_data, (mine.data, theirs.data))), path
            else:
                assert np.array_equal(mine.data, theirs.data), path
    assert restored["table"].addressable_shards[0].data.shape == (8, 2)


if __name__ == "__main__":
    main()
