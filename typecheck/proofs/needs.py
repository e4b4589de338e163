"""What a program needs of its sizes beyond its annotations, as data, and assignments that respect it.

Heads divide the width, `k` is at most `n`, an array from outside fixes a dim: each is a *need*. Needs are found by
trying (see `search`); this file turns a set of them into sizes and into words.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.typecheck.arguments.builder import ITEMS, PRIMES, Assignment
from weft.typecheck.sizes.clauses import Clause
from weft.typecheck.sizes.deciding import otherwise


@dataclass(frozen=True)
class Needs:
    """Needs, all of which hold at once.

    Attributes:
        multiples: pairs (key, what divides it): another key or a number.
        order: (small, big, factor): the second is at least the factor times the first.
        equal: pairs (key, number).
        merged: pairs (key, key that it stands for), for dims of different records that the program joins.
        alike: those of `merged` by which arrays without a shape of their own are of one shape.
        apart: whether records keep their names to themselves.
        ranks: how many axes variadic names need.
        least: pairs (key, the least size that the program takes).
        strict: pairs (small, big) of `order` that may not be equal either.
        products: (key, one, other): a number or a key times another key divides it.
        among: pairs (key, sizes): all that is known is that it holds at these.
        counts: pairs (key, place) where a key is the number of items of a collection; it is in `equal`, too, with the
            number that they were found at.
        items: pairs (place, other) of collections of which the first has as many items as the other.
        asked: what guards ask of sizes, and what raises without one; see `questions`.
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
        """These and one more: `needs.plus(order=("k", "n", 1))`."""
        return dataclasses.replace(self, **{name: (*getattr(self, name), one) for name, one in more.items()})

    def without(self, **less: Any) -> Needs:
        """These but one: `needs.without(order=("k", "n", 1))`."""
        kept = {name: tuple(one for one in getattr(self, name) if one != other) for name, other in less.items()}
        return dataclasses.replace(self, **kept)

    def divisors(self, key: str) -> tuple[str | int, ...]:
        """What divides a key."""
        return tuple(factor for one, factor in self.multiples if one == key)

    def words(self) -> tuple[str, ...]:
        """Each need as the end of "holds when ..."."""
        return tuple(map(spelled, self._in_words()))

    def _in_words(self) -> Iterator[str]:
        unknown, counted = dict(self.among), dict(self.counts)
        yield from (
            *self._merged_in_words(),
            *(f"{array_of(key)} is of {axes(rank)}" for key, rank in self.ranks),
            *(f"{factor} divides {key}" for key, factor in self.multiples if key not in unknown),
            *(f"{one}*{other} divides {key}" for key, one, other in self.products if key not in unknown),
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
        """What a key is a multiple of, and at least as large as, by the sizes of other keys."""

        def product(factors: Iterable[str | int]) -> int:
            return math.prod(size(one) if isinstance(one, str) else one for one in factors)

        units = [product(factors) for big, *factors in (*self.products, *self.multiples) if big == key]
        least = [number for one, number in self.least if one == key]
        least += [
            factor * size(small) + ((small, big) in self.strict) for small, big, factor in self.order if big == key
        ]
        return math.lcm(*units), max(least, default=0)

    def about(self, keys: Collection[str]) -> Needs:
        """Those of some keys: what was asked of an axis is moot where the array came to have fewer of them."""

        def known(entry: tuple[Any, ...]) -> bool:
            return all(one in keys for one in entry if isinstance(one, str))

        lists = ("multiples", "order", "equal", "least", "products", "among")
        kept = {name: tuple(filter(known, getattr(self, name))) for name in lists}
        kept["counts"] = tuple(one for one in self.counts if one[0] in keys)
        return dataclasses.replace(self, **kept)

    @property
    def of_one_shape(self) -> bool:
        """Whether arrays without a shape of their own are of one shape: none has a number of axes by itself."""
        return bool(self.alike) and {*self.alike} <= {*self.merged}

    @property
    def of_many_sizes(self) -> bool:
        """Whether each key may still be of many sizes: none is a number, or one that was tried."""
        return not (self.equal or self.among)

    def _merged_in_words(self) -> Iterator[str]:
        """Keys that are one size."""
        alike = self.alike if self.of_one_shape else ()
        yield from (f"{one} = {other}" for one, other in self.merged if (one, other) not in alike)
        if alike:
            arrays = dict.fromkeys(_array_with(key) for one, other in alike for key in (other, one))
            yield f"{' and '.join(arrays)} are of one shape"

    def allows(self, sizes: Mapping[str, int]) -> bool:
        """Whether sizes respect them all."""

        def value(one: str | int) -> int:
            return sizes.get(one, 1) if isinstance(one, str) else one

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
            and all(sizes.get(key, 0) % (value(one) * value(other) or 1) == 0 for key, one, other in self.products)
            and all(key not in sizes or sizes[key] in known for key, known in self.among)
            and all(clause.allows(sizes) for clause in self.asked)
        )


def array_of(key: str) -> str:
    """What has a number of axes: an array without a shape of its own (`x`), a `*name`, the `...` of a shape."""
    if key.endswith("..."):
        return key.removesuffix("...")
    return f"the `...` of {key.rpartition('[')[0]}" if key.endswith("]") else f"*{key}"


def axes(rank: int) -> str:
    """A number of axes in words."""
    return "1 axis" if rank == 1 else f"{rank} axes"


def _array_with(key: str) -> str:
    """What an axis is one of that no name has: an array without a shape of its own, or the `...` of a shape."""
    array, dots, _ = key.partition("....")
    return array if dots else array_of(key.rpartition(".")[0])


def length_of(place: str) -> str:
    """The number of items of a collection, as the code would ask for it."""
    return f"len({place.removesuffix(' length')})"


# The key of an axis that its array's annotation does not name: of an array without a shape of its own (`x....1`), and
# of the axes that `...` stands for, after as many dims as come before it (`x[1].0`).
_AXIS = re.compile(r"(?:\[(\d+)\]|\.\.\.)\.(\d+)")
# That of an axis of a `*name`. What has a path before it is a leaf of a tree, or a name that a record keeps to itself.
_OF_VARIADIC = re.compile(r"(?<![\w.\]])([A-Za-z_]\w*)\.(\d+)(?![\w.])")


def spelled(text: str) -> str:
    """A text with the keys of such axes as the code would ask for them, and those of a `*name` as annotations write it.

    >>> spelled("4 divides x[1].0"), spelled("x....1 = 3"), spelled("k = batch.0")
    ('4 divides x.shape[1]', 'x.shape[1] = 3', 'k = *batch[0]')
    """
    text = _AXIS.sub(lambda found: f".shape[{int(found[1] or 0) + int(found[2])}]", text)
    return _OF_VARIADIC.sub(r"*\1[\2]", text)


# How primes are dealt to keys: in order, in reverse, and from further up in an order of its own.
Deal = Callable[[int], list[int]]


def ascending(count: int) -> list[int]:
    """5, 7, 11, ..."""
    return list(_primes(count))


def descending(count: int) -> list[int]:
    """The same in reverse, so that what came out smaller by chance is now larger."""
    return list(_primes(count))[::-1]


def interleaved(count: int) -> list[int]:
    """Other primes, the odd places first."""
    further = list(_primes(count + 3))[3:]
    return [further[(number // 2) + (number % 2) * ((count + 1) // 2)] for number in range(count)]


def multiples(factor: int) -> Deal:
    """Multiples of a number, each of another prime: what asks for a remainder goes the other way than for primes."""
    return lambda count: [factor * one for one in _primes(count)]


DEALS: tuple[Deal, ...] = (ascending, descending, interleaved)


# Candidates for the size of one key: needs that contradict each other have none.
_MANY = 1000


def _primes(count: int) -> Iterator[int]:
    found: list[int] = list(PRIMES[:count])
    candidate = PRIMES[-1]
    while len(found) < count:
        candidate += 2
        if all(candidate % one for one in range(3, math.isqrt(candidate) + 1, 2)):
            found.append(candidate)
    yield from found


@dataclass
class Dealer:
    """Gives each key a size: distinct, prime where nothing else is needed, and as the needs of these keys say."""

    keys: list[str]
    needs: Needs
    primes: list[int]
    sizes: dict[str, int] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    reserved: set[int] = field(default_factory=set)

    def deal(self) -> dict[str, int]:
        """The sizes of all keys."""
        self.reserved = {number for key, number in self.needs.equal if key in self.keys}
        for key in self.keys:
            self._size(key, ())
        return self.sizes

    def _size(self, key: str, above: tuple[str, ...]) -> int:
        if key in self.sizes or key in above:
            return self.sizes.get(key, 1)
        fixed = dict(self.needs.equal).get(key)
        if fixed is None and key in (among := dict(self.needs.among)):
            taken = set(self.sizes.values())
            fixed = next((one for one in among[key] if one not in taken), among[key][0])
        if fixed is None:
            unit, least = self.needs.unit_and_least(key, lambda one: self._size(one, (*above, key)))
            prime = self.primes[self.keys.index(key)]
            # A factor that is no key's size: the parts of a multiple must be told from other dims.
            factors = (
                [prime] if unit == 1 else [one for one in PRIMES if one not in self.primes and one not in self.used]
            )
            further = itertools.chain(factors, (one for one in PRIMES if one > prime), itertools.count(200))
            taken = self.reserved.union(self.sizes.values())
            allowed = (size for factor in further if (size := unit * factor) >= least and size not in taken)
            fixed = next(itertools.islice(allowed, _MANY), 1)
        self.used |= {one for one in PRIMES if fixed % one == 0}
        self.sizes[key] = fixed
        return fixed


def assignment_for(keys: Iterable[str], needs: Needs, deal: Deal, base: Assignment) -> Assignment:
    """An assignment of distinct sizes that the needs allow, with the ranks and options of a base."""
    keys = list(keys)
    options = {**base.options, **{place: base.options.get(other, 0) for place, other in needs.items}}
    counted = {key: ITEMS[options.get(place, 0)] for key, place in needs.counts}
    equal = tuple((key, counted.get(key, number)) for key, number in needs.equal)
    sizes = Dealer(keys, dataclasses.replace(needs, equal=equal).about(keys), deal(len(keys))).deal()
    sizes = _solved(sizes, dataclasses.replace(needs, equal=equal))
    ranks = {**base.ranks, **dict(needs.ranks)}
    return Assignment(sizes, ranks, options, closed(dict(needs.merged)), needs.apart)


def _solved(sizes: dict[str, int], needs: Needs) -> dict[str, int]:
    """Sizes with some changed, so that they meet the clauses of needs, too, as far as such sizes are found."""
    clauses = [one for one in needs.asked if all(question.dims <= sizes.keys() for question, _ in one.answers)]
    for number, clause in enumerate(clauses):
        of_others = (each.answers for each in clauses[:number])
        met = [next((one for one in answers if one[0].answer(sizes) is one[1]), answers[0]) for answers in of_others]
        for question, answer in () if clause.allows(sizes) else clause.answers:
            found = otherwise((*met, (question, not answer)), sizes, dict(needs.least))
            solved = next((one for one in itertools.islice(found, _MOST_SOLVED) if needs.allows(one)), None)
            if solved is not None or (solved := next(found, None)) is not None:
                sizes = solved
                break
    return sizes


# Sizes that are looked at for one that all needs allow.
_MOST_SOLVED = 20


def closed(merged: Mapping[str, str]) -> dict[str, str]:
    """Each merged key with the one that stands for the whole group; two may be merged with each other.

    >>> closed({"a": "b", "b": "c"}), closed({"a": "b", "b": "a"})
    ({'a': 'c', 'b': 'c'}, {'a': 'a', 'b': 'a'})
    """

    def root(key: str, *seen: str) -> str:
        if key in seen:
            return min(seen[seen.index(key) :])
        return root(merged[key], *seen, key) if key in merged else key

    return {key: root(key) for key in merged}
