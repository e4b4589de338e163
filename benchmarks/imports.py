"""What `import weft` costs beside `import equinox` and `import jax`, in fresh processes taken in turn."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from harness import read_arguments, table

PROGRAMS = ("jax", "equinox", "weft", "weft, weft.nnx", "weft, weft.typecheck", "flax.nnx")


def seconds_to_import(names: str, bytecode: str | None) -> tuple[float, float]:
    """Seconds by the clock, and seconds of processor time, which a busy machine does not stretch as much.

    Args:
        names: what is imported.
        bytecode: a folder for it. An installed package comes with its bytecode; a checkout has none where Python is
            told not to write any (`PYTHONDONTWRITEBYTECODE`), and would be compiled from source at each import.
            None takes what is there.
    """
    environment = {**os.environ}
    if bytecode is not None:
        environment["PYTHONPYCACHEPREFIX"] = bytecode
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
    begin, used = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-c", f"import {names}"], check=True, env=environment)
    after = os.times()
    processor = after.children_user + after.children_system - used.children_user - used.children_system
    return time.perf_counter() - begin, processor


def main() -> None:
    arguments = read_arguments(__doc__)
    rounds = arguments.rounds or (1 if arguments.quick else 15)
    with tempfile.TemporaryDirectory() as folder:
        # To compile all of JAX and its peers takes several times as long as to import them.
        bytecode = None if arguments.quick else folder
        if not arguments.quick:
            for names in PROGRAMS:
                # The first import of all writes bytecode.
                seconds_to_import(names, bytecode)
        seconds = [[seconds_to_import(names, bytecode) for names in PROGRAMS] for _ in range(rounds)]
    equinox = PROGRAMS.index("equinox")
    rows: list[tuple[str, ...]] = []
    for i, names in enumerate(PROGRAMS):
        cells = [f"import {names}"]
        for clock in (0, 1):
            cells.append(f"{statistics.median(round[i][clock] for round in seconds):.2f}")
            cells.append(f"{statistics.median(round[i][clock] - round[equinox][clock] for round in seconds):+.2f}")
        rows.append(tuple(cells))
    print("\n### Import: seconds of a process that does nothing else\n")
    print(table(("program", "by the clock", "against equinox", "of processor", "against equinox"), rows))


if __name__ == "__main__":
    main()
