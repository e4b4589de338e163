"""JAX's formats: the sharding of an array together with its layout in memory."""

from __future__ import annotations

from typing import Any

from weft.core.edge.moved import Names

_layouts = Names("jax.experimental.layout", "an array with a layout of its own", "Format")


def is_format(value: object) -> bool:
    """Whether a value is a `Format`; False for all values in a JAX without formats."""
    return _layouts.has("Format") and isinstance(value, _layouts.Format)


def format_of(layout: Any, sharding: Any) -> Any:
    """A `Format` of a layout and a sharding."""
    return _layouts.Format(layout, sharding)
