"""thread: do-notation for composites of stateful records.

    def __call__(self, x):
        with thread(self) as t:
            x = t.conv(x)                            # a pure layer returns y
            x = t.bn(x)                              # (y, successor): the successor is remembered under its path
            key = t.rngs("dropout")
            t.count = t.count + 1                    # explicit replacement
            return t.done(t.dropout(x, key=key))     # (y, successor of self)

A *handle* `t` stands for the record as it is now: with every successor so far in its place. `t.blocks[0].bn` is a
*proxy*, a path from the handle: reading an array or a plain attribute gives its value, calling a record or its method
calls the latest successor, and a returned pair whose second element is of the record's own type is (value, successor).
A field that holds a plain function is just called. A successor must be of the same structure as what it follows:
treedef, shapes, dtypes.

The handle guards its own promise. While a block is open, a record that has a successor may no longer be called
directly; after `done`, or without it, the handle says so. With no block open, nothing is watched.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import equinox as eqx
from weft.core import module
from weft.core.errors import SuccessorError, TraceLevelError
from weft.core.levels import current_level
from weft.core.paths import Path, format_path
from weft.core.successors import check_successor, part_of, with_part

R = TypeVar("R", bound=eqx.Module)
Y = TypeVar("Y")

_OWN_NAMES = ("done",)


def thread(record: R) -> Thread[R]:
    """Opens a block that threads a record's successors: `with thread(self) as t: ...; return t.done(y)`.

    Args:
        record: the record whose parts are called; often `self`.

    Returns:
        A context manager that gives the handle.

    Raises:
        SuccessorError: if this is no record, or one with a field called `done`; and later, from the block: see above.

    >>> import jax, jax.numpy as jnp
    >>> class Counter(module.Module):
    ...     count: jax.Array
    ...     def __call__(self, x):
    ...         return x + self.count, self.replace(count=self.count + 1)
    >>> class Twice(module.Module):
    ...     counter: Counter
    ...     def __call__(self, x):
    ...         with thread(self) as t:
    ...             return t.done(t.counter(t.counter(x)))
    >>> y, twice = Twice(Counter(jnp.array(1)))(0)
    >>> int(y), int(twice.counter.count)
    (3, 3)
    """
    if not isinstance(cast(Any, record), eqx.Module):
        raise SuccessorError(f"only a record can be threaded, not a {type(record).__name__}", fix="pass a Module")
    taken = [name for name in _OWN_NAMES if name in _field_names(record.__class__)]
    if taken:
        raise SuccessorError(
            f"a field called {taken[0]!r} hides behind the handle's own {taken[0]}()",
            at=f"{type(record).__qualname__}.{taken[0]}",
            fix="rename the field",
        )
    return Thread(record)


@functools.cache
def _field_names(cls: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def peek(proxy: Any) -> Any:
    """The record (or container) that a proxy stands for, as it is now; for code that needs the record itself.

    >>> from weft.core.keys import Keys
    >>> class Noise(module.Module):
    ...     keys: Keys
    >>> with thread(Noise(Keys(0))) as t:
    ...     key, t.keys = peek(t.keys).next()
    ...     noise = t.done(None)[1]
    >>> int(noise.keys.streams["default"].count)
    1
    """
    return _state(proxy).get(_path(proxy)) if isinstance(proxy, _Proxy) else proxy


# --- proxies ---------------------------------------------------------------------------------------------------------


class _Proxy:
    """A path from an open handle. It holds no value: each use reads what is there now."""

    __slots__ = ("_weft_path", "_weft_state")

    def __init__(self, state: _State, path: Path):
        object.__setattr__(self, "_weft_state", state)
        object.__setattr__(self, "_weft_path", path)

    def __repr__(self) -> str:
        return f"<threaded {_state(self).format(_path(self))}>"


class RecordProxy(_Proxy):
    """Stands for a record inside an open `thread` block."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        state, path = _state(self), _path(self)
        record: Any = state.get(path)
        value = getattr(record, name)
        if name in _field_names(record.__class__):
            return _wrap(state, (*path, name), value)
        # What is no field but can be called is a method: its successor is this record's.
        return _method(state, path, name) if callable(value) else value

    def __setattr__(self, name: str, value: Any) -> None:
        state, path = _state(self), _path(self)
        record: Any = state.get(path)
        names = _field_names(record.__class__)
        if name not in names:
            fields = ", ".join(names) or "none"
            raise AttributeError(f"{type(record).__qualname__} has no field {name!r}; its fields are {fields}")
        state.put((*path, name), peek(value))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _method(_state(self), _path(self), "__call__")(*args, **kwargs)


class SequenceProxy(_Proxy):
    """Stands for a list or tuple that holds records, inside an open `thread` block."""

    __slots__ = ()

    def __getitem__(self, index: int | slice) -> Any:
        state, path = _state(self), _path(self)
        row: Sequence[Any] = state.get(path)
        if isinstance(index, slice):
            return [self[place] for place in range(len(row))[index]]
        place = range(len(row))[index]
        return _wrap(state, (*path, place), row[place])

    def __setitem__(self, index: int, value: Any) -> None:
        _state(self).put((*_path(self), range(len(self))[index]), peek(value))

    def __getattr__(self, name: str) -> Any:
        row = peek(self)
        names: tuple[str, ...] = getattr(row, "_fields", ())
        if name in names:
            return self[names.index(name)]
        raise AttributeError(f"{type(row).__name__} has no attribute {name!r} inside a thread block")

    def __iter__(self) -> Iterator[Any]:
        return iter(self[:])

    def __len__(self) -> int:
        return len(peek(self))


class MappingProxy(_Proxy):
    """Stands for a dict that holds records, inside an open `thread` block."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        path = (*_path(self), key)
        return _wrap(_state(self), path, _state(self).get(path))

    def __setitem__(self, key: Any, value: Any) -> None:
        _state(self).put((*_path(self), key), peek(value))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(peek(self))

    def __contains__(self, key: object) -> bool:
        return key in peek(self)

    def keys(self) -> list[Any]:
        """The keys of the dict."""
        return list(peek(self))

    def values(self) -> list[Any]:
        """A proxy or a value for each key."""
        return [self[key] for key in self]

    def items(self) -> list[tuple[Any, Any]]:
        """The keys, each with its proxy or value."""
        return [(key, self[key]) for key in self]


class Handle(RecordProxy, Generic[R]):
    """What `with thread(record) as t` gives: the record as it is now."""

    __slots__ = ()

    def done(self, value: Y) -> tuple[Y, R]:
        """Ends the block: `return t.done(y)`.

        Returns:
            The value, and the record with every successor in its place.
        """
        return value, cast(R, _state(self).finish())


def _state(proxy: _Proxy) -> _State:
    return object.__getattribute__(proxy, "_weft_state")


def _path(proxy: _Proxy) -> Path:
    return object.__getattribute__(proxy, "_weft_path")


def _wrap(state: _State, path: Path, value: Any) -> Any:
    if isinstance(value, eqx.Module):
        return RecordProxy(state, path)
    if not _holds_records(value):
        return value
    return (MappingProxy if isinstance(value, dict) else SequenceProxy)(state, path)


def _holds_records(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_records, cast("Sequence[Any]", value)))
    if isinstance(value, dict):
        return any(map(_holds_records, cast("dict[Any, Any]", value).values()))
    return isinstance(value, eqx.Module)


def _method(state: _State, path: Path, name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        record = state.get(path)
        method = record if name == "__call__" else getattr(record, name)
        result: Any = method(*map(peek, args), **{key: peek(value) for key, value in kwargs.items()})
        if not _is_successor_pair(result):
            return result
        state.put(path, result[1], by=f".{name}(...)" if name != "__call__" else "(...)")
        return result[0]

    return call


def _is_successor_pair(result: Any) -> bool:
    return type(result) is tuple and len(cast(Any, result)) == 2 and isinstance(result[1], eqx.Module)


# --- the block's state -----------------------------------------------------------------------------------------------


class _State:
    """What an open block knows: the record as it is now, and the records that were replaced on the way."""

    def __init__(self, record: eqx.Module):
        self.name = type(record).__qualname__
        self.record: Any = record
        self.level = current_level()
        self.closed: str | None = None
        # By identity; the record itself is kept, so that its id stays its own.
        self.replaced: dict[int, tuple[object, Path]] = {}

    def format(self, path: Path) -> str:
        return format_path(path, self.name)

    def get(self, path: Path) -> Any:
        """What is at a path now."""
        if self.closed is not None:
            raise SuccessorError(
                f"this thread handle is closed: {self.closed}",
                at=self.format(path),
                fix="use it only between `with thread(...)` and `t.done(...)`",
            )
        value = self.record
        for part in path:
            value = part_of(value, part)
        return value

    def put(self, path: Path, successor: Any, by: str = "") -> None:
        """Puts a successor in its place, if it fits there."""
        old = self.get(path)
        if successor is old:
            return
        check_successor(old, successor, self.format(path) + by)
        if current_level() != self.level:
            raise TraceLevelError(
                "a successor was taken inside another transform than its thread block was opened in",
                at=self.format(path) + by,
                fix="pass the record through that transform as an argument, and take its successor from the result",
            )
        self.record = with_part(self.record, path, successor)
        if isinstance(old, eqx.Module):
            self.replaced[id(old)] = (old, path)
            self.replaced.pop(id(successor), None)

    def finish(self) -> Any:
        record = self.get(())
        self.close("done() was called")
        return record

    def close(self, why: str) -> None:
        # Nothing is kept, so that no tracer outlives its trace through a handle that the user still holds.
        self.closed, self.record, self.replaced = why, None, {}


# --- opening and closing ---------------------------------------------------------------------------------------------

_open: ContextVar[tuple[_State, ...]] = ContextVar("weft_open_threads", default=())
_watch_lock = threading.Lock()
_watching = 0


class Thread(Generic[R]):
    """An unopened `thread` block."""

    __slots__ = ("_record", "_state", "_token")

    def __init__(self, record: R):
        self._record = record
        self._state: _State | None = None
        self._token: Token[tuple[_State, ...]] | None = None

    def __enter__(self) -> Handle[R]:
        if self._state is not None:
            raise SuccessorError("this thread block was opened before", fix="call thread(...) anew")
        self._state = _State(self._record)
        self._token = _open.set((*_open.get(), self._state))
        _watch(1)
        return Handle(self._state, ())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._state is not None
        assert self._token is not None
        _watch(-1)
        _open.reset(self._token)
        finished = self._state.closed is not None
        self._state.close("its block was left")
        if not finished and kind is None:
            raise SuccessorError(
                f"the thread block of a {self._state.name} was left without done()",
                at=self._state.name,
                fix="end it with `return t.done(y)`, which gives (y, successor)",
            )


def _watch(change: int) -> None:
    global _watching
    with _watch_lock:
        _watching += change
        watchers = module._method_watchers  # pyright: ignore[reportPrivateUsage]
        if change > 0 and _watching == 1:
            watchers.append(_refuse_replaced)
        elif _watching == 0:
            watchers.remove(_refuse_replaced)


def _refuse_replaced(record: object) -> None:
    for state in _open.get():
        found = state.replaced.get(id(record))
        if found is not None:
            name = state.format(found[1])
            raise SuccessorError(
                f"this {type(record).__qualname__} was used after its successor was taken",
                at=name,
                fix=f"go through the handle, t{name.removeprefix(state.name)}, which always uses the latest successor",
            )
