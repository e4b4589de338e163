"""Writes sizes in the names of dims: `2*d`, `h*w`, `(n-3)//2+1`.

A symbolic size is a polynomial over free dims, which is rewritten in the names of the dims. A size from traces at
integers is known at several deals of sizes; a small expression of the dims that gives the right number in all of them
is its name. Where no such expression exists, `?` stands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from typing import Any, NamedTuple

from weft.typecheck.sizes.dim import Dim, is_same
from weft.typecheck.sizes.polynomials import Atom, Monomial, Terms

UNKNOWN = "?"


@dataclass(frozen=True)
class Names:
    """The dims that a function can name.

    Attributes:
        sizes: names with their size in each trace, the most important first.
        variadics: `*name`s with their axes in each trace.
        orders: products of names in the order in which annotations write them.
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
            return self._symbolic(sizes[0])
        return self._integer(sizes)

    def _symbolic(self, size: Dim) -> str:
        """A symbolic size: the name of an equal dim, or else its polynomial in the names of dims."""
        of_one_trace = [(name, dim) for name, (dim,) in self.sizes if type(dim) is Dim]
        # An exact name comes first: `width` reads better than `heads*head_dim`, although both are right.
        exact = next((name for name, dim in of_one_trace if is_same(dim, size)), None)
        if exact is not None:
            return exact
        # Only a product of free dims can be divided out of a term; a dim that is a sum, such as `a+b`, cannot.
        of_one_term = [(name, *dim.terms.items()) for name, dim in of_one_trace if len(dim.terms) == 1]
        known = [
            _Named(name, number, Counter(monomial))
            for name, (monomial, number) in of_one_term
            if not any(isinstance(factor, Atom) for factor in monomial)
        ]
        return _Writer(known, self.orders).write(size.terms)

    def _integer(self, sizes: tuple[Any, ...]) -> str:
        """A size that is an integer in each trace: a name or an expression with these values, a number, or `?`."""
        if not sizes or not all(isinstance(size, int) for size in sizes):
            return UNKNOWN
        known = [(name, each) for name, each in self.sizes if all(isinstance(size, int) for size in each)]
        known = [(name, each) for name, each in known if len(each) == len(sizes)]
        constant, first = len(set(sizes)) == 1, next(iter(sizes))
        exact = next((name for name, each in known if each == sizes and (not constant or first > 1)), None)
        if exact is not None:
            return exact
        # The same number at every deal is a constant of the program; a small one is so even in a single trace.
        if constant and (len(sizes) > 1 or first <= 4):
            return str(first)
        free = {name: each for name, each in known if len(set(each)) > 1 or len(each) == 1}
        unknown = UNKNOWN if len(sizes) > 1 else str(first)
        return next((text for text, values in _candidates(free) if values == sizes), unknown)


def _same(axes: Sequence[tuple[Any, ...]], parts: Sequence[tuple[Any, ...]]) -> bool:
    return [tuple(map(str, axis)) for axis in axes] == [tuple(map(str, part)) for part in parts]


_NUMBERS = (2, 3, 4, 5, 6, 7, 8, 12, 16)


def _candidates(known: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Small expressions of the dims, the simplest first, with their values in each trace."""
    # The first that fits is shown, so common forms come first: multiples, parts, products, then sums.
    single = list(known.items())
    for number in _NUMBERS:
        yield from ((f"{number}*{name}", tuple(number * size for size in sizes)) for name, sizes in single)
    for number in _NUMBERS:
        yield from ((f"{name}//{number}", tuple(size // number for size in sizes)) for name, sizes in single)
    for (name, first), (factor, second) in combinations_with_replacement(single, 2):
        yield f"{name}*{factor}", tuple(a * b for a, b in zip(first, second, strict=True))
    for number in (1, 2, 3, 4):
        for name, sizes in single:
            yield f"{name}+{number}", tuple(size + number for size in sizes)
            yield f"{name}-{number}", tuple(size - number for size in sizes)
    for (name, first), (second_name, second) in product(single, repeat=2):
        if name == second_name:
            continue
        if all(a % b == 0 for a, b in zip(first, second, strict=True)):
            yield f"{name}//{second_name}", tuple(a // b for a, b in zip(first, second, strict=True))
        yield f"{name}+{second_name}", tuple(a + b for a, b in zip(first, second, strict=True))
        yield f"{name}-{second_name}", tuple(a - b for a, b in zip(first, second, strict=True))
    for number in (2, 3, 4):
        for name, sizes in single:
            yield f"{number}*{name}+1", tuple(number * size + 1 for size in sizes)
            yield f"{number}*{name}-1", tuple(number * size - 1 for size in sizes)
            yield f"{name}//{number}+1", tuple(size // number + 1 for size in sizes)
            yield f"-(-{name}//{number})", tuple(-(-size // number) for size in sizes)
        for (name, first), (factor, second) in combinations_with_replacement(single, 2):
            yield f"{number}*{name}*{factor}", tuple(number * a * b for a, b in zip(first, second, strict=True))
    for three in combinations_with_replacement(single, 3):
        values = zip(*(sizes for _, sizes in three), strict=True)
        yield "*".join(name for name, _ in three), tuple(a * b * c for a, b, c in values)


class _Named(NamedTuple):
    """A dim whose size is a number times a product of free dims."""

    name: str
    number: int
    symbols: Counter[str]


class _Writer:
    """Writes symbolic sizes in the names of dims.

    Args:
        dims: the dims, the most important first.
        orders: products of names in the order in which to write them.
    """

    def __init__(self, dims: Sequence[_Named], orders: Sequence[tuple[str, ...]] = ()):
        self.orders = orders
        # Dims of many factors come first: `d` of `h*k` should stand for both, not leave the factors to others.
        self.dims = sorted(dims, key=lambda dim: (-dim.symbols.total(), -dim.number))
        self.order = {dim.name: place for place, dim in enumerate(dims)}

    def write(self, terms: Terms) -> str:
        # Terms of highest degree first, as one writes a polynomial.
        ordered = sorted(terms.items(), key=lambda term: (-len(term[0]), *map(str, term[0])))
        positive, negative = (
            [self._term(monomial, abs(number)) for monomial, number in ordered if (number < 0) is below]
            for below in (False, True)
        )
        return "+".join(positive) + "".join(f"-{text}" for text in negative)

    def _term(self, monomial: Monomial, number: int) -> str:
        """One term of a polynomial: its coefficient and free dims, times its divisions and remainders."""
        symbols = Counter(part for part in monomial if isinstance(part, str))
        atoms = (part for part in monomial if isinstance(part, Atom))
        words = [f"{self._closed(dict(atom.dividend))}{atom.op}{self._closed(dict(atom.divisor))}" for atom in atoms]
        if not words or symbols or number != 1:
            return "*".join([self._named(number, symbols), *(f"({word})" for word in words)])
        return words[0] if len(words) == 1 else "*".join(f"({word})" for word in words)

    def _closed(self, terms: Terms) -> str:
        text = self.write(terms)
        # An underscore is part of a name, which needs no parentheses.
        return text if text.replace("_", "a").isalnum() else f"({text})"

    def _named(self, number: int, symbols: Counter[str]) -> str:
        """A product of a number and free dims, written in the names of dims."""
        unnamed, words = Counter(symbols), list[str]()
        for dim in self.dims:
            while dim.symbols and number % dim.number == 0 and dim.symbols <= unnamed:
                number, unnamed = number // dim.number, unnamed - dim.symbols
                words.append(dim.name)
        words += [self._part(symbol) for symbol in unnamed.elements()]
        words.sort(key=lambda word: self.order.get(word, len(self.order)))
        # An annotation that writes `h*c` should find `h*c` in the result, and not `c*h`.
        words = next((list(order) for order in self.orders if sorted(order) == sorted(words)), words)
        words = [*([str(number)] if number != 1 or not words else []), *words]
        return "*".join(words if len(words) == 1 else [f"({word})" if "//" in word else word for word in words])

    def _part(self, symbol: str) -> str:
        """A symbol without a name, as a quotient: a dim divided by its other factors."""
        for dim in self.dims:
            if dim.symbols[symbol] == 1 and (dim.symbols.total() > 1 or dim.number > 1):
                rest = self._named(dim.number, dim.symbols - Counter([symbol]))
                return f"{dim.name}//{f'({rest})' if '*' in rest or '/' in rest else rest}"
        return symbol
