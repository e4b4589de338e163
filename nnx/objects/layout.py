"""Layouts: an object's attributes in the order in which they are flattened, and which of them are data.

Attributes are sorted by name, those of a `List` by number. A layout is made once for each combination of names, and
stored with the mapping from attributes to "is data", which objects of equal structure share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.tree_util as jtu
from weft.nnx.objects.attributes import HashableMapping

# Limits on stored layouts: a long `List` would store a layout for each length it ever had.
_MOST_LAYOUTS, _MOST_NAMES = 16, 64


class Layout:
    """The attributes of an object in order.

    Attributes:
        items: (name, key, is data) for each; `key` is an int for the elements of a `List`.
        data_names, static_names: the names of data attributes, and of static ones.
        data_keys: JAX's key for each data attribute.
    """

    __slots__ = ("_hash", "data_keys", "data_names", "items", "static_names")

    def __init__(self, nodes: HashableMapping, names: tuple[str, ...], int_keys: bool):
        pairs = [(int(name) if int_keys and name.isdecimal() else name, name) for name in names]
        # Ints before names, which Python cannot compare.
        pairs.sort(key=lambda pair: (not isinstance(pair[0], int), pair[0]))
        self.items = tuple((name, key, bool(nodes.get(name, False))) for key, name in pairs)
        self.data_names = tuple(name for name, _, is_data in self.items if is_data)
        self.static_names = tuple(name for name, _, is_data in self.items if not is_data)
        self.data_keys = tuple(
            jtu.GetAttrKey(key) if isinstance(key, str) else jtu.SequenceKey(key)
            for _, key, is_data in self.items
            if is_data
        )
        # Computed once: a layout is a part of every object's treedef, and treedefs are keys of JAX's caches.
        self._hash = hash(self.items)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self.items == other.items)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Layout({', '.join(name for name, _, _ in self.items)})"


def layout_of(nodes: HashableMapping, values: Mapping[str, Any], int_keys: bool) -> Layout:
    """Returns the layout of an object with these attributes, stored in `nodes`."""
    combination = (int_keys, *values)
    layout = nodes.layouts.get(combination)
    if layout is None:
        layout = Layout(nodes, combination[1:], int_keys)
        if len(values) < _MOST_NAMES or not nodes.layouts:
            if len(nodes.layouts) >= _MOST_LAYOUTS:
                nodes.layouts.clear()
            nodes.layouts[combination] = layout
    return layout
