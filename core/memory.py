"""What is kept of functions from one call to the next, and for how long.

`weft.jit(f)`, made twice, is compiled once: what was learned of functions under a rule and its options, their *memory*,
is found again by the functions themselves. It must not keep them alive, because a function may close over a model's
arrays, or over tracers. So a crossing holds a *handle* in place of a function, which knows it weakly; a call, which has
the function in hand, is what keeps it alive while it is traced; and a memory ends with the first of its functions.

A record that is the function (or whose method is) crosses as a tree, its arrays among the arguments. Its memory is that
of its class, so that `weft.jit(model)` of a successor is compiled no more than that of the model was.
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
from weft.core.edge.levels import EAGER, current_level
from weft.core.edge.untyped import jax

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Function = Callable[..., Any]
Key = tuple[Any, ...]

_ticks = itertools.count()


class Recent(Generic[K, V]):
    """A dict of the entries that were used last, for many threads at once.

    It takes no lock: each step is one operation of a dict, and an interrupt between two of them loses at most the
    memory of a use.

    >>> kept = Recent[str, int](most=2)
    >>> [kept.add(name, i) for i, name in enumerate("ab")], kept.get("a"), kept.add("c", 2)
    ([0, 1], 0, 2)
    >>> kept.get("b"), len(kept)
    (None, 2)
    """

    def __init__(self, most: int = MOST_KEPT, *, listed: tuple[str, str] | None = None):
        self.most = most
        self._entries: dict[K, V] = {}
        self._used: dict[K, int] = {}
        if listed is not None:  # as name and key, among the tables that last as long as the process
            caches.register(caches.Table(*listed, most, self.__len__, self.clear))

    def get(self, key: K) -> V | None:
        """The entry of a key, used now; or None."""
        found = self._entries.get(key)
        if found is not None:
            self._used[key] = next(_ticks)
        return found

    def add(self, key: K, value: V) -> V:
        """Keeps an entry, unless another thread was first; gives the one that is kept."""
        self._used[key] = next(_ticks)
        kept = self._entries.setdefault(key, value)
        while len(self._entries) > self.most:
            self.forget(min(list(self._used), key=lambda key: self._used.get(key, 0)))
        return kept

    def forget(self, key: K) -> None:
        """Lets go of an entry, if it is there."""
        self._entries.pop(key, None)
        self._used.pop(key, None)

    def clear(self) -> None:
        """Lets go of all entries."""
        self._entries.clear()
        self._used.clear()

    def values(self) -> list[V]:
        """The entries as they are now, in the order in which they came."""
        return list(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)


class Handle(weakref.ref[Any]):
    """A function in a crossing: equal for one function, which it does not keep alive."""

    __slots__ = ("identity", "keys")
    identity: int
    keys: set[Key]  # the memories that end with this function

    # By identity: two records, or two methods, may be equal while they are not one.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return self.identity


_handles: dict[int, Handle] = {}
_memories: Recent[Key, Any] = Recent(listed=("weft.core.memory", "rule, options and functions"))


class Made:
    """A handle of what a transform made of a function: equal for all that it made in one way of one function.

    `weft.jit(weft.grad(f))` that is written anew in each call is compiled once. The function in it is made again where
    it is traced, since the one that was first known may be gone.
    """

    __slots__ = ("_args", "_function", "_key", "_options", "_transform")

    def __init__(self, function: Handle | Made, transform: Function, args: tuple[Any, ...], options: dict[str, Any]):
        self._function, self._transform, self._args, self._options = function, transform, args, options
        self._key = (function, transform, _key_of(args), _key_of(options))

    @property
    def keys(self) -> set[Key]:
        """The memories that end with the function."""
        return self._function.keys

    def __call__(self) -> Any:
        function = self._function()
        return None if function is None else self._transform(function, *self._args, **self._options)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Made) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


_SMALL = {type(None), bool, int, float, complex, str}


def _recipe(function: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]] | None:
    """The transform that made a function, and what it was given, the function that it was made of first."""
    if type(function) is functools.partial:
        # With what is small and never changes: all else would be kept as long as the function is.
        is_small = all(type(value) in _SMALL for value in (*function.args, *function.keywords.values()))
        return (functools.partial, (function.func, *function.args), function.keywords) if is_small else None
    # What a transform made says so; not asked of other objects, which may be proxies.
    made = hasattr(cast("type[Any]", type(function)), "__weft_method__") and not function.definitions
    return function.recipe if made else None


def handle_of(function: Any) -> Handle | Made:
    """The one handle of a function (or of a class).

    Raises:
        TypeError: if it cannot be known weakly.
    """
    recipe = _recipe(function)
    if recipe is not None and recipe[1]:
        transform, (inner, *args), options = recipe
        with contextlib.suppress(TypeError):  # options that cannot be told apart
            return Made(handle_of(inner), transform, tuple(args), options)
    found = _handles.get(id(function))
    # One whose function has died may still be here while its callback waits.
    if found is None or found() is not function:
        found = Handle(function, _end)
        found.identity, found.keys = id(function), set()
        _handles[id(function)] = found
    return found


def _end(handle: Handle, handles: dict[int, Handle] = _handles, memories: Recent[Key, Any] = _memories) -> None:
    # The tables are its own arguments: functions go on dying while Python shuts down and empties its modules.
    if handles.get(handle.identity) is handle:
        del handles[handle.identity]
    for key in list(handle.keys):
        memories.forget(key)
        for other in key[-1]:
            if other is not handle:
                other.keys.discard(key)


def live(function: Any) -> Any:
    """The function that a handle stands for; anything else as it is."""
    return function() if isinstance(function, Handle | Made) else function


def remembered(
    rule: Any, functions: Sequence[Function], options: Any, make: Callable[[], V]
) -> tuple[tuple[Any, ...], V] | None:
    """What stands for functions in a crossing, and their memory under a rule and options; made at first.

    Returns:
        None where nothing can be shared: a function or an option that cannot be told apart, or one that closes over
        values and is used inside a trace: those may be its tracers.
    """
    if rule.shares == "never":
        return None
    if rule.shares == "outside" and any(map(_holds_values, functions)) and current_level() != EAGER:
        return None
    try:
        handles = tuple(handle_of(_identity(function)) for function in functions)
        key = (rule, _key_of(options), handles)
        found = _memories.get(key)
    except TypeError:
        return None
    if found is None:
        found = _memories.add(key, make())
        for handle in handles:
            handle.keys.add(key)
    standing = tuple(
        function if _is_tree(function) else handle for function, handle in zip(functions, handles, strict=True)
    )
    return standing, found


def text_key(rule: Any, boundary: Any, functions: Sequence[Function], options: Any) -> Key | None:
    """A key that functions share with others that do the same, under a rule, a boundary and options.

    It is for functions that are given together with their arguments, as to `cond`: a lambda that is written there is
    another one in each call, and what was learned of it would end with it.

    Returns:
        None if a function does more than its text says: it finds what may change, or what does not last.
    """
    texts = tuple(constants_of(function, lasting=True) for function in functions)
    try:
        return None if None in texts else (rule, boundary, _key_of(options), texts)
    except TypeError:
        return None


def _is_tree(function: Any) -> bool:
    return isinstance(function, eqx.Module | jax.tree_util.Partial) or _owner(function) is not None


def _identity(function: Any) -> Any:
    """What a function's memory ends with: of a record its class, of another tree the function that it holds."""
    if isinstance(function, jax.tree_util.Partial):
        return _identity(function.func)
    owner = _owner(function)
    if owner is not None:
        return _identity(owner)
    if isinstance(function, eqx.Module):
        # Equinox's bound methods are records themselves, all of one class.
        return getattr(function, "__func__", cast("type[Any]", type(function)))
    return function


def _owner(function: Any) -> Any:
    # What a part of a threaded record is remembered with; not asked of the function itself, which may be a proxy.
    return function.remembered_by if hasattr(cast("type[Any]", type(function)), "remembered_by") else None


def _holds_values(function: Any) -> bool:
    if isinstance(function, types.FunctionType):
        given = function.__closure__ or function.__defaults__ or function.__kwdefaults__
        return bool(given) and constants_of(function) is None
    return not isinstance(function, types.BuiltinFunctionType | type)


def _key_of(option: Any) -> Any:
    """An option as part of a key, its type with it: 1, 1.0 and True are equal, and mean different things.

    Raises:
        TypeError: if it cannot be hashed, or would be kept alive with what it closes over.
    """
    kind = cast("type[Any]", type(option))
    if dataclasses.is_dataclass(option) and not isinstance(option, type | eqx.Module):
        fields = (field for field in dataclasses.fields(option) if field.compare)
        return (kind, *(_key_of(getattr(option, field.name)) for field in fields))
    if isinstance(option, Mapping):
        items = cast("Mapping[Any, Any]", option).items()
        return (kind, frozenset((key, _key_of(value)) for key, value in items))
    if isinstance(option, tuple | list):
        return (kind, *map(_key_of, cast("Sequence[Any]", option)))
    if isinstance(option, eqx.Module) or (isinstance(option, types.FunctionType) and _holds_values(option)):
        raise TypeError(kind)
    hash(option)
    return kind, option
