"""Paths: where a leaf sits in a tree.

A *path* is a tuple of attribute names, mapping keys and sequence indices: `("layers", 0, "weight")`. Both layers of
weft use the same form, and every error prints it the way one would write it in Python: `model.layers[0].weight`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import jax.tree_util as jtu

Path = tuple[Hashable, ...]


def key_part(key: Any) -> Hashable:
    """The path part of one JAX key entry (`GetAttrKey`, `SequenceKey`, `DictKey`, `FlattenedIndexKey`)."""
    match key:
        case jtu.GetAttrKey():
            return key.name
        case jtu.SequenceKey():
            return key.idx
        case jtu.DictKey() | jtu.FlattenedIndexKey():
            return key.key
        case _:
            return str(key)


def format_path(path: Path, root: str = "") -> str:
    """A path as Python source, after the name of its root.

    >>> format_path(("layers", 0, "weight"), "model")
    'model.layers[0].weight'
    >>> format_path(("a b", "c"))
    "['a b'].c"
    """
    text = root
    for part in path:
        if isinstance(part, str) and part.isidentifier():
            text += f".{part}" if text else part
        else:
            text += f"[{part!r}]"
    return text or "<root>"
