"""The result of reading a file: edits, and findings that a person has to look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libcst as cst

# A function from a node, whose children are edited already, to the node that replaces it.
Edit = Callable[[Any], Any]
# The kinds of work that a finding asks for, the most first: another design, or a use that holds a group of files; a
# place whose arguments or meaning somebody has to look at; another name; none, where the code works as it is.
WORKS = ("rewrite", "check", "rename", "none")


@dataclass(frozen=True, order=True)
class Finding:
    """A place in the code that is not rewritten, with the reason.

    Attributes:
        file: the file.
        line: the line, from 1.
        code: the code, or a word for it.
        why: the reason.
        fix: what to do by hand; empty if there is nothing to do.
        holds: whether the file, and all files of its group, must stay with flax because of it.
        work: one of `WORKS`.
    """

    file: Path
    line: int
    code: str
    why: str
    fix: str = ""
    holds: bool = False
    work: str = "rewrite"

    def shown(self, place: str) -> str:
        """Returns the lines of the report for this finding; `place` names the file and line."""
        fix = f"\n    do: {self.fix}" if self.fix else ""
        return f"{place}: {self.code}: {self.why}{fix}"


@dataclass
class Changes:
    """The edits of a file by node, and its findings."""

    edits: dict[cst.CSTNode, Edit] = field(default_factory=dict[cst.CSTNode, Edit])
    findings: list[Finding] = field(default_factory=list[Finding])

    @property
    def holds(self) -> bool:
        """Whether a finding keeps the file with flax."""
        return any(finding.holds for finding in self.findings)


class _Editor(cst.CSTTransformer):
    def __init__(self, edits: dict[cst.CSTNode, Edit]):
        super().__init__()
        self._edits = edits

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        edit = self._edits.get(original_node)
        return super().on_leave(original_node, updated_node) if edit is None else edit(updated_node)


def edited(module: cst.Module, changes: Changes) -> cst.Module:
    """Applies the edits to a module."""
    return module.visit(_Editor(changes.edits)) if changes.edits else module


def written(node: cst.CSTNode) -> str:
    """Returns the code of a node, on one line."""
    return " ".join(cst.Module([]).code_for_node(node).split())
