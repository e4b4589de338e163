"""Explains errors that come from using `m(x)`, a pair `(y, successor)`, as if it were an array.

NumPy, JAX and optax report a tuple in words of their own: "invalid shape in fixed-type tuple". Mostly the pair is a
local variable of a frame in the traceback. In `m(x) - y` it has no name and is gone when the operation has failed; then
the source text of the operation tells which record was called.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, cast

import equinox as eqx
from weft.core.edge import names
from weft.core.errors import SuccessorError
from weft.core.frames import owner_of
from weft.core.records.successors import how_to_unpack, pair_in_words
from weft.core.tracebacks import entries_of


def explain_forgotten(error: Exception) -> None:
    """Raises a `SuccessorError` in place of an error about a tuple, if the tuple is the pair that a record returned.

    Raises:
        SuccessorError: naming the user's line.
    """
    if not any(words in str(error) for words in names.A_TUPLE):
        return
    entries = entries_of(error.__traceback__)
    frames = [(entry.tb_frame, entry.tb_lineno) for entry in entries]
    own = [i for i, (frame, _) in enumerate(frames) if owner_of(frame.f_code.co_filename) in ("user", "generated")]
    if not own:
        return
    # The pair may be a variable of the frames below the user's line (the arguments of the function that failed), of the
    # user's frame, or the object whose attribute was missing.
    seen = [*_values(frames[own[-1] + 1 :]), *_values(frames[own[-1] : own[-1] + 1]), getattr(error, "obj", None)]
    pair: Any = next((value for value in seen if pair_in_words(value) is not None), None)
    (frame, line), innermost = frames[own[-1]], entries[-1]
    if pair is not None:
        got = f"got {pair_in_words(pair)}, which a call of a stateful record returns"
        fix = how_to_unpack(pair)
    else:
        # Only an operation that failed in the user's own frame can be read from the text of its line.
        record = _called(str(error), frame, innermost.tb_lasti) if innermost.tb_frame is frame else None
        if record is None:
            return
        got = f"the call of a {type(record).__name__} returned a tuple: a call of a stateful record returns "
        got += "(y, successor)"
        fix = how_to_unpack((None, record))
    raise SuccessorError(
        f"an array is expected, but {got}", at=f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}", fix=fix
    ) from error


def _called(message: str, frame: FrameType, instruction: int) -> eqx.Module | None:
    """The record whose call returned the tuple in a binary operation that failed, read from the operation's source."""
    # Python's message names the types of both operands, and so says which of them is the tuple.
    types = re.search(r"for .*: '([\w.]+)' and '([\w.]+)'", message)
    first_line, last_line, first_column, end_column = list(frame.f_code.co_positions())[instruction // 2]
    if types is None or first_line is None or last_line is None:
        return None
    # Columns count bytes, not characters.
    lines = [linecache.getline(frame.f_code.co_filename, line).encode() for line in range(first_line, last_line + 1)]
    lines[-1] = lines[-1][:end_column]
    try:
        tree = ast.parse(b"(" + b"".join(lines)[first_column:].strip() + b")", mode="eval").body
    except SyntaxError:  # `total += m(x)` is no expression, and the file may not be readable
        return None
    # Only a name with attributes (`self.bn(x)`) is looked up: to evaluate anything else would run the user's code
    # again.
    operand = (tree.left if types[1] == "tuple" else tree.right) if isinstance(tree, ast.BinOp) else None
    names = ast.unparse(operand.func).split(".") if isinstance(operand, ast.Call) else [""]
    callee: Any = {**frame.f_globals, **frame.f_locals}.get(names[0])
    for name in names[1:]:
        callee = getattr(callee, name, None)
    # Equinox wraps a bound method into a record of its own, whose `__self__` is the record that we look for.
    owner = getattr(callee, "__self__", callee)
    return owner if isinstance(owner, eqx.Module) else None


def _values(frames: Sequence[tuple[FrameType, int]]) -> Iterator[object]:
    """The local variables of frames, and the elements of those that are tuples, such as `*args`."""
    for frame, _ in frames:
        for value in frame.f_locals.values():
            yield value
            if type(value) is tuple:
                yield from cast("tuple[object, ...]", value)
