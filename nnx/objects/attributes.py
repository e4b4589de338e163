"""Attributes of objects: which are *data* (children, traced) and which are *static* (part of the structure).

A value decides by its type: arrays, Variables, objects and registered types are data, everything else is static. An
annotation decides against that: `self.scale = nnx.data(2.0)`, or `scale: float = nnx.data()` in the class. Data inside
of a static attribute is refused, since it would silently become a constant of the compiled program.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Hashable, Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, TypeVar

import jax
import numpy as np
from weft.nnx.errors import AttributeKindError
from weft.nnx.foreign import is_foreign_type, refuse_foreign
from weft.nnx.missing import MISSING, Missing
from weft.nnx.variable.refs import ArrayRefOutput, NoUpdate, is_array_ref, is_plain_array
from weft.nnx.variable.variable import VARIABLE_TYPES, Variable

A = TypeVar("A")
T = TypeVar("T", bound=type)

DATA_ANNOTATION, STATIC_ANNOTATION = "__data__", "__static__"
Data = Annotated[A, DATA_ANNOTATION]
Static = Annotated[A, STATIC_ANNOTATION]

# Types of objects whose attributes make up a graph; `nodes` registers them.
GRAPH_TYPES: dict[type, Any] = {}
DATA_REGISTRY: set[type] = set()
_ATOMS = frozenset(
    (bool, int, float, complex, str, bytes, type(None), type, types.FunctionType, types.BuiltinFunctionType)
)


# A long list does not remember what it was as it grew.
_MOST_REMEMBERED = 64


class HashableMapping(Mapping[Any, Any], Hashable):
    """An immutable mapping; the mapping of an object's attributes to "is data" is one.

    Objects that set the same attributes in the same order share theirs, as each remembers its successors.
    """

    __slots__ = ("_hash", "_mapping", "_successors", "layouts")

    def __init__(self, mapping: Mapping[Any, Any], copy: bool = True):
        self._mapping = dict(mapping) if copy else mapping
        self._hash: int | None = None
        self._successors: dict[Any, HashableMapping] = {}
        self.layouts: dict[Any, Any] = {}

    def with_item(self, key: Any, value: Any) -> HashableMapping:
        """This mapping with one more, or another, item."""
        successor = self._successors.get((key, value))
        if successor is None:
            successor = HashableMapping({**self._mapping, key: value}, copy=False)
            if len(self._mapping) < _MOST_REMEMBERED:
                self._successors[key, value] = successor
        return successor

    def without(self, key: Any) -> HashableMapping:
        """This mapping with one item less."""
        return HashableMapping({name: value for name, value in self._mapping.items() if name != key}, copy=False)

    def update(self, other: Mapping[Any, Any]) -> HashableMapping:
        return HashableMapping({**self._mapping, **other}, copy=False)

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
        if self._hash is None:
            self._hash = hash(frozenset(self._mapping.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, HashableMapping) and self._mapping == other._mapping)

    def __repr__(self) -> str:
        return repr(self._mapping)

    def __reduce__(self) -> Any:
        return (HashableMapping, (dict(self._mapping),))


def _annotation(value: Any, static: bool, name: str, options: dict[str, Any]) -> Any:
    if not isinstance(value, Missing) and options:
        raise TypeError(f"nnx.{name}() takes one value, or keyword arguments of a field, but not both")
    metadata = dict(options.pop("metadata", None) or {})
    if "static" in metadata:
        raise AttributeKindError(f"nnx.{name}() sets the 'static' key of the field's metadata itself")
    return dataclasses.field(**options, metadata={"nnx_value": value, **metadata, "static": static})


def data(value: Any = MISSING, /, **kwargs: Any) -> Any:
    """Marks an attribute as data, where its value alone would be static.

    Args:
        value: what to assign: `self.scale = nnx.data(2.0)`.
        kwargs: instead of a value, options of `dataclasses.field`: `scale: float = nnx.data(default=2.0)`.

    Returns:
        A field, to be assigned to an attribute directly.

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
    return _annotation(value, False, "data", kwargs)


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
    return _annotation(value, True, "static", kwargs)


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
    """`dataclasses.dataclass` for objects: the representation stays the object's own.

    >>> from weft import nnx
    >>> @nnx.dataclass
    ... class Scale(nnx.Module):
    ...     by: nnx.Param
    ...     name: str = "scale"
    >>> Scale(nnx.Param(2.0)).name
    'scale'
    """
    options = {name: given for name, given in locals().items() if name != "cls"}
    return dataclasses.dataclass(cls, repr=False, **options)


def is_annotation(value: Any) -> bool:
    """Whether a value is what `data` or `static` returned."""
    return isinstance(value, dataclasses.Field) and "nnx_value" in value.metadata


def register_data_type(type_: T, /) -> T:
    """Makes values of a type data, wherever they are assigned; also as a decorator.

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
    """Whether a value is an array of any kind: JAX's, NumPy's or a ref."""
    return is_plain_array(value) or isinstance(value, jax.Array | np.ndarray) or is_array_ref(value)


def is_data(value: Any, /) -> bool:
    """Whether a value is data by its type: an array, a Variable, an object, or of a registered type.

    Containers are static, whatever they hold: use `nnx.List` and `nnx.Dict`, or `nnx.data`.

    >>> import jax.numpy as jnp
    >>> is_data(jnp.zeros(2)), is_data(2.0), is_data([jnp.zeros(2)])
    (True, False, False)
    """
    kind = type(value)
    if kind in VARIABLE_TYPES or kind in GRAPH_TYPES or kind in DATA_REGISTRY:
        return True
    return kind not in _ATOMS and (is_array_leaf(value) or isinstance(value, Variable | ArrayRefOutput | NoUpdate))


def has_data(value: Any, /) -> list[Any]:
    """The data inside of a value, through containers.

    >>> import jax.numpy as jnp
    >>> [value.shape for value in has_data([2.0, (jnp.ones(2),)])], has_data([2.0, "two"])
    ([(2,)], [])
    """
    return [leaf for leaf in _leaves(value) if is_data(leaf)]


def _leaves(value: Any) -> list[Any]:
    # Something seen before is a leaf, so that containers which hold themselves come to an end.
    seen: set[int] = set()

    def is_leaf(node: Any) -> bool:
        known = id(node) in seen
        seen.add(id(node))
        return known or is_data(node)

    return jax.tree.leaves(value, is_leaf=is_leaf)


def _leaves_of_foreign(value: Any) -> list[Any]:
    return jax.tree.leaves(value, is_leaf=lambda node: is_foreign_type(type(node)))


class Status(Enum):
    """What an assignment says of its attribute."""

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
    """Refuses data in a static attribute, and annotations inside of containers.

    Args:
        owner: the class of the object.
        name: the attribute.
        value: its value.
        status: what the assignment says; `None` to check a value that is there already.
        known: whether the attribute is data by the object's record of it; `None` if that knows nothing yet.

    Raises:
        AttributeKindError: naming the attribute, and the paths inside its value.
    """
    where = f"{owner.__name__}.{name}"
    if type(value) in _ATOMS:
        return
    if status is Status.DATA or (status is None and known and is_data(value)):
        return
    leaves = _leaves(value)
    held = [leaf for leaf in leaves if is_data(leaf)]
    if (held and not (known or (status is not None and status.is_data))) or (held and status is Status.EXPLICIT_STATIC):
        # Flax's first words for the three: what is declared, what is assigned, and what came in later.
        if status is Status.EXPLICIT_STATIC:
            found, where_to = "data in", "annotated with nnx.static(...)"
        else:
            found, where_to = "unexpected data on" if status is None else "data on", "in static attribute"
        for leaf in _leaves_of_foreign(value):
            refuse_foreign(leaf)
        kinds = ", ".join(sorted({type(leaf).__name__ for leaf in held}))
        raise AttributeKindError(
            f"Found {found} value of type {type(value).__name__!r} {where_to}: {kinds}",
            at=where,
            fix=_FIXES.format(name=name, kind=type(value).__name__, owner=owner.__name__),
        )
    tags = {"static" if leaf.metadata["static"] else "data" for leaf in leaves if is_annotation(leaf)}
    if tags:
        raise AttributeKindError(
            f"Found unexpected tags {tags}: nnx.data(...) and nnx.static(...) do not go inside of containers",
            at=where,
            fix="assign their result to the attribute directly",
        )
