"""The items of enumerations: those of `enum`, and those of equinox, whose items JAX can compute with."""

from __future__ import annotations

import enum
from typing import Any

import equinox as eqx


def items_of(cls: type) -> dict[str, Any]:
    """The items of an enumeration by name; an empty dict for any other class."""
    if issubclass(cls, enum.Enum):
        return {item.name: item for item in cls}
    if issubclass(cls, eqx.Enumeration):
        # equinox looks items up by name, and no public attribute lists the names.
        return dict(getattr(cls, "_name_to_item", {}))
    return {}


def name_of_item(value: Any) -> tuple[type, str] | None:
    """The equinox enumeration that a value belongs to and the item's name; None for any other value."""
    cls = getattr(value, "_enumeration", None)
    if not isinstance(cls, type) or not issubclass(cls, eqx.Enumeration):
        return None
    return next(((cls, name) for name, item in items_of(cls).items() if item is value), None)
