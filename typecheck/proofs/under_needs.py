"""Symbolic sizes for the keys of a proof, written so that they meet its needs whatever their free dims are.

`h divides n` makes `n` a product `h * n'`, and `k <= n` makes it a sum `k + n'`. A trace over these sizes asks no
question to which a need is the answer.
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
        terms: the polynomial of each key.
        numbers: the number of each free dim at the given sizes.
        least: the smallest size that each free dim has.
        back: the free dims that are no keys, each as a polynomial over keys.
        parts: the free dims that are a key divided by a number, as (key, number).
    """

    terms: dict[str, Terms] = field(default_factory=dict[str, Terms])
    back: dict[str, Terms] = field(default_factory=dict[str, Terms])
    numbers: dict[str, int] = field(default_factory=dict[str, int])
    least: dict[str, int] = field(default_factory=dict[str, int])
    parts: dict[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])

    def at(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """The size of each key, where the free dims have the given numbers."""
        return {key: polynomials.value(terms, numbers) for key, terms in self.terms.items()}

    def of_keys(self, question: Question) -> Question:
        """A question about free dims, rewritten as a question about keys, which a reader knows."""
        terms = dict(question.terms)
        for name, (key, times) in self.parts.items():
            if any(name in monomial for monomial in terms) and all(monomial.count(name) < 2 for monomial in terms):
                # `6 * n'` is `n`, since 6 divides `n`. A report with `6 * (n // 6)` would ask more of a reader.
                terms = {
                    tuple(key if one == name else one for one in monomial): number * (1 if name in monomial else times)
                    for monomial, number in terms.items()
                }
                common = math.gcd(*terms.values())
                terms = {monomial: number // common for monomial, number in terms.items()}
        return question_of(question.is_order, replaced(terms, self.back.get))

    def dims(self, numbers: Mapping[str, int], space: Space) -> dict[str, Any]:
        """The keys' sizes in a new trace over a space, in which the free dims have the given numbers."""
        space.begin(numbers, self.least)
        return {
            key: Dim(space, terms) if polynomials.dims_of(terms) else polynomials.value(terms, {})
            for key, terms in self.terms.items()
        }


def written_under(needs: Needs, sizes: Mapping[str, int], plain: Collection[str]) -> Written:
    """The keys' sizes as polynomials that meet the needs.

    Args:
        needs: the needs.
        sizes: sizes of all keys that meet the needs.
        plain: keys that stay plain numbers, in addition to those that needs fix.
    """
    written = Written()
    numbers = {*plain, *dict(needs.equal), *dict(needs.among), *dict(needs.counts)}
    of_products = {key: tuple(factors) for key, *factors in needs.products}

    def free(name: str, number: int, least: int) -> Terms:
        written.numbers[name], written.least[name] = number, least
        return {(name,): 1}

    def size_of_number(key: str) -> Terms:
        written.terms[key] = constant(sizes[key])
        return written.terms[key]

    def size(key: str, above: tuple[str, ...] = ()) -> Terms:
        if key in written.terms:
            return written.terms[key]
        # Needs in a circle (`a <= b`, `b <= a`) have no polynomial over free dims, so one of the keys stays a number.
        if key in numbers or key in above or not isinstance(sizes[key], int):
            return size_of_number(key)
        every = (*needs.divisors(key), *of_products.get(key, ()))
        factors = [factor for factor in every if isinstance(factor, int) or factor in sizes]
        least = dict(needs.least).get(key, 1)
        below = next(((small, factor) for small, big, factor in needs.order if big == key and small in sizes), None)
        if factors:
            whole: Terms = {(): math.lcm(*(factor for factor in factors if isinstance(factor, int)))}
            for factor in factors:
                whole = _multiple_of_both(whole, size(factor, (*above, key))) if isinstance(factor, str) else whole
            number = polynomials.value(whole, written.numbers)
            if sizes[key] % number:
                return size_of_number(key)  # two divisors share a factor, which their product would count twice
            terms = product(whole, free(f"{key}'", sizes[key] // number, 1))
            written.back[f"{key}'"] = polynomials.quotient({(key,): 1}, replaced(whole, written.back.get))
            if whole.keys() == {()}:
                written.parts[f"{key}'"] = key, whole[()]
        elif below is not None and below[0] not in above:
            # Only the first order of a key is built in: a sum cannot exceed two unrelated sizes at once. The others
            # stay questions.
            small = product(constant(below[1]), size(below[0], (*above, key)))
            margin = int((below[0], key) in needs.strict)
            # A strict order leaves a rest of 1 or more: `k < n` is `n = k + n'` with `n' >= 1`.
            rest = sizes[key] - polynomials.value(small, written.numbers)
            terms = plus(small, free(f"{key}'", max(rest, margin), margin))
            written.back[f"{key}'"] = plus({(key,): 1}, replaced(small, written.back.get), -1)
        else:
            terms = free(key, sizes[key], least)
        written.terms[key] = terms
        return terms

    for key in sizes:
        size(key)
    return written


def _multiple_of_both(first: Terms, second: Terms) -> Terms:
    """A multiple of two polynomials: the larger one if the other divides it, else their product."""
    if not polynomials.divided(first, second)[1]:
        return first
    return second if not polynomials.divided(second, first)[1] else product(first, second)
