"""Verdicts that are kept from run to run, in `.weft/cache` beside the `pyproject.toml`.

An entry is for one unit under one set of options. It holds while the digest of the unit's sources, the versions of
Python and of what is installed, weft's own sources, and the files that were read meanwhile are what they were. What a
limit or an internal error has ended is not kept, nor what cannot be imported. An entry that cannot be read is none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .config import Settings
from .lines import Checked, from_json, to_json
from .sources import Sources
from .units import WEFT, Unit

# How many entries a folder may have before the oldest go.
_MOST = 5000
# What of the environment decides on how programs are traced.
_PREFIXES = ("JAX_", "XLA_", "WEFT_", "LIBTPU_")
_NOT_DECIDING = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE")


class Kept:
    """The verdicts of one project.

    Args:
        root: the folder that `.weft` is in.
        settings: what verdicts depend on beside the sources.
    """

    def __init__(self, root: Path, settings: Settings):
        self.folder = root / ".weft" / "cache"
        self._memory = self.folder / "sources.json"
        found = _load(self._memory)
        self.sources = Sources({path: one for path, one in found.items() if isinstance(one, list) and len(one) == 6})
        self._settings = json.dumps(dataclasses.asdict(settings), sort_keys=True)
        self._versions = _versions(self.sources)

    def key(self, unit: Unit) -> str:
        """What an entry holds for: sources and versions, as they are now."""
        return f"{self._versions} {self.sources.digest(unit)}"

    def find(self, unit: Unit, key: str) -> list[Checked] | None:
        """The parts of a unit, if they are known."""
        entry = _load(self._file(unit))
        try:
            if entry.get("key") != key or self.sources.of_files(entry["reads"]) != entry["read"]:
                return None
            return [from_json(part) for part in entry["parts"]]
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    def keep(self, unit: Unit, key: str, parts: Sequence[Checked], reads: Sequence[str]) -> None:
        """Keeps the parts of a unit, if they would come out alike again."""
        lasting = all(part.lasting and not any(one.rule == "import" for one in part.lines) for part in parts)
        if lasting:
            entry = {
                "key": key,
                "reads": list(reads),
                "read": self.sources.of_files(reads),
                "parts": [to_json(part) for part in parts],
            }
            self._write(self._file(unit), entry)

    def close(self) -> None:
        """Remembers the sources, and lets the oldest entries go where there are too many."""
        if self.sources.is_new:
            self._write(self._memory, {path: one for path, one in self.sources.memory.items() if os.path.exists(path)})
        with contextlib.suppress(OSError):
            entries = list(self.folder.glob("*.json"))
            if len(entries) > _MOST:
                entries.sort(key=lambda one: one.stat().st_mtime)
                for one in entries[: len(entries) - _MOST // 2]:
                    one.unlink()

    def _file(self, unit: Unit) -> Path:
        name = f"{os.path.abspath(unit.file)}\0{os.getcwd()}\0{self._settings}"
        return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"

    def _write(self, file: Path, content: Any) -> None:
        # A folder that cannot be written to is no reason not to check.
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            ignoring = self.folder.parent / ".gitignore"
            if not ignoring.exists():
                ignoring.write_text("*\n")
            beside = file.with_suffix(f".{os.getpid()}")
            beside.write_text(json.dumps(content))
            beside.replace(file)


def _load(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _versions(sources: Sources) -> str:
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
    return hashlib.sha256(f"{told} {sources.of_files(files)}".encode()).hexdigest()
