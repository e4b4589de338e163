"""A migration as a whole: which files move, together."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from . import equinox_files, from_equinox, from_nnx
from .findings import Changes, Left, edited
from .making import Making
from .notebooks import kept_in
from .project import Project, Source
from .reading import Reader


@dataclass
class Migrated:
    """What a migration found.

    Attributes:
        files: for each file that changes, what it was and what it becomes.
        left: what stays as it is.
        unreadable: files that cannot be parsed.
        holds_annotations: whether something of equinox's moved, so that annotations are contracts from then on.
    """

    files: dict[Path, tuple[bytes, bytes]] = field(default_factory=dict[Path, tuple[bytes, bytes]])
    left: list[Left] = field(default_factory=list[Left])
    unreadable: list[Left] = field(default_factory=list[Left])
    holds_annotations: bool = False


def migrated(project: Project, libraries: Collection[str] = ("nnx", "equinox")) -> Migrated:
    """Works out what becomes of a code base; writes nothing."""
    done = Migrated()
    readers = _readers(project, done)
    changes: dict[Source, Changes] = {}
    if "nnx" in libraries:
        changes = _over_nnx(project, readers, done)
    if "equinox" in libraries:
        for source, more in _over_equinox(project, readers, done).items():
            moved = changes.setdefault(source, Changes())
            done.holds_annotations |= bool(more.edits)
            # Each has statements of its own; where they share one, the next run finds the other's part of it.
            moved.edits = {**more.edits, **moved.edits}
    for source in project.sources:
        data = source.data
        if source in changes and source.asked and changes[source].edits:
            data = edited(readers[source].module, changes[source]).bytes
            # Cells may await at their top level.
            flags = 0 if source.notebook is None else ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            try:
                compile(data, str(source.path), "exec", flags=flags, dont_inherit=True)
            except SyntaxError as error:  # libcst reads more than this Python does
                why = f"line {error.lineno}: this Python cannot parse it: {error.msg}"
                fix = "run weft migrate with the Python that it is written for, or leave it out"
                # Files over flax move together or not at all; those over equinox by themselves.
                stays = done.unreadable if source.mentions("flax") else done.left
                stays.append(Left(source.path, 1, "the file", why, fix, True))
                continue
        if data != source.data:
            done.files[source.path] = (source.original, source.written(data))
    return done


def _readers(project: Project, done: Migrated) -> dict[Source, Reader]:
    """The files that may have to do with one of the libraries, parsed."""
    readers: dict[Source, Reader] = {}
    for source in project.sources:
        if not any(source.mentions(one) for one in ("flax", "equinox", "jax")):
            continue
        try:
            readers[source] = Reader(source)
        except ValueError as error:
            if source.asked:
                done.unreadable.append(Left(source.path, 1, "the file", str(error), "mend it, or leave it out", True))
    return readers


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
            found[source].left += [*from_nnx.foreign(source, project), *_of_ipython(source, ("flax",), holds=True)]
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


def _over_equinox(project: Project, readers: dict[Source, Reader], done: Migrated) -> dict[Source, Changes]:
    """The changes of files over equinox, each by itself: modules of both may meet."""
    concerned = {source: reader for source, reader in readers.items() if source.mentions("equinox")}
    known = {source: Making(reader, _elsewhere(source, project, readers)) for source, reader in readers.items()}
    found: dict[Source, Changes] = {}
    # Once for each file, and not for each group that it is in.
    stacking = {one for one in known if equinox_files.stacks(known[one])}
    ties = {one: equinox_files.hazards(reader) for one, reader in readers.items()}
    beside_numpy = {one: equinox_files.called_beside_numpy(reader) for one, reader in readers.items()}
    bases = {name for reader in readers.values() for name in equinox_files.bases_in(reader)}
    unread = any(one.mentions("equinox") and one not in readers for one in project.sources)
    for source in concerned:
        if not source.asked:
            continue
        group = sorted(project.beside(source) & known.keys(), key=lambda one: one.path)
        hazards = [f"{hazard} ({one.path.name})" for one in group for hazard in ties[one]]
        around = equinox_files.Around(
            tied=hazards[0] if hazards else "a file that cannot be parsed" if unread else "",
            kinds=any(equinox_files.has_kinds(readers[one]) for one in group),
            stacks=not stacking.isdisjoint(group),
            numpy={name: one.path.name for one in group for name in beside_numpy[one]},
            bases=bases,
        )
        found[source] = from_equinox.changes_of(known[source], around)
        if found[source].edits and (lines := _of_ipython(source, readers[source].names_of("equinox"), holds=False)):
            found[source] = Changes(left=lines)
        done.left += found[source].left
    return found


def _of_ipython(source: Source, names: Collection[str], holds: bool) -> list[Left]:
    """What only IPython understands, where it has a name that may mean something else afterwards."""
    if source.notebook is None:
        return []
    why = "only IPython understands this line, and it names what would move"
    lines = sorted({line for name in names for line in kept_in(source.data, name)})
    return [Left(source.path, line, "the line", why, "write it as Python", holds) for line in lines]


def _elsewhere(source: Source, project: Project, readers: dict[Source, Reader]) -> Callable[[str], bool]:
    """Whether a name that a file imports is a module of equinox's kind, by the file that it comes from."""

    def is_module(name: str) -> bool:
        origin, _, last = name.rpartition(".")
        files = [one for one in project.meant(origin, source) if one in readers and one is not source] if origin else []
        return any(last in known.classes and known.is_module(known.classes[last]) for known in map(_known, files))

    def _known(file: Source) -> Making:
        return Making(readers[file])

    return is_module
