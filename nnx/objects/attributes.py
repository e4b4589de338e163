"""Attributes of objects: which are *data* (children, traced) and which are *static* (part of the structure).

By default the type of a value decides: arrays, Variables, objects and registered types are data, everything else is
static. `self.scale = nnx.data(2.0)`, or `scale: float = nnx.data()` in the class, overrides that. Data inside a static
attribute is refused, because it would become a constant of the compiled program without notice.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Hashable, Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, TypeVar

import jax
import numpy as np
from weft.nnx.errors import MISSING, AttributeKindError, Missing
from weft.nnx.foreign import is_foreign_type, refuse_foreign
from weft.nnx.variable.refs import ArrayRefOutput, NoUpdate, is_array_ref, is_plain_array
from weft.nnx.variable.variable import VARIABLE_TYPES, Variable

A = TypeVar("A")
T = TypeVar("T", bound=type)

DATA_ANNOTATION, STATIC_ANNOTATION = "__data__", "__static__"
Data = Annotated[A, DATA_ANNOTATION]
Static = Annotated[A, STATIC_ANNOTATION]

# The classes of objects, each with the functions that flatten and rebuild it; `Pytree` and `nodes` register them.
GRAPH_TYPES: dict[type, Any] = {}
DATA_REGISTRY: set[type] = set()
# The types of most static values, which are known as such without asking whether they are arrays or refs.
_ATOMS = frozenset(
    (bool, int, float, complex, str, bytes, type(None), type, types.FunctionType, types.BuiltinFunctionType)
)


# Mappings with more items share no successors: a long `List` would keep a mapping for each length it ever had. No
# mapping remembers more of them: those of programs that make attribute names at run time would be kept for ever.
_MOST_REMEMBERED = 64


class HashableMapping(Mapping[Any, Any], Hashable):
    """An immutable, hashable mapping; each object has one from attribute name to whether it is data.

    A mapping remembers its successors, so objects that set the same attributes in the same order share mappings.
    """

    __slots__ = ("_hash", "_mapping", "_successors", "layouts")

    def __init__(self, mapping: Mapping[Any, Any], copy: bool = True):
        self._mapping = dict(mapping) if copy else mapping
        self._hash: int | None = None
        self._successors: dict[Any, HashableMapping] = {}
        self.layouts: dict[Any, Any] = {}

    def with_item(self, key: Any, value: Any) -> HashableMapping:
        """Returns this mapping with an item added or replaced."""
        successor = self._successors.get((key, value))
        if successor is None:
            successor = HashableMapping({**self._mapping, key: value}, copy=False)
            if max(len(self._mapping), len(self._successors)) < _MOST_REMEMBERED:
                self._successors[key, value] = successor
        return successor

    def without(self, key: Any) -> HashableMapping:
        """Returns this mapping without an item."""
        return HashableMapping({name: value for name, value in self._mapping.items() if name != key}, copy=False)

    def update(self, items: Mapping[Any, Any]) -> HashableMapping:
        return HashableMapping({**self._mapping, **items}, copy=False)

    def get(self, key: Any, default: Any = None) -> Any:
        return self._mapping.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._mapping

    def __getitem__(self, key: Any) -> Any:
        return self._mapping[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __hash__(self) -> int:
        # At the first use only: objects that are made alike share a mapping, which then compares by identity.
        if self._hash is None:
            self._hash = hash(frozenset(self._mapping.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, HashableMapping) and self._mapping == other._mapping)

    def __repr__(self) -> str:
        return repr(self._mapping)

    def __reduce__(self) -> Any:
        # Without successors and layouts, which are caches of this process.
        return (HashableMapping, (dict(self._mapping),))


def _annotation(value: Any, options: dict[str, Any], *, static: bool) -> Any:
    name = "static" if static else "data"
    if not isinstance(value, Missing) and options:
        raise TypeError(f"nnx.{name}() takes a value, or keyword arguments of a field, but not both")
    metadata = dict(options.pop("metadata", None) or {})
    if "static" in metadata:
        raise AttributeKindError(f"nnx.{name}() sets the 'static' key of the field's metadata itself")
    return dataclasses.field(**options, metadata={"nnx_value": value, **metadata, "static": static})


def data(value: Any = MISSING, /, **kwargs: Any) -> Any:
    """Marks an attribute as data, although the type of its value would make it static.

    Args:
        value: the attribute's value: `self.scale = nnx.data(2.0)`.
        kwargs: without a value, options of `dataclasses.field`: `scale: float = nnx.data(default=2.0)`.

    Returns:
        A field, which must be assigned to an attribute directly.

    Raises:
        TypeError: for a value and options.
        ValueError: if the options' metadata says `static`, which this decides.

    >>> from weft import nnx
    >>> class Scale(nnx.Module):
    ...     def __init__(self):
    ...         self.by, self.name = nnx.data(2.0), "scale"
    >>> list(nnx.state(Scale()))
    ['by']
    """
    return _annotation(value, kwargs, static=False)


def static(value: Any = MISSING, /, **kwargs: Any) -> Any:
    """Marks an attribute as static. See `data`.

    Raises:
        TypeError: for a value and options.
        ValueError: if the options' metadata says `static`, which this decides.

    >>> from weft import nnx
    >>> class Scale(nnx.Module):
    ...     def __init__(self):
    ...         self.by, self.shape = nnx.Param(2.0), nnx.static((2, 3))
    >>> list(nnx.state(Scale()))
    ['by']
    """
    return _annotation(value, kwargs, static=True)


def dataclass(
    cls: Any = None,
    /,
    *,
    init: bool = True,
    eq: bool = True,
    order: bool = False,
    unsafe_hash: bool = False,
    match_args: bool = True,
    kw_only: bool = False,
    slots: bool = False,
    weakref_slot: bool = False,
) -> Any:
    """Like `dataclasses.dataclass`, but the class keeps the `repr` of NNX objects.

    >>> from weft import nnx
    >>> @nnx.dataclass
    ... class Scale(nnx.Module):
    ...     by: nnx.Param
    ...     name: str = "scale"
    >>> Scale(nnx.Param(2.0)).name
    'scale'
    """
    options = {name: value for name, value in locals().items() if name != "cls"}
    return dataclasses.dataclass(cls, repr=False, **options)


def is_annotation(value: Any) -> bool:
    """Whether a value is a result of `data` or `static`."""
    return isinstance(value, dataclasses.Field) and "nnx_value" in value.metadata


def register_data_type(type_: T, /) -> T:
    """Registers a type whose values are data when assigned to attributes; can be used as a decorator.

    >>> from weft import nnx
    >>> @nnx.register_data_type
    ... class Box:
    ...     pass
    >>> nnx.is_data(Box())
    True
    """
    DATA_REGISTRY.add(type_)
    return type_


def is_array_leaf(value: Any) -> bool:
    """Whether a value is a JAX array, a NumPy array or a ref."""
    return is_plain_array(value) or isinstance(value, jax.Array | np.ndarray) or is_array_ref(value)


def is_data(value: Any, /) -> bool:
    """Whether the type of a value makes it data: an array, a Variable, an object, or a registered type.

    Lists and dicts are static, even with arrays in them: use `nnx.List` and `nnx.Dict`, or `nnx.data`.

    >>> import jax.numpy as jnp
    >>> is_data(jnp.zeros(2)), is_data(2.0), is_data([jnp.zeros(2)])
    (True, False, False)
    """
    kind = type(value)
    if kind in VARIABLE_TYPES or kind in GRAPH_TYPES or kind in DATA_REGISTRY:
        return True
    return kind not in _ATOMS and (is_array_leaf(value) or isinstance(value, Variable | ArrayRefOutput | NoUpdate))


def has_data(value: Any, /) -> list[Any]:
    """Returns all data inside a value, through containers.

    >>> import jax.numpy as jnp
    >>> [value.shape for value in has_data([2.0, (jnp.ones(2),)])], has_data([2.0, "two"])
    ([(2,)], [])
    """
    return [leaf for leaf in _leaves(value) if is_data(leaf)]


def _leaves(value: Any) -> list[Any]:
    # A container seen before counts as a leaf: a list that contains itself would be flattened without end.
    seen: set[int] = set()

    def is_leaf(node: Any) -> bool:
        known = id(node) in seen
        seen.add(id(node))
        return known or is_data(node)

    return jax.tree.leaves(value, is_leaf=is_leaf)


class Status(Enum):
    """The declaration of an attribute by an assignment: by the type of its value, or by `nnx.data` or `nnx.static`."""

    DATA = "data"
    STATIC = "static"
    EXPLICIT_DATA = "nnx.data"
    EXPLICIT_STATIC = "nnx.static"

    @property
    def explicit(self) -> bool:
        return self in (Status.EXPLICIT_DATA, Status.EXPLICIT_STATIC)

    @property
    def is_data(self) -> bool:
        return self in (Status.DATA, Status.EXPLICIT_DATA)


_FIXES = (
    "remove the arrays if the attribute is meant to be static; wrap the value on assignment if it is data: "
    "_.{name} = nnx.data(...); declare it in the class: {name}: {kind} = nnx.data(); use nnx.List or nnx.Dict for a "
    "list or dict; or make the class no pytree: class {owner}(..., pytree=False)"
)


def check_attribute(owner: type, name: str, value: Any, status: Status | None, known: bool | None) -> None:
    """Refuses data in a static attribute, and results of `nnx.data` or `nnx.static` inside containers.

    Args:
        owner: the class of the object.
        name: the attribute.
        value: its value.
        status: how the assignment declares it; None to check an existing value.
        known: whether the object's record has the attribute as data; None if it has no entry.

    Raises:
        AttributeKindError: naming the attribute, and the paths inside its value.
    """
    where = f"{owner.__name__}.{name}"
    if type(value) in _ATOMS:
        return
    if status is Status.DATA or (status is None and known and is_data(value)):
        return
    leaves = _leaves(value)
    data_leaves = [leaf for leaf in leaves if is_data(leaf)]
    may_have_data = status is Status.EXPLICIT_DATA or (known and status is not Status.EXPLICIT_STATIC)
    if data_leaves and not may_have_data:
        # flax's wording in three cases (declared static, assigned, mutated later), which programs match in tests.
        if status is Status.EXPLICIT_STATIC:
            finding, where_to = "data in", "annotated with nnx.static(...)"
        else:
            finding, where_to = "unexpected data on" if status is None else "data on", "in static attribute"
        for leaf in jax.tree.leaves(value, is_leaf=lambda node: is_foreign_type(type(node))):
            refuse_foreign(leaf)
        kinds = ", ".join(sorted({type(leaf).__name__ for leaf in data_leaves}))
        raise AttributeKindError(
            f"Found {finding} value of type {type(value).__name__!r} {where_to}: {kinds}",
            at=where,
            fix=_FIXES.format(name=name, kind=type(value).__name__, owner=owner.__name__),
        )
    tags = {"static" if leaf.metadata["static"] else "data" for leaf in leaves if is_annotation(leaf)}
    if tags:
        raise AttributeKindError(
            f"Found unexpected tags {tags}: nnx.data(...) and nnx.static(...) must not be inside containers",
            at=where,
            fix="assign their result to the attribute directly",
        )
