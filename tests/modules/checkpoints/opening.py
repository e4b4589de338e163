"""Opens a run's folder again and again while another process saves to it: every save must be whole at the end.

    python tests/modules/checkpoints/opening.py 12

The parent saves; a child opens the folder, lists and restores what it sees, in a loop, as an evaluation job does, until
the saves are done. It prints how many saves there were, how often the folder was opened, and what was restored.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import weft

ARRAYS, SIZE = 30, 100_000


def evaluate(folder: Path) -> None:
    opened = restored = 0
    like = {f"w{i}": np.zeros(SIZE, np.float32) for i in range(ARRAYS)}
    print("ready", flush=True)
    while not (folder / "done").exists():
        checkpoints = weft.Checkpoints(folder)
        opened += 1
        latest = checkpoints.latest
        if latest is not None:
            arrays = checkpoints.restore(like, latest)
            assert all((array == latest).all() for array in arrays.values()), latest
            restored += 1
    print(f"opened {opened} times, restored {restored} times")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("saves", type=int)
    parser.add_argument("--evaluate", type=Path)
    options = parser.parse_args()
    if options.evaluate:
        evaluate(options.evaluate)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [sys.executable, __file__, "0", "--evaluate", name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
            assert job.stdout is not None
            assert job.stdout.readline() == "ready\n"
            with weft.Checkpoints(folder) as checkpoints:
                for step in range(options.saves):
                    checkpoints.save(step, {f"w{i}": jnp.full(SIZE, float(step)) for i in range(ARRAYS)})
            (folder / "done").touch()
            told = job.communicate(timeout=120)[0]
        steps = weft.Checkpoints(folder).steps
        if steps != list(range(options.saves)) or job.returncode:
            sys.exit(f"{options.saves} saves, and the steps are {steps}; the other process ended with {job.returncode}")
    print(f"{options.saves} saves, nothing lost; {told.strip()}")


if __name__ == "__main__":
    main()
