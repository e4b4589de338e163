"""What a migration found in a file: edits, and what it leaves to a person."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libcst as cst

# What becomes of a node: it gets the node as its children's edits left it.
Edit = Callable[[Any], Any]


@dataclass(frozen=True, order=True)
class Left:
    """Something that stays as it is.

    Attributes:
        file: where.
        line: its line, from 1.
        what: the code, or a word for it.
        why: the reason.
        fix: what to do by hand; empty where there is nothing to do.
        holds: whether the file, and all that it is imported with, stays with flax because of it.
    """

    file: Path
    line: int
    what: str
    why: str
    fix: str = ""
    holds: bool = False

    def shown(self, place: str) -> str:
        """The finding as lines of the report, behind the place where it is."""
        fix = f"\n    do: {self.fix}" if self.fix else ""
        return f"{place}: {self.what}: {self.why}{fix}"


@dataclass
class Changes:
    """The edits of one file, by node, and what was left."""

    edits: dict[cst.CSTNode, Edit] = field(default_factory=dict[cst.CSTNode, Edit])
    left: list[Left] = field(default_factory=list[Left])

    @property
    def holds(self) -> bool:
        """Whether something must stay, and so all must."""
        return any(one.holds for one in self.left)


class _Editor(cst.CSTTransformer):
    def __init__(self, edits: dict[cst.CSTNode, Edit]):
        super().__init__()
        self._edits = edits

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        edit = self._edits.get(original_node)
        return super().on_leave(original_node, updated_node) if edit is None else edit(updated_node)


def edited(module: cst.Module, changes: Changes) -> cst.Module:
    """The module with the edits made."""
    return module.visit(_Editor(changes.edits)) if changes.edits else module


def written(node: cst.CSTNode) -> str:
    """The code of a node on one line."""
    return " ".join(cst.Module([]).code_for_node(node).split())
