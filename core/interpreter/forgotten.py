"""Says where a successor was forgotten: `m(x)`, a pair `(y, successor)`, in the place of an array.

NumPy, JAX and optax see a tuple there, and say so in words of their own: "invalid shape in fixed-type tuple".
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, cast

from weft.core.callers import owner_of
from weft.core.edge import names
from weft.core.errors import SuccessorError
from weft.core.records.successors import apart, pair_in_words


def explain_forgotten(error: Exception) -> None:
    """Raises a better error about a pair that was taken for an array in the user's function, if it is about one.

    Raises:
        SuccessorError: naming the user's line.
    """
    if not any(words in str(error) for words in names.A_TUPLE):
        return
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [i for i, (frame, _) in enumerate(frames) if owner_of(frame.f_code.co_filename) in ("user", "generated")]
    if not own:
        return
    # What the user's line called, as far as it has begun, and what the line could see.
    seen = [*_values(frames[own[-1] + 1 :]), *_values(frames[own[-1] : own[-1] + 1]), getattr(error, "obj", None)]
    pair = next((value for value in seen if pair_in_words(value) is not None), None)
    if pair is not None:
        frame, line = frames[own[-1]]
        raise SuccessorError(
            f"an array is expected, and this is {pair_in_words(pair)}, as a call of a stateful record returns it",
            at=f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}",
            fix=apart(cast("tuple[Any, ...]", pair)),
        ) from error


def _values(frames: Sequence[tuple[FrameType, int]]) -> Iterator[object]:
    """The variables of frames, and the elements of those that are tuples: what was given as `*args`."""
    for frame, _ in frames:
        for value in frame.f_locals.values():
            yield value
            if type(value) is tuple:
                yield from cast("tuple[object, ...]", value)
