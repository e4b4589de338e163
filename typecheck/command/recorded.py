"""The file of recorded calls, `.weft/calls.json`: written in one step, and refused if its format is unknown.

    {"format": 1, "paths": ["tests"], "calls": {"module:qualname": [structure, ...]}}

The structures are those of `typecheck/recording`; here they are plain JSON. The paths, relative to the project, are the
folders of `sys.path` from which modules were imported, such as those of tests, which define classes of their own.
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
# The place of the file below the folder of a project's `pyproject.toml`.
PLACE = Path(".weft", "calls.json")
# How many structures of a function are kept when files are merged.
_MOST = 4

Calls = Mapping[str, list[Any]]


def joined_calls(parts: Iterable[Calls]) -> dict[str, list[Any]]:
    """The calls that several processes recorded, merged: a few structures for each function, in a fixed order."""
    joined: dict[str, dict[str, Any]] = {}
    for part in parts:
        for name, calls in part.items():
            joined.setdefault(name, {}).update((json.dumps(call), call) for call in calls)
    return {name: [calls[text] for text in sorted(calls)][:_MOST] for name, calls in sorted(joined.items())}


def write_calls(file: Path, calls: Calls, paths: Iterable[str] = ()) -> None:
    """Writes the file of recorded calls.

    Args:
        file: `.weft/calls.json` below the project's folder.
        calls: the recorded calls.
        paths: `sys.path`; folders of the project among them are stored.

    Raises:
        OSError: if it cannot be written.
    """
    root = file.resolve().parents[1]
    below = {path.relative_to(root).as_posix() for path in map(Path, paths) if path.resolve().is_relative_to(root)}
    content = {"format": FORMAT, "paths": sorted(below), "calls": calls}
    write_below_weft(file, json.dumps(content, separators=(",", ":")))


def write_below_weft(file: Path, text: str) -> None:
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


def calls_in(root: Path) -> tuple[str, str]:
    """A project's file of recorded calls and the digest of its content; both empty if there is no file.

    Raises:
        ConfigError: in one line, if the file has other content or another format.
    """
    file = root / PLACE
    if not file.exists():
        return "", ""
    place = os.path.abspath(file), hashlib.sha256(file.read_bytes()).hexdigest()
    read_calls(*place)
    return place


@functools.lru_cache(maxsize=2)
def read_calls(path: str, digest: str) -> tuple[Calls, list[str]]:
    """The calls in a file, and the absolute paths of the folders with their modules.

    Args:
        path: the file.
        digest: the digest of its content, so that changed content is read again.

    Raises:
        ConfigError: in one line, if the file has other content or another format.
    """
    try:
        content = json.loads(Path(path).read_text())
        version, calls, paths = content["format"], content["calls"], content.get("paths", [])
        for call in (call for each in calls.values() for call in each):
            _ = list(call["args"]), dict(call["kwargs"])  # raises where these are no list and no table
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise ConfigError(f"{path}: this is not a file of recorded calls; `pytest --weft-record` writes one") from None
    if version != FORMAT:
        raise ConfigError(
            f"{path}: the calls have format {version!r}, and this version of weft reads format {FORMAT}; record them "
            "again with `pytest --weft-record`"
        )
    return calls, [str(Path(path).parents[1] / folder) for folder in paths]
