"""Generalising an instance: its arrays become abstract ones of other sizes, so that equal sizes hide nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.typecheck.arguments import Builder


def generalise(instance: Any) -> Callable[[Builder], Any]:
    """A function that builds abstract instances like a given one."""
    from weft.typecheck.arguments import Scope, build_module

    return lambda builder: build_module(builder, type(instance), "self", Scope("self."))
