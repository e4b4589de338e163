"""Migrates a code base: decides for each group of files whether the group moves, and collects edits and findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from . import LIBRARIES, from_equinox, from_nnx, from_weft
from .findings import Changes, Finding, edited
from .project import Project, Source
from .reading import Reader


@dataclass
class Migrated:
    """The result of a migration.

    Attributes:
        files: for each file that changes, its old and new content.
        findings: the places that are not rewritten, with the reason.
    """

    files: dict[Path, tuple[bytes, bytes]] = field(default_factory=dict[Path, tuple[bytes, bytes]])
    findings: list[Finding] = field(default_factory=list[Finding])


def migrated(project: Project, libraries: Collection[str] = LIBRARIES) -> Migrated:
    """Computes the migration of a code base, without writing files."""
    done = Migrated()
    readers = _readers(project, done)
    moving: dict[Source, Changes] = {}
    if "nnx" in libraries:
        others = {source: reader for source, reader in readers.items() if _mentions(source, "flax", "equinox")}
        moving = _over_nnx(project, others, done)
    # Edits for weft's own names are added to those for flax.nnx, so a file with both kinds is written once.
    if "weft" in libraries:
        for source, reader in readers.items():
            if source.asked and source.mentions("weft"):
                changes = from_weft.changes_of(reader)
                moving.setdefault(source, Changes()).edits.update(changes.edits)
                done.findings += changes.findings
    for source, changes in moving.items():
        data = edited(readers[source].module, changes).bytes
        # A second run must change nothing: an edit that gives the same bytes is no change.
        if data != source.data:
            done.files[source.path] = (source.data, data)
    if "equinox" in libraries:
        concerned = [reader for source, reader in readers.items() if source.asked and source.mentions("equinox")]
        done.findings += [finding for reader in concerned for finding in from_equinox.findings_of(reader)]
    wanted = [b"flax" if library == "nnx" else library.encode() for library in libraries]
    for path in project.notebooks:
        data = path.read_bytes()
        if any(name in data for name in wanted):
            fix = "change its imports by hand, together with the files that it imports"
            done.findings.append(Finding(path, 1, "the file", "a notebook is not rewritten", fix))
    return done


def _readers(project: Project, done: Migrated) -> dict[Source, Reader]:
    """Parses the files that mention one of the libraries; a file that libcst cannot parse is a finding."""
    readers: dict[Source, Reader] = {}
    for source in project.sources:
        if not _mentions(source, "flax", "equinox", "weft"):
            continue
        try:
            readers[source] = Reader(source)
        except ValueError as error:
            if source.asked:
                # Files that the user did not name are read only to find groups, so their syntax is not the user's
                # question.
                fix = "rewrite it by hand, or repair its syntax"
                done.findings.append(Finding(source.path, 1, "the file", str(error), fix, holds=True))
    return readers


def _mentions(source: Source, *libraries: str) -> bool:
    return any(map(source.mentions, libraries))


def _over_nnx(project: Project, readers: dict[Source, Reader], done: Migrated) -> dict[Source, Changes]:
    """Returns the changes of the files whose whole group can move, and adds the findings of all to `done`."""
    changes_by_file = {source: from_nnx.changes_of(reader, project) for source, reader in readers.items()}
    concerned = {source for source, changes in changes_by_file.items() if changes.edits or changes.findings}
    # A file that mentions flax and cannot be parsed, or was not named by the user, keeps its group with flax.
    holding: dict[Source, Finding] = {}
    groups = project.groups("flax")
    for source in project.sources:
        group = groups[source]
        changes = changes_by_file.get(source)
        if changes is not None:
            changes.findings += from_nnx.foreign(source, project)
        firm = [finding for finding in changes.findings if finding.holds] if changes is not None else []
        if firm:
            holding.setdefault(group, firm[0])
        elif source.mentions("flax") and (changes is None or (not source.asked and changes.edits)):
            why = "it is not among the files to migrate" if not source.asked else "it cannot be parsed"
            holding.setdefault(group, Finding(source.path, 1, "the file", why, holds=True))
    moving: dict[Source, Changes] = {}
    for source in sorted(concerned, key=lambda source: source.path):
        changes, group = changes_by_file[source], groups[source]
        if not source.asked:
            continue
        is_used = any(changes_by_file[other].edits for other in concerned if groups[other] is group)
        # Linen's programs mention flax too, and a report about them would hide the findings that matter.
        if not is_used and not any("nnx" in finding.code for finding in changes.findings):
            continue  # a group without NNX (Linen alone) has no findings
        done.findings += changes.findings
        if not changes.edits:
            continue
        if group not in holding:
            moving[source] = changes
            continue
        holder = holding[group]
        # The finding that holds the group may be in another file, so this file gets one that names it.
        if holder not in changes.findings:
            place = f"{holder.file.name}:{holder.line}"
            why = f"it is connected by imports to {place}, which must stay with flax ({holder.code})"
            done.findings.append(
                Finding(source.path, 1, "flax.nnx", why, "resolve that finding first", holds=True, work="none")
            )
        else:
            why = "the rest of the file stays with flax.nnx, because both must not be mixed"
            done.findings.append(dataclasses.replace(holder, code="flax.nnx", why=why, fix="", work="none"))
    return moving
