"""What errors say: the words, the numbers and the shapes in texts of Python, NumPy, JAX and other libraries.

Such an error carries only its class and its text, so errors of one class are told apart by words. `test_wording.py`
provokes the errors in Python, NumPy and JAX, so a new version with other words fails there. What weft knows without
reading a text, such as the class of a value that breaks an annotation, is an attribute of a trial or of a violation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

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
