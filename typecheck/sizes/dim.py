"""`Dim`: a size that JAX treats as a symbolic dimension, and a program as an integer.

A `Dim` is a polynomial over the dims of a `Space`, and arithmetic on it gives further polynomials. The space answers
each comparison by the numbers of the dims and records it, so that it ends up with every question that the trace asked
of its sizes. Where Python must have an integer (`range`, a list's index, a name), it gets the number, and the dims are
*pinned*.

`Real` is the result of dividing a `Dim` or taking its root: a float that remembers the sizes it was computed from. So a
scale `1 / sqrt(d)` asks nothing of `d`; only a comparison of the scale does.
"""

from __future__ import annotations

import builtins
import math
import operator
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from weft.core.caches import cached_by
from weft.core.edge import sizes as edge
from weft.core.edge.patches import patched
from weft.core.records import leaves
from weft.typecheck.sizes import polynomials
from weft.typecheck.sizes.polynomials import Terms, constant, divided, frozen, plus
from weft.typecheck.sizes.space import Place, Space

_ROOT = Path(__file__).parents[2]
_CHECKER = f"{_ROOT / 'typecheck'}{os.sep}"
_OWN = tuple(f"{_ROOT / room}{os.sep}" for room in ("core", "transforms", "modules", "nnx"))


# What a size answers to `isinstance`, `hash`, `str`, `float` and `operator.index` depends on who asks, and only the
# frame tells that. A program asks to decide something: it gets what an integer would give it, and the dims are pinned.
# JAX asks the same to find out whether a size is symbolic, to look into its caches, and to write errors. If JAX got the
# number, it would take the size for a number, and return the result of an earlier trace. Two classes of sizes are no
# way out, since both get the same object, in the shape of the same array.


def _is_silent(frame: FrameType) -> bool:
    """Whether a frame runs code of JAX, of NumPy or of weft, whose use of a size is no decision of the program."""
    # Most frames are JAX's own, which are told by their file alone.
    return _is_silent_file(frame.f_code.co_filename) or _is_silent_file(edge.caller(frame).f_code.co_filename)


@cached_by("file")
def _is_silent_file(file: str) -> bool:
    return edge.is_library(file) or file.startswith((_CHECKER, *_OWN))


def _at(depth: int = 2) -> Place:
    """The file and line that asked, outside of JAX, NumPy and weft."""
    frame = sys._getframe(depth)
    while frame.f_back is not None and _is_silent(frame):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _is_own(depth: int) -> bool:
    """Whether the program itself asked, rather than a library on its behalf."""
    frame = sys._getframe(depth)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return not _is_silent(frame)


def _is_number(value: Any) -> bool:
    return (isinstance(value, int | np.integer) or type(value) is Dim) and not isinstance(value, bool)


def _terms(value: Any) -> Terms:
    return value.terms if type(value) is Dim else constant(int(value))


def is_same(a: Any, b: Any) -> bool:
    """Whether two sizes are equal whatever the dims are; this records no question."""
    if type(a) is Dim and type(b) is Dim:
        return a.terms == b.terms
    return type(a) is not Dim and type(b) is not Dim and a == b


class Dim:
    """A size of a trace: a polynomial over dims, with the number that it has in this trace.

    Attributes:
        space: the dims of the trace, where questions are recorded.
        terms: the polynomial.

    >>> n = Dim(Space({"n": 6}), {("n",): 1})
    >>> [polynomials.written(size.terms) for size in (2 * n + 1, n * n // n, (n + 1) // 2)]
    ['2*n + 1', 'n', '((n + 1) // 2)']
    >>> n % 4 == 2, [question.said(True) for question in n.space.asked]
    (True, ['(n % 4) = 2'])
    """

    # No subclass of `int`: C code would read the number of such a size, and no question would be recorded.
    __slots__ = ("_hash", "_number", "part", "space", "terms")
    _weft_is_size = True  # see `language.forms.is_size`

    def __init__(self, space: Space, terms: Terms):
        self.space, self.terms, self.part = space, terms, space.part
        self._number: int | None = None
        self._hash: int | None = None

    @property
    def number(self) -> int:
        """The number that the size has in its trace: its witness."""
        if self._number is None:
            self._number = polynomials.value(self.terms, self.part.numbers)
        return self._number

    @property
    def at_its_number(self) -> Any:
        """A key for caches: equal in two traces of a proof if the size, its number, and its dims' bounds are."""
        least = tuple((name, self.space.least.get(name)) for name in sorted(polynomials.dims_of(self.terms)))
        return self.space, frozen(self.terms), self.number, least

    def _made(self, terms: Terms) -> Any:
        """The size of a polynomial; a plain integer if the polynomial has no dims."""
        return Dim(self.space, terms) if terms.keys() - {()} else terms.get((), 0)

    # ---- arithmetic ----------------------------------------------------------------------------------------------

    def _with(self, operand: Any, combine: Callable[[Terms, Terms], Terms], plain: Callable[[Any, Any], Any]) -> Any:
        """An operator's result: `combine` of the polynomials if the operand is an integer or size, else `plain`."""
        if _is_number(operand):
            return self._made(combine(self.terms, _terms(operand)))
        if isinstance(operand, float):
            return plain(self.real(), operand)
        # `"ab" * n` and `[0] * n` have as many items as the number says, so the trace holds for that number alone.
        if isinstance(operand, str | tuple | list):
            return plain(self._pinned(), operand)
        return NotImplemented

    def __add__(self, other: Any) -> Any:
        return self._with(other, plus, operator.add)

    def __sub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: plus(a, b, -1), operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return self._with(other, lambda a, b: plus(b, a, -1), lambda a, b: b - a)

    def __mul__(self, other: Any) -> Any:
        return self._with(other, polynomials.product, operator.mul)

    __radd__, __rmul__ = __add__, __mul__

    def __floordiv__(self, other: Any) -> Any:
        self._refuse_zero(other)
        return self._with(other, polynomials.quotient, operator.floordiv)

    def __rfloordiv__(self, other: Any) -> Any:
        self._refuse_zero(self)
        return self._with(other, lambda a, b: polynomials.quotient(b, a), lambda a, b: b // a)

    def __mod__(self, other: Any) -> Any:
        self._refuse_zero(other)
        return self._with(other, polynomials.remainder, operator.mod)

    def __rmod__(self, other: Any) -> Any:
        self._refuse_zero(self)
        return self._with(other, lambda a, b: polynomials.remainder(b, a), lambda a, b: b % a)

    def _refuse_zero(self, divisor: Any) -> None:
        if _is_number(divisor) and divisor == 0:
            raise ZeroDivisionError("integer division or modulo by zero")

    def __lshift__(self, other: Any) -> Any:
        # By a plain number, a shift is a product or a quotient: `n >> 1` is as exact as `n // 2`.
        return self * 2**other if type(other) is int else self._pinned() << other

    def __rshift__(self, other: Any) -> Any:
        return self // 2**other if type(other) is int else self._pinned() >> other

    def __and__(self, other: Any) -> Any:
        # `n & 7` is `n % 8`. Any other mask depends on single bits, which no polynomial expresses.
        if type(other) is int and other >= 0 and other & (other + 1) == 0:
            return self % (other + 1)
        return self._pinned() & other

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        return self._pinned() | other

    def __xor__(self, other: Any) -> Any:
        return self._pinned() ^ other

    def __invert__(self) -> Any:
        return -self - 1

    __ror__, __rxor__ = __or__, __xor__

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __pow__(self, other: Any) -> Any:
        if type(other) is int and other >= 0:
            return math.prod([self] * other)
        return self.real() ** other

    def __rpow__(self, other: Any) -> Any:
        return other ** (self._pinned() if isinstance(other, int) else self.real())

    def __truediv__(self, other: Any) -> Any:
        return self.real() / other if _is_number(other) or isinstance(other, float) else NotImplemented

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.real() if _is_number(other) or isinstance(other, float) else NotImplemented

    def __neg__(self) -> Any:
        return self._made({monomial: -number for monomial, number in self.terms.items()})

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __round__(self, digits: Any = None) -> Any:
        return self

    __trunc__ = __floor__ = __ceil__ = __round__

    def real(self) -> Any:
        """The size as a `Real`, a float that remembers it."""
        return Real(float(self.number), self.space, self.terms, 1)

    # ---- questions -----------------------------------------------------------------------------------------------

    def _asks(self, terms: Terms, *, is_order: bool) -> bool:
        return self.space.ask(is_order, terms, _at(3), own=_is_own(2))

    def __eq__(self, other: object) -> Any:
        if isinstance(other, float) and other.is_integer():
            other = int(other)
        # JAX's caches compare the sizes of an earlier trace with these. Were two equal, a cached trace would be reused,
        # and its questions would never be asked in this one. A dim of that trace may not even exist in this one.
        if not self.part.is_running or (type(other) is Dim and not other.part.is_running):
            return type(other) is Dim and other.part is self.part and other.terms == self.terms
        if type(other) is Dim and other.space is not self.space:
            return False
        if not _is_number(other):
            return NotImplemented
        # Equal polynomials are equal for all sizes: there is no question to record.
        return self.terms == _terms(other) or self._asks(plus(self.terms, _terms(other), -1), is_order=False)

    def __ne__(self, other: object) -> Any:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __lt__(self, other: Any) -> Any:
        if isinstance(other, float):
            # A size is an integer, so `n < 7.5` is `n < 8`, a question that can be decided for all sizes.
            other = math.ceil(other) if math.isfinite(other) else sys.maxsize * (1 if other > 0 else -1)
        return self._asks(plus(self.terms, _terms(other), -1), is_order=True) if _is_number(other) else NotImplemented

    def __ge__(self, other: Any) -> Any:
        less = self.__lt__(other)
        return less if less is NotImplemented else not less

    def __le__(self, other: Any) -> Any:
        if isinstance(other, float):
            # Likewise `n <= 7.5` is `n <= 7`.
            other = math.floor(other) if math.isfinite(other) else sys.maxsize * (1 if other > 0 else -1)
        return self.__lt__(other + 1) if _is_number(other) else NotImplemented

    def __gt__(self, other: Any) -> Any:
        at_most = self.__le__(other)
        return at_most if at_most is NotImplemented else not at_most

    def __bool__(self) -> bool:
        return not self._asks(self.terms, is_order=False)

    def max(self, size: Any) -> Any:
        """The larger of this size and another; JAX calls this method on a symbolic dimension."""
        return self if self >= size else size

    def min(self, size: Any) -> Any:
        """The smaller of this size and another; JAX calls this method on a symbolic dimension."""
        return self if self <= size else size

    rmax, rmin = max, min

    # ---- where Python must have an integer -----------------------------------------------------------------------

    def _pinned(self) -> int:
        self.space.pin(self.terms, _at(3))
        return self.number

    def __index__(self) -> int:
        # JAX calls `operator.index` to find out whether a size is a number; the error says that this one is symbolic.
        if edge.looks_for_symbols(sys._getframe(1)):
            raise TypeError("the size is symbolic")  # without its text, which nobody reads and JAX asks for often
        return self._pinned()

    __int__ = __index__

    def _evaluate(self, _: Any) -> Any:
        """Refuses an operation that JAX evaluates while it traces (`ensure_compile_time_eval`), which needs a number.

        The dims are pinned, so the proof tries plain numbers as their sizes instead.
        """
        self.space.pin(self.terms, _at(2))
        raise TypeError(f"JAX evaluates an operation at once, for which the size {self!r} must be a number")

    def __float__(self) -> float:
        return float(self.number if _is_silent(sys._getframe(1)) else self._pinned())

    def __hash__(self) -> int:
        if _is_silent(sys._getframe(1)):
            # Apart from the hash of the number: where the two were equal, JAX's caches returned the trace of a call at
            # concrete sizes, and the program was not traced over this size at all.
            if self._hash is None:
                self._hash = hash((self.space.number, frozen(self.terms)))
            return self._hash
        return hash(self._pinned())

    def __str__(self) -> str:
        return repr(self) if _is_silent(sys._getframe(1)) else str(self._pinned())

    def __format__(self, how: str) -> str:
        return repr(self) if _is_silent(sys._getframe(1)) else format(self._pinned(), how)

    def __repr__(self) -> str:
        # `str` of a shape calls it for each size, and `f"{x.shape}"` may be the key of a table.
        return polynomials.written(self.terms) if _is_silent(sys._getframe(1)) else repr(self._pinned())

    @property
    def __class__(self) -> type:  # `isinstance(n, int)` in a program is true, as it is at a concrete size
        frame = sys._getframe(1)
        file = edge.caller(frame).f_code.co_filename
        # JAX compares the numbers of elements of a reshape only if they are integers, so there a size claims to be one.
        own = edge.is_library(file) or file.startswith(_CHECKER)
        return Dim if own and not edge.takes_for_integer(frame) else int

    @__class__.setter
    def __class__(self, value: type) -> None:  # pragma: no cover: Python wants a setter, too
        raise TypeError("the class of a size cannot be changed")

    # ---- JAX and NumPy -------------------------------------------------------------------------------------------

    def dimension_as_value(self) -> Any:
        """The size as an array of the running trace. JAX treats an object with this method as a symbolic dimension."""
        return edge.value_of(self.number)

    def __jax_array__(self) -> Any:
        return edge.value_of(self.number)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return _of_ufunc(ufunc, method, inputs, options)


class Real:
    """A float that was computed from sizes and remembers them.

    Attributes:
        number: the value as a plain float.
        space: the dims of the trace, where questions are recorded.
        terms: the polynomial that the float was computed from.
        over: the divisor, where the float is `terms / over` exactly; 0 where it is another function of `terms`.

    >>> n = Dim(Space({"n": 6}), {("n",): 1})
    >>> (n**-0.5).number, polynomials.written(math.floor(0.75 * n).terms)
    (0.408248290463863, '(3*n // 4)')
    """

    # No subclass of `float`, for the reason for which a `Dim` is none of `int`.
    __slots__ = ("number", "over", "part", "space", "terms")

    def __init__(self, number: float, space: Space, terms: Terms, over: int = 0):
        self.number, self.space, self.part, self.terms, self.over = number, space, space.part, terms, over

    def _computed(self, number: Any, *others: Any) -> Any:
        """A number computed from this float and others without an exact formula: comparing it pins all their dims."""
        if not isinstance(number, float):
            return number
        terms = {**self.terms, **{key: 1 for other in others for key in getattr(other, "terms", {})}}
        return Real(number, self.space, terms)

    def _is(self, number: float, terms: Terms, over: int) -> Any:
        """A float that is exactly a polynomial over an integer; a plain number if the polynomial has no dims."""
        common = math.gcd(over, *terms.values())
        terms = {monomial: coefficient // common for monomial, coefficient in terms.items()}
        return Real(number, self.space, terms, over // common) if terms.keys() - {()} else number

    def _asks(self, is_order: bool, operand: Any, closed: bool = False) -> Any:
        """Whether the float is equal to, or less than, another number; None where its exact formula is not known.

        Both sides are multiplied out to integers, of which `a <= b` is `a < b + 1`.
        """
        fraction = _fraction(operand)
        if not self.over or fraction is None:
            return None
        terms = plus(_times(self.terms, fraction.over), _times(fraction.terms, self.over), -1)
        return self.space.ask(is_order, plus(terms, constant(int(closed)), -1), _at(3), own=_is_own(3))

    def _pinned(self) -> float:
        self.space.pin(self.terms, _at(3))
        return self.number

    def _whole(self, rounded: Callable[[float], int]) -> Any:
        # `int` and `math.trunc` round toward 0, a quotient rounds down: below 0 they differ, so the number is read.
        if self.over and self.number >= 0:
            terms = polynomials.quotient(self.terms, constant(self.over))
            return Dim(self.space, terms) if terms.keys() - {()} else terms.get((), 0)
        return rounded(self._pinned())

    def __int__(self) -> Any:
        return self._whole(int).__index__()

    def __floor__(self) -> Any:
        return self._whole(math.floor)

    def __trunc__(self) -> Any:
        return self._whole(math.trunc)

    def __ceil__(self) -> Any:
        if self.over:
            # A quotient rounds down, so the ceiling of `x` is minus the floor of `-x`.
            return -Dim(self.space, polynomials.quotient(_times(self.terms, -1), constant(self.over)))
        return math.ceil(self._pinned())

    def __round__(self, digits: Any = None) -> Any:
        return round(self._pinned()) if digits is None else round(self._pinned(), digits)

    def __float__(self) -> float:
        return self.number if _is_silent(sys._getframe(1)) else self._pinned()

    def is_integer(self) -> bool:
        """Whether the float is a whole number."""
        return self.over == 1 or self._pinned().is_integer()

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        return hash(self._pinned())

    def __repr__(self) -> str:
        return repr(self.number if _is_silent(sys._getframe(1)) else self._pinned())

    __str__ = __repr__

    def __format__(self, how: str) -> str:
        return format(self.number if _is_silent(sys._getframe(1)) else self._pinned(), how)

    @property
    def __class__(self) -> type:  # as of a `Dim`
        file = edge.caller(sys._getframe(1)).f_code.co_filename
        return Real if edge.is_library(file) or file.startswith(_CHECKER) else float

    @__class__.setter
    def __class__(self, value: type) -> None:  # pragma: no cover: Python wants a setter, too
        raise TypeError("the class of a size cannot be changed")

    def __jax_array__(self) -> Any:
        return edge.value_of(self.number)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return _of_ufunc(ufunc, method, inputs, options)


def _times(terms: Terms, number: int) -> Terms:
    return {monomial: number * coefficient for monomial, coefficient in terms.items() if number}


class _Fraction(NamedTuple):
    """A polynomial over an integer."""

    terms: Terms
    over: int


def _fraction(value: Any) -> _Fraction | None:
    """A number as a fraction, or None. Of plain floats, only those that people write: 0.5, 2.0."""
    if type(value) is Dim:
        return _Fraction(value.terms, 1)
    if type(value) is Real:
        return _Fraction(value.terms, value.over) if value.over else None
    if isinstance(value, np.integer):
        return _Fraction(constant(int(value)), 1)
    if isinstance(value, int | float) and math.isfinite(value):
        number, over = value.as_integer_ratio()
        return _Fraction(constant(number), over) if over <= _LARGEST_WRITTEN else None
    return None


# The largest denominator of a float that somebody wrote, such as 0.75: a denominator of 0.1 is far larger.
_LARGEST_WRITTEN = 64


def _plain(value: Any) -> Any:
    """The plain number of a size or a `Real`, without pinning it."""
    return value.number if type(value) in (Dim, Real) else value


def _arithmetic(name: str, exactly: Callable[..., _Fraction | None]) -> Callable[[Real, Any], Any]:
    """A method of `Real` whose result is an exact fraction if both operands are, and `exactly` finds one."""
    plain = getattr(float, name)

    def method(self: Real, *operands: Any) -> Any:
        plainly = map(_plain, operands)
        number = plain(self.number, *(float(x) if isinstance(x, int) else x for x in plainly))
        fractions = [_fraction(x) for x in (self, *operands)]
        exact = None if None in fractions or not isinstance(number, float) else exactly(*fractions)
        return self._computed(number, *operands) if exact is None else self._is(number, *exact)

    return method


def _sum(a: _Fraction, b: _Fraction, sign: int = 1) -> _Fraction:
    return _Fraction(plus(_times(a.terms, b.over), _times(b.terms, a.over), sign), a.over * b.over)


def _product(a: _Fraction, b: _Fraction) -> _Fraction:
    return _Fraction(polynomials.product(a.terms, b.terms), a.over * b.over)


def _ratio(a: _Fraction, b: _Fraction) -> _Fraction | None:
    """The quotient of two fractions; None unless its divisor is a number, or divides the other's coefficients.

    A comparison of a float that is None here pins its dims, which is less exact, and not wrong.
    """
    numerator, divisor = _times(a.terms, b.over), b.terms
    if divisor.keys() == {()}:
        number = divisor[()] * a.over
        return _Fraction(numerator, number) if number > 0 else _Fraction(_times(numerator, -1), -number)
    whole, rest = divided(numerator, divisor)
    return None if rest else _Fraction(whole, a.over)


def _inexact(*_: Any) -> None:
    """The row of an operation whose result is not a polynomial over an integer."""
    return None


_EXACTLY: dict[str, Callable[..., _Fraction | None]] = {
    "add": _sum, "radd": _sum,
    "sub": lambda a, b: _sum(a, b, -1), "rsub": lambda a, b: _sum(b, a, -1),
    "mul": _product, "rmul": _product,
    "truediv": _ratio, "rtruediv": lambda a, b: _ratio(b, a),
    "neg": lambda a: _Fraction(_times(a.terms, -1), a.over), "pos": lambda a: a,
    "pow": _inexact, "rpow": _inexact, "abs": _inexact,
}  # fmt: skip
for _name, _exact in _EXACTLY.items():
    setattr(Real, f"__{_name}__", _arithmetic(f"__{_name}__", _exact))


def _by_numbers(name: str) -> Callable[[Real, Any], Any]:
    """A method of `Real` that computes as `float` does, and pins the dims of both operands."""
    plain = getattr(float, name)

    def method(self: Real, operand: Any) -> Any:
        return plain(self._pinned(), operand._pinned() if type(operand) in (Dim, Real) else operand)

    return method


def _comparison(name: str, is_order: bool, closed: bool, wanted: bool) -> Callable[[Real, Any], Any]:
    """A comparison of `Real`: a question for exact fractions, true if its answer is `wanted`; else by the numbers."""
    by_numbers, plain = _by_numbers(name), getattr(float, name)

    def method(self: Real, operand: Any) -> Any:
        if not self.part.is_running:  # as for a `Dim`: JAX's caches ask
            return plain(self.number, _plain(operand))
        answer = self._asks(is_order, operand, closed)
        return by_numbers(self, operand) if answer is None else answer is wanted

    return method


for _name in ("floordiv", "rfloordiv", "mod", "rmod", "divmod", "rdivmod"):
    setattr(Real, f"__{_name}__", _by_numbers(f"__{_name}__"))
for _name, *_how in (
    ("eq", False, False, True), ("ne", False, False, False),
    ("lt", True, False, True), ("ge", True, False, False), ("le", True, True, True), ("gt", True, True, False),
):  # fmt: skip
    setattr(Real, f"__{_name}__", _comparison(f"__{_name}__", *_how))

# NumPy's ufuncs that Python has an operator for, which sizes define.
_OPERATORS = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "floor_divide": operator.floordiv,
    "remainder": operator.mod, "divide": operator.truediv, "power": operator.pow, "negative": operator.neg,
    "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge, "maximum": max, "minimum": min,
}  # fmt: skip


def _of_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], options: Any) -> Any:
    """The result of a ufunc of NumPy's on sizes: another size, or a `Real` that remembers them."""
    of_sizes = [x for x in inputs if type(x) in (Dim, Real)]
    if method != "__call__" or options or any(isinstance(x, np.ndarray) and x.ndim for x in inputs):
        return getattr(ufunc, method)(*map(_plain, inputs), **options)
    if ufunc.__name__ in _OPERATORS:
        return _OPERATORS[ufunc.__name__](*(x.item() if isinstance(x, np.generic) else x for x in inputs))
    first: Any = of_sizes[0].real() if type(of_sizes[0]) is Dim else of_sizes[0]
    return first._computed(float(ufunc(*map(_plain, inputs))), *of_sizes[1:])


# Functions of Python's `math` whose results remember the sizes that they were computed from.
_FUNCTIONS = ("sqrt", "cbrt", "log", "log2", "log10", "log1p", "exp", "exp2", "pow")


def known_to_python() -> AbstractContextManager[None]:
    """A context in which `math.sqrt` and the like return `Real`s, and `len` of an array its `Dim`."""
    # These are C functions: `math.sqrt(n)` would read the number of `n` and return a plain float, and Python makes an
    # `int` of whatever `__len__` returns.
    of_math = [(math, name, _of_floats) for name in _FUNCTIONS if hasattr(math, name)]
    return patched(*of_math, (builtins, "len", edge.length(Dim)), (np, "arange", _of_numbers))


def _of_numbers(plain: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """Calls a function that computes in C what depends on the numbers of sizes: it pins them."""
    # NumPy computes with such objects as they are: `np.arange(n)` held as many items as the number says, unpinned.
    return plain(*(x._pinned() if type(x) in (Dim, Real) else x for x in inputs), **options)


def _of_floats(plain: Callable[..., float], *inputs: Any) -> Any:
    """Calls a function of floats; the result is a `Real` if one of its arguments is a size or a `Real`."""
    of_sizes = [x.real() if type(x) is Dim else x for x in inputs if type(x) in (Dim, Real)]
    return of_sizes[0]._computed(plain(*map(_plain, inputs)), *of_sizes[1:]) if of_sizes else plain(*inputs)


edge.register(Dim, Real, _plain)
leaves.stand_for_numbers(Dim, Real)
