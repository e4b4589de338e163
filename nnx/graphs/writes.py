"""Writes into the caller's objects: all updates of a call, or none, even if Ctrl-C arrives in the middle.

Python raises an exception from outside (Ctrl-C, a timeout) between any two bytecode instructions, so a loop of writes
may stop half-way. `write_all` writes the values of all Variables in one call into C, during which nothing is raised.
`completed` runs writes that take more steps, such as replacing attributes: if they are interrupted, it runs them again
from the start, and raises the exception at the end. Such writes must be idempotent, and compute nothing that may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from weft.nnx.variable.variable import Variable

R = TypeVar("R")

write_one = Variable.__dict__["_raw_value"].__set__
# Users press Ctrl-C several times, so one retry is too few; an error in `write` itself would recur without end.
_MOST_ATTEMPTS = 8


def write_all(variables: Iterable[Any], values: Iterable[Any]) -> None:
    """Writes raw values into Variables in one step. Both must be sequences: a generator would run bytecode between."""
    # `write_one` returns None, so `any` consumes the whole map. `deque(..., maxlen=0)` does too, in twice the time.
    any(map(write_one, variables, values))


def completed(write: Callable[[], R]) -> R:
    """Runs `write` to its end, even if an exception interrupts it; the exception is raised afterwards.

    >>> written, interrupts = [], [KeyboardInterrupt]
    >>> def write():
    ...     written.append("first")
    ...     if interrupts:
    ...         raise interrupts.pop()
    ...     written.append("second")
    >>> try:
    ...     completed(write)
    ... except KeyboardInterrupt:
    ...     print(written)
    ['first', 'first', 'second']

    Raises:
        BaseException: the exception that interrupted `write`, after everything is written.
    """
    interrupt: BaseException | None = None
    for attempt in range(_MOST_ATTEMPTS):
        try:
            result = write()
            if interrupt is None:
                return result
            break
        except BaseException as error:
            if attempt == _MOST_ATTEMPTS - 1:
                raise
            interrupt = interrupt or error
    assert interrupt is not None
    raise interrupt
