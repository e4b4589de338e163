"""Verdicts that are kept from run to run, in `.weft/cache` beside the `pyproject.toml`.

An entry is for one unit under one set of options. It holds while these are what they were: all Python files of the
unit's package (of its folder, for a script), whatever else its worker had read and imported that is not installed, the
versions of Python and of what is installed, and weft's own sources. An edit makes anew all verdicts of its package:
which file depends on which is not followed, since imports by computed names and new subclasses made that a guess.

What a limit or an internal error has ended is not kept, nor what cannot be imported. An entry that cannot be read
counts as none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..language.siblings import sources_below
from .config import Settings
from .lines import Checked, from_json, to_json
from .units import WEFT, Unit

# How many entries a folder may have before the oldest go.
_MOST = 5000
# What of the environment decides on how programs are traced.
_PREFIXES = ("JAX_", "XLA_", "WEFT_", "LIBTPU_")
_NOT_DECIDING = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE")


def files_beside(unit: Unit) -> tuple[str, ...]:
    """The Python files that a unit's verdicts may depend on: those of its package, or of a script's folder."""
    top, *rest = unit.module.split(".")
    package = os.path.join(unit.root, top)
    if unit.root == str(WEFT.parent) and top == "weft":  # a checkout may lie in a folder of any name
        package = str(WEFT)
    if (rest or Path(unit.file).stem == "__init__") and os.path.isdir(package):
        return tuple(sources_below(package))
    return tuple(sorted(str(one) for one in Path(unit.root).glob("*.py")))


class Kept:
    """The verdicts of one project.

    Args:
        root: the folder that `.weft` is in.
        settings: what verdicts depend on beside the sources.
    """

    def __init__(self, root: Path, settings: Settings):
        self.folder = root / ".weft" / "cache"
        self._settings = json.dumps(dataclasses.asdict(settings), sort_keys=True)
        self._digest = functools.cache(_digest)  # one run sees one state of each file
        self._digests = functools.cache(self._digest_of_all)
        self._versions = _versions()

    def key(self, unit: Unit) -> str:
        """What an entry holds for: sources and versions, as they are now."""
        return f"{self._versions} {self._digests((str(Path(unit.file).resolve()), *files_beside(unit)))}"

    def find(self, unit: Unit, key: str) -> list[Checked] | None:
        """The parts of a unit, if they are known."""
        try:
            entry = json.loads(self._file(unit).read_text())
            if entry["key"] != key or self._digests(tuple(entry["reads"])) != entry["read"]:
                return None
            return [from_json(part) for part in entry["parts"]]
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
            return None

    def keep(self, unit: Unit, key: str, parts: Sequence[Checked], reads: Sequence[str]) -> None:
        """Keeps the parts of a unit, if they would come out alike again."""
        if not all(part.lasting and not any(one.rule == "import" for one in part.lines) for part in parts):
            return
        read = self._digests(tuple(reads))
        entry = {"key": key, "reads": list(reads), "read": read, "parts": [to_json(part) for part in parts]}
        # A folder that cannot be written to is no reason not to check.
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            ignoring = self.folder.parent / ".gitignore"
            if not ignoring.exists():
                ignoring.write_text("*\n")
            file = self._file(unit)
            beside = file.with_suffix(f".{os.getpid()}")
            beside.write_text(json.dumps(entry))
            beside.replace(file)

    def close(self) -> None:
        """Lets the oldest entries go where there are too many."""
        with contextlib.suppress(OSError):
            entries = sorted(self.folder.glob("*.json"), key=lambda one: one.stat().st_mtime)
            for entry in entries[: len(entries) - _MOST // 2] if len(entries) > _MOST else ():
                entry.unlink()

    def _file(self, unit: Unit) -> Path:
        name = f"{os.path.abspath(unit.file)}\0{os.getcwd()}\0{self._settings}"
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"

    def _digest_of_all(self, paths: tuple[str, ...]) -> str:
        return _told(f"{path}\0{self._digest(path)}" for path in paths)


def _digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _told(words: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def _versions() -> str:
    told = [platform.python_implementation(), sys.version]
    for folder in dict.fromkeys(sys.path):
        with contextlib.suppress(OSError):
            told += sorted(one for one in os.listdir(folder or ".") if one.endswith((".dist-info", ".egg-info")))
    told += sorted(
        f"{name}={value}"
        for name, value in os.environ.items()
        if name.startswith(_PREFIXES) and not name.startswith(_NOT_DECIDING)
    )
    packages = (WEFT / name for name in ("core", "transforms", "modules", "typecheck", "nnx"))
    files = [str(WEFT / "__init__.py"), *sorted(str(one) for folder in packages for one in folder.rglob("*.py"))]
    return _told([*told, *(f"{file}\0{_digest(file)}" for file in files)])
