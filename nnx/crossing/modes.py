"""Modes: the options of the references boundary, as a frozen record that all of its parts read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.core.interpreter.boundary import parameter_names


@dataclass(frozen=True)
class Mode:
    """The options of the references boundary, for one transform.

    Attributes:
        graph: whether objects are graphs, with sharing and cycles, or trees.
        updates: whether structural changes reach the caller's objects.
        copies: whether outputs are always new objects, also where they are arguments.
        function: what the transform is called, for errors.
        supplies: how many arguments the transform puts in front of the user's.
    """

    graph: bool
    updates: bool
    copies: bool
    function: str
    supplies: int = 0

    def names(self, functions: Sequence[Callable[..., Any]]) -> Sequence[str]:
        """The names of the user's arguments, with which paths in errors start."""
        return parameter_names(functions[0])[self.supplies :]
