"""Compiles lowered programs for devices that are simulated in a process of its own.

XLA takes the number of simulated devices when a process starts its backend, and the caller's may have started one: so
the caller lowers, for a mesh without devices, and a child compiles. As a program this file is that child: it reads a
job from the file that its argument names, and writes the results beside it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.core.errors import MeshError


@dataclass(frozen=True)
class Lowered:
    """A program as MLIR bytecode, and for each output whether XLA is free to place it."""

    module: bytes
    open_outputs: list[bool]


@dataclass(frozen=True)
class Compiled:
    """A program's HLO text, and XLA's count of its bytes a device: `argument`, `output`, `alias` and `temp`."""

    text: str
    memory: dict[str, int]


def compiled(programs: Sequence[Lowered], count: int) -> list[Compiled]:
    """Compiles programs for a number of simulated devices.

    Raises:
        MeshError: with XLA's last line, if it cannot.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        job.write_bytes(pickle.dumps((list(programs), count)))
        # The child finds weft where this process did: weft need not be installed.
        search = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
        devices = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(count)}
        environment = {**os.environ, **devices, "PYTHONPATH": search}
        command = [sys.executable, "-m", "weft.insight.plan.simulated", str(job)]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)
        if ended.returncode:
            last = (ended.stderr.strip() or f"it ended with {ended.returncode}").splitlines()[-1]
            raise MeshError(f"XLA cannot compile this step for {count} simulated devices: {last}")
        return pickle.loads(job.with_suffix(".out").read_bytes())


def _main(job: Path) -> None:
    from weft.core.edge.executables import compile_module
    from weft.insight.plan import simulated

    programs, count = pickle.loads(job.read_bytes())
    # A pickled object names its class by module, and this module is `__main__` here.
    results = [simulated.Compiled(*compile_module(each.module, count, each.open_outputs)) for each in programs]
    job.with_suffix(".out").write_bytes(pickle.dumps(results))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
