"""Needs to try for a failing trial: read off the last questions of its trace, or about numbers of axes and of items.

A failing trial is traced once more over symbolic sizes. It failed because of the answer to one of the last questions:
`d % heads = 0`, `k <= n`, `n = m`. So each of these with its other answer is a condition under which the program may
hold, and no other condition has to be guessed. Which conditions count as preconditions depends on who refused: a guard
of the program may ask anything of sizes; JAX may ask for divisors and for sizes that are large enough. Two dims with
names of their own are never made equal because the code forces them to be.

Numbers of axes and of items are no sizes, and no question of a trace shows them. They are gone through one after the
other.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping

from weft.core.edge import names
from weft.typecheck.proofs.frames import is_of_jax
from weft.typecheck.proofs.needs import Needs, closed
from weft.typecheck.proofs.trial import Keys, Trial, at_guard, items_of, takes_apart
from weft.typecheck.proofs.violations import UNPAIRED, numbers_in, says
from weft.typecheck.sizes.clauses import Clause
from weft.typecheck.sizes.deciding import Question, question_of
from weft.typecheck.sizes.polynomials import (
    Atom,
    Monomial,
    Terms,
    atoms_of,
    constant,
    frozen,
    plus,
    product,
    without_common,
)

# The numbers of axes that are tried, the likeliest first.
_RANKS = (1, 2, 0, 3, 4)
# The most axes of a `...`.
_MOST_DOTS = 3


def of_no_size(trial: Trial, needs: Needs) -> Iterator[Needs]:
    """The needs with one more that is about numbers of axes or of items, whichever questions the trace asked."""
    # What takes an argument apart takes a fixed number of axes, or of items.
    for rule in (_ranks,) if takes_apart(trial) else (_one_dots, _one_shape, _items, _ranks):
        yield from rule(trial, needs)


def _one_shape(trial: Trial, needs: Needs) -> Iterator[Needs]:
    """The needs that all arrays without a shape in their annotations have one shape, or one number of axes."""
    keys = [key for key in trial.keys.unnamed if isinstance(trial.assignment.sizes.get(key), int)]
    names = dict.fromkeys(key.rpartition(".")[0] for key in keys)
    open_ranks = {key: rank.axes for key, rank in trial.ranks.items() if rank.is_unnamed}
    if needs.merged or not open_ranks:
        return
    together = tuple(
        (f"{name}.{axis}", f"{next(iter(names))}.{axis}")
        for name in list(names)[1:]
        for axis in range(max(open_ranks.values()))
        if {f"{name}.{axis}", f"{next(iter(names))}.{axis}"} <= set(keys)
    )
    if together:
        yield dataclasses.replace(needs, merged=together, alike=together)
    for rank in (1, 2, 0) if len(open_ranks) > 1 and not needs.ranks else ():
        if set(open_ranks.values()) != {rank}:
            yield dataclasses.replace(needs, ranks=tuple((key, rank) for key in open_ranks))


def _one_dots(trial: Trial, needs: Needs) -> Iterator[Needs]:
    """The needs that the `...` of two arrays, or of all arrays, stand for the same axes.

    A `...` binds nothing, but the author of `"batch ... d"`, written twice, may mean the same axes.
    """
    dots = [key for key, rank in trial.ranks.items() if rank.is_unnamed and key.endswith("]")]
    groups = [*itertools.combinations(dots, 2), *([tuple(dots)] if len(dots) > 2 else [])]
    for first, *rest in groups if not needs.merged else ():
        together = tuple((f"{rank}.{axis}", f"{first}.{axis}") for rank in rest for axis in range(_MOST_DOTS))
        yield dataclasses.replace(needs, merged=together, alike=together)


def _items(trial: Trial, needs: Needs) -> Iterator[Needs]:
    """The needs with two collections of the same length, or with a size that is the length of a collection.

    A grid has a size for each axis, and its points as many coordinates; an annotation `tuple[int, ...]` cannot say so.
    """
    sizes = {key: size for key, size in trial.assignment.sizes.items() if isinstance(size, int)}
    lengths = items_of(trial.assignment, trial.options.counts)
    free = [place for place in lengths if place not in dict(needs.items)]
    # The need was found where all collections have the same length, so the size may be another collection's.
    for key, place in needs.counts:
        rest = tuple(count for count in needs.counts if count[0] != key)
        others = (further for further in free if lengths[further] != lengths[place])
        yield from (dataclasses.replace(needs, counts=(*rest, (key, further))) for further in others)
    unlike = [(first, second) for first in free for second in free if lengths[first] != lengths[second]]
    # The collection whose length was varied differs from all others: one of these, or all, must follow it.
    unlike.sort(key=lambda pair: sum(length == pair[1] for _, length in unlike), reverse=True)
    yield from (needs.plus(items=pair) for pair in unlike)
    if len(unlike) > 2:
        leading = unlike[0][1]
        together = tuple(pair for pair in unlike if pair[1] == leading)
        yield dataclasses.replace(needs, items=(*needs.items, *together))
    of_items = bool(trial.guard) or says(str(trial.error), UNPAIRED)
    for key in trial.spoken_of or sizes:
        for place in free:
            if (
                (of_items or {sizes[key], lengths[place]} <= trial.mentioned)
                and key not in dict(needs.equal)
                and sizes[key] != lengths[place]
            ):
                yield needs.plus(equal=(key, lengths[place]), counts=(key, place))


def _ranks(trial: Trial, needs: Needs) -> Iterator[Needs]:
    """The needs that a `*name`, a `...` or an array without a shape has another number of axes.

    A name such as `*batch` promises any number of axes. Only a guard, an array without a shape, or a record that writes
    the name for other users may ask for a certain number.
    """
    for key, (rank, is_unnamed, of_record) in trial.ranks.items():
        if key in dict(needs.ranks) or not (is_unnamed or trial.guard or of_record):
            continue
        # A record's `*name` may be there for users who map over a batch of records, so a single record comes first.
        ranks = sorted(_RANKS) if of_record else _RANKS
        # The author of a `...` expects axes there, so no axes at all are tried only if a guard asks for them.
        needless = 0 if key.endswith("]") and not trial.guard else rank
        # JAX's error may name two numbers of axes that disagree.
        told = numbers_in(str(trial.error).partition(names.UNLIKE_RANKS)[2])[:2] if is_of_jax(trial.error) else []
        of_error = [rank + max(told) - min(told)] if told else []
        others = (count for count in dict.fromkeys((*ranks, *of_error)) if count not in (rank, needless))
        yield from (needs.plus(ranks=(key, other)) for other in others)


# The number of last questions that are read. Several, since comparing two shapes asks a question for each axis.
_LAST = 12
# A number with many divisors; `beyond.weakened` then finds the divisor that is needed.
_MANY_DIVIDE = 48


def preconditions(
    asked: Mapping[Question, bool], trial: Trial, needs: Needs, constants: frozenset[int]
) -> Iterator[Needs]:
    """The needs so far with one more condition, read off the last question first.

    Args:
        asked: the questions of the failing trace about keys, with their answers, in the order in which they were asked.
        trial: the failing trial.
        needs: the needs under which it failed.
        constants: sizes of arrays and numbers outside of the program, which it may require.
    """
    reader = _Reader(trial, needs, constants)
    last = list(asked.items())[: -_LAST - 1 : -1]
    for question, answered in last:
        # A condition that the trial meets already does not explain its failure.
        for further in reader.read(question, not answered):
            if further.merged != needs.merged or not further.allows(trial.assignment.sizes):
                yield further
    halved = {name for question, _ in last if any(atoms_of(dict(question.terms))) for name in question.dims}
    if len(halved) > 1 and not trial.breaks_promise:
        # Height and width that are halved twice each have to be even, and one alone changes nothing.
        even = ((key, _MANY_DIVIDE) for key in trial.assignment.sizes if key in halved and key not in dict(needs.equal))
        yield dataclasses.replace(needs, multiples=(*needs.multiples, *even))


@dataclasses.dataclass(frozen=True)
class _Reader:
    """Turns a question and the answer it should have into needs, if a precondition may ask for that answer."""

    trial: Trial
    needs: Needs
    constants: frozenset[int]

    def read(self, question: Question, wanted: bool) -> Iterator[Needs]:
        """The needs with the wanted answer to a question, in each form in which a report may state it."""
        terms = dict(question.terms)
        if question.is_order:
            if not self.trial.breaks_promise:
                ordered = at_least(question, wanted, self.needs)
                if ordered.asked == self.needs.asked:
                    yield ordered
                # JAX refuses sizes that are too small, never too large: of its orders an upper bound is none.
                elif self.trial.guard or any((terms[term] > 0) is not wanted for term in terms if term):
                    yield self._clause(question, wanted=wanted)
        elif wanted:
            yield from self._equal(question, terms)
        elif self.trial.guard:
            yield self._clause(question, wanted=wanted)
        elif not self.trial.breaks_promise:
            if (key := _single(terms)) is not None and terms.get((), 0) == -1:
                yield self.needs.plus(least=(key, 2))
            # JAX divides by the parts of a shape; a division by zero in the program is its own.
            for atom in dict.fromkeys(atoms_of(terms)) if is_of_jax(self.trial.error) else ():
                yield from self._divides(dict(atom.divisor), dict(atom.dividend))

    def _clause(self, question: Question, *, wanted: bool) -> Needs:
        clause = Clause(((question, wanted),), at_guard(self.trial))
        return dataclasses.replace(self.needs, asked=(*self.needs.asked, clause))

    # ---- equations -----------------------------------------------------------------------------------------------

    def _equal(self, question: Question, terms: Terms) -> Iterator[Needs]:
        """The needs under which a polynomial is 0: a number, two equal keys, or divisors."""
        terms, (pair, number) = without_common(terms), equation_of(question)
        atoms = [factor for monomial in terms for factor in monomial if isinstance(factor, Atom)]
        if number is not None:
            if self._may_be(*number):
                yield self.needs.plus(equal=number)
        elif pair is not None:
            order = list(self.trial.assignment.sizes)
            first, second = sorted(pair, key=lambda key: (not key.isidentifier(), order.index(key)))
            roots = closed(dict(self.needs.merged))
            pair = roots.get(second, second), roots.get(first, first)
            if self._may_be_equal(first, second) and pair[0] != pair[1]:
                yield self.needs.plus(merged=pair)
        elif atoms and not self.trial.breaks_promise:
            exactly = len(terms) == 1 and atoms[0].op == "%" and len(atoms) == 1
            if self.trial.guard and not exactly:
                yield self._clause(question, wanted=True)
            # Inner ones first: of `t*d % (n * (d // n))`, that `n` divides `d` is what was meant.
            inner_first = list(dict.fromkeys(reversed([*atoms_of(terms)])))
            for atom in inner_first:
                yield from self._divides(dict(atom.divisor), dict(atom.dividend))
            together = self
            for atom in inner_first if len(inner_first) > 1 else ():
                needs = next(together._divides(dict(atom.divisor), dict(atom.dividend)))
                if needs.asked == self.needs.asked:  # of sums nothing divides a factor
                    together = dataclasses.replace(together, needs=needs)
            if together is not self:
                yield together.needs  # as one patch size divides height and width
        elif self.trial.guard:
            yield self._clause(question, wanted=True)

    def _may_be(self, key: str, number: int) -> bool:
        """Whether a precondition may fix a size to a number.

        A guard may ask for one, a size of an array outside of the program may be one, or a program that takes a record
        may write the number of the record's dim.
        """
        trial, fixed = self.trial, dict(self.needs.equal)
        scopes = trial.keys.scopes_of(key)
        of_that_number = (named for named, size in fixed.items() if size == number)
        if number < 1 or key in fixed:
            return False
        if trial.guard or number in trial.keys.by_default:
            return True  # two defaults may be one number by chance
        if any(scopes & trial.keys.scopes_of(named) for named in of_that_number):
            return False
        if number in self.constants:
            return True
        of_records = bool(scopes) and not scopes & {"", "self."}
        tied = of_records or (key in trial.keys.configured and trial.error is not None)
        return tied and number > 1 and trial.keys.originals.get(key, number) == number and not trial.breaks_promise

    def _may_be_equal(self, first: str, second: str) -> bool:
        """Whether a precondition may make two keys equal: dims of two records, but not two names of one contract."""
        trial = self.trial
        # An integer that divides a size counts parts, as heads do, and is no size of data.
        parts = {factor for _, factor in self.needs.multiples} & (trial.keys.numbers | trial.keys.configured)
        if {first, second} & parts and not trial.guard:
            return False
        if trial.guard or may_merge(first, second, trial.keys):
            return True
        keys = trial.keys
        of_records = {key for key in (first, second) if key in keys.configured and keys.scopes_of(key) - {""}}
        data = {key for key in (first, second) if key not in keys.numbers and key not in keys.leading}
        of_arguments = {key for key in data if "" in keys.scopes_of(key)}
        return len(of_records) == len(of_arguments) == 1 and of_records != of_arguments

    # ---- divisors and orders -------------------------------------------------------------------------------------

    def _divides(self, divisor: Terms, dividend: Terms) -> Iterator[Needs]:
        """The needs with the condition that `divisor` divides `dividend`, both polynomials: `2*h divides d`.

        If both are products of dims, a factor of the dividend is enough: that `h` divides `d` also divides `t*d`.
        """
        quotient: Monomial = next(iter(dividend), ())
        if len(dividend) == 1 == len(quotient) and isinstance(quotient[0], Atom) and quotient[0].op == "//":
            # `d // h` was only computed because `h` divides `d`. So 2 divides `d // h` where 2*h divides `d`.
            yield from self._divides(product(divisor, dict(quotient[0].divisor)), dict(quotient[0].dividend))
            return
        if len(divisor) == len(dividend) == 1:
            # JAX negates the size of a `-1` in a reshape; and both sides may have the other axes as factors.
            (by, times), (of, factor) = next(iter(divisor.items())), next(iter(dividend.items()))
            times = abs(times) // math.gcd(times, factor)
            common = collections.Counter(by) & collections.Counter(of)
            by = tuple((collections.Counter(by) - common).elements())
            of = tuple((collections.Counter(of) - common).elements())
            if all(isinstance(factor, str) for factor in (*by, *of)) and len(by) + (times > 1) <= 2:
                # The last axes are tried first: they are those of features, which programs divide into parts.
                for key in reversed(list(dict.fromkeys(of))):
                    factors = (key, *([times] if times > 1 or not by else ()), *by)
                    yield self.needs.plus(**{"products" if len(factors) > 2 else "multiples": factors})
                return
        yield self._clause(
            question_of({(Atom("%", frozen(dividend), frozen(divisor)),): 1}, is_order=False), wanted=True
        )


def equation_of(question: Question) -> tuple[tuple[str, str] | None, tuple[str, int] | None]:
    """The two keys that a question compares, or the key and the number; neither, if it compares anything else.

    `a - b = 0` gives `("a", "b"), None`, and `2*a - 6 = 0` gives `None, ("a", 3)`.
    """
    terms = without_common(dict(question.terms))
    names = {monomial: number for monomial, number in terms.items() if monomial}
    keys = [monomial[0] for monomial in names if len(monomial) == 1 and isinstance(monomial[0], str)]
    number = -terms.get((), 0)
    if len(keys) != len(names):
        return None, None
    if len(keys) == 2 and not number and sorted(names.values()) == [-1, 1]:
        return (keys[0], keys[1]), None
    if len(keys) == 1 and number % names[(keys[0],)] == 0:
        return None, (keys[0], number // names[(keys[0],)])
    return None, None


def at_least(question: Question, answer: bool, needs: Needs) -> Needs:
    """The needs with an order of sizes: of two keys, or as the least size of one key; else as a clause."""
    # `terms < 0` is wanted, or `terms >= 0`; of integers both are `positive >= 0`.
    terms = dict(question.terms)
    positive = plus(constant(-1), terms, -1) if answer else terms
    number = positive.get((), 0)
    names = {monomial: factor for monomial, factor in positive.items() if monomial}
    if all(len(monomial) == 1 and isinstance(monomial[0], str) for monomial in names):
        big = [key for (key,), factor in names.items() if factor == 1]
        small = [(key, -factor) for (key,), factor in names.items() if factor < 0]
        if len(names) == 1 and not small:
            ((key,), factor) = next(iter(names.items()))
            return needs.plus(least=(key, -(number // factor)))
        if len(big) == len(small) == 1 and len(names) == 2 and number in (0, -1):
            pair = small[0][0], big[0]
            order = needs.plus(order=(*pair, small[0][1]))
            return dataclasses.replace(order, strict=order.strict | {pair}) if number else order
    return dataclasses.replace(needs, asked=(*needs.asked, Clause(((question, answer),))))


def _single(terms: Terms) -> str | None:
    """The key of a polynomial that is a key plus a number."""
    names = [monomial for monomial in terms if monomial]
    return names[0][0] if len(names) == 1 and len(names[0]) == 1 and terms[names[0]] == 1 else None


def may_merge(first: str, second: str, keys: Keys) -> bool:
    """Whether two keys may be the same size.

    They may not if one scope uses both names, or if they differ in the instance that is proved. Where a function shares
    names with the Modules that it is given, its names are meant to agree with theirs. A name that no Module has may
    still be another name of a Module's dim. The leading axis of an array is not: it is the batch, which no Module has a
    dim for.
    """
    if keys.scopes_of(first) & keys.scopes_of(second):
        return False
    if len({keys.originals[key] for key in (first, second) if key in keys.originals}) == 2:
        return False
    if keys.originals:
        return True
    outer = [key for key in (first, second) if "" in keys.scopes_of(key)]
    return not (keys.are_shared and any(key in keys.leading for key in outer))
