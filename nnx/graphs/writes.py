"""Writing into the caller's objects: all that a call changed, or nothing of it.

Python raises what comes from outside (Ctrl-C, a timeout's exception) between any two of its instructions, so a loop of
writes may stop half-way. Two ways around it: values go into Variables in one step of C, in which nothing is raised; and
what takes more steps, such as giving objects other attributes, is begun again if it was interrupted, and the exception
is raised when all is done. What is begun again must have been computed before, and must come to the same twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from weft.nnx.variable.variable import Variable

R = TypeVar("R")

write_one = Variable.__dict__["_raw_value"].__set__
# Who presses Ctrl-C presses it more than once; an error of the writing itself comes again each time.
_MOST_ATTEMPTS = 8


def write_all(variables: Iterable[Any], values: Iterable[Any]) -> None:
    """Writes raw values into Variables in one step; both must be sequences, or made of sequences in C."""
    # `any` runs through it: to write gives None. A deque that keeps nothing does so too, and takes twice the time.
    any(map(write_one, variables, values))


def completed(write: Callable[[], R]) -> R:
    """Runs what writes to its end, whatever is raised in the middle.

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
        BaseException: what was raised in the middle, once all is written.
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
