"""Rebuilds a tree of many objects whose structure is known, faster than JAX does.

A training step under plain `jax.jit` returns a model of hundreds of objects. JAX unflattens them one by one, each with
a call back into Python, and that may take as long as the step. The structure is the same at each step, so an `Assembly`
analyses it once, and then builds by column: all objects, then each slot of all objects, then the attributes of all
objects that have the same attribute names.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from weft.core.edge import trees
from weft.core.interpreter.codegen import Source
from weft.nnx.graphs.plan import is_object
from weft.nnx.objects.layout import Layout, layout_of
from weft.nnx.objects.objects import attributes_of, new_objects, picker, set_attributes
from weft.nnx.variable.packed import is_boxed

# With fewer objects, JAX's own unflattening is as fast.
_FEWEST = 8


class Unfit(Exception):
    """Raised for a tree that only JAX can rebuild: it contains a container that is no NNX object."""


# A function from the pool to the attribute dicts of a group of objects.
_Make = Callable[[Sequence[Any]], Iterable[dict[str, Any]]]


class _Alike:
    """Objects with the same attribute names: their positions, and the positions of their values in the pool."""

    def __init__(self, layout: Layout):
        self.names = (*layout.data_names, *layout.static_names)
        self.objects: list[int] = []
        self.rows: list[list[int]] = []

    def finished(self) -> tuple[_Make, Callable[[Any], Any]]:
        """Returns a function that makes the attribute dicts, and one that selects the objects."""
        names, members = self.names, picker(self.objects)
        if len(self.rows) <= len(names):
            # A few objects with many attributes each, such as a long `List`.
            rows = [picker(row) for row in self.rows]
            return lambda pool: [dict(zip(names, row(pool), strict=True)) for row in rows], members
        # Generated code, because a dict display takes a third of the time of `dict(zip(names, values))`.
        source = Source()
        items = ", ".join(f"{name!r}: a{i}" for i, name in enumerate(names))
        source.lines.append(f"return {{{items}}}")
        make = source.function(", ".join(f"a{i}" for i in range(len(names))))
        columns = [picker(column) for column in zip(*self.rows, strict=True)]
        return lambda pool: map(make, *[column(pool) for column in columns]), members


class Assembly:
    """Rebuilds all objects of one structure around new Variables.

    Attributes are picked from a *pool*, a flat tuple: None, the Variables in JAX's order, the objects, static values.

    Args:
        root: an object that contains only objects, Variables, None and static values.

    Raises:
        Unfit: if it contains anything else.
    """

    __slots__ = ("_alike", "_kinds", "_nodes", "_statics")

    def __init__(self, root: Any):
        self._kinds: list[type] = []
        self._nodes: list[Any] = []
        self._statics: list[Any] = []
        layouts: list[tuple[Layout, list[Any]]] = []
        variables = len(trees.flatten(root, is_boxed)[0])
        self._add(root, itertools.count(1), variables + 1, layouts)
        # Grouped by attribute names: one generated function makes the dicts of all objects of a group.
        alike: dict[tuple[str, ...], _Alike] = {}
        for i, (layout, places) in enumerate(layouts):
            group = alike.setdefault((*layout.data_names, "", *layout.static_names), _Alike(layout))
            group.objects.append(i)
            # Static values have negative numbers until here: they come after the objects, whose count is known now.
            group.rows.append([place if place >= 0 else variables + len(layouts) - place for place in places])
        self._alike = [group.finished() for group in alike.values() if group.names]

    def _add(self, value: Any, variables: Iterator[int], first: int, layouts: list[tuple[Layout, list[Any]]]) -> int:
        """Adds a value and everything below it. Returns the value's position in the pool."""
        # Place 0 of the pool is None. JAX has no leaf for it, so it takes no Variable.
        if value is None:
            return 0
        if is_boxed(value):
            return next(variables)
        if not (is_object(value) and value._pytree__is_pytree):
            raise Unfit
        values = attributes_of(value)
        layout = layout_of(value._pytree__nodes, values, value._pytree__has_int_keys)
        places = [self._add(values[name], variables, first, layouts) for name in layout.data_names]
        for name in layout.static_names:
            self._statics.append(values[name])
            places.append(-len(self._statics))
        # Children come before their parent, so the root is the last object.
        self._kinds.append(type(value))
        self._nodes.append(value._pytree__nodes)
        layouts.append((layout, places))
        return first + len(layouts) - 1

    @property
    def pays(self) -> bool:
        """Whether there are enough objects to be faster than JAX."""
        return len(self._kinds) >= _FEWEST

    def around(self, variables: Sequence[Any]) -> Any:
        """Builds the tree of new objects around Variables, and returns its root."""
        objects = new_objects(self._kinds, self._nodes)
        pool = (None, *variables, *objects, *self._statics)
        # Attributes come after all objects exist: the attribute of a parent is its child object in the pool.
        for make, members in self._alike:
            set_attributes(members(objects), make(pool))
        return objects[-1]


def assembly_of(root: Any) -> Assembly | None:
    """Makes the assembly for trees of the structure of `root`; None if only JAX can rebuild them, or is as fast."""
    try:
        assembly = Assembly(root)
    except (Unfit, RecursionError):  # a chain of objects may be deeper than Python's recursion limit
        return None
    return assembly if assembly.pays else None
