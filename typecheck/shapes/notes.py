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

    Attributes:
        line, column: the end of the name in the source; lines from 1, columns in bytes from 0.
        name: the name as written, or `return` or `yield`.
        shape: in words, such as `f32[b,d]`; `f32[2], at first f32[1]` if the first of several passes differs.
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

    Attributes:
        name: the qualified name.
        line, last: its first and last line.
        notes: the shapes on its lines, nested functions included.
        dims: where each dim was bound, by function and name: `{"attend": {"d": "argument x, axis 1"}}`.
        needs: the conditions on its sizes without which it fails: `h divides d`.
        reason: why shapes are missing; "" if none are.
        traced: whether a trace ran to its end.
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


def from_json(fields: Mapping[str, Any]) -> Shapes:
    """The shapes from a JSON object made by `to_json`."""
    notes = tuple(Note(**note) for note in fields["notes"])
    return Shapes(**{**fields, "notes": notes, "needs": tuple(fields["needs"])})


def joined(parts: list[Shapes]) -> list[Shapes]:
    """The functions with each line's note kept once: in the function that contains the line, else in the first."""
    # A nested function is traced with its caller and by itself; shown twice, the line would have two comments.
    owned = {note_place(note) for part in parts for note in part.notes if part.line <= note.line <= part.last}
    told: set[tuple[int, int, str]] = set()
    functions: list[Shapes] = []
    for part in parts:
        notes = tuple(
            note
            for note in part.notes
            if note_place(note) not in told and (part.line <= note.line <= part.last or note_place(note) not in owned)
        )
        told |= {note_place(note) for note in notes}
        functions.append(dataclasses.replace(part, notes=notes))
    return functions


def note_place(note: Note) -> tuple[int, int, str]:
    """The key by which two notes are about the same name."""
    return note.line, note.column, note.name
