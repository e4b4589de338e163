"""Environments with released packages, in cache folders, for scripts that run weft over code of others."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def environment(cache: Path, packages: Path, *extras: str, resolved: bool = True) -> Path:
    """The interpreter of an environment with pinned packages; made on first use, and when the pins change.

    Args:
        cache: the folder that it lies in, as `venv`.
        packages: a file of requirements.
        extras: what else is installed, at the versions that weft's `constraints.txt` pins.
        resolved: whether the packages may bring others; if not, the file names those, too.
    """
    folder, stamp = cache / "venv", cache / "stamp"
    python = folder / "bin" / "python"
    pins = "\n".join([packages.read_text(), *extras, (ROOT / "constraints.txt").read_text(), sys.version])
    if not stamp.exists() or stamp.read_text() != pins:
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        constrained = [*pip, "--constraint", str(ROOT / "constraints.txt"), *extras]
        wanted = ["--requirement", str(packages)]
        if resolved:
            subprocess.run([*constrained, *wanted], check=True)
        else:
            subprocess.run(constrained, check=True)
            subprocess.run([*pip, "--no-deps", *wanted], check=True)
        stamp.write_text(pins)
    return python


def with_this_checkout(cache: Path) -> Path:
    """A folder in which this checkout has the name `weft`, for `PYTHONPATH`."""
    folder = cache / "weft-here"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "weft"
    if link.resolve() != ROOT:  # another checkout was here before
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT)
    return folder
