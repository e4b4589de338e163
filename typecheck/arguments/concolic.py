"""Concolic values, i.e. concrete ones that note what a program asks of them: texts, integers, floats that are no sizes.

Such a value stands for a parameter or field whose annotation allows others: a `str`, an `int` or a `float`. A
comparison with a constant is a *question*: `act == "glu"`, `rate > 0`. A search then tries a value with each
combination of answers, made from the very constants that the program compared with. Any other use *reads* the value (a
key of a dict, an index, an operand of a size), so that what was seen holds for this value alone.
"""

from __future__ import annotations

import itertools
import math
import operator
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
from weft.core.edge import sizes as edge
from weft.core.frames import Owner, owner_of
from weft.core.records import leaves
from weft.typecheck.language import dims
from weft.typecheck.sizes.dim import Dim, Real

# A question: the name of an operator, and the constant on its other side.
Question = tuple[str, Any]

_ANSWERS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq,
    "lt": operator.lt,
    "le": operator.le,
    "startswith": str.startswith,
    "endswith": str.endswith,
    "contains": operator.contains,
}
# A text that no program compares with: it has the answer "no" to each question.
OTHER = "any_other"
# The file that evaluates expressions in annotations, such as `{k}`: what they read decides which sizes are right.
_HOLES = dims.__file__
# JAX asks whether a number fits into its integers.
_OF_JAX = 2**31 - 1
# The most values of one parameter that are tried.
_MOST_VALUES = 12


@dataclass
class Values:
    """The values of one parameter or field in the trials of a proof.

    Attributes:
        place: the parameter or field.
        tried: the values, in the order in which assignments number them: first the usual ones.
        questions: what the program asked of them, in any trial.
        is_read: whether a value was read, other than by a question.
        is_heard: whether the running trial notes what it asks of a number: where sizes are numbers, they look like
            constants.
        is_open: whether there are more combinations of answers than values that may be tried.
    """

    place: str
    tried: list[Any]
    questions: dict[Question, None] = field(default_factory=dict[Question, None])
    is_read: bool = False
    is_heard: bool = True
    is_open: bool = False

    def noting(self, value: Any) -> Any:
        """A value as one that notes what is asked of it; None as it is."""
        if value is None:
            return None
        if isinstance(value, str):
            return ConcolicStr(value, self)
        return (ConcolicInt if isinstance(value, int) else ConcolicFloat)(value, (self,))

    def ask(self, how: str, constant: Any) -> None:
        """Notes a question."""
        self.questions.setdefault((how, constant))

    def is_asked_for(self, number: int) -> bool:
        """Whether the program asks for this very value, by its number, and not for others like it."""
        return ("eq", self.tried[number]) in self.questions

    def extend(self) -> list[Any]:
        """The values to try, with one for each combination of answers, of those that are easily found."""
        known = {self._answers(value) for value in self.tried if value is not None}
        for value in self._candidates():
            if self._answers(value) not in known:
                self.is_open = len(self.tried) >= _MOST_VALUES
                if not self.is_open:
                    known.add(self._answers(value))
                    self.tried.append(value)
        return self.tried

    def _answers(self, value: Any) -> tuple[bool, ...]:
        return tuple(_ANSWERS[how](value, constant) for how, constant in self.questions)

    def _candidates(self) -> Iterator[Any]:
        """Values made from the constants that the program compared with, on both sides of each."""
        constants = dict.fromkeys(constant for _, constant in self.questions)
        usual = self.tried[-1]  # the first may be None
        if isinstance(usual, str):
            yield from (*constants, *(() if self.is_read or not constants else (OTHER,)))
            return
        numbers = sorted(filter(math.isfinite, constants))
        if isinstance(usual, int):
            yield from dict.fromkeys(math.floor(number) + step for number in numbers for step in (0, 1, -1))
            return
        yield from map(float, numbers)
        yield from ((below + above) / 2 for below, above in itertools.pairwise(numbers))
        yield from (numbers[-1] + 1.0, numbers[0] - 1.0) if numbers else ()


# The values of a proof, by their place and the usual ones among them.
Asked = dict[tuple[Any, ...], Values]


def _is_kept(frame: FrameType) -> bool:
    """Whether a frame belongs to what stores and compares structures, for which the value decides nothing."""
    file = edge.caller(frame).f_code.co_filename
    owner = owner_of(file)
    if file == _HOLES:
        return False
    if owner == "jax":  # JAX's operations are in folders of their own, and may be chosen by a text
        return os.path.basename(os.path.dirname(file)) in ("_src", "interpreters", "jax")
    return owner in ("machinery", "contracts", "equinox", "modules", "nnx")


class ConcolicStr(str):
    """A `str` that notes what is asked of it."""

    # A subclass, as C code takes no other class for a name. What C code reads of it in silence is a part of another
    # text, as in `act in "relu gelu"`.
    __slots__ = ("_values",)

    def __new__(cls, text: str, values: Values) -> ConcolicStr:
        self = super().__new__(cls, text)
        self._values = values
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return str, (str.__str__(self),)

    def __eq__(self, other: object) -> Any:
        if isinstance(other, str) and type(other) is not ConcolicStr:
            self._values.ask("eq", str(other))
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        if not _is_kept(sys._getframe(1)):
            self._values.is_read = True
        return str.__hash__(self)


def _asking(name: str) -> Callable[..., Any]:
    """A method of `ConcolicStr` that notes a question for each text that it is given."""
    plain = getattr(str, f"__{name}__" if name == "contains" else name)

    def method(self: ConcolicStr, *args: Any) -> Any:
        if len(args) == 1:
            for part in args[0] if isinstance(args[0], tuple) else args:
                self._values.ask(name, part)
        else:  # with a start or an end, it is no question about the whole text
            self._values.is_read = True
        return plain(self, *args)

    return method


def _reading(name: str) -> Callable[..., Any]:
    """A method of `ConcolicStr` that notes that the text is read."""
    plain = getattr(str, name)

    def method(self: ConcolicStr, *args: Any, **kwargs: Any) -> Any:
        if not _is_kept(sys._getframe(1)):
            self._values.is_read = True
        return plain(self, *args, **kwargs)

    return method


_QUESTIONS = ("startswith", "endswith", "__contains__")
_SILENT = ("__new__", "__init__", "__init_subclass__", "__subclasshook__", "__class__", "__getattribute__", "__doc__")
for _name in ("startswith", "endswith"):
    setattr(ConcolicStr, _name, _asking(_name))
ConcolicStr.__contains__ = _asking("contains")  # type: ignore[method-assign]
_OF_OBJECTS = ("__str__", "__repr__", "__format__", "__lt__", "__le__", "__gt__", "__ge__")
for _name in (*{*vars(str)}.difference(_QUESTIONS, _SILENT, vars(ConcolicStr), vars(object)), *_OF_OBJECTS):
    if callable(getattr(str, _name)):
        setattr(ConcolicStr, _name, _reading(_name))


def _added(self: ConcolicStr, text: str) -> str:
    self._values.is_read = True
    return text + str.__str__(self)


ConcolicStr.__radd__ = _added  # type: ignore[attr-defined]


class ConcolicNumber:
    """An integer or a float that notes what is asked of it, or one that was computed from such.

    Attributes:
        number: the plain number.
        of: the parameters that it is, or was computed from.
        is_given: whether it is the value of a parameter itself, of which questions are noted.
    """

    # No subclass of `int` or `float`: C code would read its number, and nothing would be noted.
    __slots__ = ("is_given", "number", "of")

    def __init__(self, number: Any, of: tuple[Values, ...], *, is_given: bool = True):
        self.number, self.of, self.is_given = number, of, is_given

    def _read(self) -> Any:
        for values in self.of:
            values.is_read = True
        return self.number

    def _compared(self, how: str, operand: Any) -> bool:
        if type(operand) in (ConcolicInt, ConcolicFloat):
            if not (_is_kept(sys._getframe(2)) and how == "eq"):
                self._read()
                operand._read()
            return _ANSWERS[how](self.number, operand.number)
        is_asked = self.is_given and _is_plain(operand) and operand == operand  # NaN is not
        if is_asked and _owner(sys._getframe(2)) != "contracts":  # there it is an operand of a size
            if self.of[0].is_heard and not (abs(operand) >= _OF_JAX and _is_library(sys._getframe(2))):
                self.of[0].ask(how, operand)
        else:
            self._read()
        return _ANSWERS[how](self.number, operand)

    def __eq__(self, other: object) -> Any:
        return self._compared("eq", other) if _is_comparable(other) else NotImplemented

    def __ne__(self, other: object) -> Any:
        return not self._compared("eq", other) if _is_comparable(other) else NotImplemented

    def __lt__(self, other: Any) -> Any:
        return self._compared("lt", other) if _is_comparable(other) else NotImplemented

    def __ge__(self, other: Any) -> Any:
        return not self._compared("lt", other) if _is_comparable(other) else NotImplemented

    def __le__(self, other: Any) -> Any:
        return self._compared("le", other) if _is_comparable(other) else NotImplemented

    def __gt__(self, other: Any) -> Any:
        return not self._compared("le", other) if _is_comparable(other) else NotImplemented

    def __bool__(self) -> bool:
        return not self._compared("eq", 0)

    def __getattr__(self, name: str) -> Any:
        if hasattr(self.number, name):  # `k.bit_length`, `rate.real`
            return getattr(self._read(), name)
        raise AttributeError(f"{type(self.number).__name__!r} object has no attribute {name!r}")

    def __hash__(self) -> int:
        return hash(self.number if _is_kept(sys._getframe(1)) else self._read())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self.number), (self._read(),)

    # An array may hold any number, so that one that becomes an array is not read.
    def __float__(self) -> float:
        return float(self.number if _is_library(sys._getframe(1)) else self._read())

    def __complex__(self) -> complex:
        return complex(self.number if _is_library(sys._getframe(1)) else self._read())

    def __jax_array__(self) -> Any:
        return edge.value_of(self.number)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return np.asarray(self.number if _is_library(sys._getframe(1)) else self._read(), *args)

    def __repr__(self) -> str:
        return repr(self.number if _is_kept(sys._getframe(1)) else self._read())

    def __str__(self) -> str:
        return str(self.number if _is_kept(sys._getframe(1)) else self._read())

    def __format__(self, how: str) -> str:
        return format(self.number if _is_kept(sys._getframe(1)) else self._read(), how)

    @property
    def __class__(self) -> type:  # `isinstance(k, int)` in a program is true
        return type(self) if _owner(sys._getframe(1)) == "jax" else type(self.number)

    @__class__.setter
    def __class__(self, value: type) -> None:  # pragma: no cover: Python wants a setter, too
        raise TypeError("the class of a number cannot be changed")


def _owner(frame: FrameType) -> Owner:
    return owner_of(edge.caller(frame).f_code.co_filename)


def _is_library(frame: FrameType) -> bool:
    return _owner(frame) in ("jax", "contracts")


def _is_plain(value: Any) -> bool:
    return type(value) in (int, float, bool)


def _is_comparable(value: Any) -> bool:
    return _is_plain(value) or type(value) in (ConcolicInt, ConcolicFloat, Dim, Real)


class ConcolicInt(ConcolicNumber):
    """An `int` that notes what is asked of it."""

    __slots__ = ()

    def __index__(self) -> int:
        return self._read()

    __int__ = __trunc__ = __floor__ = __ceil__ = __index__


class ConcolicFloat(ConcolicNumber):
    """A `float` that notes what is asked of it."""

    __slots__ = ()

    def __int__(self) -> int:
        return int(self._read())

    __trunc__ = __int__

    def __floor__(self) -> int:
        return math.floor(self._read())

    def __ceil__(self) -> int:
        return math.ceil(self._read())


def _arithmetic(name: str, plain: Callable[..., Any], *, reflected: bool = False) -> None:
    """Adds an operator to `ConcolicNumber`; its result notes that it was computed from the operands."""

    def method(self: ConcolicNumber, *operands: Any) -> Any:
        numbers = [x.number if type(x) in (ConcolicInt, ConcolicFloat) else x for x in operands]
        if not all(map(_is_plain, numbers)):
            # Of a size or an array of numbers, the result depends on this very number.
            if all(type(x) in (Dim, Real) for x in operands):
                return plain(*((*operands, self._read()) if reflected else (self._read(), *operands)))
            return NotImplemented
        result = plain(*((*numbers, self.number) if reflected else (self.number, *numbers)))
        of = {id(values): values for x in (self, *operands) for values in getattr(x, "of", ())}
        if type(result) not in (int, float):
            self._read()
            return result
        return (ConcolicInt if type(result) is int else ConcolicFloat)(result, tuple(of.values()), is_given=False)

    setattr(ConcolicNumber, f"__{'r' * reflected}{name}__", method)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _arithmetic(_name, getattr(operator, _name))
    _arithmetic(_name, getattr(operator, _name), reflected=True)
_arithmetic("divmod", divmod)
_arithmetic("divmod", divmod, reflected=True)
_arithmetic("invert", operator.invert)
for _name in ("neg", "pos", "abs"):
    _arithmetic(_name, getattr(operator, _name))
_arithmetic("round", round)
for _name in ("and", "or", "xor", "lshift", "rshift"):
    _arithmetic(_name, getattr(operator, f"{_name}_" if _name in ("and", "or") else _name))
    _arithmetic(_name, getattr(operator, f"{_name}_" if _name in ("and", "or") else _name), reflected=True)

edge.register_numbers({ConcolicInt: int, ConcolicFloat: float})
leaves.stand_for_numbers(ConcolicInt, ConcolicFloat)
