"""Violations, which are contracts that did not hold in a trace, and the words of errors that programs raise.

An error of Python's, NumPy's or JAX's carries only its class and its text, so errors of one class are told apart by
words, numbers and shapes in the text. `test_wording.py` provokes them, so a new version with other words fails there.
What weft knows without reading a text, such as the class of a value that breaks an annotation, is an attribute of a
violation or of a trial.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from weft.core.paths import format_path
from weft.typecheck.language.dims import VariadicDim
from weft.typecheck.matching.bindings import Mismatch
from weft.typecheck.matching.words import axes_in_words, in_words
from weft.typecheck.messages.fixes import Fix

# `zip(strict=True)`, or an index, meets a list of the wrong length; these texts do not say which list.
UNPAIRED = (r"zip\(\) argument", "(list|tuple) index out of range")
# Names to unpack into are fewer or more than the items, or the axes, of a value.
UNPACKED = ("values to unpack",)
# An error, or a guard's text, is about dtypes.
DTYPES = ("type", "integer", r"\bint", "float", r"\breal", "complex")
# An error is about a dtype, where a function of any tree is given an array.
DTYPE_OR_INTEGER = ("type", "integer")
OF_NOTHING = (r"\bNone\b",)

# A number by itself: not the 32 of `f32`, and no part of a number with a decimal point.
_NUMBER = re.compile(r"(?<![\w.])\d+(?!\w|\.\d)")
_DIGITS = re.compile(r"\d+")
# A shape as Python writes it, or after a dtype's name: `(5, 17)`, `int32[11]`.
_SHAPE = re.compile(r"\(\d+,[\d, ]*\)|(?<=\d)\[\d[\d,]*\]")


def says(text: str, words: Iterable[str]) -> bool:
    """Whether a text contains one of some patterns."""
    return any(re.search(pattern, text) for pattern in words)


def numbers_in(text: str) -> list[int]:
    """The whole numbers in a text, in order.

    >>> numbers_in("add got (5, 17) and f32[11], 0.5")
    [5, 17, 11]
    """
    return [int(number) for number in _NUMBER.findall(text)]


def without_numbers(text: str) -> str:
    """The text with each number replaced by 0, to compare texts of errors at different sizes."""
    return _DIGITS.sub("0", text)


def sizes_that_disagree(message: str) -> set[int]:
    """The sizes that disagree in an error that shows two shapes which should broadcast or match.

    >>> sorted(sizes_that_disagree("add got incompatible shapes for broadcasting: (5, 17), (5, 11)."))
    [11, 17]
    >>> sorted(sizes_that_disagree("carry[2]: int32[11] -> int32[5]"))
    [5, 11]
    """
    # The two shapes of a failing reshape differ in many axes, and only their numbers of elements disagree.
    if "reshape" in message:
        return set()
    shapes = [numbers_in(shape) for shape in _SHAPE.findall(message)]
    return {
        size
        for number, shape in enumerate(shapes)
        for further in shapes[number + 1 :]
        # Aligned from the last axis, as broadcasting does; an axis of size 1 agrees with any other.
        for pair in zip(shape[::-1], further[::-1], strict=False)
        if pair[0] != pair[1] and 1 not in pair
        for size in pair
    }


def first_line(error: Exception | None) -> str:
    """The first line of an error's message."""
    return (str(error).strip().splitlines() or [""])[0]


def in_short(error: Exception | None) -> str:
    """An error in one line, like the last line of a Python traceback."""
    return f"{type(error).__name__}: {first_line(error)}"


def with_components(error: Exception | None) -> str:
    """An error in one line, with the components of a carry or branch that differ, which JAX names further down."""
    differing = [line.strip() for line in str(error).splitlines()[1:] if "but the corresponding " in line]
    return " ".join([in_short(error), *differing])


# The reasons of a value of the wrong kind (a dict, another class), whatever its sizes are, and of dims that only weft
# binds: those of the records in a stack, or of linked records.
OF_KIND, OF_INSTANCES = ("type", "class"), ("batched", "unbatched", "overmapped", "link")


@dataclass(frozen=True)
class Violation:
    """A contract that did not hold at some sizes.

    Attributes:
        function: the function or class whose annotation is broken.
        file, line: the definition of that function or class.
        where: the annotation: "argument x", "return", "field weight".
        message: the expected and the actual value, in words.
        sizes: the two sizes that should be equal, if two sizes disagree.
        inside: the place of the record whose field is wrong, if a value contains that record: "return.b".
        reason: what is wrong with the value, as `Mismatch.reason` names it: its "rank", its "dtype", ...
        of_subclass: whether the annotation expects a subclass of the value's class.
        of_tree: whether the value is a dict, a list or a tuple.
        fix: how to mend it, if it looks like a common mistake.
    """

    function: str
    file: str
    line: int
    where: str
    message: str
    sizes: tuple[int, ...] = ()
    inside: str = ""
    reason: str = ""
    of_subclass: bool = False
    of_tree: bool = False
    fix: Fix | None = field(default=None, compare=False)

    @property
    def place(self) -> tuple[str, int, str]:
        """The file, line and annotation, by which two violations are the same."""
        return (self.file, self.line, self.where)


def describe(mismatch: Mismatch) -> str:
    """The expected and the actual value, in one line."""
    path = format_path(mismatch.path, "") if mismatch.path else ""
    text = f"{path}: " if path else ""
    text += f"expected {mismatch.annotation}, found {in_words(mismatch.value)}"
    if mismatch.dim is not None and mismatch.expected is not None and mismatch.reason != "link":
        # A link is told in its own words below: its sizes belong to two records, and `dim is 5, not 7` would name
        # neither.
        text += f": {mismatch.dim} is {mismatch.expected}"
        actual = None if isinstance(mismatch.dim, VariadicDim) else _actual_size(mismatch)
        text += f", not {actual}" if actual is not None else ""
    detail = _DETAILS[mismatch.reason](mismatch) if mismatch.reason in _DETAILS else mismatch.detail
    return text + (f" ({detail})" if detail else "")


def wants_subclass(mismatch: Mismatch) -> bool:
    """Whether a value's class is a base class of the class that the annotation expects."""
    expected = getattr(mismatch.annotation, "cls", None)
    return isinstance(expected, type) and type(mismatch.value) in expected.__mro__[1:-1]


def inside_of(mismatch: Mismatch) -> str:
    """The place of the outermost record whose field does not fit, in words."""
    if not mismatch.outer:
        return ""
    slot, path = mismatch.outer[-1]
    return format_path(path, f"{slot.role} {slot.name}".strip())


def _link(mismatch: Mismatch) -> str:
    wanted = f"{mismatch.dim}" + (f"={mismatch.expected}" if str(mismatch.dim) != str(mismatch.expected) else "")
    return f"its {mismatch.detail} is {_linked_size(mismatch)}, and should be {wanted}"


_DETAILS: dict[str, Callable[[Mismatch], str]] = {
    "link": _link,
    "keys": lambda violation: f"without {violation.detail}",
    "structure": lambda violation: f"not the structure that {violation.detail} has",
    "batched": lambda violation: f"a stack, with the leading axes ({axes_in_words(violation.expected)})",
    "overmapped": lambda violation: f"every array in it has {violation.expected} axes too few",
}


def _linked_size(mismatch: Mismatch) -> Any:
    return None if mismatch.inner is None else mismatch.inner.sizes.get(mismatch.detail)


def _actual_size(mismatch: Mismatch) -> Any:
    """The size that did not fit, if there is one: of the axis at fault, or of the record's dim that is linked to it."""
    if mismatch.reason == "link":
        return _linked_size(mismatch)
    shape, axis = getattr(mismatch.value, "shape", ()), mismatch.axis
    # A scalar has none of the axes that a `*name` stands for.
    return shape[axis] if axis is not None and -len(shape) <= axis < len(shape) else None


def sizes_of(mismatch: Mismatch) -> tuple[int, ...]:
    """The two sizes that disagree; empty where the mismatch is not about two sizes."""
    if mismatch.reason == "batched":
        return tuple(size for size in mismatch.expected if isinstance(size, int))
    stacked = mismatch.stacked[0] if mismatch.stacked is not None else ()
    sizes = (mismatch.expected, *(stacked or (_actual_size(mismatch),)))
    # A mismatch of a variadic name compares whole shapes, and an axis may be missing: neither is a pair of sizes.
    return sizes if all(isinstance(size, int) for size in sizes) else ()
