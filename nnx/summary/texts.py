"""Values as short texts for a table: arrays by dtype and shape, containers in the block style of YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from weft.nnx.errors import MissingExtraError
from weft.nnx.graphs.nodes import is_graph_node
from weft.nnx.printing.reprlib import SizeBytes
from weft.nnx.variable.variable import Variable


def described(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Arguments as text: one as it is, several as a list, named ones below."""
    parts = ([args[0]] if len(args) == 1 else [list(args)] if args else []) + ([dict(kwargs)] if kwargs else [])
    return "\n".join(as_text(part) for part in parts)


def as_text(value: Any) -> str:
    """A value as text.

    >>> import jax.numpy as jnp
    >>> print(as_text({"x": jnp.zeros((2, 3)), "rest": [1, None]}).replace("[dim]", "").replace("[/dim]", ""))
    rest:
    - 1
    - None
    x: float32[2,3]
    """
    return "\n".join(_lines(value))


def _lines(value: Any) -> list[str]:
    if isinstance(value, Mapping) and value:
        entries = sorted(((str(key), one) for key, one in value.items()), key=lambda entry: entry[0])
        return [line for key, one in entries for line in _entry(key, one)]
    if isinstance(value, list | tuple) and value:
        parts = [_lines(one) for one in value]
        return [line for first, *rest in parts for line in (f"- {first}", *(f"  {line}" for line in rest))]
    return [_leaf(value)]


def _entry(key: str, value: Any) -> list[str]:
    lines = _lines(value)
    if isinstance(value, Mapping) and value:
        return [f"{key}:", *(f"  {line}" for line in lines)]
    return [f"{key}:", *lines] if isinstance(value, list | tuple) and value else [f"{key}: {lines[0]}", *lines[1:]]


def _leaf(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        sizes = ",".join(map(str, value.shape))
        return f"[dim]{value.dtype}[/dim][{sizes}]"
    if is_graph_node(value):
        return type(value).__name__
    if isinstance(value, type):
        return rf"type\[{value.__name__}]"
    # What could be an opening tag of rich's markup.
    return re.sub(r"\[(?=[a-zA-Z/@#])", r"\[", value if isinstance(value, str) else repr(value))


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


def rich_modules() -> Any:
    """rich, with the modules that a table needs; loaded on first use.

    Raises:
        ModuleNotFoundError: without it.
    """
    try:
        import rich.console
        import rich.table
        import rich.text
    except ModuleNotFoundError as error:
        raise MissingExtraError("tabulate draws with rich, which is not installed", fix="pip install rich") from error
    return rich
