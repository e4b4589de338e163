"""Kills a program that saves checkpoints, at any moment, again and again: the last one that was whole must be there.

Every step that is listed must be whole, too, also if the program was killed as it deleted one.

    python tests/modules/checkpoints/killing.py 200             # folders, by Orbax
    python tests/modules/checkpoints/killing.py 200 --slow      # folders that are deleted as slowly as on a network
    python tests/modules/checkpoints/killing.py 200 --file      # one safetensors file

Each round is a process that first reads what the last one has left, and then saves, until it is killed. It reports each
step that is surely on the disk, so that a step that was lost is found as well as one that is damaged.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import weft

SIZE = 50_000


def state(step: int) -> dict[str, Any]:
    return {"w": jnp.full(SIZE, step), "v": jnp.full((8, SIZE // 8), float(step)), "step": step}


def check(restored: Any, at_least: int) -> int:
    step = restored["step"]
    assert step >= at_least, f"step {step} is there, and step {at_least} was"
    assert bool((restored["w"] == step).all() and (restored["v"] == step).all()), f"step {step} is damaged"
    return step


def save_folders(folder: Path, at_least: int, report: Any) -> None:
    with weft.Checkpoints(folder, keep=2) as checkpoints:
        step = max((check(checkpoints.restore(state(0), step), 0) for step in checkpoints.steps), default=0)
        assert step >= at_least, f"the last step is {step}, and step {at_least} was there"
        while True:
            report(step)
            step += 1
            checkpoints.save(step, state(step))
            checkpoints.wait()


def save_slowly(folder: Path, at_least: int, report: Any) -> None:
    unlink = os.unlink

    def unlink_slowly(*args: Any, **kwargs: Any) -> None:
        unlink(*args, **kwargs)
        time.sleep(0.05)

    os.unlink = unlink_slowly
    save_folders(folder, at_least, report)


def save_file(folder: Path, at_least: int, report: Any) -> None:
    file = folder / "state.safetensors"
    step = check(weft.load_checkpoint(file, state(0)), at_least) if file.exists() else 0
    assert step >= at_least
    while True:
        report(step)
        step += 1
        weft.save_checkpoint(file, state(step))


def read(reports: Any, size: int) -> bytes:
    """That many bytes, or what there is until the other end is closed."""
    received = b""
    while len(received) < size and (more := reports.read(size - len(received))):
        received += more
    return received


def one_round(save: Any, folder: Path, at_least: int, delay: float) -> int:
    """Kills one process; returns the last step that it reported."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            save(folder, at_least, lambda step: os.write(writing, struct.pack("q", step)))
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as reports:
        first = read(reports, 16)  # less, if the child found something wrong; else it has saved once, and saves
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        rest = read(reports, 1 << 20)
    _, status = os.waitpid(child, 0)
    if len(first) < 16 or not os.WIFSIGNALED(status):
        raise SystemExit("a process has ended by itself: see above")
    steps = first + rest[: len(rest) // 8 * 8]
    return struct.unpack("q", steps[-8:])[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", type=int)
    parser.add_argument("--file", dest="save", action="store_const", const=save_file, default=save_folders)
    parser.add_argument("--slow", dest="save", action="store_const", const=save_slowly)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator = random.Random(options.seed)
    step = 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.kills):
            step = one_round(options.save, Path(folder), step, generator.uniform(0.0, 0.3))
    print(f"{options.kills} kills, {step} steps, nothing lost")


if __name__ == "__main__":
    main()
