"""Sizes that know themselves, for the dims of a proof: written so that whatever sizes they have, its needs are met.

`h divides n` makes `n` a product `h * n'`, and `k <= n` a sum `k + n'`: a trace over these asks nothing of what is
needed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.typecheck.proofs.needs import Needs
from weft.typecheck.sizes import polynomials
from weft.typecheck.sizes.deciding import Question, question_of
from weft.typecheck.sizes.dim import Dim
from weft.typecheck.sizes.polynomials import Terms, constant, plus, product, replaced
from weft.typecheck.sizes.space import Space


@dataclass
class Written:
    """The size of each key, as a polynomial over free dims.

    Attributes:
        terms: by key.
        numbers: the number of each free dim at the sizes that are given.
        least: the smallest size that each free dim has.
        back: the free dims that are no keys, in terms of keys.
        parts: those of them that are a key over a number.
    """

    terms: dict[str, Terms] = field(default_factory=dict[str, Terms])
    back: dict[str, Terms] = field(default_factory=dict[str, Terms])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    least: dict[str, int] = field(default_factory=dict[str, int])
    parts: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])

    def at(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """The size of each key at some numbers of the free dims."""
        return {key: polynomials.value(terms, numbers) for key, terms in self.terms.items()}

    def of_keys(self, question: Question) -> Question:
        """A question of free dims as one of keys."""
        terms = dict(question.terms)
        for name, (key, times) in self.parts.items():
            if any(name in monomial for monomial in terms) and all(monomial.count(name) < 2 for monomial in terms):
                # Six times `n // 6` is n, since 6 divides it.
                terms = {
                    tuple(key if one == name else one for one in monomial): number * (1 if name in monomial else times)
                    for monomial, number in terms.items()
                }
                common = math.gcd(*terms.values())
                terms = {monomial: number // common for monomial, number in terms.items()}
        return question_of(question.is_order, replaced(terms, self.back.get))

    def dims(self, numbers: Mapping[str, int]) -> tuple[Space, dict[str, Any]]:
        """The sizes of the keys as those of a new trace, in which the free dims have these numbers."""
        space = Space(dict(numbers), self.least)
        return space, {
            key: Dim(space, terms) if polynomials.dims_of(terms) else polynomials.value(terms, {})
            for key, terms in self.terms.items()
        }


def written_under(needs: Needs, sizes: Mapping[str, int], plain: Collection[str]) -> Written:
    """Sizes under needs, which the sizes that are given meet.

    Args:
        needs: the needs.
        sizes: of all keys.
        plain: the keys that stay numbers, beside those to which needs give one.
    """
    found = Written()
    numbers = {*plain, *dict(needs.equal), *dict(needs.among), *dict(needs.counts)}
    of_products = {key: tuple(factors) for key, *factors in needs.products}

    def free(name: str, number: int, least: int) -> Terms:
        found.numbers[name], found.least[name] = number, least
        return {(name,): 1}

    def size_of_number(key: str) -> Terms:
        found.terms[key] = constant(sizes[key])
        return found.terms[key]

    def size(key: str, above: tuple[str, ...] = ()) -> Terms:
        if key in found.terms:
            return found.terms[key]
        if key in numbers or key in above or not isinstance(sizes[key], int):
            return size_of_number(key)
        factors = [
            one for one in (*needs.divisors(key), *of_products.get(key, ())) if isinstance(one, int) or one in sizes
        ]
        least = dict(needs.least).get(key, 1)
        below = next(((small, factor) for small, big, factor in needs.order if big == key and small in sizes), None)
        if factors:
            whole: Terms = {(): math.lcm(*(one for one in factors if isinstance(one, int)))}
            for one in factors:
                whole = _multiple_of_both(whole, size(one, (*above, key))) if isinstance(one, str) else whole
            number = polynomials.value(whole, found.numbers)
            if sizes[key] % number:
                return size_of_number(key)  # of two divisors that have a common one, which no product says
            terms = product(whole, free(f"{key}'", sizes[key] // number, 1))
            found.back[f"{key}'"] = polynomials.quotient({(key,): 1}, replaced(whole, found.back.get))
            if whole.keys() == {()}:
                found.parts[f"{key}'"] = key, whole[()]
        elif below is not None and below[0] not in above:
            small = product(constant(below[1]), size(below[0], (*above, key)))
            apart = int((below[0], key) in needs.strict)
            rest = sizes[key] - polynomials.value(small, found.numbers)
            terms = plus(small, free(f"{key}'", max(rest, apart), apart))
            found.back[f"{key}'"] = plus({(key,): 1}, replaced(small, found.back.get), -1)
        else:
            terms = free(key, sizes[key], least)
        found.terms[key] = terms
        return terms

    for key in sizes:
        size(key)
    return found


def _multiple_of_both(one: Terms, other: Terms) -> Terms:
    """The one that the other divides, or their product: a multiple of both, if not the least for all sizes."""
    if not polynomials.divided(one, other)[1]:
        return one
    return other if not polynomials.divided(other, one)[1] else product(one, other)
