"""Classes that list their values: those of `enum`, and equinox's, whose items JAX can compute with."""

from __future__ import annotations

import enum
from typing import Any

import equinox as eqx


def items_of(cls: type) -> dict[str, Any]:
    """The values of an enumeration, by name; nothing for any other class."""
    if issubclass(cls, enum.Enum):
        return {one.name: one for one in cls}
    if issubclass(cls, eqx.Enumeration):
        # Its items are looked up by name only, and no public attribute lists the names.
        return dict(getattr(cls, "_name_to_item", {}))
    return {}


def name_of_item(value: Any) -> tuple[type, str] | None:
    """The enumeration that a value is an item of, and the name of the item there, if it is one of equinox's."""
    cls = getattr(value, "_enumeration", None)
    if not isinstance(cls, type) or not issubclass(cls, eqx.Enumeration):
        return None
    return next(((cls, name) for name, item in items_of(cls).items() if item is value), None)
