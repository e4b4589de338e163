"""Needs: conditions on sizes that a program has beyond its annotations, as data, and sizes that meet them.

Heads divide the width, `k` is at most `n`, an array from outside fixes a dim: each is a *need*. `explaining` finds
needs by trying them. This file turns a set of needs into numbers, into words, and into symbolic sizes that meet the
needs whatever their free dims are. `h divides n` makes `n` a product `h * n'`, and `k <= n` makes it a sum `k + n'`. A
trace over these sizes asks no question to which a need is the answer.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.typecheck.arguments.builder import ITEMS, PRIMES, Assignment, all_primes
from weft.typecheck.sizes import polynomials
from weft.typecheck.sizes.clauses import Clause
from weft.typecheck.sizes.deciding import Question, otherwise, question_of
from weft.typecheck.sizes.dim import Dim
from weft.typecheck.sizes.polynomials import Terms, constant, plus, product, replaced
from weft.typecheck.sizes.space import Space


@dataclass(frozen=True)
class Needs:
    """A set of conditions on sizes, all of which hold at once.

    Attributes:
        multiples: pairs (key, divisor): another key or a number divides the key.
        order: (small, big, factor): `factor * small <= big`.
        equal: pairs (key, number).
        merged: pairs (key, key that it stands for), for dims of different records that the program joins.
        alike: the pairs of `merged` by which arrays without a shape in their annotations have the same shape.
        apart: whether records keep their names to themselves, so that equal names of two records may differ in size.
        ranks: pairs (variadic name, number of axes).
        least: pairs (key, the smallest size that the program takes).
        strict: pairs (small, big) of `order` that may not be equal either.
        products: (key, factor, times): `factor * times` divides the key; `factor` is a number or a key.
        among: pairs (key, sizes): the program holds at these sizes, and no more is known.
        counts: pairs (key, place) where a key is the number of items of a collection. The key is in `equal`, too, with
            the number of items at which this was found.
        items: pairs (place, other) of collections that have the same number of items.
        asked: clauses that guards ask for, or that keep JAX from raising; see `questions`.
    """

    multiples: tuple[tuple[str, str | int], ...] = ()
    order: tuple[tuple[str, str, int], ...] = ()
    equal: tuple[tuple[str, int], ...] = ()
    merged: tuple[tuple[str, str], ...] = ()
    alike: tuple[tuple[str, str], ...] = ()
    apart: bool = False
    ranks: tuple[tuple[str, int], ...] = ()
    least: tuple[tuple[str, int], ...] = ()
    strict: frozenset[tuple[str, str]] = frozenset()
    products: tuple[tuple[str, str | int, str], ...] = ()
    among: tuple[tuple[str, tuple[int, ...]], ...] = ()
    counts: tuple[tuple[str, str], ...] = ()
    items: tuple[tuple[str, str], ...] = ()
    asked: tuple[Clause, ...] = ()

    def plus(self, **more: Any) -> Needs:
        """The needs and one more: `needs.plus(order=("k", "n", 1))`."""
        return dataclasses.replace(self, **{name: (*getattr(self, name), entry) for name, entry in more.items()})

    def without(self, **less: Any) -> Needs:
        """The needs without one of them: `needs.without(order=("k", "n", 1))`."""
        fewer = {name: tuple(need for need in getattr(self, name) if need != entry) for name, entry in less.items()}
        return dataclasses.replace(self, **fewer)

    def divisors(self, key: str) -> tuple[str | int, ...]:
        """The keys and numbers that divide a key."""
        return tuple(factor for multiple, factor in self.multiples if multiple == key)

    def words(self) -> tuple[str, ...]:
        """Each need as the end of "holds when ..."."""
        return tuple(map(spelled, self._in_words()))

    def _in_words(self) -> Iterator[str]:
        # Of a key that was tried at a few sizes only, these sizes are told. Its divisors and bounds are not: they were
        # guessed at these sizes.
        unknown, counted = dict(self.among), dict(self.counts)
        alike = self.alike if self.of_one_shape else ()
        # The owner of a nameless axis is an array without a shape, or the `...` of a shape.
        parts = [key.partition("....") for pair in alike for key in reversed(pair)]
        arrays = dict.fromkeys(array if dots else array_of(array.rpartition(".")[0]) for array, dots, _ in parts)
        yield from (
            *(f"{key} = {root}" for key, root in self.merged if (key, root) not in alike),
            *([f"{' and '.join(arrays)} are of one shape"] if arrays else []),
            *(f"{array_of(key)} is of {axes(rank)}" for key, rank in self.ranks),
            *(f"{factor} divides {key}" for key, factor in self.multiples if key not in unknown),
            *(f"{factor}*{times} divides {key}" for key, factor, times in self.products if key not in unknown),
            *(
                f"{f'{factor}*' * (factor > 1)}{small} {'<' if (small, big) in self.strict else '<='} {big}"
                for small, big, factor in self.order
                if not {small, big} <= unknown.keys()
            ),
            *(f"{key} = {number}" for key, number in self.equal if key not in unknown and key not in counted),
            *(f"{key} = {length_of(place)}" for key, place in self.counts),
            *(f"{length_of(place)} = {length_of(other)}" for place, other in self.items),
            *(f"{key} >= {number}" for key, number in self.least if key not in unknown),
            *map(str, self.asked),
            *(f"{key} is among the sizes tried: {', '.join(map(str, sizes))}" for key, sizes in self.among),
        )

    def unit_and_least(self, key: str, size: Callable[[str], int]) -> tuple[int, int]:
        """The number that a key has to be a multiple of, and its least size, at the given sizes of other keys."""

        def product(factors: Iterable[str | int]) -> int:
            return math.prod(size(factor) if isinstance(factor, str) else factor for factor in factors)

        units = [product(factors) for big, *factors in (*self.products, *self.multiples) if big == key]
        least = [number for bounded, number in self.least if bounded == key]
        least += [
            factor * size(small) + ((small, big) in self.strict) for small, big, factor in self.order if big == key
        ]
        return math.lcm(*units), max(least, default=0)

    def about(self, keys: Collection[str]) -> Needs:
        """The needs that are only about some keys."""

        # A need of the third axis of an array is moot once another need fixes two axes: nothing has that key any more.
        def known(entry: tuple[Any, ...]) -> bool:
            return all(part in keys for part in entry if isinstance(part, str))

        lists = ("multiples", "order", "equal", "least", "products", "among")
        lists_about = {name: tuple(filter(known, getattr(self, name))) for name in lists}
        lists_about["counts"] = tuple(count for count in self.counts if count[0] in keys)
        return dataclasses.replace(self, **lists_about)

    @property
    def of_one_shape(self) -> bool:
        """Whether all arrays whose annotations give no shape have the same shape."""
        return bool(self.alike) and {*self.alike} <= {*self.merged}

    @property
    def of_many_sizes(self) -> bool:
        """Whether the needs leave every key many sizes: they fix none, and limit none to the sizes tried."""
        return not (self.equal or self.among)

    def allows(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes meet all of the needs, as far as the sizes are known."""

        def value(number_or_key: str | int) -> int:
            return sizes.get(number_or_key, 1) if isinstance(number_or_key, str) else number_or_key

        return (
            all(sizes.get(key, 0) % (value(factor) or 1) == 0 for key, factor in self.multiples)
            and all(
                small not in sizes
                or big not in sizes
                or factor * sizes[small] + ((small, big) in self.strict) <= sizes[big]
                for small, big, factor in self.order
            )
            and all(sizes.get(key, number) == number for key, number in self.equal)
            and all(sizes.get(key, number) >= number for key, number in self.least)
            and all(
                sizes.get(key, 0) % (value(factor) * value(other) or 1) == 0 for key, factor, other in self.products
            )
            and all(key not in sizes or sizes[key] in known for key, known in self.among)
            and all(clause.allows(sizes) for clause in self.asked)
        )


def array_of(key: str) -> str:
    """The words for a key of a number of axes: an array without a shape (`x`), a `*name`, the `...` of a shape."""
    if key.endswith("..."):
        return key.removesuffix("...")
    return f"the `...` of {key.rpartition('[')[0]}" if key.endswith("]") else f"*{key}"


def axes(rank: int) -> str:
    """A number of axes in words."""
    return "1 axis" if rank == 1 else f"{rank} axes"


def length_of(place: str) -> str:
    """The number of items of a collection, as the code would ask for it."""
    return f"len({place.removesuffix(' length')})"


# The key of an axis that its array's annotation does not name: of an array without a shape (`x....1`), and
# of the axes that `...` stands for, after as many dims as come before it (`x[1].0`).
_AXIS = re.compile(r"(?:\[(\d+)\]|\.\.\.)\.(\d+)")
# The key of an axis of a `*name`. A key with a path before it is a leaf of a tree, or a name of one record alone.
_OF_VARIADIC = re.compile(r"(?<![\w.\]])([A-Za-z_]\w*)\.(\d+)(?![\w.])")


def spelled(text: str) -> str:
    """Rewrites the keys of axes in a text as a reader would: nameless ones as code, those of a `*name` as annotations.

    >>> spelled("4 divides x[1].0"), spelled("x....1 = 3"), spelled("k = batch.0")
    ('4 divides x.shape[1]', 'x.shape[1] = 3', 'k = *batch[0]')
    """
    text = _AXIS.sub(lambda found: f".shape[{int(found[1] or 0) + int(found[2])}]", text)
    return _OF_VARIADIC.sub(r"*\1[\2]", text)


# A deal gives each key a prime: in order, in reverse, or larger primes in a mixed order.
Deal = Callable[[int], list[int]]


def ascending(count: int) -> list[int]:
    """Primes in order: 5, 7, 11, ..."""
    return list(itertools.islice(all_primes(), count))


def descending(count: int) -> list[int]:
    """The same primes in reverse, so that a size that was smaller than another by chance is now larger."""
    return ascending(count)[::-1]


def interleaved(count: int) -> list[int]:
    """Larger primes in a mixed order."""
    further = ascending(count + 3)[3:]
    return [further[(number // 2) + (number % 2) * ((count + 1) // 2)] for number in range(count)]


DEALS: tuple[Deal, ...] = (ascending, descending, interleaved)


# The most candidates for the size of one key: where needs contradict each other, none of them fits.
_MANY = 1000


@dataclass
class Dealer:
    """Gives each key a size that meets the needs: distinct from all others, and prime where no need says otherwise.

    At distinct primes two axes agree only if they are the same dim, and no axis is a multiple of another by chance.
    """

    keys: list[str]
    needs: Needs
    primes: list[int]
    sizes: dict[str, int] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    reserved: set[int] = field(default_factory=set)

    def deal(self) -> dict[str, int]:
        """The sizes of all keys."""
        # A size fixed by a need is given to no other key, also to none that is dealt before it.
        self.reserved = {number for key, number in self.needs.equal if key in self.keys}
        for key in self.keys:
            self._size(key, ())
        return self.sizes

    def _size(self, key: str, above: tuple[str, ...]) -> int:
        if key in self.sizes or key in above:
            return self.sizes.get(key, 1)
        fixed = dict(self.needs.equal).get(key)
        if fixed is None and key in (among := dict(self.needs.among)):
            in_use = set(self.sizes.values())
            fixed = next((size for size in among[key] if size not in in_use), among[key][0])
        if fixed is None:
            # The sizes of its divisors come first; `above` ends needs that go in a circle.
            unit, least = self.needs.unit_and_least(key, lambda divisor: self._size(divisor, (*above, key)))
            prime = self.primes[self.keys.index(key)]
            # The other factor of a multiple is no key's size: a part of a reshape could be taken for another dim.
            factors = (
                [prime] if unit == 1 else [free for free in PRIMES if free not in self.primes and free not in self.used]
            )
            further = itertools.chain(factors, (larger for larger in PRIMES if larger > prime), itertools.count(200))
            in_use = self.reserved.union(self.sizes.values())
            allowed = (size for factor in further if (size := unit * factor) >= least and size not in in_use)
            fixed = next(itertools.islice(allowed, _MANY), 1)
        self.used |= {prime for prime in PRIMES if fixed % prime == 0}
        self.sizes[key] = fixed
        return fixed


def assignment_for(keys: Iterable[str], needs: Needs, deal: Deal, base: Assignment) -> Assignment:
    """An assignment of distinct sizes that meet the needs, with the numbers of axes and options of a base."""
    keys = list(keys)
    # A collection may be as long as one that is as long as a third: all take the option of the last.
    alike = closed(dict(needs.items))
    options = {**base.options, **{place: base.options.get(other, 0) for place, other in alike.items()}}
    counted = {key: ITEMS[options.get(place, 0)] for key, place in needs.counts}
    equal = tuple((key, counted.get(key, number)) for key, number in needs.equal)
    sizes = Dealer(keys, dataclasses.replace(needs, equal=equal).about(keys), deal(len(keys))).deal()
    sizes = _solved(sizes, dataclasses.replace(needs, equal=equal))
    ranks = {**base.ranks, **dict(needs.ranks)}
    return Assignment(sizes, ranks, options, closed(dict(needs.merged)), needs.apart)


def _solved(sizes: dict[str, int], needs: Needs) -> dict[str, int]:
    """The sizes, changed so that they also meet the clauses in the needs, as far as such sizes are found."""
    clauses = [clause for clause in needs.asked if all(question.dims <= sizes.keys() for question, _ in clause.answers)]
    for number, clause in enumerate(clauses):
        # Clauses are met one after the other, each while every earlier clause keeps an answer that is the case.
        of_others = (each.answers for each in clauses[:number])
        met = [next((it for it in answers if it[0].answer(sizes) is it[1]), answers[0]) for answers in of_others]
        for question, answer in () if clause.allows(sizes) else clause.answers:
            solutions = otherwise((*met, (question, not answer)), sizes, dict(needs.least))
            solved = next((sizes for sizes in itertools.islice(solutions, _MOST_SOLVED) if needs.allows(sizes)), None)
            if solved is not None or (solved := next(solutions, None)) is not None:
                sizes = solved
                break
    return sizes


# The most sizes that are looked at to find sizes that meet all needs.
_MOST_SOLVED = 20


def closed(merged: Mapping[str, str]) -> dict[str, str]:
    """Each merged key with the key that stands for its whole group, also where two keys are merged with each other.

    >>> closed({"a": "b", "b": "c"}), closed({"a": "b", "b": "a"})
    ({'a': 'c', 'b': 'c'}, {'a': 'a', 'b': 'a'})
    """

    def root(key: str, *seen: str) -> str:
        if key in seen:
            return min(seen[seen.index(key) :])
        return root(merged[key], *seen, key) if key in merged else key

    return {key: root(key) for key in merged}


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
                # `n'` is `n // 6`, where 6 divides `n`. The comparison is multiplied by 6: `6 * n'` becomes `n`, any
                # other term is multiplied, and a common factor is divided out. `6 * (n // 6)` would be harder to read.
                terms = {
                    tuple(key if factor == name else factor for factor in monomial): number
                    * (1 if name in monomial else times)
                    for monomial, number in terms.items()
                }
                common = math.gcd(*terms.values())
                terms = {monomial: number // common for monomial, number in terms.items()}
        return question_of(replaced(terms, self.back.get), is_order=question.is_order)

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
            for divisor in (size(factor, (*above, key)) for factor in factors if isinstance(factor, str)):
                # A multiple of both: the larger one if the divisor divides it, else their product.
                if polynomials.divided(whole, divisor)[1]:
                    whole = divisor if not polynomials.divided(divisor, whole)[1] else product(whole, divisor)
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
