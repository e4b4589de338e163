"""Strictness: in the mode `strict`, the user's code may not promote ranks and dtypes implicitly.

While a checked function runs, JAX's options `jax_numpy_rank_promotion="raise"` and `jax_numpy_dtype_promotion="strict"`
hold in the user's frames: those of the function, and of each of the user's functions that it calls. A library called
from there (optax, equinox, weft's layers) runs under the program's options; a function that the user passes to the
library runs under the strict ones again. Outside of checked functions and in other threads, nothing changes.

Only the interpreter knows whose function is entered or left, so tracing under `strict` takes up to twice its time;
compiled calls take none. If another profiler is active, the options hold for everything that a checked function calls.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import FrameType
from typing import Any, Literal

import jax
from jax.dtypes import TypePromotionError
from weft.core.caches import kept_in
from weft.core.errors import WeftError
from weft.core.frames import is_users, owner_of, place_of
from weft.typecheck.errors import PromotionError


def call_strictly(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Calls a checked function with JAX's options set to refuse promotions in the user's frames.

    Raises:
        PromotionError: at an implicit promotion in a frame of the user's.
    """
    __tracebackhide__ = True
    try:
        return _call(function, args, kwargs)
    except ValueError as error:
        promotion = _promoted(error)
        if promotion is None:
            raise
        raise promotion.with_traceback(error.__traceback__) from None


def _promoted(error: ValueError) -> PromotionError | None:
    """JAX's error about a promotion as a `PromotionError` at the user's line; None for any other error."""
    # JAX's advice about its own options would mislead here, because weft has set them.
    ranks = f" and with the config option {_RANKS}="
    if isinstance(error, WeftError) or not (isinstance(error, TypePromotionError) or ranks in str(error)):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if is_users(frame)]
    reason = str(error).partition(ranks)[0].partition(" when jax_numpy_dtype_promotion=")[0]
    of_ranks = ranks in str(error)
    fix = "add the missing axes, as in x[None, :]" if of_ranks else "cast one operand, as in x.astype(y.dtype)"
    return PromotionError(
        f"{reason}: the mode 'strict' promotes no {'ranks' if of_ranks else 'dtypes'} implicitly",
        at=[
            f"{place_of(frame)}: {linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()}"
            for frame in frames[-1:]
        ],
        fix=fix,
    )


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls a function with the options of the mode `strict` in the user's frames."""
    __tracebackhide__ = True
    profiler = sys.getprofile()
    # Inside of another checked function the profiler is in place already.
    if isinstance(getattr(profiler, "__self__", None), _Frames):
        return function(*args, **kwargs)
    # Only one profiler can be active, and replacing the user's would end their measurement.
    if profiler is not None:
        with _promotion(*_REFUSED):
            return function(*args, **kwargs)
    sys.setprofile(_Frames().event)
    try:
        return function(*args, **kwargs)
    finally:
        sys.setprofile(None)


_REFUSED = ("raise", "strict")
# JAX has no class for its error about ranks; the message names the option.
_RANKS = "jax_numpy_rank_promotion"


@contextlib.contextmanager
def _promotion(rank: str, dtype: str) -> Iterator[None]:
    with jax.numpy_rank_promotion(rank), jax.numpy_dtype_promotion(dtype):
        yield


class _Frames:
    """Sets JAX's options as frames of the user and of libraries are entered and left.

    Attributes:
        options: the values that the program has set.
        whose: whose code runs now.
        changes: the frames that changed it, each with the function that undoes the change, and whose code ran before.
    """

    def __init__(self) -> None:
        config: Any = jax.config
        self.options: tuple[str, str] = config.jax_numpy_rank_promotion, config.jax_numpy_dtype_promotion
        self.whose: Whose = "library"
        self.changes: list[tuple[FrameType, ExitStack, Whose]] = []

    def event(self, frame: FrameType, event: str, _: Any) -> None:
        """The profiler: changes the options when code of another owner is entered, and back when it is left."""
        if event == "call":
            # A dict by file, because this runs at every call of any Python function during the trace.
            whose = _known.get(frame.f_code.co_filename) or _whose(frame)
            if whose not in (self.whose, "caller"):
                undo = ExitStack()
                undo.enter_context(_promotion(*(_REFUSED if whose == "user" else self.options)))
                self.changes.append((frame, undo, self.whose))
                self.whose = whose
        elif event == "return" and self.changes and self.changes[-1][0] is frame:
            _, undo, self.whose = self.changes.pop()
            undo.close()


# Whose code a file has. JAX and Python's standard library act for their caller, so they change nothing.
Whose = Literal["user", "library", "caller"]
_known: dict[str, Whose] = {}
kept_in("weft.typecheck.calls.strictness", "file", _known)


def _whose(frame: FrameType) -> Whose:
    filename = frame.f_code.co_filename
    owner = owner_of(filename)
    if owner in ("jax", "standard", "generated", "frozen"):
        whose: Whose = "caller"
    else:
        whose = "user" if owner == "user" else "library"
    _known[filename] = whose
    return whose
