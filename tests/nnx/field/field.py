"""Packages built on flax.nnx, used under flax and under weft: `python tests/nnx/field/field.py` (`make field-nnx`).

The pinned packages are installed into an environment of their own in a cache folder (`WEFT_FIELD_NNX`, by default
`~/.cache/weft-field-nnx`). Each program in `programs/` uses one of them as its users do, and knows nothing of weft; it
is run under flax and, through the import hook, under weft. The exit status is 1 if they print something else: words and
whole numbers have to be the same, other numbers up to `TOLERANCE`, since eager layers may round otherwise.

    python tests/nnx/field/field.py [PROGRAM...]        all of them, or those of these names
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))
from environments import environment, with_this_checkout  # noqa: E402

CACHE = Path(os.environ.get("WEFT_FIELD_NNX", Path.home() / ".cache" / "weft-field-nnx"))
# What weft itself needs, the peer, and Orbax.
BESIDE = (
    *("flax", "optax", "equinox", "jaxtyping", "beartype", "safetensors", "wadler_lindig"),
    *("orbax-checkpoint", "packaging"),
)
RUN = {"flax": (), "weft": ("-m", "weft.nnx")}
NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")
TOLERANCE = 5e-3


def printed(python: Path, library: str, program: Path) -> str:
    """What a program prints under a library; its error if it ends in one."""
    process = subprocess.run(
        [str(python), "-W", "ignore", *RUN[library], str(program)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(with_this_checkout(CACHE)), "JAX_PLATFORMS": "cpu"},
    )
    return process.stdout if process.returncode == 0 else f"{process.stdout}{process.stderr[-3000:]}"


def are_alike(ours: str, theirs: str) -> bool:
    """Whether two lines are the same, but for rounding.

    >>> are_alike("a 1 0.943", "a 1 0.941"), are_alike("a 1 0.943", "a 1 0.843"), are_alike("a 1", "a 2")
    (True, False, False)
    """
    pairs = zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=False)
    return NUMBER.sub("#", ours) == NUMBER.sub("#", theirs) and all(
        abs(float(our) - float(their)) <= TOLERANCE * max(1, abs(float(their))) for our, their in pairs
    )


def main(names: list[str]) -> int:
    """Runs the programs, and prints what differs."""
    python = environment(CACHE, HERE / "packages.txt", *BESIDE, resolved=False)
    differ = 0
    for program in sorted((HERE / "programs").glob("*.py")):
        if names and program.stem not in names:
            continue
        theirs, ours = (printed(python, library, program).splitlines() for library in RUN)
        if any("Traceback" in line for line in theirs):
            print(f"{program.stem}: ends in an error under flax itself: {theirs[-1]}")
            differ += 1
            continue
        # A line that is alike is taken as the same, so that the difference shows what is not.
        alike = [our if not are_alike(our, their) else their for our, their in zip(ours, theirs, strict=False)]
        lines = list(difflib.unified_diff(theirs, alike + ours[len(theirs) :], "flax", "weft", lineterm="", n=0))
        print("\n".join(lines) or f"{program.stem}: {len(theirs)} lines, no difference", flush=True)
        differ += bool(lines)
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
