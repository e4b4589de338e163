"""Sizes in the names of dims: `2*d`, `h*w`, `(n-3)//2+1`.

A size of a symbolic trace is an expression of JAX's symbols, which is written anew with the dims' own names. One of
traces at integers is seen in several, at sizes dealt in different ways; an expression of the dims that is right in all
of them is looked for among small ones. Where there is none, `?` stands.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

from weft.typecheck.language.symbolic import is_symbolic

UNKNOWN = "?"


@dataclass(frozen=True)
class Names:
    """The dims that a function knows of.

    Attributes:
        sizes: name and size, those that count most first; the size is what it was in each trace.
        variadics: name and axes of each `*name`, in each trace.
        orders: products of names as annotations write them.
    """

    sizes: tuple[tuple[str, tuple[Any, ...]], ...]
    variadics: tuple[tuple[str, tuple[tuple[Any, ...], ...]], ...] = ()
    orders: tuple[tuple[str, ...], ...] = ()

    def shape(self, shapes: tuple[tuple[Any, ...], ...]) -> str:
        """A shape, given as it was in each trace."""
        axes = [*zip(*shapes, strict=True)]
        words: list[str] = []
        while axes:
            for name, parts in self.variadics:
                length = len(parts[0])
                if length and _same(axes[:length], [*zip(*parts, strict=True)]):
                    words.append(f"*{name}")
                    del axes[:length]
                    break
            else:
                words.append(self.size(axes.pop(0)))
        return ",".join(words)

    def size(self, sizes: tuple[Any, ...]) -> str:
        """A size, given as it was in each trace."""
        if len(sizes) == 1 and is_symbolic(sizes[0]):
            return self._symbolic(sizes[0])
        return self._integer(sizes)

    def _symbolic(self, size: Any) -> str:
        exact = next((name for name, (one,) in self.sizes if is_symbolic(one) and str(one) == str(size)), None)
        if exact is not None:
            return exact
        products = [(name, _product(_parsed(str(one)))) for name, (one,) in self.sizes if is_symbolic(one)]
        known = [_Dim(name, *one) for name, one in products if one is not None]
        return _Writer(known, self.orders).write(_parsed(str(size)))

    def _integer(self, sizes: tuple[Any, ...]) -> str:
        if not sizes or not all(isinstance(one, int) for one in sizes):
            return UNKNOWN
        known = [(name, one) for name, one in self.sizes if all(isinstance(size, int) for size in one)]
        known = [(name, one) for name, one in known if len(one) == len(sizes)]
        constant, first = len(set(sizes)) == 1, next(iter(sizes))
        exact = next((name for name, one in known if one == sizes and (not constant or first > 1)), None)
        if exact is not None:
            return exact
        if constant and (len(sizes) > 1 or first <= 4):
            return str(first)
        free = {name: one for name, one in known if len(set(one)) > 1 or len(one) == 1}
        found = next((text for text, values in _candidates(free) if values == sizes), None)
        return found or (UNKNOWN if len(sizes) > 1 else str(first))


def _same(one: Sequence[tuple[Any, ...]], other: Sequence[tuple[Any, ...]]) -> bool:
    return [tuple(map(str, axis)) for axis in one] == [tuple(map(str, axis)) for axis in other]


_NUMBERS = (2, 3, 4, 5, 6, 7, 8, 12, 16)


def _candidates(known: dict[str, tuple[int, ...]]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Small expressions of the dims, simple ones first, with their values in each trace."""
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


def _parsed(text: str) -> ast.expr:
    """An expression as JAX prints it."""
    return ast.parse(text.strip().replace("^", "**"), mode="eval").body


class _Dim(NamedTuple):
    """A dim whose size is the product of a number and symbols."""

    name: str
    number: int
    symbols: Counter[str]


def _product(node: ast.expr) -> tuple[int, Counter[str]] | None:
    match node:
        case ast.Name(id=name):
            return 1, Counter([name])
        case ast.Constant(value=int(value)):
            return value, Counter()
        case ast.BinOp(left=ast.Name(id=name), op=ast.Pow(), right=ast.Constant(value=int(power))):
            return 1, Counter({name: power})
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            one, other = _product(left), _product(right)
            return None if one is None or other is None else (one[0] * other[0], one[1] + other[1])
        case _:
            return None


class _Writer:
    """Writes JAX's expressions in the names of dims.

    Args:
        dims: what counts most first.
        orders: products of names as they are to be written.
    """

    def __init__(self, dims: Sequence[_Dim], orders: Sequence[tuple[str, ...]] = ()):
        self.orders = orders
        # A dim that is a product takes its factors' place where it can.
        self.dims = sorted(dims, key=lambda one: (-one.symbols.total(), -one.number))
        self.order = {one.name: place for place, one in enumerate(dims)}

    def write(self, node: ast.expr) -> str:
        terms = [*self._terms(node, 1)]
        positive, negative = ([text for sign, text in terms if sign == one] for one in (1, -1))
        return "+".join(positive) + "".join(f"-{text}" for text in negative)

    def _terms(self, node: ast.expr, sign: int) -> Iterator[tuple[int, str]]:
        match node:
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
                yield from self._terms(left, sign)
                yield from self._terms(right, sign if isinstance(op, ast.Add) else -sign)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                yield from self._terms(operand, -sign)
            case _:
                yield sign, self._factor(node)

    def _factor(self, node: ast.expr) -> str:
        product = _product(node)
        if product is not None:
            return self._named(*product)
        match node:
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return f"{self._closed(left)}*{self._closed(right)}"
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                return f"{self._closed(left)}**{self._closed(right)}"
            case ast.Call(func=ast.Name(id="floordiv"), args=[one, other]):
                return f"{self._closed(one)}//{self._closed(other)}"
            case ast.Call(func=ast.Name(id="mod"), args=[one, other]):
                return f"{self._closed(one)}%{self._closed(other)}"
            case ast.Call(func=ast.Name(id=name), args=arguments):
                return f"{name}({','.join(map(self.write, arguments))})"
            case _:
                return ast.unparse(node)

    def _closed(self, node: ast.expr) -> str:
        text = self.write(node)
        is_one = text.replace("_", "a").isalnum() or (text.endswith(")") and text[:1].isalpha())
        return text if is_one else f"({text})"

    def _named(self, number: int, symbols: Counter[str]) -> str:
        left, words = Counter(symbols), list[str]()
        for dim in self.dims:
            while dim.symbols and number % dim.number == 0 and dim.symbols <= left:
                number, left = number // dim.number, left - dim.symbols
                words.append(dim.name)
        words += [self._part(one) for one in left.elements()]
        words.sort(key=lambda one: self.order.get(one, len(self.order)))
        words = next((list(one) for one in self.orders if sorted(one) == sorted(words)), words)
        words = [*([str(number)] if number != 1 or not words else []), *words]
        return "*".join(words if len(words) == 1 else [f"({one})" if "//" in one else one for one in words])

    def _part(self, symbol: str) -> str:
        """A symbol that has no name: what is left of a dim when its divisors are taken out."""
        for dim in self.dims:
            if dim.symbols[symbol] == 1 and (dim.symbols.total() > 1 or dim.number > 1):
                rest = self._named(dim.number, dim.symbols - Counter([symbol]))
                return f"{dim.name}//{f'({rest})' if '*' in rest or '/' in rest else rest}"
        return symbol
