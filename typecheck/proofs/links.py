"""What no annotation links: integers that a record is made of, and the sizes of what it is given.

`Attention(width)` takes `"features"` of that many, and nothing says so. A search joins the two where it can be no
mistake (`_joined_configurations` in `rules`). Where it can be one, as for the first axis of an array, whoever wrote the
program has to say which: the failure of an installed package is then undecided.
"""

from __future__ import annotations

import contextlib
import itertools

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.explaining import Explainer
from weft.typecheck.proofs.needs import Needs, ascending
from weft.typecheck.proofs.trial import Trial

# How many pairs are joined one after the other, and how many trials that may take in all.
_MOST_JOINED, _MOST_TRIED = 4, 80

Pair = tuple[str, str]


def links_of(explainer: Explainer, failed: Trial) -> tuple[Pair, ...]:
    """Sizes of what is given, each with the integer of a record that it has to be one with for a trial to hold.

    Empty, if no such pairs make it hold: an integer is joined with several sizes, but no two integers are.
    """
    if failed.violations or failed.guard:
        return ()
    scopes = failed.scopes
    integers = [key for key in failed.configured if scopes.get(key, frozenset()) - {""}]
    given = [key for key in failed.assignment.sizes if key not in failed.numbers and "" in scopes.get(key, ())]
    joined, best, left = tuple[Pair, ...](), failed, itertools.repeat(None, _MOST_TRIED)
    while len(joined) < _MOST_JOINED:
        further, taken = best, joined
        for step, _ in zip(_steps(given, integers, joined), left, strict=False):
            with contextlib.suppress(Unbuildable):
                trial = explainer.with_needs(failed, Needs(merged=(*joined, *step)), ascending)
                if trial.ok:
                    return (*joined, *step)
                if trial.progress > further.progress:
                    further, taken = trial, (*joined, *step)
        if taken == joined:
            return ()
        best, joined = further, taken
    return ()


def _steps(given: list[str], integers: list[str], joined: tuple[Pair, ...]) -> list[tuple[Pair, ...]]:
    """One pair more, and two, of sizes that are not joined yet: a product of two may have to be one of two others."""
    free = [one for one in given if one not in dict(joined)]
    # Those of like names first (`trace` and `trace_size`): in a product, they may be exchanged.
    pairs = sorted(itertools.product(free, integers), key=lambda pair: pair[0].lower() not in pair[1].lower())
    several = [(one, other) for one, other in itertools.combinations(pairs, 2) if one[0] != other[0]]
    return [*((pair,) for pair in pairs), *several]
