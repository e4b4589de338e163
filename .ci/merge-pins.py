"""Prints constraints.txt from what pip froze at each end: `merge-pins.py NEWEST FLOOR`.

A package that both ends have in one version is one line; another is a line for each end, with a marker of the Python
that JAX dropped after 0.10.
"""

import sys
from pathlib import Path

HEADER = """\
# The versions that `make` installs: every package that weft or one of its extras pulls in, frozen from fresh
# environments of both ends, in which the tests pass. `make freeze` writes it anew.
"""
MARKERS = ("python_version >= '3.12'", "python_version < '3.12'")


def frozen(path: str) -> dict[str, str]:
    """The version of each package, by name."""
    lines = Path(path).read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)


def main(newest: str, floor: str) -> None:
    ends = frozen(newest), frozen(floor)
    print(HEADER, end="")
    for name in sorted({*ends[0], *ends[1]}, key=str.lower):
        versions = [end.get(name) for end in ends]
        if versions[0] == versions[1]:
            print(f"{name}=={versions[0]}")
            continue
        for version, marker in zip(versions, MARKERS, strict=True):
            if version is not None:
                print(f"{name}=={version}; {marker}")


if __name__ == "__main__":
    main(*sys.argv[1:])
