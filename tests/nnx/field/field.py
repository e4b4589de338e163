"""Packages built on flax.nnx, used under flax and under weft: `python tests/nnx/field/field.py` (`make field-nnx`).

The pinned packages are installed into an environment of their own in a cache folder (`WEFT_FIELD_NNX`, by default
`~/.cache/weft-field-nnx`). Each program in `programs/` uses one of them as its users do, and knows nothing of weft; it
is run under flax and, through the import hook, under weft. The exit status is 1 if they print something else: words and
whole numbers have to be the same, other numbers up to `TOLERANCE`, since eager layers may round otherwise.

Those in `crossed/` write files under one library and read them under another: `save FOLDER`, then `restore FOLDER` with
each library's folder. What is printed has to be the same for whoever wrote and whoever reads.

    python tests/nnx/field/field.py [PROGRAM...]        all of them, or those of these names
"""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))
from environments import environment, with_this_checkout  # noqa: E402

CACHE = Path(os.environ.get("WEFT_FIELD_NNX", Path.home() / ".cache" / "weft-field-nnx"))
# What weft itself needs, the peer, Orbax, and what runs the tests of others.
BESIDE = (
    *("flax", "optax", "equinox", "jaxtyping", "beartype", "safetensors", "wadler_lindig"),
    *("orbax-checkpoint", "packaging", "pytest"),
)
RUN = {"flax": (), "weft": ("-m", "weft.nnx")}
NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")
TOLERANCE = 5e-3


def printed(python: Path, library: str, program: Path, *arguments: str) -> list[str]:
    """The lines that a program prints under a library; its error if it ends in one."""
    process = subprocess.run(
        [str(python), "-W", "ignore", *RUN[library], str(program), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(with_this_checkout(CACHE)), "JAX_PLATFORMS": "cpu"},
    )
    output = process.stdout if process.returncode == 0 else f"{process.stdout}{process.stderr[-3000:]}"
    return output.splitlines()


def runs(python: Path, program: Path) -> Iterator[tuple[str, list[str]]]:
    """What a program prints, by who ran it; flax alone comes first."""
    if program.parent.name != "crossed":
        yield from ((library, printed(python, library, program)) for library in RUN)
        return
    with tempfile.TemporaryDirectory() as folder:
        saved = {library: printed(python, library, program, "save", f"{folder}/{library}") for library in RUN}
        for reader, writer in (("flax", "flax"), ("weft", "flax"), ("flax", "weft"), ("weft", "weft")):
            read = printed(python, reader, program, "restore", f"{folder}/{writer}")
            yield f"{reader} from {writer}", saved[writer] + read


def are_alike(ours: str, theirs: str) -> bool:
    """Whether two lines are the same, but for rounding.

    >>> are_alike("a 1 0.943", "a 1 0.941"), are_alike("a 1 0.943", "a 1 0.843"), are_alike("a 1", "a 2")
    (True, False, False)
    """
    pairs = zip(NUMBER.findall(ours), NUMBER.findall(theirs), strict=False)
    return NUMBER.sub("#", ours) == NUMBER.sub("#", theirs) and all(
        abs(float(our) - float(their)) <= TOLERANCE * max(1, abs(float(their))) for our, their in pairs
    )


def compared(theirs: list[str], ours: list[str], label: str) -> list[str]:
    """What differs between two runs, as a diff."""
    # A line that is alike is taken as the same, so that the difference shows what is not.
    alike = [our if not are_alike(our, their) else their for our, their in zip(ours, theirs, strict=False)]
    return list(difflib.unified_diff(theirs, alike + ours[len(theirs) :], "flax", label, lineterm="", n=0))


def main(names: list[str]) -> int:
    """Runs the programs, and prints what differs."""
    python = environment(CACHE, HERE / "packages.txt", *BESIDE, resolved=False)
    differ = 0
    for program in sorted((*HERE.glob("programs/*.py"), *HERE.glob("crossed/*.py")), key=lambda path: path.stem):
        if names and program.stem not in names:
            continue
        (_, theirs), *others = runs(python, program)
        if any("Traceback" in line for line in theirs):
            print(f"{program.stem}: ends in an error under flax itself: {theirs[-1]}")
            differ += 1
            continue
        lines = [line for label, ours in others for line in compared(theirs, ours, label)]
        print("\n".join(lines) or f"{program.stem}: {len(theirs)} lines, no difference", flush=True)
        differ += bool(lines)
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
