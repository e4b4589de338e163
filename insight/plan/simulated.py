"""Compiles lowered programs for simulated devices, in a child process.

XLA fixes the number of simulated devices when its backend starts, and the backend of the calling process may run
already. So the caller lowers for a mesh without devices, and a child process compiles. Run as a program, this file is
the child: it reads a job from the file that its argument names, and writes the results into the same folder.
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
        MeshError: if XLA cannot compile a program; the error has the last line of its output.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        # MLIR bytecode and not the step itself: a step is made of closures, which pickle refuses.
        job.write_bytes(pickle.dumps((list(programs), count)))
        # The child finds weft where this process did: weft need not be installed.
        search = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path if entry)
        # The child must not touch the GPU or TPU of this machine, whose memory the caller may have filled.
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
