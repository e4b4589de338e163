"""thread: do-notation for composites of stateful records. `thread` says what there is to know.

A *handle* `t` stands for the record as it is now; `t.blocks[0].bn` is a *proxy*, a path from the handle (`proxies`).
What an open block knows, and what it guards against, is in `blocks`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Generic, TypeVar, cast

import equinox as eqx
from weft.core.edge.trees import PyTree
from weft.core.errors import SuccessorError
from weft.core.threads.blocks import Block, Tokens, leave_block, open_block
from weft.core.threads.functions import Proxy, block_of, value_of
from weft.core.threads.proxies import RecordProxy, field_names

R = TypeVar("R", bound=eqx.Module)
Y = TypeVar("Y")

_OWN_NAMES = ("done",)


def thread(record: R) -> Thread[R]:
    """Opens a block that threads a record's successors: `with thread(self) as t: ...; return t.done(y)`.

    The handle `t` stands for the record as it is now, with every successor so far in its place:

    ```python
    def __call__(self, x, flag):
        with weft.thread(self) as t:
            x = t.conv(x)                                 # a pure layer: its value
            x = t.bn(x)                                   # (y, successor): y; the successor is kept under its path
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

    **Calls.** `t.part(...)` and `t.part.method(...)` call the latest record at that path. If what is returned is a
    tuple whose last element is a record of the part's own type, or such a record alone, that is its successor, and the
    rest is the call's value: `y` of `(y, successor)`, `(y, aux)` of `(y, aux, successor)`, None of a successor alone.
    Everything else is the value as it is. A successor must have the structure of what it follows: treedef, shapes,
    dtypes. A field that holds a plain function is just called. Proxies among the arguments are passed as the records
    that they stand for.

    **Reading.** Arrays and other attributes, properties too, give their values; a record, or a container that holds
    records, a proxy. Containers are indexed, sliced, iterated and measured like lists, tuples and dicts.

    **Setting.** `t.count = value`, `t.layers[0] = record`, `t.table["a"] = record`, under the same conditions.

    **Transforms** take a part, or its method, for a function, all but `associative_scan` and `custom_jvp`, and any of
    them on another. The record goes in as an argument, and its successor is written back. Options such as `in_axes` are
    those of your arguments and of the value; the record rides

    - in `jit`, `remat`, `checkify` and whatever differentiates: as it is (derivatives are those of your arguments);
    - in `scan`: on the leading axis, which all of its arrays have: it is a stack, one record a step, and the successors
      are stacked. By default the first argument is carried and the second, if any, is scanned over: `x =
      scan(t.blocks)(x)`, or `x, ys = scan(t.blocks)(x, xs)` with what the block returns beside the carry in `ys`;
    - in `vmap`, `pmap`, `shard_map`: unmapped, one record for all examples. What changes in it must come out unmapped
      too, as statistics do that are reduced over the named axis;
    - in `cond` and `switch`: as an operand. A branch that is not taken leaves it as it is;
    - in `lax_map`, `while_loop`, `fori_loop`: from one step to the next, beside what these carry;
    - in `custom_vjp`: closed over, without a derivative. The forward function is a method of the part, too, and returns
      `(output, residuals, successor)`;
    - in `eval_shape` and `make_jaxpr`: in alone. Nothing is computed, and the record stays what it is.

    **By hand.** `peek(t.part)` is the record itself, for code that has to have it: to pass it through another
    transform, to call a pure method that returns records of its own type, to sort out what a call returns in another
    order: `t.part, y = peek(t.part).method(x)`.

    **What is an error** (and says what to do): a successor that is not last, or not alone of its type, or somewhere
    deeper in what is returned; one of another type or structure; one that is taken inside another transform than the
    block was opened in (a plain `jax.vmap(t.norm)`, a function that closes over `t`); a part called directly,
    `self.bn(x)`, that returns a successor, which the block would not see; a record used after its successor was taken;
    leaving the block without `done`, or using the handle after it.

    Args:
        record: the record whose parts are called; often `self`.

    Returns:
        A context manager that gives the handle.

    Raises:
        SuccessorError: if this is no record, or one with a field called `done`; and later, from the block: see above.

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
    taken = [name for name in _OWN_NAMES if name in field_names(record)]
    if taken:
        raise SuccessorError(
            f"a field called {taken[0]!r} hides behind the handle's own {taken[0]}()",
            at=f"{type(record).__qualname__}.{taken[0]}",
            fix="rename the field",
        )
    return Thread(record)


def peek(proxy: object) -> PyTree:
    """The record (or container) that a proxy of a `thread` block stands for, as it is now.

    For code that needs the record itself, and takes care of its successor by hand. What is no proxy is given back.

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
    """What `with thread(record) as t` gives: the record as it is now."""

    __slots__ = ()

    def done(self, value: Y) -> tuple[Y, R]:
        """Ends the block: `return t.done(y)`.

        Returns:
            The value, and the record with every successor in its place.
        """
        return value_of(value), cast(R, block_of(self).finish())


class Thread(Generic[R]):
    """An unopened `thread` block."""

    __slots__ = ("_block", "_record", "_tokens")

    def __init__(self, record: R):
        self._record = record
        self._block: Block | None = None
        self._tokens: Tokens | None = None

    def __enter__(self) -> Handle[R]:
        if self._block is not None:
            raise SuccessorError("this thread block was opened before", fix="call thread(...) anew")
        self._block = Block(self._record)
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
