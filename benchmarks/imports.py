"""What `import weft` costs beside `import equinox` and `import jax`, in fresh processes taken in turn."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from harness import read_arguments, table

PROGRAMS = ("jax", "equinox", "weft", "weft, weft.nnx", "weft, weft.typecheck", "flax.nnx")


def seconds_to_import(names: str) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {names}"], check=True)
    return time.perf_counter() - begin


def main() -> None:
    arguments = read_arguments(__doc__)
    rounds = arguments.rounds or (1 if arguments.quick else 15)
    for names in PROGRAMS:
        # The first import of all writes bytecode.
        seconds_to_import(names)
    seconds = [[seconds_to_import(names) for names in PROGRAMS] for _ in range(rounds)]
    equinox = PROGRAMS.index("equinox")
    rows = [
        (
            f"import {names}",
            f"{statistics.median(round[i] for round in seconds):.2f}",
            f"{statistics.median(round[i] - round[equinox] for round in seconds):+.2f}",
        )
        for i, names in enumerate(PROGRAMS)
    ]
    print("\n### Import: seconds of a process that does nothing else\n")
    print(table(("program", "seconds", "against equinox"), rows))


if __name__ == "__main__":
    main()
