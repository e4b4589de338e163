"""`thread`: do-notation for composites of stateful records. Its docstring is the reference.

A *handle* `t` stands for the record with all successors so far; `t.blocks[0].bn` is a *proxy*, a path from the handle.
A part that can be called is also a threaded function, which weft's transforms take as a function. The state of an open
block, and the misuses that it reports, are in `blocks`.
"""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import equinox as eqx
from weft.core.edge.trees import PyTree
from weft.core.errors import SuccessorError
from weft.core.paths import Path
from weft.core.records.module import converted, undeclared
from weft.core.records.successors import next_value
from weft.core.threads.blocks import (
    Block,
    Proxy,
    ThreadedFunction,
    Tokens,
    block_of,
    leave_block,
    open_block,
    path_of,
    value_of,
)


class RecordProxy(Proxy):
    """Stands for a record inside an open `thread` block."""

    __slots__ = ()

    def __getattr__(self, name: str) -> PyTree:
        block, path = block_of(self), path_of(self)
        record: eqx.Module = block.get(path)
        value = getattr(record, name)
        if name in field_names(record):
            return _wrap(block, (*path, name), value)
        # A callable attribute that is no field is a method, whose successor is a successor of this record.
        return ThreadedFunction(block, path, name) if callable(value) else value

    def __setattr__(self, name: str, value: PyTree) -> None:
        block, path = block_of(self), path_of(self)
        record: eqx.Module = block.get(path)
        names = field_names(record)
        if name not in names:
            raise undeclared(cast("type[Any]", type(record)), name)
        value = next_value(getattr(record, name), value_of(value))
        block.put((*path, name), converted(cast("type[Any]", type(record)), name, value))

    def __delattr__(self, name: str) -> None:
        handle = block_of(self).format_handle(path_of(self))
        raise AttributeError(f"a threaded record keeps its fields: set {handle}.{name} = None, if its type allows it")

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        __tracebackhide__ = True
        return ThreadedFunction(block_of(self), path_of(self), "__call__")(*args, **kwargs)

    def __len__(self) -> int:
        return len(cast("Sequence[Any]", value_of(self)))

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        """The item that the record's own `__getitem__` returns, as a proxy: `t.chain[0]` is `t.chain.layers[0]`."""
        block, path = block_of(self), path_of(self)
        record: Any = block.get(path)
        value = record[key]
        if not _holds_records(value):
            return value
        for name in field_names(record):
            place = _place_of(value, getattr(record, name))
            if place is not None:
                return _wrap(block, (*path, name, *place), value)
        handle = block.format_handle(path)
        raise SuccessorError(
            f"{handle}[{key!r}] is no part of the {type(record).__qualname__}, whose __getitem__ has just made it: "
            "its successor would have no place",
            at=block.format(path),
            fix=f"call {handle}, whose successor has a place; or take the item by hand: peek({handle})[{key!r}]",
        )


class ContainerProxy(Proxy):
    """Stands for a container that holds records, inside an open `thread` block."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(value_of(self))

    def __setattr__(self, name: str, value: PyTree) -> None:
        handle = block_of(self).format_handle(path_of(self))
        raise AttributeError(
            f"a {type(value_of(self)).__name__} has no fields to set: {handle}[...] = value sets an item"
        )


class SequenceProxy(ContainerProxy):
    """Stands for a list or tuple that holds records, inside an open `thread` block."""

    __slots__ = ()

    def __getitem__(self, index: int | slice) -> PyTree:
        block, path = block_of(self), path_of(self)
        row: Sequence[PyTree] = block.get(path)
        if isinstance(index, slice):
            return [self[place] for place in range(len(row))[index]]
        place = range(len(row))[index]
        return _wrap(block, (*path, place), row[place])

    def __setitem__(self, index: int, value: PyTree) -> None:
        block_of(self).put((*path_of(self), range(len(self))[index]), value_of(value))

    def __getattr__(self, name: str) -> PyTree:
        row = value_of(self)
        names: tuple[str, ...] = getattr(row, "_fields", ())
        if name in names:
            return self[names.index(name)]
        raise AttributeError(
            f"{type(row).__name__} has no attribute {name!r} inside a thread block: it is read, iterated and assigned "
            "to by index, and keeps its length"
        )

    def __iter__(self) -> Iterator[PyTree]:
        return iter(self[:])


class MappingProxy(ContainerProxy):
    """Stands for a dict that holds records, inside an open `thread` block."""

    __slots__ = ()

    def __getitem__(self, key: Hashable) -> PyTree:
        path = (*path_of(self), key)
        return _wrap(block_of(self), path, block_of(self).get(path))

    def __setitem__(self, key: Hashable, value: PyTree) -> None:
        block_of(self).put((*path_of(self), key), value_of(value))

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self.keys())

    def __contains__(self, key: object) -> bool:
        return key in value_of(self)

    def keys(self) -> list[Hashable]:
        """The keys of the dict."""
        return list(value_of(self))

    def values(self) -> list[PyTree]:
        """A proxy or a value for each key."""
        return [self[key] for key in self]

    def items(self) -> list[tuple[Hashable, PyTree]]:
        """The keys, each with its proxy or value."""
        return [(key, self[key]) for key in self]


def field_names(record: eqx.Module) -> tuple[str, ...]:
    """The names of a record's fields."""
    return tuple(record.__dataclass_fields__)


def _wrap(block: Block, path: Path, value: PyTree) -> PyTree:
    if isinstance(value, eqx.Module):
        return RecordProxy(block, path)
    if not _holds_records(value):
        return value
    return (MappingProxy if isinstance(value, dict) else SequenceProxy)(block, path)


def _holds_records(value: PyTree) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_records, cast("Sequence[Any]", value)))
    if isinstance(value, dict):
        return any(map(_holds_records, cast("dict[Any, Any]", value).values()))
    return isinstance(value, eqx.Module)


def _place_of(value: Any, container: Any) -> Path | None:
    """The path of a value, found by identity, in the containers of a field; None if it is not there."""
    if value is container:
        return ()
    items: Any = ()
    if isinstance(container, (list, tuple)):
        items = enumerate(cast("Sequence[Any]", container))
    elif isinstance(container, dict):
        items = cast("dict[Any, Any]", container).items()
    for key, item in items:
        place = _place_of(value, item)
        if place is not None:
            return (key, *place)
    return None


def threaded_function(function: object) -> ThreadedFunction | None:
    """A part of a threaded record as a function for a transform; None for every other function.

    Raises:
        SuccessorError: for a container of records, which cannot be called.
    """
    if isinstance(function, ThreadedFunction):
        return function
    if isinstance(function, types.MethodType) and function.__func__ is RecordProxy.__call__:
        function = function.__self__
    if isinstance(function, RecordProxy):
        return ThreadedFunction(block_of(function), path_of(function), "__call__")
    if isinstance(function, ContainerProxy):
        block, path = block_of(function), path_of(function)
        row = type(value_of(function)).__name__
        raise SuccessorError(
            f"a {row} of records cannot be called, so no transform takes it as a function",
            at=block.format(path),
            fix=f"call its items in a Python loop, `for part in {block.format_handle(path)}`, or stack records of "
            "equal structure into one (weft.tree.stack), over which weft.scan loops",
        )
    return None


def refuse_threaded(functions: Sequence[object], transform: str, why: str) -> None:
    """Refuses threaded functions in a transform that cannot return their successors, and says why.

    Raises:
        SuccessorError: naming the part, and how to pass its record by hand.
    """
    for function in functions:
        threaded = threaded_function(function)
        if threaded is not None:
            handle = threaded.block.format_handle(threaded.path)
            raise SuccessorError(
                f"{transform} cannot take a part of a threaded record as a function, because it could not return the "
                f"part's successor: {why}",
                at=threaded.describe(),
                fix=f"pass the record as an argument, {transform}(lambda part, ...: ...)(peek({handle}), ...), and "
                f"assign the successor that it returns: {handle} = ...",
            )


R = TypeVar("R", bound=eqx.Module)
Y = TypeVar("Y")


def thread(record: R) -> Thread[R]:
    """Opens a block that threads a record's successors: `with thread(self) as t: ...; return t.done(y)`.

    The handle `t` stands for the record with every successor so far in its place:

    ```python
    def __call__(self, x, flag):
        with weft.thread(self) as t:
            x = t.conv(x)                                 # a pure layer: its value
            x = t.bn(x)                                   # (y, successor): y; the successor goes into its place
            key = t.keys.next("dropout")                  # a draw, and the stream that follows it
            x, weights = t.attention(x)                   # (y, aux, successor): (y, aux)
            t.cache.clear()                               # a successor alone: None
            for layer in t.layers:                        # lists, tuples and dicts of records
                x = layer.decode(x)                       # any public method
            x = weft.scan(weft.remat(t.blocks))(x)        # a stack of records, one after another
            x = weft.vmap(t.norm, axis_name="batch")(x)   # one record for all examples
            x = weft.cond(flag, t.adapter, lambda x: x, x)
            t.count = t.count + 1                         # a field, set by hand
            return t.done(t.dropout(x, key=key))          # (y, the successor of self)
    ```

    **Calls.** `t.part(...)` and `t.part.method(...)` call the latest record at that path. If the method returns a tuple
    whose last element is a record of the part's own type, or such a record alone, that record is the successor, and the
    rest is the call's value: `y` of `(y, successor)`, `(y, aux)` of `(y, aux, successor)`, None of a successor alone.
    Any other result is the value. A successor must have the structure of the record that it follows: treedef, shapes,
    dtypes. A field that holds a plain function is just called. Proxies among the arguments are passed as the records
    that they stand for.

    **Reading.** Arrays and other attributes, properties too, give their values; a record, or a container that holds
    records, a proxy. Containers are indexed, sliced, iterated and measured like lists, tuples and dicts.

    **Setting.** `t.count = value`, `t.layers[0] = record`, `t.table["a"] = record`, under the same conditions.

    **Transforms**, all but `associative_scan` and `custom_jvp`, take a part or its method as a function; transforms may
    be nested. The record goes in as an argument, and its successor is written back. Options such as `in_axes` are about
    your arguments and the value; the record itself rides

    - in `jit`, `remat`, `checkify` and whatever differentiates: whole (derivatives are those of your arguments);
    - in `scan`: on the leading axis, which all of its arrays have: it is a stack, one record a step, and the successors
      are stacked. By default the first argument is carried and the second, if any, is scanned over: `x =
      scan(t.blocks)(x)`, or `x, ys = scan(t.blocks)(x, xs)`, where `ys` stacks what the block returns with the carry;
    - in `vmap`, `pmap`, `shard_map`: unmapped, one record for all examples. What changes in it must come out unmapped
      too, as statistics do that are reduced over the named axis;
    - in `cond` and `switch`: as an operand. A branch that is not taken leaves it as it is;
    - in `lax_map`, `while_loop`, `fori_loop`: from one step to the next, in addition to the loop's own carry;
    - in `custom_vjp`: closed over, without a derivative. The forward function is a method of the part, too, and returns
      `(output, residuals, successor)`;
    - in `eval_shape` and `make_jaxpr`: in, but not out. Nothing is computed, and the record stays unchanged.

    **By hand.** `peek(t.part)` is the record itself, for code that has to have it: to pass it through another
    transform, to call a pure method that returns records of its own type, to sort out what a call returns in another
    order: `t.part, y = peek(t.part).method(x)`.

    **Errors** (each says what to do): a successor that is not the last element of the returned tuple, is not the only
    record of its type there, or lies deeper in it; a successor of another type or structure; a successor that is
    returned inside a transform that the block is outside of (a plain `jax.vmap(t.norm)`, a function that closes over
    `t`); a part that is called directly, `self.bn(x)`, and returns a successor, which the block would not see; a record
    that is used after its successor was returned; a block that ends without `done`; a handle that is used after the
    block.

    Args:
        record: the record whose parts are called; often `self`.

    Returns:
        A context manager that gives the handle.

    Raises:
        SuccessorError: if `record` is no record, or has a field called `done`; the block raises the errors above.

    >>> import jax, jax.numpy as jnp
    >>> from weft.core.records.module import Module
    >>> class Counter(Module):
    ...     count: jax.Array
    ...     def __call__(self, x):
    ...         return x + self.count, self.replace(count=self.count + 1)
    >>> class Twice(Module):
    ...     counter: Counter
    ...     def __call__(self, x):
    ...         with thread(self) as t:
    ...             return t.done(t.counter(t.counter(x)))
    >>> y, twice = Twice(Counter(jnp.array(1)))(0)
    >>> int(y), int(twice.counter.count)
    (3, 3)
    """
    if not isinstance(cast(Any, record), eqx.Module):
        raise SuccessorError(
            f"only a record can be threaded, not a {type(record).__name__}",
            fix="open a block in the method, `with weft.thread(self) as t: ...; return t.done(y)`",
        )
    if "done" in field_names(record):
        raise SuccessorError(
            "a field called 'done' hides behind the handle's own done()",
            at=f"{type(record).__qualname__}.done",
            fix="rename the field",
        )
    return Thread(record)


def peek(proxy: object) -> PyTree:
    """The record (or container) that a proxy of a `thread` block stands for, as it is now.

    For code that needs the record itself, and handles its successor by hand. A value that is no proxy is returned as it
    is.

    >>> from weft.core.records.keys import Keys
    >>> from weft.core.records.module import Module
    >>> class Noise(Module):
    ...     keys: Keys
    >>> with thread(Noise(Keys(0))) as t:
    ...     key, t.keys = peek(t.keys).next()
    ...     noise = t.done(None)[1]
    >>> int(noise.keys.streams["default"].count)
    1
    """
    value = value_of(proxy)
    if isinstance(proxy, Proxy):
        block_of(proxy).peeked.append(value)
    return value


class Handle(RecordProxy, Generic[R]):
    """The `t` of `with thread(record) as t`: stands for the record with every successor so far in its place."""

    __slots__ = ()

    def done(self, value: Y) -> tuple[Y, R]:
        """Ends the block: `return t.done(y)`.

        Returns:
            The value, and the record with every successor in its place.
        """
        return value_of(value), cast(R, block_of(self).finish())


class Thread(Generic[R]):
    """The context manager that `thread` returns."""

    __slots__ = ("_block", "_record", "_tokens")

    def __init__(self, record: R):
        self._record = record
        self._block: Block | None = None
        self._tokens: Tokens | None = None

    def __enter__(self) -> Handle[R]:
        if self._block is not None:
            raise SuccessorError("this thread block was already opened", fix="call thread(...) again for a new block")
        self._block = Block(self._record, type(self._record).__qualname__)
        self._tokens = open_block(self._block)
        return Handle(self._block, ())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._block is not None
        assert self._tokens is not None
        leave_block(self._tokens)
        finished = self._block.closed is not None
        self._block.close("its block was left")
        if not finished and kind is None:
            raise SuccessorError(
                f"the thread block of a {self._block.name} was left without done()",
                at=self._block.name,
                fix="end it with `return t.done(y)`, which gives (y, successor)",
            )
