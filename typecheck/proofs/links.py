"""Sizes that have to be equal though no annotation links them: sizes of records, and integers, with sizes of arguments.

`Attention(width)` takes arrays of that many `"features"`, and no annotation says so. A failing trace has asked whether
two such sizes are equal, or whether one is the sum or the product of others. Where a failure of an installed package
goes away with the other answer, the report states that answer, and the contract is undecided. In the user's own code
the contract fails.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.changing import Change, attempted, change_of, holds
from weft.typecheck.proofs.explaining import Explainer
from weft.typecheck.proofs.needs import Needs, array_of, ascending, axes, closed
from weft.typecheck.proofs.options import argument_of, items_of
from weft.typecheck.proofs.preconditions import equation_of
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.sizes.clauses import Clause
from weft.typecheck.sizes.deciding import Question, question_of
from weft.typecheck.sizes.polynomials import without_common

# The most links that are added one after the other, and the most pairs of batches that are tried.
_MOST_JOINED, _MOST_TRIED = 4, 160


def what_is_unsaid(explainer: Explainer, failures: Sequence[Trial], *, none_passed: bool) -> str | None:
    """Says which sizes have to be equal for all failing trials to hold, though no annotation says so; None if none do.

    Args:
        explainer: runs the trials.
        failures: failing trials that no need explains.
        none_passed: whether no trial holds. Then two dims of one array are never linked: a program that swaps them is
            right wherever they are equal. A program that holds with other options does not swap them.
    """
    shapes = explainer.target.shapes if none_passed else ()
    links = [_links_of(explainer, failed, shapes) for failed in failures]
    if all(links):
        words = " and ".join(dict.fromkeys(itertools.chain(*links)))
        return f"it holds when {words}, which no annotation says"
    items = sorted({place for failed in failures for place in _members_of_items(failed)})
    return f"{', '.join(items)}: another argument may decide which member of its union each is" if items else None


def _members_of_items(failed: Trial) -> list[str]:
    """The collections whose items are members of a union, in a trial that raised: the distributions of a mixture.

    The member that an item has to be may depend on an item of another argument.
    """
    return [] if failed.violations else [argument_of(one) for one in failed.options.values if one.endswith("] type")]


def _links_of(explainer: Explainer, failed: Trial, shapes: tuple[frozenset[str], ...]) -> tuple[str, ...]:
    """The equations of sizes that make a failing trial hold, and no annotation states, in words: `features = width`.

    If the result is the first value that breaks its annotation, its sizes are promised, and are linked to nothing.
    """
    failed = _with_dots_of_one_axis(explainer, failed)
    if (alone := _batch_shape_that_holds(explainer, failed)) is not None:
        return (alone,)
    target = explainer.target
    own = [violation for violation in failed.violations[:1] if violation.place[:2] == (target.file, target.line)]
    # A guard's refusal has a report of its own, and no size mends a wrong number of axes or a wrong dtype.
    if failed.guard or any(not violation.sizes for violation in own):
        return ()
    promised = frozenset(violation.sizes[0] for violation in own)
    reader = _Reader(frozenset(key for key, size in failed.assignment.sizes.items() if size in promised), shapes)
    # An integer may count a part of a result, such as rows that are left out and replaced: it is no more than all.
    few = tuple((key, part, 1) for key in failed.keys.configured for part in reader.promised if key != part)
    needs = Needs(order=few)
    trial = explainer.with_needs(failed, needs, ascending) if few else failed
    if trial.ok:
        return ()
    for _ in range(_MOST_JOINED):
        further = elsewhere = None
        for more in reader.equations(explainer.asked_last(trial)[0], trial, needs):
            try:
                linked = explainer.with_needs(trial, more, ascending)
            except Unbuildable:
                continue
            if linked.ok:
                return dataclasses.replace(more, order=()).words()
            if further is None and linked.progress > trial.progress:
                further = linked, more
            # Where one line has two products, the second disagrees as soon as the first agrees.
            if elsewhere is None and linked.progress == trial.progress and linked.spoken_of != trial.spoken_of:
                elsewhere = linked, more
        step = further or elsewhere
        if step is None:
            break
        trial, needs = step
    return _with_needs(explainer, trial, needs)


def _with_dots_of_one_axis(explainer: Explainer, failed: Trial) -> Trial:
    """The failing trial with one axis for each `...`, as most callers have, unless it then holds or gets less far."""
    several = {key: 1 for key, rank in failed.ranks.items() if rank.is_unnamed and key.endswith("]") and rank.axes != 1}
    trial = attempted(explainer, failed, change_of(ranks=several)) if several else None
    return failed if trial is None or trial.ok or trial.progress < failed.progress else trial


def _with_needs(explainer: Explainer, trial: Trial, links: Needs) -> tuple[str, ...]:
    """The links so far and the needs under which the trial holds with them, in words: `d = width`, `2 divides d`."""
    if not links.merged or links.asked:  # needs alone are no link, and clauses are not met by dealing sizes
        return ()
    needs = explainer.explain(trial, links, ascending)
    if needs is None:
        return ()
    more = (
        (f"sizes pass the {trial.guard}",) if trial.guard else dataclasses.replace(needs, merged=(), order=()).words()
    )
    return (*dataclasses.replace(links, order=()).words(), *more)


def _batch_shape_that_holds(explainer: Explainer, failed: Trial) -> str | None:
    """Which batch axes make a failing trial hold, as the end of "it holds when ...".

    A record whose fields are `"*batch n"` may be mapped over, and is then called without batch axes; and the shapes of
    two `*name`s or `...` may be equal wherever the program is used. No annotation can say either, so both are tried:
    `*batch is of 0 axes`, `*a and *b are of one shape`. A function's own `*name` is a promise, and keeps its axes.
    """
    named = [key for key, rank in failed.ranks.items() if rank.axes and not rank.is_unnamed]
    of_records = tuple(key for key in named if f"*{key.rpartition('.')[2]}" not in explainer.target.written)
    for keys in (*((key,) for key in of_records), of_records):
        if keys and holds(explainer, failed, change_of(ranks=dict.fromkeys(keys, 0))):
            verb = "is" if len(keys) == 1 else "are"
            return f"{' and '.join(map(array_of, keys))} {verb} of {axes(0)}"
    every = tuple(failed.ranks)
    groups = [*itertools.islice(itertools.combinations(every, 2), _MOST_TRIED), *([every] if len(every) > 2 else [])]
    alike = next((keys for keys in groups if holds(explainer, failed, _of_one_shape(keys))), None)
    return None if alike is None else f"{' and '.join(map(array_of, alike))} are of one shape"


def _of_one_shape(keys: Sequence[str]) -> Change:
    first, *rest = keys
    return change_of(ranks=dict.fromkeys(keys, 1), merged={f"{one}.0": f"{first}.0" for one in rest})


@dataclass(frozen=True)
class _Reader:
    """Reads equations off the questions of a failing trace.

    Attributes:
        promised: the keys of the sizes in a wrong result, which are linked to nothing.
        shapes: sets of names that annotations write for one array, no two of which may be linked.
    """

    promised: frozenset[str]
    shapes: tuple[frozenset[str], ...]

    def equations(self, asked: Mapping[Question, bool], trial: Trial, needs: Needs) -> Iterator[Needs]:
        """The needs with one more equation, the last question's first."""
        for question, answered in reversed([*asked.items()]):
            if question.is_order or answered or question.dims & self.promised:
                continue
            pair, number = equation_of(question)
            if pair is not None:
                order = list(trial.assignment.sizes)
                # The report says `features = width`, with the name of an annotation before an integer's.
                key, root = sorted(pair, key=lambda key: (key in trial.keys.configured, order.index(key)))
                merged = needs.plus(merged=(key, root))
                if not self._are_apart(trial, closed(dict(merged.merged))):
                    yield merged
            elif number is not None:
                if number[0] not in dict(needs.equal) and _is_counted(trial, number[1]):
                    yield needs.plus(equal=number)
            else:
                question = question_of(False, without_common(dict(question.terms)))
                yield dataclasses.replace(needs, asked=(*needs.asked, Clause(((question, True),))))

    def _are_apart(self, trial: Trial, merged: Mapping[str, str]) -> bool:
        """Whether a group of equal sizes has two integers of constructors, or two names that one array's shape has."""
        # Two parameters of one constructor, and two names of one shape, are two sizes to their author. If they could
        # be linked, a program that swaps them would be excused.
        numbers = trial.keys.numbers | trial.keys.configured
        for root in {*merged.values()}:
            group = {root, *(key for key, other in merged.items() if other == root)}
            named = {key.rpartition(".")[2] for key in group}
            if len(group & numbers) > 1 or any(len(named & names) > 1 for names in self.shapes):
                return True
        return False


def _is_counted(trial: Trial, number: int) -> bool:
    """Whether a number may count items: it is the number of items of a collection, or one more or less."""
    return any(abs(count - number) < 2 for count in items_of(trial.assignment, trial.options.counts).values())
