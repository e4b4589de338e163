"""Shapes as data: what is known of each function of a file, and how it is sent from one process to another.

Like all that the command itself needs, this file imports neither JAX nor weft.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Note:
    """The shape of one thing.

    Attributes:
        line, column: the end of its name in the source; lines from 1, columns in bytes from 0.
        name: as it is written, or `return` and `yield`.
        shape: in words: `f32[b,d]`, of the last pass where there are several; `f32[1], then f32[2]` if they differ.
    """

    line: int
    column: int
    name: str
    shape: str

    def __str__(self) -> str:
        return f"-> {self.shape}" if self.name in ("return", "yield") else f"{self.name} {self.shape}"


@dataclass(frozen=True)
class Shapes:
    """What is known of one function or method.

    Attributes:
        name: qualified.
        line, last: the lines that it stands on.
        notes: of its lines, those of functions inside of it included.
        dims: where each dim was bound, by function of the file and name: `{"attend": {"d": "argument x, axis 1"}}`.
        needs: what its sizes must be such that it runs: `h divides d`.
        reason: why there is nothing, or not everything; "" if all is well.
        traced: whether there was a trace that came to its end.
    """

    name: str
    line: int
    last: int
    notes: tuple[Note, ...] = ()
    dims: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    needs: tuple[str, ...] = ()
    reason: str = ""
    traced: bool = True


def to_json(shapes: Shapes) -> dict[str, Any]:
    """As JSON has it."""
    return dataclasses.asdict(shapes)


def from_json(found: Mapping[str, Any]) -> Shapes:
    """Back from JSON."""
    notes = tuple(Note(**note) for note in found["notes"])
    return Shapes(**{**found, "notes": notes, "needs": tuple(found["needs"])})


def joined(parts: list[Shapes]) -> list[Shapes]:
    """The same with each line told once: by the function that it belongs to, else by the first that came to it."""
    owned = {note_place(note) for part in parts for note in part.notes if part.line <= note.line <= part.last}
    told: set[tuple[int, int, str]] = set()
    found: list[Shapes] = []
    for part in parts:
        kept = tuple(
            note
            for note in part.notes
            if note_place(note) not in told and (part.line <= note.line <= part.last or note_place(note) not in owned)
        )
        told |= {note_place(note) for note in kept}
        found.append(dataclasses.replace(part, notes=kept))
    return found


def note_place(note: Note) -> tuple[int, int, str]:
    """What tells one thing from another."""
    return note.line, note.column, note.name
