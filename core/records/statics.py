"""`Static`: a value that passes through JAX transforms in the treedef, where it is neither traced nor copied.

Static values are compared by type and value. Python's `==` does not serve as a cache key: `1`, `1.0` and `True` are
equal, and so are `0.0` and `-0.0`, so that `jit` ran the program of another value; and nan does not equal itself, so
that every call was a cache miss.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import secrets
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

from weft.core.constants import name_for_pickle
from weft.core.edge import trees
from weft.core.edge.trees import TreeDef


class NamedInErrors(type):
    """The metaclass of weft's own pytree nodes: JAX prints the type of a node in its errors, here by its `__name__`."""

    def __repr__(cls) -> str:
        return cls.__name__


class Static(metaclass=NamedInErrors):
    """A pytree node without leaves around a value. Two are equal if their values have the same type and are equal.

    Records store their configuration in such nodes; see `configuration`. A `Static` prints as its value, because JAX
    prints nodes where two trees differ, and users know only the value.

    >>> import jax
    >>> jax.jit(lambda s: s)(Static("relu")).value
    'relu'
    >>> Static(1) == Static(1.0), Static(float("nan")) == Static(float("nan"))
    (False, True)
    """

    __slots__ = ("__weakref__", "value")

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Static and same_static(self.value, other.value)

    def __hash__(self) -> int:
        return hash(_hashed(self.value))

    def __repr__(self) -> str:
        return repr(self.value)

    # A copy is the node itself: a deep copy of a function with a closure would be another function, and a cache miss.
    def __copy__(self) -> Static:
        return self

    def __deepcopy__(self, memo: Any) -> Static:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if _equals_its_copy(self.value):
            return Static, (self.value,)
        token = _tokens.setdefault(self, secrets.token_hex(8))
        _known.setdefault(token, self)
        return _loaded, (self.value, token)


Static.__name__ = "configuration of a record"
# The node is its own auxiliary data, so that flattening and unflattening create no object.
trees.register_node(Static, lambda node: ((), node), lambda node, _: node)


# A closure that was pickled by value equals no other, so that an optimizer came back from another process with another
# treedef. Each such value is pickled with a token, and a process that has the token's value takes that.
_tokens: weakref.WeakKeyDictionary[Static, str] = weakref.WeakKeyDictionary()
_known: weakref.WeakValueDictionary[str, Static] = weakref.WeakValueDictionary()


def _loaded(value: Any, token: str) -> Static:
    node = _known.setdefault(token, Static(value))
    _tokens.setdefault(node, token)
    return node


def _equals_its_copy(value: Any) -> bool:
    """Whether a value that is pickled and loaded equals itself."""
    if isinstance(value, (type(None), type(...), type, enum.Enum)) or name_for_pickle(value) is not None:
        return True
    parts: Sequence[Any] = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else _parts(value)
    by_identity = cast("type[Any]", type(cast(Any, value))).__eq__ is object.__eq__ or isinstance(value, MethodType)
    return not by_identity and all(map(_equals_its_copy, parts))


def make_of_static(value: Any) -> Any:
    """The types in a static value, which `==` ignores: `1`, `1.0` and `True` are equal, and so are `(1,)` and
    `(True,)`."""
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
    # Their `==` has compared everything but the types of inner values.
    return all(map(same_static, _parts(a), _parts(b)))


def _parts(value: Any) -> Sequence[Any]:
    """The inner values by which a value is compared, in an order that is the same for equal values."""
    if isinstance(value, frozenset):
        return sorted(map(_type_name, cast("frozenset[Any]", value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value) if field.compare]
    return ()


def _type_name(value: Any) -> str:
    return cast("type[Any]", type(value)).__qualname__


def _hashed(value: Any) -> Any:
    """The value to hash for a static value: since Python 3.10 each nan object has a different hash."""
    if isinstance(value, tuple):
        return tuple(map(_hashed, cast("tuple[Any, ...]", value)))
    return 0 if isinstance(value, (float, complex)) and value != value else value


@dataclass(frozen=True)
class Make:
    """A treedef, with the types in its static fields: JAX compares the fields by `==`, for which 1 equals True."""

    treedef: TreeDef
    fields: tuple[Any, ...]

    def __str__(self) -> str:
        return str(self.treedef)


class Bound:
    """An argument that was flattened before the call: its structure, and its dynamic leaves.

    It is a pytree of these leaves; the interpreter unwraps it, so that the function gets the tree.
    """

    __slots__ = ("leaves", "structure")

    def __init__(self, structure: Any, leaves: tuple[Any, ...]):
        self.structure = structure
        self.leaves = leaves

    @property
    def value(self) -> Any:
        """The tree."""
        return self.structure.build(self.leaves)


trees.register_node(
    Bound, lambda node: (node.leaves, node.structure), lambda structure, leaves: Bound(structure, tuple(leaves))
)


def unwrapped(argument: Any) -> Any:
    """The argument for the user's function: the value of a `Static` or `Bound`, and any other argument as it is."""
    return argument.value if type(argument) in (Static, Bound) else argument
