"""Putting many objects of a known make together at once.

A step of training returns a model of hundreds of objects. JAX makes them one by one, each by a call back into Python,
and takes as long for that as for the step. What they are is the same at each step. So it is looked at once, and from
then on made column by column: all objects, all slots of one sort, and the attributes of all objects that are alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from weft.core.edge import trees
from weft.nnx.graphs.plan import is_object
from weft.nnx.objects.layout import Layout, layout_of
from weft.nnx.objects.objects import attributes_of, new_objects, picker, set_attributes
from weft.nnx.variable.packed import is_boxed

# Fewer objects are made as quickly one by one.
_FEWEST = 8


class Unfit(Exception):
    """Something is put together by JAX alone: a container that is none of weft's objects."""


# From the pool to the attributes of some objects.
_Make = Callable[[Sequence[Any]], Iterable[dict[str, Any]]]


class _Alike:
    """Objects with attributes of the same names: which they are, and where in the pool each one's values are."""

    def __init__(self, layout: Layout):
        self.names = (*layout.data_names, *layout.static_names)
        self.objects: list[int] = []
        self.rows: list[list[int]] = []

    def finished(self) -> tuple[_Make, Callable[[Any], Any]]:
        """What makes their attributes, and what picks the objects."""
        return self._by_column() if len(self.rows) > len(self.names) else self._by_row(), picker(self.objects)

    def _by_row(self) -> _Make:
        # As for the elements of a long list: many attributes, and few that are alike.
        names, rows = self.names, [picker(row) for row in self.rows]
        return lambda pool: [dict(zip(names, row(pool), strict=True)) for row in rows]

    def _by_column(self) -> _Make:
        # A dict that is written down takes a third of the time of one that is made of pairs.
        parameters = ", ".join(f"a{i}" for i in range(len(self.names)))
        items = ", ".join(f"{name!r}: a{i}" for i, name in enumerate(self.names))
        make: Callable[..., dict[str, Any]] = eval(f"lambda {parameters}: {{{items}}}")
        columns = [picker(column) for column in zip(*self.rows, strict=True)]
        return lambda pool: map(make, *[column(pool) for column in columns])


class Assembly:
    """How the objects of one make are put together around their Variables.

    What they are made of lies in a *pool*: None, the Variables in JAX's order, the objects, and what is static.

    Args:
        root: an object, of objects and Variables alone.

    Raises:
        Unfit: if there is anything else in it.
    """

    __slots__ = ("_alike", "_kinds", "_nodes", "_statics")

    def __init__(self, root: Any):
        self._kinds: list[type] = []
        self._nodes: list[Any] = []
        self._statics: list[Any] = []
        found: list[tuple[Layout, list[Any]]] = []
        variables = len(trees.flatten(root, is_boxed)[0])
        self._add(root, itertools.count(1), variables + 1, found)
        alike: dict[tuple[str, ...], _Alike] = {}
        for i, (layout, places) in enumerate(found):
            group = alike.setdefault((*layout.data_names, "", *layout.static_names), _Alike(layout))
            group.objects.append(i)
            # Static values come last, when it is known how many objects there are.
            group.rows.append([place if place >= 0 else variables + len(found) - place for place in places])
        self._alike = [group.finished() for group in alike.values() if group.names]

    def _add(self, value: Any, variables: Iterator[int], first: int, found: list[tuple[Layout, list[Any]]]) -> int:
        """The place of a value in the pool."""
        if value is None:
            return 0
        if is_boxed(value):
            return next(variables)
        if not (is_object(value) and value._pytree__is_pytree):
            raise Unfit
        values = attributes_of(value)
        layout = layout_of(value._pytree__nodes, values, value._pytree__has_int_keys)
        places = [self._add(values[name], variables, first, found) for name in layout.data_names]
        for name in layout.static_names:
            self._statics.append(values[name])
            places.append(-len(self._statics))
        self._kinds.append(type(value))
        self._nodes.append(value._pytree__nodes)
        found.append((layout, places))
        return first + len(found) - 1

    @property
    def pays(self) -> bool:
        """Whether there are so many objects that it is quicker than JAX."""
        return len(self._kinds) >= _FEWEST

    def around(self, variables: Sequence[Any]) -> Any:
        """The root, of new objects around these Variables."""
        objects = new_objects(self._kinds, self._nodes)
        pool = (None, *variables, *objects, *self._statics)
        for make, members in self._alike:
            set_attributes(members(objects), make(pool))
        return objects[-1]


def assembly_of(root: Any) -> Assembly | None:
    """The assembly of objects of the make of these; None if JAX has to put them together, or does so as quickly."""
    try:
        assembly = Assembly(root)
    except (Unfit, RecursionError):  # a chain of objects may be longer than Python's stack
        return None
    return assembly if assembly.pays else None
