"""Static: a value that rides through JAX transforms in the tree definition, where they neither trace nor copy it.

Static values are compared by type and value. Python's own `==` is no help there: `1`, `1.0` and `True` are equal, so
are `0.0` and `-0.0`, and nan does not equal itself: a compiled function would be used for the wrong one, or for none.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from weft.core.edge import trees
from weft.core.edge.trees import TreeDef


class NamedInErrors(type):
    """A class of weft's own nodes, which goes by its `__name__` where JAX prints the types of nodes in its errors."""

    def __repr__(cls) -> str:
        return cls.__name__


class Static(metaclass=NamedInErrors):
    """A pytree node without leaves. Two are equal if their values are of one type and equal.

    It is also how records store their configuration; see `configuration`. It prints as its value, which is what a user
    knows of it: JAX prints nodes where two trees differ.

    >>> import jax
    >>> jax.jit(lambda s: s)(Static("relu")).value
    'relu'
    >>> Static(1) == Static(1.0), Static(float("nan")) == Static(float("nan"))
    (False, True)
    """

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Static and same_static(self.value, other.value)

    def __hash__(self) -> int:
        return hash(_hashed(self.value))

    def __repr__(self) -> str:
        return repr(self.value)

    # What cannot change is shared, not copied: a deep copy of a function's closure would be another function.
    def __copy__(self) -> Static:
        return self

    def __deepcopy__(self, memo: Any) -> Static:
        return self


Static.__name__ = "configuration of a record"
# The node itself is the auxiliary data, so that flattening and unflattening make no object.
trees.register_node(Static, lambda node: ((), node), lambda node, _: node)


def make_of_static(value: Any) -> Any:
    """The types in a static value, which `==` looks past: `1`, `1.0` and `True` are equal, `(1,)` and `(True,)` too."""
    if isinstance(value, tuple):
        parts = cast("tuple[Any, ...]", value)
        return (type(parts), *map(make_of_static, parts))
    return cast("type[Any]", type(value))


def same_static(a: Any, b: Any) -> bool:
    """Whether two static values are interchangeable: `1`, `1.0` and `True` are not, and two nans are."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    if isinstance(a, complex):
        return same_static((a.real, a.imag), (b.real, b.imag))
    if isinstance(a, tuple):
        return len(cast("tuple[Any, ...]", a)) == len(b) and all(map(same_static, cast("tuple[Any, ...]", a), b))
    if not bool(a == b):
        return False
    # Their own `==` has looked at the rest; here it is only about what it looks past.
    return all(map(same_static, _parts(a), _parts(b)))


def _parts(value: Any) -> Sequence[Any]:
    """What a value is compared by that holds others, in an order that is the same for equal ones."""
    if isinstance(value, frozenset):
        return sorted(map(_type_name, cast("frozenset[Any]", value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value) if field.compare]
    return ()


def _type_name(value: Any) -> str:
    return cast("type[Any]", type(value)).__qualname__


def _hashed(value: Any) -> Any:
    """What a static value is hashed as: since Python 3.10 each nan has another hash."""
    if isinstance(value, tuple):
        return tuple(map(_hashed, cast("tuple[Any, ...]", value)))
    return 0 if isinstance(value, (float, complex)) and value != value else value


@dataclass(frozen=True)
class Make:
    """A tree's definition, with the makes of the static fields in it: JAX compares these by `==` alone."""

    treedef: TreeDef
    fields: tuple[Any, ...]

    def __str__(self) -> str:
        return str(self.treedef)


class Bound:
    """An argument that was taken apart beforehand: its structure, and its dynamic leaves ready to be passed on.

    A pytree of those leaves; the interpreter gives the function the tree that it stands for.
    """

    __slots__ = ("leaves", "structure")

    def __init__(self, structure: Any, leaves: tuple[Any, ...]):
        self.structure = structure
        self.leaves = leaves

    @property
    def value(self) -> Any:
        """The tree that this stands for."""
        return self.structure.build(self.leaves)


trees.register_node(
    Bound, lambda node: (node.leaves, node.structure), lambda structure, leaves: Bound(structure, tuple(leaves))
)


def given(argument: Any) -> Any:
    """What the user's function is given for an argument: the value of a `Static` or `Bound`, else itself."""
    return argument.value if type(argument) in (Static, Bound) else argument
