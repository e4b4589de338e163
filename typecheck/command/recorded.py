"""The file of recorded calls, `.weft/calls.json`: written whole or not at all, and refused if it is another one's.

    {"format": 1, "paths": ["tests"], "calls": {"module:qualname": [structure, ...]}}

The structures are those of `typecheck/recording`; here they are only JSON. The paths, relative to the project, are
where modules were found that a structure may name: those of tests, which define classes of their own.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .config import ConfigError

FORMAT = 1
# Where a project's file lies, below the folder of its `pyproject.toml`.
PLACE = Path(".weft", "calls.json")
# How many structures of one function are kept when files are joined.
_MOST = 4

Calls = Mapping[str, list[Any]]


def joined_calls(parts: Iterable[Calls]) -> dict[str, list[Any]]:
    """What several processes recorded: of each function a few structures, each once, in one order."""
    found: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, calls in part.items():
            found.setdefault(name, {}).update((json.dumps(one), one) for one in calls)
    return {name: [calls[text] for text in sorted(calls)][:_MOST] for name, calls in sorted(found.items())}


def write_calls(file: Path, calls: Calls, paths: Iterable[str] = ()) -> None:
    """Writes a file in one step, so that no reader finds half of it.

    Args:
        file: where; `.weft/calls.json` below the project's folder.
        calls: what was recorded.
        paths: of `sys.path`; those in the project's folder are kept.

    Raises:
        OSError: if it cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    ignoring = file.parent / ".gitignore"
    if file.parent.name == ".weft" and not ignoring.exists():
        ignoring.write_text("*\n")
    beside = file.with_suffix(f".{os.getpid()}")
    root = file.resolve().parents[1]
    whole = [Path(one).resolve() for one in paths]
    below = [one.relative_to(root).as_posix() for one in whole if one.is_relative_to(root)]
    content = {"format": FORMAT, "paths": sorted(set(below)), "calls": calls}
    beside.write_text(json.dumps(content, separators=(",", ":")))
    beside.replace(file)


def read_calls(file: Path) -> dict[str, list[Any]]:
    """The calls of a file.

    Raises:
        ConfigError: in one line, for a file that is not there, that does not parse, or of another version.
    """
    return _read(str(file), digest_of(file))[0]


def paths_of(file: Path) -> list[str]:
    """The folders that the modules of a file's structures may be found in."""
    return [str(file.resolve().parents[1] / one) for one in _read(str(file), digest_of(file))[1]]


def digest_of(file: Path) -> str:
    """What tells one content of a file from another.

    Raises:
        ConfigError: if it cannot be read.
    """
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}; `pytest --weft-record` writes it") from None


def calls_in(file: Path | None, root: Path) -> tuple[str, str]:
    """A file of recorded calls and what tells its content from another; both empty if there is none.

    Args:
        file: the file that was asked for; by default the project's, if it is there.
        root: the project's folder.

    Raises:
        ConfigError: in one line, for a file that is none of recorded calls, or of another version.
    """
    file = file or root / PLACE
    if file == root / PLACE and not file.exists():
        return "", ""
    read_calls(file)
    return os.path.abspath(file), digest_of(file)


@functools.lru_cache(maxsize=2)
def _read(path: str, digest: str) -> tuple[dict[str, list[Any]], list[str]]:
    try:
        found = json.loads(Path(path).read_text())
        version, calls, paths = found["format"], found.get("calls"), found.get("paths", [])
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path}: this is no file of recorded calls; `pytest --weft-record` writes one") from None
    if version != FORMAT:
        raise ConfigError(
            f"{path}: calls of format {version!r}, and this weft reads format {FORMAT}; record them again "
            "(`pytest --weft-record`)"
        )
    usable = isinstance(calls, dict) and all(
        isinstance(one, list) and all(map(_is_call, one)) for one in calls.values()
    )
    if not usable or not isinstance(paths, list) or not all(isinstance(one, str) for one in paths):
        raise ConfigError(f"{path}: this is no file of recorded calls; `pytest --weft-record` writes one")
    return calls, paths


def _is_call(one: Any) -> bool:
    return isinstance(one, dict) and isinstance(one.get("args"), list) and isinstance(one.get("kwargs"), dict)
