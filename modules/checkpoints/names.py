"""Renaming: from names in a file to paths in a tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from weft.modules.checkpoints.format import CheckpointError

Rename = Mapping[str, str | None] | Callable[[str], str | None]

# The name that `format_path` gives the tree itself; a mapping may write the empty text for it.
ROOT = "<root>"


def renamed(rename: Rename | None, names: Iterable[str], file: str) -> dict[str, str | None]:
    """Returns the path for each name; None for names that are left out.

    Args:
        rename: the option of `load_checkpoint`.
        names: the names of all entries of the file.
        file: the file's path, for errors.

    Raises:
        CheckpointError: if it is no mapping and no function, a mapping has names that the file does not hold, or a path
            is neither a string nor None.

    >>> renamed({"encoder": "body", "encoder.old": None}, ["encoder.w", "encoder.old", "encoders"], "a file")
    {'encoder.w': 'body.w', 'encoder.old': None, 'encoders': 'encoders'}
    """
    check_rename(rename)
    if rename is None:
        return {name: name for name in names}
    if not isinstance(rename, Mapping):
        return {name: _checked(rename(name), name) for name in names}
    # The most specific rule wins: `encoder.old` before `encoder`, whatever their order in the mapping.
    longest_first = sorted(rename, key=len, reverse=True)
    used: set[str] = set()
    paths: dict[str, str | None] = {}
    for name in names:
        start = next((start for start in longest_first if is_inside(name, start)), None)
        if start is None:
            paths[name] = name
        else:
            used.add(start)
            paths[name] = _moved(name, start, _checked(rename[start], start))
    unused = sorted(rename.keys() - used)
    # A rule that matches no name is a spelling mistake. Without this error, a later one would list missing arrays, and
    # not the rule.
    if unused:
        raise CheckpointError(
            f"rename has names that {file} does not hold",
            at=unused,
            fix=f"write names as in the file: {', '.join(list(paths)[:8])}{', ...' if len(paths) > 8 else ''}",
        )
    return paths


def check_rename(rename: Any) -> None:
    """Refuses what is no option `rename`.

    Raises:
        CheckpointError: naming the option.
    """
    is_table = isinstance(rename, Mapping) and all(isinstance(name, str) for name in rename)
    if not (rename is None or is_table or callable(rename)):
        raise CheckpointError(
            f"rename must be a mapping from names, or a function of a name, not {rename!r:.80}",
            fix='write names and paths as errors print them: rename={"encoder": "model.encoder"}',
        )


def _checked(path: object, name: str) -> str | None:
    if path is not None and not isinstance(path, str):
        raise CheckpointError(
            f"rename maps a name to a {type(path).__name__}, not to a path: {path!r}",
            at=name,
            fix="map it to a string, or to None to leave the array out",
        )
    return path


def is_inside(path: str, start: str) -> bool:
    """Whether a path is the path `start`, or lies below it."""
    return start in ("", ROOT) or path == start or path.startswith((f"{start}.", f"{start}["))


def _moved(name: str, start: str, to: str | None) -> str | None:
    if to is None:
        return None
    rest = "" if name == ROOT else name.removeprefix("" if start == ROOT else start)
    to = "" if to == ROOT else to
    # `{"": "model"}` puts a prefix before names, which needs a dot that the rest of the name does not have.
    dot = "." if to and rest and rest[0] not in ".[" else ""
    moved = f"{to}{dot}{rest}"
    return (moved if to else moved.removeprefix(".")) or ROOT


def refuse_two_at_one_path(paths: Mapping[str, str | None], file: str) -> None:
    """Refuses several names that are renamed to the same path.

    Raises:
        CheckpointError: naming both.
    """
    counts = Counter(path for path in paths.values() if path is not None)
    twice = [f"{path}: {name}" for name, path in paths.items() if path is not None and counts[path] > 1]
    if twice:
        raise CheckpointError(
            f"several arrays of {file} are renamed to the same path",
            at=twice,
            fix="rename all but one to None, which leaves them out",
        )


def around(paths: Mapping[str, str | None]) -> set[str]:
    """Returns the paths of the containers and records around each renamed leaf."""
    moved = [name for name, path in paths.items() if path != name]
    starts = {name[:i] for name in moved for i, letter in enumerate(name) if letter in ".["}
    return starts | ({ROOT} if moved else set())
