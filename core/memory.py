"""Memories: the plans of transformed functions, which are found again when the same functions are transformed again.

`weft.jit(f)`, written twice, is compiled once: a cache by rule, options and functions returns the same *memory* of
plans. It must not keep the functions alive, because a function may close over a model's arrays, or over tracers. So a
crossing holds a *handle* in place of a function, which is a weak reference; the call itself holds the function while it
is traced; and a memory is dropped when the first of its functions is freed.

A record that is called (or whose method is the function) crosses as a tree, with its arrays among the arguments. Its
memory belongs to its class, so that `weft.jit(successor)` does not compile again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import types
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import equinox as eqx
from weft.core import caches
from weft.core.caches import MOST_KEPT
from weft.core.constants import constants_of
from weft.core.edge.contexts import EAGER, current_level
from weft.core.edge.trees import children_of
from weft.core.edge.untyped import jax

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Function = Callable[..., Any]
Key = tuple[Any, ...]

_ticks = itertools.count()


class Recent(Generic[K, V]):
    """A dict with the entries that were used last, for several threads.

    It takes no lock: each step is one operation of a dict, and an interrupt between two of them loses at most the time
    of a use.

    >>> kept = Recent[str, int](most=2)
    >>> [kept.add(name, i) for i, name in enumerate("ab")], kept.get("a"), kept.add("c", 2)
    ([0, 1], 0, 2)
    >>> kept.get("b"), len(kept)
    (None, 2)
    """

    def __init__(self, most: int = MOST_KEPT, *, listed: tuple[str, str] | None = None):
        self.most = most
        # By key, an entry with the time of its last use: one hash of a key finds both.
        self._entries: dict[K, list[Any]] = {}
        if listed is not None:  # a name and a key in words, for a cache that lives as long as the process
            caches.register(caches.Table(*listed, most, self.__len__, self.clear))

    def get(self, key: K) -> V | None:
        """The entry of a key, which counts as used now; or None."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        entry[1] = next(_ticks)
        return entry[0]

    def find(self, key: Any) -> V | None:
        """As `get`; also None for a key that cannot be hashed."""
        try:
            return self.get(key)
        except TypeError:
            return None

    def add(self, key: K, value: V) -> V:
        """Adds an entry, unless another thread has just done so; returns the entry that is stored."""
        entry = self._entries.setdefault(key, [value, 0])
        entry[1] = next(_ticks)
        if len(self._entries) > self.most:
            self.forget(min(list(self._entries.items()), key=lambda item: item[1][1])[0])
            # A key whose hash has changed, such as a symbolic size after its proof, is found no more: a loop that
            # forgot keys until there was room never ended.
            if len(self._entries) > self.most:
                self.clear()
        return entry[0]

    def forget(self, key: K) -> None:
        """Removes an entry, if there is one."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """Removes all entries."""
        self._entries.clear()

    def values(self) -> list[V]:
        """The entries, in the order in which they were added."""
        return [value for value, _ in list(self._entries.values())]

    def __len__(self) -> int:
        return len(self._entries)


class Handle(weakref.ref[Any]):
    """A weak reference to a function, which stands for it in a crossing. Each function has one handle."""

    __slots__ = ("identity", "keys")
    identity: int
    keys: set[Key]  # the memories that are dropped with this function

    # By identity, because `weakref.ref` compares the functions, and two methods may be equal that are not the same.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return self.identity


_handles: dict[int, Handle] = {}
_memories: Recent[Key, Any] = Recent(listed=("weft.core.memory", "rule, options and functions"))


class TransformedHandle:
    """The handle of a transformed function: equal for all results of one transform, its options and one function.

    So `weft.jit(weft.grad(f))` that is written in a loop is compiled once. When it is traced, the transform is applied
    again, because the first result may have been freed.
    """

    __slots__ = ("_args", "_function", "_key", "_options", "_transform")

    def __init__(
        self, function: Handle | TransformedHandle, transform: Function, args: tuple[Any, ...], options: dict[str, Any]
    ):
        self._function, self._transform, self._args, self._options = function, transform, args, options
        self._key = (function, transform, key_of(args), key_of(options))

    @property
    def keys(self) -> set[Key]:
        """The memories that are dropped with the function."""
        return self._function.keys

    def __call__(self) -> Any:
        function = self._function()
        return None if function is None else self._transform(function, *self._args, **self._options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TransformedHandle) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


_SMALL = {type(None), bool, int, float, complex, str}


def _recipe(function: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """The transform that made a function, its arguments (the inner function first) and its options; None if unknown."""
    if type(function) is functools.partial:
        # Only with small immutable arguments: a handle holds them, and would keep others alive as long as the function.
        is_small = all(type(value) in _SMALL for value in (*function.args, *function.keywords.values()))
        return (functools.partial, (function.func, *function.args), function.keywords) if is_small else None
    # The class is asked and not the object, which may be a proxy that answers for any attribute.
    is_transformed = hasattr(cast("type[Any]", type(function)), "__weft_method__") and not function.definitions
    return function.recipe if is_transformed else None


def handle_of(function: Any) -> Handle | TransformedHandle:
    """The handle of a function (or of a class).

    Raises:
        TypeError: if it cannot have weak references.
    """
    transform, args, options = _recipe(function) or (None, (), {})
    if args:  # not if the function was given by name, as an option
        inner, *args = args
        with contextlib.suppress(TypeError):  # options that cannot be hashed
            return TransformedHandle(handle_of(_identity(inner)), cast(Any, transform), tuple(args), options)
    handle = _handles.get(id(function))
    # The table may still have the handle of a freed function with the same id, whose callback has not run yet.
    if handle is None or handle() is not function:
        handle = Handle(function, _end)
        handle.identity, handle.keys = id(function), set()
        _handles[id(function)] = handle
    return handle


def _end(handle: Handle, handles: dict[int, Handle] = _handles, memories: Recent[Key, Any] = _memories) -> None:
    """Drops the memories of a function that was freed."""
    # The tables are defaults of its parameters, because functions are freed while Python shuts down too, when the
    # globals of this module are None already.
    if handles.get(handle.identity) is handle:
        del handles[handle.identity]
    for key in list(handle.keys):
        memories.forget(key)
        for partner in key[-1]:
            if partner is not handle:
                partner.keys.discard(key)


def live(function: Any) -> Any:
    """The function of a handle; any other value as it is."""
    return function() if isinstance(function, Handle | TransformedHandle) else function


def remembered(
    rule: Any, boundary: Any, functions: Sequence[Function], options: Any, make: Callable[[], V]
) -> tuple[tuple[Any, ...], V] | None:
    """The handles of functions, for crossings, and their memory under a rule, a boundary and options, which is made if
    need be.

    Returns:
        None if no memory can be shared: a function or an option cannot be hashed, or a function inside of a trace
        closes over values, which may be tracers of that trace.
    """
    if rule.shares == "never":
        return None
    if rule.shares == "outside" and any(map(_holds_values, functions)) and current_level() != EAGER:
        return None
    try:
        handles = tuple([handle_of(_identity(function)) for function in functions])
        key = (rule, boundary, key_of(options), handles)
        memory = _memories.get(key)
    except TypeError:
        return None
    if memory is None:
        memory = _memories.add(key, make())
        for handle in handles:
            handle.keys.add(key)
    # A tree crosses itself, with its arrays as arguments.
    in_crossing = tuple([
        function if _is_tree(function) else handle for function, handle in zip(functions, handles, strict=True)
    ])  # fmt: skip
    return in_crossing, memory


def text_key(rule: Any, boundary: Any, functions: Sequence[Function], options: Any) -> Key | None:
    """A cache key for functions by their code and constants, under a rule, a boundary and options.

    It is for transforms that take functions and arguments in one call, such as `cond`: a lambda that is written there
    is a new function at each call, whose memory would be dropped after the call.

    Returns:
        None if a function reads a value that may change, or that may be freed.
    """
    texts = tuple(constants_of(function, lasting=True) for function in functions)
    try:
        return None if None in texts else (rule, boundary, key_of(options), texts)
    except TypeError:
        return None


def _is_tree(function: Any) -> bool:
    return (
        isinstance(function, eqx.Module | jax.tree_util.Partial)
        or hasattr(cast("type[Any]", type(function)), "remembered_by")
        or children_of(function) is not None
    )


def _identity(function: Any) -> Any:
    """The object with which a function's memory is dropped: the class of a record, the function inside of a
    `Partial`."""
    if isinstance(function, jax.tree_util.Partial):
        return _identity(function.func)
    # The record of a threaded part. The class is asked and not the object, which may be a proxy.
    if hasattr(cast("type[Any]", type(function)), "remembered_by"):
        return _identity(function.remembered_by)
    if isinstance(function, eqx.Module):
        # Equinox's bound methods are records themselves, all of the same class: their function identifies them.
        return getattr(function, "__func__", cast("type[Any]", type(function)))
    return function


def _holds_values(function: Any) -> bool:
    """Whether a function may hold arrays or tracers, in its closure, its defaults or its attributes."""
    if isinstance(function, types.FunctionType):
        may_hold = function.__closure__ or function.__defaults__ or function.__kwdefaults__
        return bool(may_hold) and constants_of(function) is None
    return not isinstance(function, types.BuiltinFunctionType | type)


def key_of(option: Any) -> Any:
    """An option as part of a cache key, with its type: 1, 1.0 and True are equal, and mean different things.

    Raises:
        TypeError: if it cannot be hashed, or if the key would keep arrays alive (a record, a function with a closure).
    """
    kind = cast("type[Any]", type(option))
    if kind in _SMALL:  # first, because most options are small, and the tests below take longer
        return kind, option
    if dataclasses.is_dataclass(option) and not isinstance(option, type | eqx.Module):
        return (kind, *[key_of(getattr(option, field.name)) for field in dataclasses.fields(option) if field.compare])
    if isinstance(option, Mapping):
        # As a set, because two dicts with the same items in another order are the same option.
        items = cast("Mapping[Any, Any]", option).items()
        return (kind, frozenset((key, key_of(value)) for key, value in items))
    if isinstance(option, tuple | list):
        return (kind, *map(key_of, cast("Sequence[Any]", option)))
    if isinstance(option, eqx.Module) or (isinstance(option, types.FunctionType) and _holds_values(option)):
        raise TypeError(kind)
    hash(option)
    return kind, option
