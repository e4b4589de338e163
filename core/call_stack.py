"""Room for deep calls: CPython's frames in one piece of memory.

CPython keeps the frames of Python functions in chunks of 16 KiB, a few dozen frames each. A call that does not fit into
the last chunk is given a new one by the system, and gives it back when it returns. Where a loop that calls stands just
before the end of a chunk, each of its calls pays for that: tracing and lowering are such loops, hundreds of calls deep,
and take up to 1.7 times as long at some depths of the caller as at others. A function with a large frame gets a
chunk that is large enough for it, and what is left of that chunk is room for all that it calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# In words. Chunks are powers of two: this one takes 2 MiB and leaves nearly half of it, about a thousand frames. Memory
# that no frame has come to is never touched, so that it costs address space alone.
_FRAME = (1 << 17) + (1 << 10)


def call_with_room(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls a function with room for the frames of all that it calls.

    It takes some microseconds (a chunk comes from the system and goes back): for what traces, and not for each call.
    """
    __tracebackhide__ = True
    return function(*args, **kwargs)


call_with_room.__code__ = call_with_room.__code__.replace(co_stacksize=_FRAME)
