"""Violations: contracts that did not hold in a trace, and in which words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from weft.core.paths import format_path
from weft.typecheck.language.dims import VariadicDim
from weft.typecheck.matching.bindings import Mismatch
from weft.typecheck.matching.words import axes_in_words, in_words
from weft.typecheck.messages.fixes import Fix


@dataclass(frozen=True)
class Violation:
    """A contract that did not hold at some sizes.

    Attributes:
        function: the function or class whose annotation it is.
        file, line: where it is defined.
        where: which annotation: "argument x", "return", "field weight".
        message: what was expected and what was found.
        sizes: the two sizes that should have been one, if that is what is wrong.
        inside: where the record is whose field it is, if the value holds one: "return.b".
        of_rank: whether it is about the number of axes.
        of_instances: whether it is about the dims of records, as only weft binds them: stacks, and links.
        of_kind: whether it is about what the value is (a dict, another class), whatever its sizes are.
        of_dtype: whether it is about the dtype of an array.
        of_subclass: whether a subclass of the class of what was found is expected.
        fix: what would mend it, if it looks like a common slip.
    """

    function: str
    file: str
    line: int
    where: str
    message: str
    sizes: tuple[int, ...] = ()
    inside: str = ""
    of_rank: bool = False
    of_instances: bool = False
    of_kind: bool = False
    of_dtype: bool = False
    of_subclass: bool = False
    fix: Fix | None = field(default=None, compare=False)

    @property
    def place(self) -> tuple[str, int, str]:
        """What makes two findings one."""
        return (self.file, self.line, self.where)


def describe(mismatch: Mismatch) -> str:
    """One line: what was expected and what was found."""
    path = format_path(mismatch.path, "") if mismatch.path else ""
    text = f"{path}: " if path else ""
    text += f"expected {mismatch.annotation}, found {in_words(mismatch.value)}"
    if mismatch.dim is not None and mismatch.expected is not None and mismatch.reason != "link":
        text += f": {mismatch.dim} is {mismatch.expected}"
        found = None if isinstance(mismatch.dim, VariadicDim) else _found(mismatch)
        text += f", not {found}" if found is not None else ""
    detail = _DETAILS.get(mismatch.reason, _detail)(mismatch)
    return text + (f" ({detail})" if detail else "")


def wants_subclass(mismatch: Mismatch) -> bool:
    """Whether a value is of a base class of the class that is expected."""
    expected = getattr(mismatch.annotation, "cls", None)
    return isinstance(expected, type) and type(mismatch.value) in expected.__mro__[1:-1]


def inside_of(mismatch: Mismatch) -> str:
    """Where the outermost record is whose field does not fit, in words."""
    if not mismatch.outer:
        return ""
    slot, path = mismatch.outer[-1]
    return format_path(path, f"{slot.role} {slot.name}".strip())


def _detail(mismatch: Mismatch) -> str:
    return mismatch.detail


def _link(mismatch: Mismatch) -> str:
    wanted = f"{mismatch.dim}" + (f"={mismatch.expected}" if str(mismatch.dim) != str(mismatch.expected) else "")
    return f"its {mismatch.detail} is {_linked_size(mismatch)}, and should be {wanted}"


_DETAILS: dict[str, Callable[[Mismatch], str]] = {
    "link": _link,
    "keys": lambda one: f"without {one.detail}",
    "structure": lambda one: f"not the structure that {one.detail} has",
    "batched": lambda one: f"a stack, with the leading axes ({axes_in_words(one.expected)})",
    "overmapped": lambda one: f"every array in it has {one.expected} axes too few",
}


def _linked_size(mismatch: Mismatch) -> Any:
    return None if mismatch.inner is None else mismatch.inner.sizes.get(mismatch.detail)


def _found(mismatch: Mismatch) -> Any:
    if mismatch.reason == "link":
        return _linked_size(mismatch)
    shape, axis = getattr(mismatch.value, "shape", ()), mismatch.axis
    # A scalar has none of the axes that a `*name` stands for.
    return shape[axis] if axis is not None and -len(shape) <= axis < len(shape) else None


def sizes_of(mismatch: Mismatch) -> tuple[int, ...]:
    """The sizes that disagree."""
    if mismatch.reason == "batched":
        return tuple(one for one in mismatch.expected if isinstance(one, int))
    stacked = mismatch.stacked[0] if mismatch.stacked is not None else ()
    sizes = (mismatch.expected, *(stacked or (_found(mismatch),)))
    return sizes if all(isinstance(one, int) for one in sizes) else ()


def first_line(error: Exception | None) -> str:
    """The first line of what an error says."""
    return (str(error).strip().splitlines() or [""])[0]


def in_short(error: Exception | None) -> str:
    """An error in one line, as Python ends a traceback."""
    return f"{type(error).__name__}: {first_line(error)}"


def with_components(error: Exception | None) -> str:
    """An error in one line, with the components that differ: JAX names those of a carry or a branch further down."""
    apart = [line.strip() for line in str(error).splitlines()[1:] if "but the corresponding " in line]
    return " ".join([in_short(error), *apart])


def clashing(message: str) -> set[int]:
    """The sizes that disagree, of an error that shows two shapes that should broadcast or match.

    >>> sorted(clashing("add got incompatible shapes for broadcasting: (5, 17), (5, 11)."))
    [11, 17]
    >>> sorted(clashing("carry[2]: int32[11] -> int32[5]"))
    [5, 11]
    """
    if "reshape" in message:
        return set()
    found = re.findall(r"\(\d+,[\d, ]*\)|(?<=\d)\[\d[\d,]*\]", message)
    shapes = [tuple(map(int, re.findall(r"\d+", text))) for text in found]
    return {
        size
        for number, one in enumerate(shapes)
        for other in shapes[number + 1 :]
        for pair in zip(one[::-1], other[::-1], strict=False)
        if pair[0] != pair[1] and 1 not in pair
        for size in pair
    }
