"""The records whose methods are running, so that an error can say where a module is: `in Model.blocks[3].attn`.

Only errors read it. It is a context variable, so threads and async tasks have their own.
"""

from __future__ import annotations

import itertools
from contextvars import ContextVar, Token
from typing import Any

import jax
from weft.core.edge.trees import key_part
from weft.core.paths import Path, format_path

_running: ContextVar[tuple[Any, ...]] = ContextVar("weft_running_records", default=())


def enter_record(record: Any) -> Token[tuple[Any, ...]]:
    """Notes that a public method of a record begins."""
    return _running.set((*_running.get(), record))


def leave_record(token: Token[tuple[Any, ...]]) -> None:
    """Notes that the method has ended."""
    _running.reset(token)


def module_path() -> str:
    """The place of the running record in those that called it, as `in Model.blocks[3].attn`; "" outside of methods."""
    records = _running.get()
    if not records:
        return ""
    text, names = type(records[0]).__name__, [type(record).__name__ for record in records]
    for parent, child in itertools.pairwise(records):
        # A method that calls another method of the same record adds no step to the path.
        if parent is child:
            continue
        path = _path_to(child, parent)
        text = format_path(path, text) if path is not None else f"{text} > {type(child).__name__}"
    return f"in {text}" if text.endswith(names[-1]) else f"in {text} ({names[-1]})"


def _path_to(child: Any, parent: Any) -> Path | None:
    """The path of a record in another: by identity, else of the only record of its type, as transforms rebuild."""
    for same in (lambda node: node is child, lambda node: type(node) is type(child) and node is not parent):
        nodes, _ = jax.tree_util.tree_flatten_with_path(parent, is_leaf=same)
        paths = [tuple(map(key_part, path)) for path, node in nodes if same(node)]
        # With two candidates any path would be a guess, and a wrong path in an error is worse than none.
        if len(paths) == 1:
            return paths[0]
    return None
