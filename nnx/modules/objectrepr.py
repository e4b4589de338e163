"""The text of objects: sizes by kind of Variable in the first line, then attributes, big arrays as shape and dtype.

Importing this file sets the printing methods of `Pytree`, because it imports `pytree`, which cannot import it in turn.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from typing import Any

import jax
import numpy as np
from weft.nnx.graphs.nodes import child_items, is_graph_node, is_node
from weft.nnx.modules.pytree import Pytree
from weft.nnx.objects.objects import in_order
from weft.nnx.printing.reprlib import Attr, Object, Representable, SizeBytes
from weft.nnx.variable.kinds import RngState
from weft.nnx.variable.refs import is_array_ref
from weft.nnx.variable.variable import Variable

Sizes = dict[type, SizeBytes]


class _Printing(threading.local):
    """State of one outermost `repr` call, which the `repr`s of inner objects read."""

    seen: set[int] | None = None
    sizes: dict[int, Sizes] | None = None


_printing = _Printing()


def _measure(node: Any, known: dict[int, Sizes]) -> Sizes:
    """Sizes by kind of Variable below a node; a shared Variable counts at its first path only."""
    # Entered before its children are measured, so that a cycle ends here.
    sizes = known[id(node)] = {}
    if isinstance(node, Variable):
        kind = RngState if issubclass(node.var_type, RngState) else node.var_type
        if size := SizeBytes.from_any(node.get_raw_value()):
            sizes[kind] = size
        return sizes
    for _, child in child_items(node):
        if id(child) not in known and (isinstance(child, Variable) or is_node(child)):
            for kind, size in _measure(child, known).items():
                sizes[kind] = sizes.get(kind, SizeBytes()) + size
    return sizes


def _size_comment(sizes: Sizes) -> str:
    if not sizes:
        return ""
    text = " # " + ", ".join(f"{kind.__name__}: {size}" for kind, size in sizes.items())
    return text if len(sizes) == 1 else f"{text}, Total: {sum(sizes.values(), SizeBytes())}"


@dataclasses.dataclass(frozen=True, repr=False)
class ArrayRepr(Representable):
    """Prints an array as its shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: Any

    def __nnx_repr__(self):
        yield Object(self.name, same_line=True)
        yield Attr("shape", self.shape)
        yield Attr("dtype", self.dtype)


def _brief(value: Any) -> Any:
    """Replaces arrays of more than one element by their shape and dtype, in Variables too."""
    if isinstance(value, Variable):
        return value.var_type._new(jax.tree.map(_brief, value.get_raw_value()), value._nnx_metadata)
    if (is_array_ref(value) or isinstance(value, np.ndarray | jax.Array)) and math.prod(value.shape) > 1:
        return ArrayRepr("ArrayRef" if is_array_ref(value) else "Array", value.shape, value.dtype)
    return value


def _shown(node: Pytree) -> dict[str, Any]:
    # Private attributes are hidden unless they are data, as in flax.
    nodes = node._pytree__nodes
    return {
        name: value
        for name, value in in_order(node).items()
        if not str(name).startswith("_") or nodes.get(str(name), False)
    }


def object_parts(node: Pytree):
    """Yields the header and the attributes of an object; `...` for an object inside its own `repr` (a cycle)."""
    known, seen = _printing.sizes, _printing.seen
    outermost, first = known is None or id(node) not in known, seen is None
    # Sizes are measured once, for the outermost object: measured for each, a model of depth n would be walked n times.
    if known is None or outermost:
        known = _printing.sizes = {}
        _measure(node, known)
    sizes = known[id(node)]
    if seen is None:
        seen = _printing.seen = set()
    try:
        if id(node) in seen:
            yield Object(type(node), empty_repr="...")
            return
        yield Object(type(node), comment=_size_comment(sizes))
        seen.add(id(node))
        for name, value in _shown(node).items():
            yield Attr(name, jax.tree.map(_brief, value, is_leaf=is_graph_node))
    finally:
        # Also after an error in a user's `repr`: the next text would show `...` for every object that this one has met.
        if first:
            _printing.seen = None
        if outermost:
            _printing.sizes = None


def render_object(node: Pytree, path: Any, subtree_renderer: Any) -> Any:
    """Renders an object for treescope; a Module gets a colour that depends on its class's name."""
    import treescope
    from weft.nnx.printing.visualization import render_object_constructor

    kind = type(node)
    color = treescope.formatting_util.color_from_string(kind.__qualname__) if kind._pytree__has_color else None
    return render_object_constructor(
        kind, _shown(node), path, subtree_renderer, color=color, comment=_size_comment(_measure(node, {})) or None
    )


Pytree.__nnx_repr__ = object_parts
Pytree.__treescope_repr__ = render_object
