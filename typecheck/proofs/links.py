"""Sizes that no annotation links: those of a record, and integers, with the sizes of what a program is given.

`Attention(width)` takes `"features"` of that many, as does `fold(x, length)`, and nothing says so. A failing trace has
asked whether two such sizes are equal, or one is the sum or the product of others. Where the failure of an installed
package goes away with the other answer, that answer is told, and the contract is undecided. In the user's own code it
fails.
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
from weft.typecheck.proofs.preconditions import equation_of, without_common
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.sizes.clauses import Clause
from weft.typecheck.sizes.deciding import Question, question_of

# How many links are made one after the other, and how many groups of batches are tried.
_MOST_JOINED, _MOST_TRIED = 4, 160


def what_is_unsaid(explainer: Explainer, failures: Sequence[Trial], *, none_passed: bool) -> str | None:
    """What no annotation says that failures may all be about, in words.

    Args:
        explainer: runs the trials.
        failures: what nothing explains.
        none_passed: whether it fails whatever is tried. Then two dims of one array are two: what is wrong where they
            are swapped is right where they are one. Where it holds by itself, as without a cache, they are not swapped.
    """
    beside = explainer.target.beside if none_passed else ()
    links = [_links_of(explainer, one, beside) for one in failures]
    if all(links):
        words = " and ".join(dict.fromkeys(itertools.chain(*links)))
        return f"it holds when {words}, which no annotation says"
    items = sorted({place for one in failures for place in _members_of_items(one)})
    return f"which members of their unions {', '.join(items)} are, what else is given may decide" if items else None


def _members_of_items(failed: Trial) -> list[str]:
    """The items of collections that are of a union, as in a mixture of distributions of several kinds, each of which
    goes with an item of another argument; a violation says what is wrong whichever they are."""
    return [] if failed.violations else [argument_of(one) for one in failed.values if one.endswith("] type")]


def _links_of(explainer: Explainer, failed: Trial, beside: tuple[frozenset[str], ...]) -> tuple[str, ...]:
    """Equations of sizes that make a failing trial hold and that no annotation says, in words, if there are any.

    A size of a wrong result that nothing wrong came before is promised, whatever else is linked.
    """
    failed = _with_dots_of_one_axis(explainer, failed)
    if (alone := _of_batches(explainer, failed)) is not None:
        return (alone,)
    target = explainer.target
    own = [one for one in failed.violations[:1] if one.place[:2] == (target.file, target.line)]
    # What a guard refuses is told as its own, and a wrong number of axes, or a wrong dtype, is mended by no size.
    if failed.guard or any(not one.sizes for one in own):
        return ()
    promised = frozenset(one.sizes[0] for one in own)
    reader = _Reader(frozenset(key for key, size in failed.assignment.sizes.items() if size in promised), beside)
    # Of rows that are left out, say, there are as many others that are put in their place, and fewer than all.
    few = tuple((key, one, 1) for key in failed.configured for one in reader.promised if key != one)
    needs = Needs(order=few)
    trial = explainer.with_needs(failed, needs, ascending) if few else failed
    if trial.ok:
        return ()
    for _ in range(_MOST_JOINED):
        further = sideways = None
        for more in reader.equations(explainer.asked_last(trial)[0], trial, needs):
            try:
                found = explainer.with_needs(trial, more, ascending)
            except Unbuildable:
                continue
            if found.ok:
                return dataclasses.replace(more, order=()).words()
            if further is None and found.progress > trial.progress:
                further = found, more
            # Of two products in one line, the second disagrees once the first does not.
            if sideways is None and found.progress == trial.progress and found.spoken_of != trial.spoken_of:
                sideways = found, more
        step = further or sideways
        if step is None:
            break
        trial, needs = step
    return _with_needs(explainer, trial, needs)


def _with_dots_of_one_axis(explainer: Explainer, failed: Trial) -> Trial:
    """The failure with each `...` of one axis, which is what most of them stand for, as far as that gets."""
    several = {key: 1 for key, (rank, is_open) in failed.ranks.items() if is_open and key.endswith("]") and rank != 1}
    trial = attempted(explainer, failed, change_of(ranks=several)) if several else None
    return failed if trial is None or trial.ok or trial.progress < failed.progress else trial


def _with_needs(explainer: Explainer, trial: Trial, links: Needs) -> tuple[str, ...]:
    """Links that led to where other sizes hold, those that a block divides, say; which, was not confirmed."""
    if not links.merged or links.asked:
        return ()
    needs = explainer.explain(trial, links, ascending)
    if needs is None:
        return ()
    more = (
        (f"sizes pass the {trial.guard}",) if trial.guard else dataclasses.replace(needs, merged=(), order=()).words()
    )
    return (*dataclasses.replace(links, order=()).words(), *more)


def _of_batches(explainer: Explainer, failed: Trial) -> str | None:
    """What several `*name`s and `...` have to be for a trial to hold: of no axes, where only fields write them, since a
    record may be a batch of itself for those who map over it; or of one shape, where they are of several arrays."""
    held = [key for key, (rank, dots) in failed.ranks.items() if rank and not dots and _is_held(explainer, key)]
    for keys in (*((one,) for one in held), tuple(held)):
        if keys and holds(explainer, failed, change_of(ranks=dict.fromkeys(keys, 0))):
            verb = "is" if len(keys) == 1 else "are"
            return f"{' and '.join(map(array_of, keys))} {verb} of {axes(0)}"
    every = tuple(failed.ranks)
    groups = [*itertools.islice(itertools.combinations(every, 2), _MOST_TRIED), *([every] if len(every) > 2 else [])]
    alike = next((one for one in groups if holds(explainer, failed, _of_one_shape(one))), None)
    return None if alike is None else f"{' and '.join(map(array_of, alike))} are of one shape"


def _is_held(explainer: Explainer, key: str) -> bool:
    return f"*{key.rpartition('.')[2]}" not in explainer.target.written


def _of_one_shape(keys: Sequence[str]) -> Change:
    first, *rest = keys
    return change_of(ranks=dict.fromkeys(keys, 1), merged={f"{one}.0": f"{first}.0" for one in rest})


@dataclass(frozen=True)
class _Reader:
    """Reads equations off the questions of a failing trace.

    Attributes:
        promised: the keys of the sizes of a wrong result.
        beside: names that are not to be one, as they are written beside each other, for one array.
    """

    promised: frozenset[str]
    beside: tuple[frozenset[str], ...]

    def equations(self, asked: Mapping[Question, bool], trial: Trial, needs: Needs) -> Iterator[Needs]:
        """The needs with one equation more, the one that was asked last first."""
        for question, answered in reversed([*asked.items()]):
            if question.is_order or answered or question.dims & self.promised:
                continue
            pair, number = equation_of(question)
            if pair is not None:
                order = list(trial.assignment.sizes)
                # What is said comes first: an integer, or a name that is not written, is that of the other.
                one, other = sorted(pair, key=lambda key: (key in trial.configured, order.index(key)))
                merged = needs.plus(merged=(one, other))
                if not self._are_apart(trial, closed(dict(merged.merged))):
                    yield merged
            elif number is not None:
                if number[0] not in dict(needs.equal) and _is_counted(trial, number[1]):
                    yield needs.plus(equal=number)
            else:
                question = question_of(False, without_common(dict(question.terms)))
                yield dataclasses.replace(needs, asked=(*needs.asked, Clause(((question, True),))))

    def _are_apart(self, trial: Trial, merged: Mapping[str, str]) -> bool:
        """Whether sizes would be one that are two to whoever wrote them: two integers, as a constructor takes, or two
        dims that are written beside each other."""
        numbers = trial.numbers | trial.configured
        for root in {*merged.values()}:
            group = {root, *(key for key, other in merged.items() if other == root)}
            named = {key.rpartition(".")[2] for key in group}
            if len(group & numbers) > 1 or any(len(named & names) > 1 for names in self.beside):
                return True
        return False


def _is_counted(trial: Trial, number: int) -> bool:
    """Whether a size may be a number: that of the items of a collection, or one more or less."""
    return any(abs(count - number) < 2 for count in items_of(trial.assignment, trial.options).values())
