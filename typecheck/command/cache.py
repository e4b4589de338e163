"""Stores verdicts from run to run in `.weft/cache`, next to the `pyproject.toml`.

An entry is for one unit and one set of options. It is valid as long as these are unchanged: all Python files of the
unit's package (or of a script's folder), the files that its worker read, the modules outside of installed packages
that it imported, the versions of Python and of installed packages, and weft's own sources. An edit invalidates all
verdicts of its package: dependencies between files are not tracked, because imports by computed names and new
subclasses make them a guess.

An entry that cannot be read is ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..language.siblings import sources_below
from .config import Settings
from .lines import Checked, from_json, to_json
from .units import WEFT, Unit

# How many entries a folder may have before the oldest half is deleted.
_MOST = 5000
# The prefixes of environment variables that influence tracing, and exceptions among those variables.
_PREFIXES = ("JAX_", "XLA_", "WEFT_", "LIBTPU_")
_NOT_DECIDING = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE")


def sources_of(unit: Unit) -> tuple[str, ...]:
    """The Python files that a unit's verdicts may depend on: those of its package, or of a script's folder."""
    top, *rest = unit.module.split(".")
    package = os.path.join(unit.root, top)
    if unit.root == str(WEFT.parent) and top == "weft":  # the folder of a checkout may have any name
        package = str(WEFT)
    if (rest or Path(unit.file).stem == "__init__") and os.path.isdir(package):
        return tuple(sources_below(package))
    return tuple(sorted(map(str, Path(unit.root).glob("*.py"))))


class Cache:
    """The stored verdicts of a project, as of one run.

    Args:
        root: the folder that contains `.weft`.
        settings: all that verdicts depend on besides the sources.
    """

    def __init__(self, root: Path, settings: Settings):
        self.folder = root / ".weft" / "cache"
        self._settings = json.dumps(dataclasses.asdict(settings), sort_keys=True)
        # Each file is read once in a run, and has one state in it: the 200 units of a package share the same 200 files.
        self._digest_of_file = functools.cache(_digest_of_file)
        self._digest_of_files = functools.cache(
            lambda files: _digest(f"{file}\0{self._digest_of_file(file)}" for file in files)
        )
        self._versions = _digest(_versions())
        # The key of a unit's first look-up: verdicts of the old text of a file that is edited during the run must not
        # be stored under its new text.
        self._key = functools.cache(self._key_now)
        self._delete_oldest()

    def _key_now(self, unit: Unit) -> str:
        """The digest of the sources and versions for which an entry is valid."""
        files = (str(Path(unit.file).resolve()), *sources_of(unit))
        return f"{self._versions} {self._digest_of_files(files)}"

    def find(self, unit: Unit) -> list[Checked] | None:
        """The parts of a unit from its entry; None if there is no valid entry."""
        key = self._key(unit)
        try:
            entry = json.loads(self._file(unit).read_text())
            # The entry's own list of files is used: a worker knows which files it reads after it has judged the unit.
            if entry["key"] != key or self._digest_of_files(tuple(entry["reads"])) != entry["read"]:
                return None
            return [from_json(part) for part in entry["parts"]]
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
            return None

    def store(self, unit: Unit, parts: Sequence[Checked], reads: Sequence[str]) -> None:
        """Stores the parts of a unit, unless another run may give others.

        A limit may end a proof on one machine and not on another; a missing library may be installed.
        """
        if not all(part.lasting and not any(line.rule == "import" for line in part.lines) for part in parts):
            return
        read = self._digest_of_files(tuple(reads))
        outcomes = [to_json(part) for part in parts]
        entry = {"key": self._key(unit), "reads": list(reads), "read": read, "parts": outcomes}
        # A project in a read-only folder is checked all the same.
        with contextlib.suppress(OSError):
            _write_below_weft(self._file(unit), json.dumps(entry))

    def _delete_oldest(self) -> None:
        """Deletes the oldest entries if there are too many: each option and each renamed file adds some."""
        with contextlib.suppress(OSError):
            entries = list(self.folder.glob("*.json"))
            if len(entries) > _MOST:
                for entry in sorted(entries, key=lambda file: file.stat().st_mtime)[: -_MOST // 2]:
                    entry.unlink()

    def _file(self, unit: Unit) -> Path:
        # Paths in lines are relative to the current folder, so each folder has entries of its own.
        return self.folder / f"{_digest((os.path.abspath(unit.file), os.getcwd(), self._settings))[:32]}.json"


def _write_below_weft(file: Path, text: str) -> None:
    """Writes a file below the folder `.weft` of a project in one step.

    An editor and a terminal may run at once, and one of them would read half of what the other writes.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    # What is below `.weft` is made anew at any time, and must not be committed by mistake.
    ignoring = next(folder for folder in file.parents if folder.name == ".weft") / ".gitignore"
    if not ignoring.exists():
        ignoring.write_text("*\n")
    unfinished = file.with_suffix(f".{os.getpid()}")
    unfinished.write_text(text)
    unfinished.replace(file)


def _digest_of_file(path: str) -> str:
    if not os.path.isfile(path):  # a named pipe has no end
        return ""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def _versions() -> Iterable[str]:
    """All that every verdict depends on: Python, versions of installed packages, the environment, and weft itself."""
    yield sys.version
    for folder in dict.fromkeys(sys.path):
        with contextlib.suppress(OSError):
            yield from sorted(name for name in os.listdir(folder or ".") if name.endswith((".dist-info", ".egg-info")))
    for name in sorted(os.environ):
        if name.startswith(_PREFIXES) and not name.startswith(_NOT_DECIDING):
            yield f"{name}={os.environ[name]}"
    rooms = (WEFT / name for name in ("core", "transforms", "modules", "typecheck", "nnx"))
    for file in (WEFT / "__init__.py", *sorted(file for room in rooms for file in room.rglob("*.py"))):
        yield f"{file}\0{_digest_of_file(str(file))}"
