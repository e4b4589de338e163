"""What no annotation links: integers that a program or its record is given, and the sizes of what it is given.

`Attention(width)` takes `"features"` of that many, as does `fold(x, length)`, and nothing says so. A search joins the
two where it can be no mistake (`_joined_configurations` in `rules`). Where it can be one, as for the first axis of an
array, whoever wrote the program has to say which: the failure of an installed package is then undecided.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.changing import Change, beside, change_of, changed
from weft.typecheck.proofs.explaining import Explainer
from weft.typecheck.proofs.options import argument_of
from weft.typecheck.proofs.trial import Trial

# How many pairs are joined one after the other, and how many trials that may take in all.
_MOST_JOINED, _MOST_TRIED = 4, 160
# How many times an integer a size may have to be: the gates of a cell are three or four, side by side.
_TIMES = (2, 3, 4)

Pair = tuple[str, str]


@dataclass(frozen=True)
class _Link:
    """That a size of what is given is some times an integer."""

    given: str
    integer: str
    times: int = 1

    def change(self, failed: Trial) -> Change:
        """What it makes of the sizes of a trial."""
        if self.times == 1:
            return change_of(merged={self.given: self.integer})
        return change_of(sizes={self.given: self.times * failed.assignment.sizes[self.integer]})

    @property
    def words(self) -> Pair:
        return self.given, self.integer if self.times == 1 else f"{self.times} * {self.integer}"


def what_is_unsaid(explainer: Explainer, failures: Sequence[Trial]) -> str | None:
    """What no annotation says that failures may all be about, in words."""
    links = [_links_of(explainer, one) for one in failures]
    if all(links):
        words = " and ".join(f"{one} = {other}" for one, other in dict.fromkeys(itertools.chain(*links)))
        return f"it holds when {words}, which no annotation says"
    items = sorted({place for one in failures for place in _members_of_items(one)})
    return f"which members of their unions {', '.join(items)} are, what else is given may decide" if items else None


def _members_of_items(failed: Trial) -> list[str]:
    """The items of collections that are of a union, as in a mixture of distributions of several kinds, each of which
    goes with an item of another argument; a violation says what is wrong whichever they are."""
    return [] if failed.violations else [argument_of(one) for one in failed.values if one.endswith("] type")]


def _links_of(explainer: Explainer, failed: Trial) -> tuple[Pair, ...]:
    """Sizes of what is given, each with the integer that it has to be one with for a trial to hold.

    Empty, if no such pairs make it hold: an integer is joined with several sizes, but no two integers are. A
    wrong result that nothing wrong came before is promised whatever the integers are.
    """
    target = explainer.target
    if failed.guard or any(one.place[:2] == (target.file, target.line) for one in failed.violations[:1]):
        return ()
    scopes, integers = failed.scopes, sorted(failed.configured)
    given = [key for key in failed.assignment.sizes if key not in failed.numbers and "" in scopes.get(key, ())]
    joined, best, left = tuple[_Link, ...](), failed, _MOST_TRIED
    while len(joined) < _MOST_JOINED:
        steps = {_together(failed, step): step for step in _steps(given, integers, joined)[:left]}
        left -= len(steps)
        further = beside(explainer, failed, dict(_together(failed, joined)), map(dict, steps))
        if further is None or not (further[0].ok or further[0].progress > best.progress):
            return _made_of(explainer, failed, given, integers)
        best = further[0]
        joined = (*joined, *steps[tuple(further[1].items())])
        if best.ok:
            return tuple(one.words for one in joined)
    return ()


def _together(failed: Trial, links: Iterable[_Link]) -> tuple[tuple[tuple[str, str], int | str], ...]:
    return tuple(entry for one in links for entry in one.change(failed).items())


def _made_of(explainer: Explainer, failed: Trial, given: list[str], integers: list[str]) -> tuple[Pair, ...]:
    """What an integer has to be of the sizes of what is given: one less or more, as the degree of a polynomial is one
    less than its terms, or a sum, as of what a network gets joined together."""
    sizes = failed.assignment.sizes
    values = [(f"{one} {sign} 1", sizes[one] + by) for one in given for sign, by in (("-", -1), ("+", 1))]
    values += [(f"{one} + {other}", sizes[one] + sizes[other]) for one, other in itertools.combinations(given, 2)]
    for (words, value), integer in itertools.islice(itertools.product(values, integers), _MOST_TRIED):
        with contextlib.suppress(Unbuildable):
            if value and explainer.attempt(changed(failed, sizes={integer: value})).ok:
                return ((words, integer),)
    return ()


def _steps(given: list[str], integers: list[str], joined: tuple[_Link, ...]) -> list[tuple[_Link, ...]]:
    """One link more, and two, of sizes that are not linked yet: a product of two may have to be one of two others."""
    taken = {one.given for one in joined}
    free = [one for one in given if one not in taken]
    # Those of like names first (`trace` and `trace_size`): in a product, they may be exchanged.
    pairs = sorted(itertools.product(free, integers), key=lambda pair: pair[0].lower() not in pair[1].lower())
    links = [_Link(*pair) for pair in pairs]
    several = [(one, other) for one, other in itertools.combinations(links, 2) if one.given != other.given]
    times = [(dataclasses.replace(one, times=times),) for one in links for times in _TIMES]
    return [*((one,) for one in links), *several, *times]
