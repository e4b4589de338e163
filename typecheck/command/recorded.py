"""The file of recorded calls, `.weft/calls.json`: written whole or not at all, and refused if it has another format.

    {"format": 1, "paths": ["tests"], "calls": {"module:qualname": [structure, ...]}}

The structures are those of `typecheck/recording`; here they are only JSON. The paths, relative to the project, are the
folders of `sys.path` in which modules were found: those of tests, which define classes of their own.
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
# Where the file lies below the folder of a project's `pyproject.toml`.
PLACE = Path(".weft", "calls.json")
# How many structures of one function are kept when files are joined.
_MOST = 4

Calls = Mapping[str, list[Any]]


def joined_calls(parts: Iterable[Calls]) -> dict[str, list[Any]]:
    """The calls that several processes recorded: of each function a few structures, each once, in one order."""
    joined: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, calls in part.items():
            joined.setdefault(name, {}).update((json.dumps(call), call) for call in calls)
    return {name: [calls[text] for text in sorted(calls)][:_MOST] for name, calls in sorted(joined.items())}


def write_calls(file: Path, calls: Calls, paths: Iterable[str] = ()) -> None:
    """Writes a file in one step, so that no reader finds half of it.

    Args:
        file: where; `.weft/calls.json` below the project's folder.
        calls: the recorded calls.
        paths: those of `sys.path`; the file has the folders among them that are in the project's.

    Raises:
        OSError: if it cannot be written.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    (file.parent / ".gitignore").write_text("*\n")
    root = file.resolve().parents[1]
    below = {path.relative_to(root).as_posix() for path in map(Path, paths) if path.resolve().is_relative_to(root)}
    beside = file.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps({"format": FORMAT, "paths": sorted(below), "calls": calls}, separators=(",", ":")))
    beside.replace(file)


def calls_in(root: Path) -> tuple[str, str]:
    """A project's file of recorded calls and the digest of its content; both empty if there is none.

    Raises:
        ConfigError: in one line, for a file of something else, or of another format.
    """
    file = root / PLACE
    if not file.exists():
        return "", ""
    place = os.path.abspath(file), hashlib.sha256(file.read_bytes()).hexdigest()
    read_calls(*place)
    return place


@functools.lru_cache(maxsize=2)
def read_calls(path: str, digest: str) -> tuple[Calls, list[str]]:
    """The calls of a file, and the whole paths of the folders that their modules are in.

    Args:
        path: the file.
        digest: of its content, by which a content that was read is known.

    Raises:
        ConfigError: in one line, for a file of something else, or of another format.
    """
    try:
        content = json.loads(Path(path).read_text())
        version, calls, paths = content["format"], content["calls"], content.get("paths", [])
        for call in (call for each in calls.values() for call in each):
            _ = list(call["args"]), dict(call["kwargs"])  # raises where these are no list and no table
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path}: this is no file of recorded calls; `pytest --weft-record` writes one") from None
    if version != FORMAT:
        raise ConfigError(
            f"{path}: calls of format {version!r}, and this weft reads format {FORMAT}; record them again "
            "(`pytest --weft-record`)"
        )
    return calls, [str(Path(path).parents[1] / one) for one in paths]
