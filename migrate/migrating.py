"""A migration as a whole: which files move, together."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from . import LIBRARIES, from_equinox, from_nnx, from_weft
from .findings import Changes, Left, edited
from .notebooks import kept_in
from .project import Project, Source
from .reading import Reader


@dataclass
class Migrated:
    """What a migration found.

    Attributes:
        files: for each file that changes, what it was and what it becomes.
        left: what stays as it is.
    """

    files: dict[Path, tuple[bytes, bytes]] = field(default_factory=dict[Path, tuple[bytes, bytes]])
    left: list[Left] = field(default_factory=list[Left])


def migrated(project: Project, libraries: Collection[str] = LIBRARIES) -> Migrated:
    """Works out what becomes of a code base; writes nothing."""
    done = Migrated()
    readers = _readers(project, done)
    moving: dict[Source, Changes] = {}
    if "nnx" in libraries:
        others = {source: reader for source, reader in readers.items() if _mentions(source, "flax", "equinox")}
        moving = _over_nnx(project, others, done)
    if "weft" in libraries:
        for source, reader in readers.items():
            if source.asked and source.mentions("weft"):
                changes = from_weft.changes_of(reader)
                moving.setdefault(source, Changes()).edits.update(changes.edits)
                done.left += changes.left
    for source, changes in moving.items():
        data = edited(readers[source].module, changes).bytes
        if data != source.data:
            done.files[source.path] = (source.original, source.written(data))
    if "equinox" in libraries:
        concerned = [reader for source, reader in readers.items() if source.asked and source.mentions("equinox")]
        done.left += [finding for reader in concerned for finding in from_equinox.findings_of(reader)]
    return done


def _readers(project: Project, done: Migrated) -> dict[Source, Reader]:
    """The files that have to do with one of the libraries, parsed; what libcst cannot parse is left."""
    readers: dict[Source, Reader] = {}
    for source in project.sources:
        if not _mentions(source, "flax", "equinox", "weft"):
            continue
        try:
            readers[source] = Reader(source)
        except ValueError as error:
            if source.asked:
                fix = "move it by hand, or mend it if no Python reads it"
                done.left.append(Left(source.path, 1, "the file", str(error), fix, True))
    return readers


def _mentions(source: Source, *libraries: str) -> bool:
    return any(map(source.mentions, libraries))


def _over_nnx(project: Project, readers: dict[Source, Reader], done: Migrated) -> dict[Source, Changes]:
    """The changes of files whose whole group can move."""
    found = {source: from_nnx.changes_of(reader, project) for source, reader in readers.items()}
    concerned = {source for source, changes in found.items() if changes.edits or changes.left}
    # A file that cannot be parsed, or was not asked for, holds what it is imported with if it has to do with flax.nnx.
    holding: dict[Source, Left] = {}
    groups = project.groups("flax")
    for source in project.sources:
        group = groups[source]
        if source in found:
            found[source].left += [*from_nnx.foreign(source, project), *_of_ipython(source)]
        firm = [one for one in found[source].left if one.holds] if source in found else []
        if firm:
            holding.setdefault(group, firm[0])
        elif source.mentions("flax") and (source not in found or (not source.asked and found[source].edits)):
            why = "it is not among the files that were named" if not source.asked else "it cannot be parsed"
            holding.setdefault(group, Left(source.path, 1, "the file", why, "", True))
    moving: dict[Source, Changes] = {}
    for source in sorted(concerned, key=lambda one: one.path):
        changes, group = found[source], groups[source]
        if not source.asked:
            continue
        is_used = any(found[one].edits for one in concerned if groups[one] is group)
        if not is_used and not any("nnx" in one.what for one in changes.left):
            continue  # Linen, or another part of flax, by itself: nothing is to be said of it
        done.left += changes.left
        if not changes.edits:
            continue
        if group not in holding:
            moving[source] = changes
            continue
        holder = holding[group]
        if holder not in changes.left:
            place = project.place(holder.file, holder.line)
            why = f"it is tied by imports to {holder.file.name}{place}, which holds it ({holder.what})"
            done.left.append(Left(source.path, 1, "flax.nnx", why, "see to that first", True))
        elif changes.edits:
            why = "the rest of the file stays with flax.nnx, since both must not meet"
            done.left.append(dataclasses.replace(holder, what="flax.nnx", why=why, fix=""))
    return moving


def _of_ipython(source: Source) -> list[Left]:
    """What only IPython understands, where it names flax."""
    if source.notebook is None:
        return []
    why = "only IPython understands this line, and it names what would move"
    return [
        Left(source.path, line, "the line", why, "write it as Python", True) for line in kept_in(source.data, "flax")
    ]
