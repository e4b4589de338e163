"""What so many processes saved, another number of them restores, each its own shards."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("sharing.py")


def run(way: str, folder: Path, processes: int) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    # The program says how many devices it has.
    flags = " ".join(flag for flag in os.environ["XLA_FLAGS"].split() if "device_count" not in flag)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    pipes["env"] = {**os.environ, "XLA_FLAGS": flags}
    command = [sys.executable, str(PROGRAM), way, str(folder), "--coordinator", address, "--processes", str(processes)]
    runs = [subprocess.Popen([*command, "--process", str(n)], **pipes) for n in range(processes)]
    try:
        outputs = [run.communicate(timeout=300) for run in runs]
    finally:
        for process in runs:
            process.kill()
    assert [run.returncode for run in runs] == [0] * processes, "\n".join(errors[-3000:] for _, errors in outputs)
    assert all(out.splitlines()[-1] == "fine" for out, _ in outputs)


@pytest.mark.slow
@pytest.mark.parametrize(("saving", "restoring"), [(2, (1, 4)), (1, (2,))])
def test_a_run_goes_on_with_another_number_of_processes(saving: int, restoring: tuple[int, ...], tmp_path: Path):
    run("save", tmp_path, saving)
    for processes in restoring:
        run("restore", tmp_path, processes)
