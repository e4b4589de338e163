"""Says where a successor was forgotten: `m(x)`, a pair `(y, successor)`, in the place of an array.

NumPy, JAX and optax see a tuple there, and say so in words of their own: "invalid shape in fixed-type tuple". Mostly
the pair is among the variables of what failed. In `m(x) - y` it has no name, and is gone with the operation; the
text of the line says what was called.
"""

from __future__ import annotations

import ast
import linecache
import re
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, cast

import equinox as eqx
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
    (frame, line), last = frames[own[-1]], error.__traceback__
    if pair is not None:
        raise SuccessorError(
            f"an array is expected, and this is {pair_in_words(pair)}, as a call of a stateful record returns it",
            at=f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}",
            fix=apart(cast("tuple[Any, ...]", pair)),
        ) from error
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    record = _called(str(error), frame, last.tb_lasti) if last is not None and last.tb_frame is frame else None
    if record is not None:
        raise SuccessorError(
            f"an array is expected, and a call of a {type(record).__name__} gave a tuple: that of a stateful record "
            "returns (y, successor)",
            at=f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}",
            fix=apart((None, record)),
        ) from error


def _called(message: str, frame: FrameType, instruction: int) -> eqx.Module | None:
    """The record whose call is the tuple in an operation that failed, by the text of the operation."""
    types = re.search(r"for .*: '([\w.]+)' and '([\w.]+)'", message)
    start, end, left, right = list(frame.f_code.co_positions())[instruction // 2]
    if types is None or start is None or end is None:
        return None
    lines = [linecache.getline(frame.f_code.co_filename, line).encode() for line in range(start, end + 1)]
    lines[-1] = lines[-1][:right]
    try:
        tree = ast.parse(b"(" + b"".join(lines)[left:].strip() + b")", mode="eval").body
    except SyntaxError:  # `total += m(x)`, or no text
        return None
    operand = (tree.left if types[1] == "tuple" else tree.right) if isinstance(tree, ast.BinOp) else None
    names = ast.unparse(operand.func).split(".") if isinstance(operand, ast.Call) else [""]
    callee: Any = {**frame.f_globals, **frame.f_locals}.get(names[0])
    for name in names[1:]:
        callee = getattr(callee, name, None)
    # What equinox makes of a bound method is a record of its own.
    owner = getattr(callee, "__self__", callee)
    return owner if isinstance(owner, eqx.Module) else None


def _values(frames: Sequence[tuple[FrameType, int]]) -> Iterator[object]:
    """The variables of frames, and the elements of those that are tuples: what was given as `*args`."""
    for frame, _ in frames:
        for value in frame.f_locals.values():
            yield value
            if type(value) is tuple:
                yield from cast("tuple[object, ...]", value)
