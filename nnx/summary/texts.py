"""What of the table's texts is NNX's own: objects by their type, Variables with their metadata, sizes in bold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.modules.summary import texts
from weft.nnx.graphs.nodes import is_graph_node
from weft.nnx.printing.reprlib import SizeBytes
from weft.nnx.variable.variable import Variable


def described(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Arguments as text: one as it is, several as a list, named ones below."""
    return texts.described(args, kwargs, is_graph_node)


def as_text(value: Any) -> str:
    """A value as text."""
    return texts.as_text(value, is_graph_node)


def variable_as_tree(variable: Variable[Any]) -> Any:
    """A Variable as its value, or as its metadata and its value if it has metadata."""
    metadata = {key: one for key, one in variable.get_metadata(exclude_required=True).items() if one is not None}
    value = variable.get_raw_value()
    return {**metadata, "value": value} if metadata else value


def size_text(size: SizeBytes) -> str:
    """A size, the number in bold; nothing for none."""
    if not size:
        return ""
    number, _, rest = repr(size).partition(" ")
    return f"[bold]{number} [dim]{rest}[/dim][/bold]"
