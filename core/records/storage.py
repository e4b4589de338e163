"""What lies in a record's `__dict__` in the place of its values: `Static` for configuration, `Pending` for all fields.

A `Static` passes through JAX transforms in the treedef, where it is neither traced nor copied. Static values are
compared by type and value. Python's `==` does not serve as a cache key: `1`, `1.0` and `True` are equal, and so are
`0.0` and `-0.0`, so that `jit` ran the program of another value; and nan does not equal itself, so that every call was
a cache miss.

A *pending* record is one that a compiled call returned, whose fields are built when somebody first reads them. A step
of training takes the model that the step before it returned, and nobody reads the model's fields in between. To make
its 300 records and as many dicts, and to free them again, at each step costs more than everything else around the
call. So the `__dict__` of a returned record has a `Pending` in the place of every field. The next compiled call takes
the leaves from there (`interpreter.codegen`). To read a field or `__dict__`, or to let JAX flatten the record, builds
the fields first, so that nobody sees a difference.

Code that reads a record's `__dict__` must use `fields_of`, or `Module.__getattribute__`, which uses it. With a plain
read it would see the fields of a pending record as `Pending` objects.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import secrets
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

import equinox as eqx
from weft.core.constants import name_for_pickle
from weft.core.edge import trees
from weft.core.edge.trees import PyTree, TreeDef


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
        return sorted(cast("type[Any]", type(part)).__qualname__ for part in cast("frozenset[Any]", value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value) if field.compare]
    return ()


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


# --- pending records --------------------------------------------------------------------------------------------------

# The descriptor of `__dict__` itself: equinox's `__getattribute__` is Python code, without which this is a fifth
# faster.
read_dict: Callable[[Any], dict[str, Any]] = eqx.Module.__dict__["__dict__"].__get__
# To set a dict that was built by a literal is a fifth faster than to fill a dict key by key.
write_dict: Callable[[Any, dict[str, Any]], None] = eqx.Module.__dict__["__dict__"].__set__

# Two keys in the dict of a pending record that are no fields; no field can have such a name.
PENDING = "<pending>"
_BUILT = "<built>"


class Form:
    """The structure of a pending record, shared by all records that one compiled program returns in one place.

    Attributes:
        treedef: the treedef of the record.
        make: builds the record from its leaves and from inner records that exist already.
    """

    __slots__ = ("make", "treedef")

    def __init__(self, treedef: TreeDef, make: Callable[[Sequence[Any], Sequence[Any]], PyTree]):
        self.treedef, self.make = treedef, make


class Pending:
    """The content of a pending record.

    Attributes:
        form: the form of the record.
        leaves: the leaves, in the order of JAX.
        records: its inner records, each of which is an existing record that was handed back, or `None`.
    """

    __slots__ = ("form", "leaves", "records")

    def __init__(self, form: Form, leaves: Sequence[Any], records: Sequence[Any]):
        self.form, self.leaves, self.records = form, leaves, records


def fields_of(record: Any) -> dict[str, Any]:
    """The `__dict__` of a record, as JAX flattens it; builds the fields of a pending record."""
    fields = read_dict(record)
    return _built(record, fields) if PENDING in fields else fields


def _built(record: Any, fields: dict[str, Any]) -> dict[str, Any]:
    # `make` is called without a lock: two threads may both build the fields, which costs time but changes nothing.
    pending = fields[PENDING]
    built = read_dict(pending.form.make(pending.leaves, pending.records))
    # Attributes that somebody set on the pending record with `object.__setattr__` are not lost.
    built.update((name, value) for name, value in fields.items() if value is not pending and name != _BUILT)
    # If two threads read the record at once, both use the fields that the first of them has built.
    built = fields.setdefault(_BUILT, built)
    write_dict(record, built)
    return built
