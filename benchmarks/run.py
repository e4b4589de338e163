"""Runs every benchmark, each in a process of its own, and appends what they print to RESULTS.md.

A section is dated and says which versions and which machine it holds for. `--quick` runs them small, and appends
nothing; nor do scripts that are named, `run.py imports.py`, which run alone.
"""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

from harness import environment, read_arguments

HERE = Path(__file__).resolve().parent
SCRIPTS = (
    "dispatch.py", "state.py", "init.py", "training.py", "eager.py", "calls.py", "tracing.py", "layers.py", "decode.py",
    "contracts.py", "checking.py", "memory.py", "placed.py", "checkpoints.py", "scale.py", "imports.py",
)  # fmt: skip


def output_of(script: str, options: list[str]) -> str:
    run = subprocess.run([sys.executable, str(HERE / script), *options], stdout=subprocess.PIPE, text=True)
    if run.returncode:
        sys.exit(f"{script} failed with status {run.returncode}; nothing was written to RESULTS.md")
    print(run.stdout, flush=True)
    return run.stdout.rstrip()


def main() -> None:
    arguments = read_arguments(__doc__, SCRIPTS)
    options = ["--quick"] if arguments.quick else []
    options += ["--rounds", str(arguments.rounds)] if arguments.rounds else []
    parts = [output_of(script, options) for script in arguments.scripts or SCRIPTS]
    if arguments.quick or arguments.scripts:
        return
    title = f"## {datetime.date.today().isoformat()}\n\n{environment()}"
    with (HERE / "RESULTS.md").open("a") as results:
        results.write("\n".join(["", title, *parts, ""]))


if __name__ == "__main__":
    main()
