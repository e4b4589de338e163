"""Pytree, Object: mutable objects whose attributes make up a graph, and which are JAX pytrees too.

An object records which of its attributes are data (see `attributes`), the trace level at which it was created, and a
*structural version*, which every mutation of its attributes replaces. The values of its Variables are not structure.

This bookkeeping is in slots, so that `__dict__` has the user's attributes only. User code may write to `vars(obj)`,
which bypasses `__setattr__`. So reading `vars(obj)` marks the object as *exposed*: plans then compare its attributes
instead of its version. (Only `object.__setattr__` on a finished object goes unnoticed.)
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import typing
import warnings
from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Self

from typing_extensions import dataclass_transform
from weft.core.edge._nodes import register_dispatched_node
from weft.nnx.config import config
from weft.nnx.errors import MISSING, AttributeKindError, TraceContextError
from weft.nnx.graphs import whereabouts
from weft.nnx.graphs.splitting import merge, split
from weft.nnx.modules.packed import pack_object, unpack_object
from weft.nnx.modules.pytree_state import PytreeState
from weft.nnx.objects import attributes
from weft.nnx.objects.attributes import (
    GRAPH_TYPES,
    HashableMapping,
    Status,
    check_attribute,
    data,
    is_annotation,
    is_data,
    static,
)
from weft.nnx.objects.declarations import declared_attributes
from weft.nnx.objects.objects import (
    OBJECT,
    Slots,
    attributes_of,
    in_order,
    keep_books,
    layout_and_values,
    new_object,
    touch,
)
from weft.nnx.printing.reprlib import Attr, Representable
from weft.nnx.printing.reprlib import Object as ReprObject
from weft.nnx.variable.tracers import TraceState

_store = object.__setattr__
_set_attributes = Slots.__dict__["__dict__"].__set__
_version_of = Slots.__dict__["_pytree__version"].__get__  # past a user's `__getattr__`


class _Maker:
    """The last base of a class with a plain base that has a `__new__`: its `super().__new__` chain ends here."""

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return new_object(cls)


def _with_bookkeeping(node: Any) -> Any:
    """Returns an object, after adding the bookkeeping that it lacks if some `__new__` called `object.__new__`."""
    try:
        _version_of(node)
    except AttributeError:
        keep_books(node)
    return node


@dataclass_transform(field_specifiers=(dataclasses.field, data, static))
class PytreeMeta(ABCMeta):
    """The metaclass of objects: checks an object's attributes after its `__init__`."""

    if not typing.TYPE_CHECKING:

        def __new__(mcls, name, bases, namespace, /, **kwargs: Any) -> Any:
            # A plain class before `Pytree` among the bases has a `__dict__` of its own, reading which would not mark
            # the object as exposed.
            if "__dict__" not in namespace and not all(isinstance(base, PytreeMeta) for base in bases):
                namespace["__dict__"] = vars(Pytree)["__dict__"]
            plain = (base for base in bases if not isinstance(base, PytreeMeta))
            if any(base.__new__ is not object.__new__ for base in plain) and _Maker not in bases:
                bases = (*bases, _Maker)
            return super().__new__(mcls, name, bases, namespace, **kwargs)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            node = _with_bookkeeping(cls.__new__(cls, *args, **kwargs))
            _take_state(node)
            cls._pytree_meta_construct(node, *args, **kwargs)
            if cls._pytree__is_pytree:
                _record_missing(node)
                check_pytree(node)
            return node

    # flax's name for this step; metaclasses override it (that of the bridge does) to run code around `__init__`.
    def _pytree_meta_construct(cls, self: Any, *args: Any, **kwargs: Any) -> None:
        self.__init__(*args, **kwargs)


ObjectMeta = PytreeMeta


def _is_stored_by_descriptor(cls: type, name: str) -> bool:
    # Looked up in the classes, because `getattr` would call the descriptor.
    for base in cls.__mro__:
        if name in base.__dict__:
            return hasattr(type(base.__dict__[name]), "__set__")
    return False


def _take_state(node: Any) -> None:
    """Reads the trace level that a class's `__new__` has stored as an attribute, as in flax (Keras does)."""
    attributes = attributes_of(node)
    if attributes:
        for name in ("_pytree__state", "_object__state"):
            state = attributes.pop(name, None)
            if isinstance(state, PytreeState):
                _store(node, "_pytree__trace", state.trace_state)


# Attributes that were stored past `_setattr`, by `object.__setattr__` or into `__dict__`, are not recorded yet.
def _record_missing(node: Any) -> None:
    nodes = node._pytree__nodes
    for name, value in attributes_of(node).items():
        if name not in nodes:
            nodes = nodes.with_item(name, is_data(value))
    if nodes is not node._pytree__nodes:
        _store(node, "_pytree__nodes", nodes)
        touch(node)


def check_pytree(pytree: Any) -> None:
    """Checks that no static attribute of an object contains data.

    Raises:
        TypeError: if `pytree` is no `Pytree`.
        ValueError: naming the attribute.

    >>> from weft import nnx
    >>> nnx.check_pytree(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    """
    if not isinstance(pytree, Pytree):
        raise TypeError(f"expected a Pytree, got {type(pytree).__name__}")
    nodes = pytree._pytree__nodes
    for name, value in attributes_of(pytree).items():
        check_attribute(type(pytree), name, value, None, nodes.get(name))


class _Level:
    """An object's trace level under the name that Variables have for it. No data descriptor: user attributes win."""

    def __get__(self, node: Any, kind: type | None = None) -> Any:
        return self if node is None else node._pytree__trace


def _flatten(node: Any) -> tuple[list[Any], Any]:
    layout, values = layout_and_values(node)
    statics = tuple([values[name] for name in layout.static_names])
    return [values[name] for name in layout.data_names], (node._pytree__nodes, layout, statics)


def _flatten_with_keys(node: Any) -> tuple[list[Any], Any]:
    children, aux = _flatten(node)
    return list(zip(aux[1].data_keys, children, strict=True)), aux


def _unflatten(cls: type, aux: Any, children: Iterable[Any]) -> Any:
    nodes, layout, statics = aux
    # Without `__init__` and `__setattr__`: JAX unflattens with placeholders, too, which the checks of attributes would
    # refuse.
    node = new_object(cls, nodes)
    values = attributes_of(node)
    values.update(zip(layout.data_names, children, strict=True))
    if statics:
        values.update(zip(layout.static_names, statics, strict=True))
    return node


class Pytree(Slots, Representable, metaclass=PytreeMeta):
    """Base class of all NNX objects.

    A subclass is registered with JAX as a pytree, unless it has `pytree=False`; then its attributes are not checked.

    >>> import jax, jax.numpy as jnp
    >>> class Point(Pytree):
    ...     def __init__(self, x, name):
    ...         self.x, self.name = x, name
    >>> jax.tree.map(lambda x: x + 1, Point(jnp.array(1), "p")).x.item()
    2
    """

    if typing.TYPE_CHECKING:
        _pytree__nodes: HashableMapping
        _pytree__trace: TraceState
        _pytree__version: int
        _pytree__exposed: bool
        _pytree__plans: dict[Any, Any] | None
        _pytree__sorted: int

        def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

        # `objectrepr` defines both.
        def __nnx_repr__(self, /) -> Iterator[ReprObject | Attr]: ...
        def __treescope_repr__(self, path: Any, subtree_renderer: Any, /) -> Any: ...

    _pytree__is_pytree: ClassVar[bool] = True
    _pytree__has_int_keys: ClassVar[bool] = False
    _pytree__has_color: ClassVar[bool] = False  # whether treescope shows instances in a colour
    _pytree__class_nodes: ClassVar[HashableMapping] = HashableMapping({})
    _trace_state = _Level()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        make: Any = super().__new__  # may be that of a later base, such as a framework's layer
        if make is not object.__new__:
            return _with_bookkeeping(make(cls, *args, **kwargs))
        # Python itself refuses arguments that no `__init__` takes only where there is no `__new__` either.
        if (args or kwargs) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")
        return new_object(cls)

    def __init_subclass__(cls, *, pytree: bool | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A slot would not be in `__dict__`, so neither flattening nor copying would see the attribute.
        if cls.__dict__.get("__slots__"):
            raise TypeError(f"A Pytree does not support __slots__, but {cls.__name__} declares them")
        cls._pytree__is_pytree = config.flax_pytree_module if pytree is None else pytree
        # New objects start with this mapping and share its successors: objects that are made alike have one record,
        # which plans and graph definitions then compare by identity.
        cls._pytree__class_nodes = HashableMapping(declared_attributes(cls))
        GRAPH_TYPES[cls] = OBJECT
        if cls._pytree__is_pytree:
            unflatten = functools.partial(_unflatten, cls)
            register_dispatched_node(cls, _flatten, unflatten, _flatten_with_keys, pack_object, unpack_object)

    # ------------------------------------------------------------------ attributes

    if not typing.TYPE_CHECKING:

        @property
        def __dict__(self) -> dict[str, Any]:
            if not self._pytree__exposed:
                _set_attributes(self, in_order(self))
                # The caller may write into the dict from now on, past `_setattr`: plans of this object compare its
                # items.
                _store(self, "_pytree__exposed", True)
                touch(self)
            return attributes_of(self)

        @__dict__.setter
        def __dict__(self, values: dict[str, Any]) -> None:
            own = attributes_of(self)
            own.clear()
            own.update(values)
            _store(self, "_pytree__exposed", True)
            touch(self)

        def __setattr__(self, name: str, value: Any) -> None:
            self._setattr(name, value)

    def _setattr(self, name: str, value: Any) -> None:
        # A property with a setter (any data descriptor) stores its value itself. If it sets an attribute of the object,
        # that attribute comes here under its own name.
        if _is_stored_by_descriptor(type(self), name):
            _store(self, name, value)
            touch(self)
            return
        # A function and not a string, as in flax: libraries override this method with that signature.
        self._check_valid_context(lambda: f"Cannot mutate {type(self).__name__!r} from different trace level")
        annotated = is_annotation(value)
        is_static = annotated and value.metadata["static"]
        if annotated:
            value = value.metadata["nnx_value"]
        if self._pytree__is_pytree:
            if annotated:
                status = Status.EXPLICIT_STATIC if is_static else Status.EXPLICIT_DATA
            else:
                status = Status.DATA if is_data(value) else Status.STATIC
            self._record(name, value, status)
        _store(self, name, value)
        touch(self)

    def _record(self, name: str, value: Any, status: Status) -> None:
        """Notes whether an attribute is data, as its assignment declares it; a former declaration stays in force."""
        nodes = self._pytree__nodes
        known = nodes.get(name)
        # A static attribute does not become data by a plain assignment: that would change the object's structure, where
        # the user may have meant to set an option.
        if status is Status.DATA and not known and name in attributes_of(self):
            raise AttributeKindError(
                f"Cannot assign data value of type {type(value).__name__!r} to static attribute {name!r}",
                at=f"{type(self).__name__}.{name}",
                fix=f"declare it as data: _.{name} = nnx.data(...)",
            )
        check_attribute(type(self), name, value, status, known)
        # Only `nnx.data` and `nnx.static` change a declaration; a plain assignment keeps it.
        if known is None or (status.explicit and known != status.is_data):
            _store(self, "_pytree__nodes", nodes.with_item(name, status.is_data))

    def __delattr__(self, name: str) -> None:
        # The first `_pytree__sorted` attributes are shown in sorted order (see `in_order`): one fewer now.
        if name in list(attributes_of(self))[: self._pytree__sorted]:
            _store(self, "_pytree__sorted", self._pytree__sorted - 1)
        object.__delattr__(self, name)
        if name in self._pytree__nodes:
            _store(self, "_pytree__nodes", self._pytree__nodes.without(name))
        touch(self)

    def _check_valid_context(self, error_msg: Callable[[], str]) -> None:
        if not self._pytree__trace.is_valid():
            raise TraceContextError(
                error_msg(),
                at=whereabouts.find(self),
                fix="pass the object to the transform as an argument instead of closing over it",
            )

    @property
    def _pytree__state(self) -> PytreeState:
        return PytreeState(node=self)

    @property
    def _object__nodes(self) -> HashableMapping:
        warnings.warn("'_object__nodes' is deprecated, use '_pytree__nodes'", DeprecationWarning, stacklevel=2)
        return self._pytree__nodes

    @property
    def _object__state(self) -> PytreeState:
        warnings.warn("'_object__state' is deprecated, use '_pytree__state'", DeprecationWarning, stacklevel=2)
        return self._pytree__state

    # ------------------------------------------------------------------ copies

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        # By split and merge, so that sharing and cycles in the object survive.
        graphdef, state = split(self, graph=True)
        return merge(copy.deepcopy(graphdef, memo), copy.deepcopy(state, memo))

    def __getstate__(self) -> dict[str, Any]:
        return {**in_order(self), "_pytree__nodes": self._pytree__nodes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        _take_state(_with_bookkeeping(self))
        _store(self, "_pytree__nodes", state.get("_pytree__nodes", type(self)._pytree__class_nodes))
        attributes_of(self).update((name, value) for name, value in state.items() if name != "_pytree__nodes")
        touch(self)

    # ------------------------------------------------------------------ as a node of a graph

    def _graph_node_set_key(self, key: Any, value: Any) -> None:
        if self._pytree__has_int_keys and isinstance(key, int):
            key = str(key)
        if not isinstance(key, str):
            raise KeyError(f"an attribute's name must be a string, got {key!r}")
        # An existing Variable is written into and not replaced, so that other references to it see the new value.
        current = getattr(self, key, MISSING)
        if isinstance(current, attributes.Variable) and isinstance(value, attributes.Variable):
            current.update_from_state(value)
        else:
            setattr(self, key, value)

    def _graph_node_pop_key(self, key: Any) -> Any:
        name = str(key) if self._pytree__has_int_keys else key
        value = getattr(self, name)
        delattr(self, name)
        return value


class Object(Pytree, pytree=False):
    """Base class of objects that are no JAX pytrees.

    Raises:
        ValueError: if a subclass is declared with `pytree=True`.

    >>> from weft import nnx
    >>> class Counter(nnx.Object):
    ...     def __init__(self):
    ...         self.count = nnx.Variable(0)
    >>> list(nnx.state(Counter()))
    ['count']
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if kwargs.pop("pytree", False) is not False:
            raise AttributeKindError(
                f"an Object is not a pytree, but {cls.__name__} is declared with pytree=True",
                fix="derive from nnx.Pytree",
            )
        super().__init_subclass__(pytree=False, **kwargs)
