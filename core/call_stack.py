"""`call_with_room`: calls a function with one large piece of memory for the frames of a deep call stack.

CPython stores the frames of Python functions in chunks of 16 KiB, a few dozen frames each. A call that does not fit
into the last chunk allocates a new one from the system, and frees it when it returns. If a loop runs just before the
end of a chunk, each call in it pays for that. Tracing and lowering are such loops, hundreds of calls deep, and took up
to 1.7 times as long at some depths of the caller as at others. A function with a large frame gets a chunk that is large
enough for it, and the rest of that chunk holds the frames of all functions that it calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# The size of the frame in words. The size of a chunk is a power of two: this frame takes half of a chunk of 2 MiB, and
# the other half holds about a thousand frames. Memory that no frame uses is never touched, and costs only address
# space.
_FRAME = (1 << 17) + (1 << 10)


def call_with_room(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls a function with room for the frames of all functions that it calls.

    It takes some microseconds, to allocate and free a chunk: so it is used for calls that trace, not for every call.
    """
    __tracebackhide__ = True
    return function(*args, **kwargs)


call_with_room.__code__ = call_with_room.__code__.replace(co_stacksize=_FRAME)
