"""Polynomials over dims, with integer quotients and remainders: the arithmetic of sizes.

A polynomial is a mapping from monomials to coefficients; a monomial is a sorted tuple of factors: names of dims, and
`Atom`s. Polynomials with equal mappings are equal for all sizes; `deciding` compares those whose mappings differ.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Monomial = tuple[Any, ...]
Terms = Mapping[Monomial, int]
Frozen = tuple[tuple[Monomial, int], ...]

ONE: Terms = {(): 1}


@dataclass(frozen=True)
class Atom:
    """A quotient `dividend // divisor` or a remainder `dividend % divisor`, as a factor of a monomial.

    Attributes:
        op: `"//"` or `"%"`.
        dividend, divisor: the two polynomials, frozen.
        key: the factor as text, by which products sort their factors.
    """

    op: str
    dividend: Frozen
    divisor: Frozen
    key: str = field(init=False, compare=False)

    def __post_init__(self):
        # Written only once, because every product sorts its factors by their text.
        object.__setattr__(self, "key", f"({_side(self.dividend)} {self.op} {_side(self.divisor)})")

    def __str__(self) -> str:
        return self.key


def _side(terms: Frozen) -> str:
    text = written(dict(terms))
    return f"({text})" if len(terms) > 1 else text


def constant(number: int) -> Terms:
    """A number as a polynomial."""
    return {(): number} if number else {}


def frozen(terms: Terms) -> Frozen:
    """A polynomial as a tuple of terms in a fixed order, which can be compared and hashed."""
    return tuple(sorted(terms.items(), key=lambda term: (len(term[0]), *map(str, term[0]))))


def plus(terms: Terms, added: Terms, times: int = 1) -> Terms:
    """`terms + times * added`."""
    total = dict(terms)
    for monomial, coefficient in added.items():
        total[monomial] = total.get(monomial, 0) + times * coefficient
    return {monomial: coefficient for monomial, coefficient in total.items() if coefficient}


def product(terms: Terms, factor: Terms) -> Terms:
    """`terms * factor`."""
    total: dict[Monomial, int] = {}
    for (first, a), (second, b) in itertools.product(terms.items(), factor.items()):
        monomial = tuple(sorted(first + second, key=str))
        total[monomial] = total.get(monomial, 0) + a * b
    return {monomial: coefficient for monomial, coefficient in total.items() if coefficient}


def divided(dividend: Terms, divisor: Terms) -> tuple[Terms, Terms]:
    """The terms that the divisor divides, divided by it, and the terms that it does not divide.

    `(q, r)` with `dividend == q * divisor + r`; so `dividend // divisor == q + r // divisor`, and `dividend % divisor`
    is `r % divisor`.

    >>> divided({("b", "s"): 2, ("s",): 3, (): 1}, {("s",): 1})
    ({('b',): 2, (): 3}, {(): 1})
    """
    if dividend == divisor:
        return ONE, {}
    # A sum divides no single term; `quotient` makes one `Atom` of the whole instead.
    if len(divisor) != 1:
        return {}, dividend
    (dims, number), whole, rest = next(iter(divisor.items())), dict[Monomial, int](), dict[Monomial, int]()
    for monomial, coefficient in dividend.items():
        remaining = _without(monomial, dims)
        # A number splits a coefficient (`5*n // 2` is `2*n + n // 2`); a product of dims has to divide it exactly.
        if remaining is None or (dims and coefficient % number):
            rest[monomial] = coefficient
        else:
            quotient, left_over = divmod(coefficient, number)
            if quotient:
                whole[remaining] = quotient
            if left_over:
                rest[monomial] = left_over
    return whole, rest


def _without(monomial: Monomial, factors: Monomial) -> Monomial | None:
    """The monomial without some factors; None if it does not have all of them."""
    remaining = list(monomial)
    for factor in factors:
        if factor not in remaining:
            return None
        remaining.remove(factor)
    return tuple(remaining)


def quotient(dividend: Terms, divisor: Terms) -> Terms:
    """`dividend // divisor`, rounded down as Python does.

    Raises:
        ZeroDivisionError: if the divisor is 0 at all sizes.
    """
    if is_negative(divisor):  # `n // -m` is `-n // m`
        dividend, divisor = plus({}, dividend, -1), plus({}, divisor, -1)
    (dividend, divisor), _ = _without_common_dims(dividend, divisor)
    whole, rest = divided(dividend, divisor)
    # `(2*n + 1) // 2` is `n`: a rest below the divisor adds nothing.
    if not rest or _is_small(rest, divisor):
        return whole
    return plus(whole, {(Atom("//", frozen(rest), frozen(divisor)),): 1})


def remainder(dividend: Terms, divisor: Terms) -> Terms:
    """`dividend % divisor`.

    Raises:
        ZeroDivisionError: if the divisor is 0 at all sizes.
    """
    if is_negative(divisor):  # `n % -m` is `-(-n % m)`
        return plus({}, remainder(plus({}, dividend, -1), plus({}, divisor, -1)), -1)
    (dividend, divisor), factor = _without_common_dims(dividend, divisor)
    rest = divided(dividend, divisor)[1]
    if rest and not _is_small(rest, divisor):
        rest = {(Atom("%", frozen(rest), frozen(divisor)),): 1}
    return product(rest, factor)


def _without_common_dims(dividend: Terms, divisor: Terms) -> tuple[list[Terms], Terms]:
    """A dividend and a divisor without the dims that all their terms share, and those: `t*d % (t*h)` is `t * (d % h)`.

    If such a dim were 0, the division would raise.
    """
    if not divisor:  # as where `n = m` was put into `m // (n - m)`
        raise ZeroDivisionError("integer division or modulo by zero")
    sides = [dividend, divisor]
    counts = (
        collections.Counter(factor for factor in monomial if isinstance(factor, str))
        for side in sides
        for monomial in side
    )
    factor: Terms = {tuple(functools.reduce(operator.and_, counts).elements()): 1}
    return [divided(side, factor)[0] for side in sides], factor


def _is_small(rest: Terms, divisor: Terms) -> bool:
    """Whether the rest and the divisor are numbers and the rest is smaller, so that the rest is the remainder."""
    return rest.keys() == {()} and divisor.keys() == {()} and 0 <= rest[()] < divisor[()]


def is_negative(terms: Terms) -> bool:
    """Whether all coefficients are negative, as in the divisor of a ceiling, `-(n // -m)`."""
    return bool(terms) and all(coefficient < 0 for coefficient in terms.values())


def without_common(terms: Terms, least: Mapping[str, int] | None = None) -> Terms:
    """A polynomial without the dims that all its terms share, none of which may be 0: `n*k - 4*n = 0` is `k = 4`."""
    common = [name for name in next(iter(terms), ()) if isinstance(name, str) and (least or {}).get(name, 1)]
    for name in dict.fromkeys(common):
        while all(name in monomial for monomial in terms):
            terms = divided(terms, {(name,): 1})[0]
    return terms


def with_remainders(terms: Terms) -> Terms:
    """A polynomial with a remainder in place of a quotient times its divisor where that is shorter.

    JAX asks of a reshape whether `(d // h)*h - d` is 0; this is `-(d % h)`.
    """
    for monomial, coefficient in terms.items():
        for atom in monomial:
            if isinstance(atom, str) or atom.op != "//" or len(atom.divisor) != 1:
                continue
            ((dims, number),) = atom.divisor
            rest = _without(monomial, (atom, *dims))
            if rest is not None and coefficient % number == 0:
                dividend, divisor = dict(atom.dividend), dict(atom.divisor)
                whole = product({rest: coefficient // number}, plus(dividend, remainder(dividend, divisor), -1))
                others = plus({other: times for other, times in terms.items() if other != monomial}, whole)
                if len(others) < len(terms):
                    return with_remainders(others)
    return terms


def dims_of(terms: Terms) -> set[str]:
    """The names of the dims in a polynomial, also those within its quotients and remainders."""
    dims: set[str] = set()
    for monomial in terms:
        for factor in monomial:
            dims |= {factor} if isinstance(factor, str) else dims_of(dict(factor.dividend + factor.divisor))
    return dims


def atoms_of(terms: Terms) -> Iterator[Atom]:
    """The quotients and remainders in a polynomial, also those nested in other quotients and remainders."""
    for monomial in terms:
        for factor in monomial:
            if isinstance(factor, Atom):
                yield factor
                yield from atoms_of(dict(factor.dividend))
                yield from atoms_of(dict(factor.divisor))


def value(terms: Terms | Frozen, sizes: Mapping[str, int]) -> int:
    """The number that a polynomial, frozen or not, has at the given sizes.

    Raises:
        ZeroDivisionError: if a divisor in the polynomial is 0 at these sizes.
    """
    # No dict is made of a frozen polynomial: `otherwise` evaluates the polynomial of a question hundreds of times.
    total = 0
    for monomial, coefficient in terms if isinstance(terms, tuple) else terms.items():
        for factor in monomial:
            if isinstance(factor, str):
                coefficient *= sizes[factor]
            else:
                dividend, divisor = value(factor.dividend, sizes), value(factor.divisor, sizes)
                coefficient *= dividend // divisor if factor.op == "//" else dividend % divisor
        total += coefficient
    return total


def replaced(terms: Terms, replace: Callable[[str], Terms | None]) -> Terms:
    """A polynomial with other polynomials in place of dims.

    Raises:
        ZeroDivisionError: if a divisor in it is then 0 at all sizes.
    """
    total: Terms = {}
    for monomial, coefficient in terms.items():
        part = constant(coefficient)
        for factor in monomial:
            if isinstance(factor, str):
                replacement = replace(factor)
                part = product(part, {(factor,): 1} if replacement is None else replacement)
            else:
                sides = (replaced(dict(side), replace) for side in (factor.dividend, factor.divisor))
                # Divided anew, as a polynomial that is put in may divide: with `2*t` for `n`, `n // 2` is `t`.
                part = product(part, (quotient if factor.op == "//" else remainder)(*sides))
        total = plus(total, part)
    return total


def written(terms: Terms) -> str:
    """A polynomial as an annotation would write it.

    >>> written({("h", "w"): 2, (): -1})
    '2*h*w - 1'
    """
    text = ""
    for monomial, coefficient in sorted(terms.items(), key=lambda term: (-len(term[0]), *map(str, term[0]))):
        factors = [str(abs(coefficient))] * (abs(coefficient) != 1 or not monomial) + list(map(str, monomial))
        sign = (" - " if coefficient < 0 else " + ") if text else "-" * (coefficient < 0)
        text += sign + "*".join(factors)
    return text or "0"


def period(terms: Terms) -> int | None:
    """The number of sizes after which all remainders in a polynomial repeat; None if a divisor is no plain number."""
    length = 1
    for atom in atoms_of(terms):
        divisor = dict(atom.divisor)
        if divisor.keys() != {()} or divisor[()] < 1:
            return None
        # A nested quotient repeats later: `(n // 2) % 3` does after 6 sizes, not after 3.
        length = math.lcm(length, divisor[()] * (period(dict(atom.dividend)) or 1))
    return length
