"""Writes sizes in the names of dims: `2*d`, `h*w`, `(n-3)//2+1`.

A symbolic size is a polynomial over free dims, which is rewritten in the names of the dims. A size from traces at
integers is known at several deals of sizes; a small expression of the dims that gives the right number in all of them
is its name. Where no such expression exists, `?` stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

from weft.typecheck.sizes.dim import Dim, is_same
from weft.typecheck.sizes.polynomials import Atom, Monomial, Terms

UNKNOWN = "?"


@dataclass(frozen=True)
class Names:
    """The dims that a function can name.

    sizes: names with their size in each trace, the most important first.
        variadics: `*name`s with their axes in each trace.
        orders: products of names in the order in which annotations write them.
        orders: products of names as annotations write them.
    """

    sizes: tuple[tuple[str, tuple[Any, ...]], ...]
    variadics: tuple[tuple[str, tuple[tuple[Any, ...], ...]], ...] = ()
    orders: tuple[tuple[str, ...], ...] = ()

    def shape(self, shapes: tuple[tuple[Any, ...], ...]) -> str:
        """A shape in words, from its axes in each trace."""
        axes = [*zip(*shapes, strict=True)]
        words: list[str] = []
        while axes:
            for name, parts in self.variadics:
                length = len(parts[0])
                # An empty `*batch` would match at every axis.
                if length and _same(axes[:length], [*zip(*parts, strict=True)]):
                    words.append(f"*{name}")
                    del axes[:length]
                    break
            else:
                words.append(self.size(axes.pop(0)))
        return ",".join(words)

    def size(self, sizes: tuple[Any, ...]) -> str:
        """A size in words, from its value in each trace."""
        if len(sizes) == 1 and type(sizes[0]) is Dim:
            return self._known(sizes[0])
        return self._integer(sizes)

    def _known(self, size: Dim) -> str:
        of_one_trace = [(name, one) for name, (one,) in self.sizes if type(one) is Dim]
        # An exact name comes first: `width` reads better than `heads*head_dim`, although both are right.
        exact = next((name for name, one in of_one_trace if is_same(one, size)), None)
        if exact is not None:
            return exact
        # Only a product of free dims can be divided out of a term; a dim that is a sum, such as `a+b`, cannot.
        products = [(name, _product(one.terms)) for name, one in of_one_trace]
        known = [_Named(name, *one) for name, one in products if one is not None]
        return _Writer(known, self.orders).write(size.terms)

    def _integer(self, sizes: tuple[Any, ...]) -> str:
        if not sizes or not all(isinstance(one, int) for one in sizes):
            return UNKNOWN
        known = [(name, one) for name, one in self.sizes if all(isinstance(size, int) for size in one)]
        known = [(name, one) for name, one in known if len(one) == len(sizes)]
        constant, first = len(set(sizes)) == 1, next(iter(sizes))
        exact = next((name for name, one in known if one == sizes and (not constant or first > 1)), None)
        if exact is not None:
            return exact
        # The same number at every deal is a constant of the program; a small one is so even in a single trace.
        if constant and (len(sizes) > 1 or first <= 4):
            return str(first)
        free = {name: one for name, one in known if len(set(one)) > 1 or len(one) == 1}
        found = next((text for text, values in _candidates(free) if values == sizes), None)
        return found or (UNKNOWN if len(sizes) > 1 else str(first))


def _same(one: Sequence[tuple[Any, ...]], other: Sequence[tuple[Any, ...]]) -> bool:
    return [tuple(map(str, axis)) for axis in one] == [tuple(map(str, axis)) for axis in other]


_NUMBERS = (2, 3, 4, 5, 6, 7, 8, 12, 16)


def _candidates(known: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Small expressions of the dims, the simplest first, with their values in each trace."""
    # The first that fits is shown, so common forms come first: multiples, parts, products, then sums.
    single = list(known.items())
    for number in _NUMBERS:
        yield from ((f"{number}*{name}", tuple(number * one for one in sizes)) for name, sizes in single)
    for number in _NUMBERS:
        yield from ((f"{name}//{number}", tuple(one // number for one in sizes)) for name, sizes in single)
    for (name, one), (other, two) in combinations_with_replacement(single, 2):
        yield f"{name}*{other}", tuple(a * b for a, b in zip(one, two, strict=True))
    for number in (1, 2, 3, 4):
        for name, sizes in single:
            yield f"{name}+{number}", tuple(one + number for one in sizes)
            yield f"{name}-{number}", tuple(one - number for one in sizes)
    pairs = [(one, other) for one in single for other in single if one[0] != other[0]]
    for (name, one), (other, two) in pairs:
        if all(a % b == 0 for a, b in zip(one, two, strict=True)):
            yield f"{name}//{other}", tuple(a // b for a, b in zip(one, two, strict=True))
        yield f"{name}+{other}", tuple(a + b for a, b in zip(one, two, strict=True))
        yield f"{name}-{other}", tuple(a - b for a, b in zip(one, two, strict=True))
    for number in (2, 3, 4):
        for name, sizes in single:
            yield f"{number}*{name}+1", tuple(number * one + 1 for one in sizes)
            yield f"{number}*{name}-1", tuple(number * one - 1 for one in sizes)
            yield f"{name}//{number}+1", tuple(one // number + 1 for one in sizes)
            yield f"-(-{name}//{number})", tuple(-(-one // number) for one in sizes)
        for (name, one), (other, two) in combinations_with_replacement(single, 2):
            yield f"{number}*{name}*{other}", tuple(number * a * b for a, b in zip(one, two, strict=True))
    for three in combinations_with_replacement(single, 3):
        values = zip(*(sizes for _, sizes in three), strict=True)
        yield "*".join(name for name, _ in three), tuple(a * b * c for a, b, c in values)


class _Named(NamedTuple):
    """A dim whose size is a number times a product of free dims."""

    name: str
    number: int
    symbols: Counter[str]


def _product(terms: Terms) -> tuple[int, Counter[str]] | None:
    (monomial, number), *more = terms.items()
    return None if more or any(isinstance(one, Atom) for one in monomial) else (number, Counter(monomial))


class _Writer:
    """Writes symbolic sizes in the names of dims.

    Args:
        dims: the dims, the most important first.
        orders: products of names in the order in which to write them.
    """

    def __init__(self, dims: Sequence[_Named], orders: Sequence[tuple[str, ...]] = ()):
        self.orders = orders
        # Dims of many factors come first: `d` of `h*k` should stand for both, not leave the factors to others.
        self.dims = sorted(dims, key=lambda one: (-one.symbols.total(), -one.number))
        self.order = {one.name: place for place, one in enumerate(dims)}

    def write(self, terms: Terms) -> str:
        # Terms of highest degree first, as one writes a polynomial.
        ordered = sorted(terms.items(), key=lambda term: (-len(term[0]), *map(str, term[0])))
        positive, negative = (
            [self._term(monomial, abs(number)) for monomial, number in ordered if (number < 0) is below]
            for below in (False, True)
        )
        return "+".join(positive) + "".join(f"-{text}" for text in negative)

    def _term(self, monomial: Monomial, number: int) -> str:
        atoms = [one for one in monomial if isinstance(one, Atom)]
        symbols = Counter(one for one in monomial if isinstance(one, str))
        words = [self._atom(one) for one in atoms]
        if not words or symbols or number != 1:
            return "*".join([self._named(number, symbols), *(f"({one})" for one in words)])
        return words[0] if len(words) == 1 else "*".join(f"({one})" for one in words)

    def _atom(self, atom: Atom) -> str:
        left, right = (self._closed(dict(side)) for side in (atom.dividend, atom.divisor))
        return f"{left}{atom.op}{right}"

    def _closed(self, terms: Terms) -> str:
        text = self.write(terms)
        # An underscore is part of a name, which needs no parentheses.
        return text if text.replace("_", "a").isalnum() else f"({text})"

    def _named(self, number: int, symbols: Counter[str]) -> str:
        left, words = Counter(symbols), list[str]()
        for dim in self.dims:
            while dim.symbols and number % dim.number == 0 and dim.symbols <= left:
                number, left = number // dim.number, left - dim.symbols
                words.append(dim.name)
        words += [self._part(one) for one in left.elements()]
        words.sort(key=lambda one: self.order.get(one, len(self.order)))
        # An annotation that writes `h*c` should find `h*c` in the result, and not `c*h`.
        words = next((list(one) for one in self.orders if sorted(one) == sorted(words)), words)
        words = [*([str(number)] if number != 1 or not words else []), *words]
        return "*".join(words if len(words) == 1 else [f"({one})" if "//" in one else one for one in words])

    def _part(self, symbol: str) -> str:
        """A symbol without a name, as a quotient: a dim divided by its other factors."""
        for dim in self.dims:
            if dim.symbols[symbol] == 1 and (dim.symbols.total() > 1 or dim.number > 1):
                rest = self._named(dim.number, dim.symbols - Counter([symbol]))
                return f"{dim.name}//{f'({rest})' if '*' in rest or '/' in rest else rest}"
        return symbol
