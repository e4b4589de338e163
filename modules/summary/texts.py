"""Values as short texts for a table: arrays by dtype and shape, containers in the block style of YAML."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
from weft.core.errors import MissingExtraError


def is_record(value: Any) -> bool:
    """Whether a value is shown by the name of its type."""
    return isinstance(value, eqx.Module)


def described(args: tuple[Any, ...], kwargs: Mapping[str, Any], is_object: Callable[[Any], bool] = is_record) -> str:
    """Formats arguments: a single one as it is, several as a list, and named ones below."""
    parts = ([args[0]] if len(args) == 1 else [list(args)] if args else []) + ([dict(kwargs)] if kwargs else [])
    return "\n".join(as_text(part, is_object) for part in parts)


def as_text(value: Any, is_object: Callable[[Any], bool] = is_record) -> str:
    """Formats a value in rich's markup.

    Args:
        value: anything.
        is_object: whether a value is shown by the name of its type alone.

    >>> import jax.numpy as jnp
    >>> print(as_text({"x": jnp.zeros((2, 3)), "rest": [1, None]}).replace("[dim]", "").replace("[/dim]", ""))
    rest:
    - 1
    - None
    x: float32[2,3]
    """
    return "\n".join(_lines(value, is_object))


def _lines(value: Any, is_object: Callable[[Any], bool]) -> list[str]:
    if isinstance(value, Mapping) and value:
        entries = sorted(((str(key), part) for key, part in value.items()), key=lambda entry: entry[0])
        return [line for key, part in entries for line in _entry(key, part, is_object)]
    if isinstance(value, list | tuple) and value:
        parts = [_lines(part, is_object) for part in value]
        return [line for first, *rest in parts for line in (f"- {first}", *(f"  {line}" for line in rest))]
    return [_leaf(value, is_object)]


def _entry(key: str, value: Any, is_object: Callable[[Any], bool]) -> list[str]:
    lines = _lines(value, is_object)
    if isinstance(value, Mapping) and value:
        return [f"{key}:", *(f"  {line}" for line in lines)]
    return [f"{key}:", *lines] if isinstance(value, list | tuple) and value else [f"{key}: {lines[0]}", *lines[1:]]


def _leaf(value: Any, is_object: Callable[[Any], bool]) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        sizes = ",".join(map(str, value.shape))
        return f"[dim]{value.dtype}[/dim][{sizes}]"
    if is_object(value):
        return type(value).__name__
    if isinstance(value, type):
        return rf"type\[{value.__name__}]"
    # `[relu]` in a repr would be taken for a tag of rich's markup, and vanish.
    return re.sub(r"\[(?=[a-zA-Z/@#])", r"\[", value if isinstance(value, str) else repr(value))


def bytes_as_text(bytes: int) -> str:
    """Formats a number of bytes."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if bytes > scale:
            return f"{bytes / scale:,.1f} {unit}"
    return f"{bytes:,} B"


def size_and_bytes(size: int, bytes: int) -> str:
    """Formats a count of numbers with its bytes.

    >>> size_and_bytes(1_200, 4_800)
    '1,200 (4.8 KB)'
    """
    return f"{size:,} ({bytes_as_text(bytes)})"


def rich_modules() -> Any:
    """Imports rich with the modules that a table needs.

    Raises:
        ModuleNotFoundError: without it.
    """
    try:
        import rich.box
        import rich.console
        import rich.table
        import rich.text
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "tabulate draws with rich, which is not installed", fix="pip install 'weft-jax[display]' (treescope, rich)"
        ) from error
    return rich


def drawn(rich: Any, table: Any, options: Mapping[str, Any]) -> str:
    """Renders a table as text, by a console with these options."""
    console = rich.console.Console(**{"force_jupyter": False, **options})
    with console.capture() as capture:
        console.print(table)
    return capture.get()
