"""Shapes as data: the shapes in each function of a file, and their form as JSON.

This file imports neither JAX nor weft, like all code that the command itself runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Note:
    """The shape of one assigned name, returned value or yielded value.

    line, column: the end of the name in the source; lines from 1, columns in bytes from 0.
        name: the name as written, or `return` or `yield`.
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
    """The shapes in one function or method.

    name: the qualified name.
        line, last: its first and last line.
        notes: the shapes on its lines, nested functions included.
        dims: where each dim was bound, by function and name: `{"attend": {"d": "argument x, axis 1"}}`.
        needs: the conditions on its sizes without which it fails: `h divides d`.
        reason: why shapes are missing; "" if none are.
        traced: whether a trace ran to its end.
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
    """The shapes as an object for JSON."""
    return dataclasses.asdict(shapes)


def from_json(found: Mapping[str, Any]) -> Shapes:
    """The shapes from a JSON object made by `to_json`."""
    notes = tuple(Note(**note) for note in found["notes"])
    return Shapes(**{**found, "notes": notes, "needs": tuple(found["needs"])})


def joined(parts: list[Shapes]) -> list[Shapes]:
    """The functions with each line's note kept once: in the function that contains the line, else in the first."""
    # A nested function is traced with its caller and by itself; shown twice, the line would have two comments.
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
    """The key by which two notes are about the same name."""
    return note.line, note.column, note.name
