"""What no annotation links: sizes that a record has by itself, and integers, with the sizes of what a program is given.

`Attention(width)` takes `"features"` of that many, as does `fold(x, length)`, and nothing says so. A search joins the
two where it can be no mistake (`_joined_configurations` in `rules`). Where it can be one, as for the first axis of an
array, whoever wrote the program has to say which: the failure of an installed package is then undecided.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.changing import Change, change_of, changed
from weft.typecheck.proofs.explaining import Explainer
from weft.typecheck.proofs.needs import Needs, array_of, ascending, axes, length_of
from weft.typecheck.proofs.options import argument_of, items_of
from weft.typecheck.proofs.trial import Target, Trial

# How many pairs are joined one after the other, and how many trials that may take in all.
_MOST_JOINED, _MOST_TRIED = 4, 160
# How many times an integer a size may have to be: the gates of a cell are three or four, side by side.
_TIMES = (2, 3, 4)


@dataclass(frozen=True)
class _Link:
    """That a size is one with another, or is `value` of the sizes; `words` are the other key, or what it is."""

    size: str
    words: str
    value: Callable[[Mapping[str, Any]], int] | None = None

    def change(self, failed: Trial) -> Change:
        """What it makes of the sizes of a trial."""
        if self.value is None:
            return change_of(merged={self.size: self.words})
        return change_of(sizes={self.size: self.value(failed.assignment.sizes)})

    def __str__(self) -> str:
        return f"{self.size} = {self.words}"


def what_is_unsaid(explainer: Explainer, failures: Sequence[Trial]) -> str | None:
    """What no annotation says that failures may all be about, in words."""
    links = [_links_of(explainer, one) for one in failures]
    if all(links):
        words = " and ".join(dict.fromkeys(itertools.chain(*links)))
        return f"it holds when {words}, which no annotation says"
    items = sorted({place for one in failures for place in _members_of_items(one)})
    return f"which members of their unions {', '.join(items)} are, what else is given may decide" if items else None


def _members_of_items(failed: Trial) -> list[str]:
    """The items of collections that are of a union, as in a mixture of distributions of several kinds, each of which
    goes with an item of another argument; a violation says what is wrong whichever they are."""
    return [] if failed.violations else [argument_of(one) for one in failed.values if one.endswith("] type")]


def _links_of(explainer: Explainer, failed: Trial) -> tuple[str, ...]:
    """Sizes, each with what it has to be for a trial to hold, which no annotation says.

    Empty, if no such pairs make it hold: an integer is joined with several sizes, but no two integers are. A size of
    a wrong result that nothing wrong came before is promised, whatever else is linked.
    """
    named = tuple(_by_name(failed))
    if named and _holds(explainer, failed, dict(_together(failed, named))):
        return tuple(map(str, named))
    if (alone := _of_batches(explainer, failed)) is not None:
        return (alone,)
    target = explainer.target
    own = [one for one in failed.violations[:1] if one.place[:2] == (target.file, target.line)]
    if failed.guard or any(not one.sizes for one in own):
        return ()
    sizes = _Sizes.of(target, failed, frozenset(one.sizes[0] for one in own))
    if own:
        # Of rows that are left out, say, there are as many others that are put in their place, and fewer than all.
        few = {key: number for number, key in enumerate(sizes.integers, start=2)}
        fewer = _attempted(explainer, failed, change_of(sizes=few))
        failed = failed if fewer is None or fewer.ok else fewer
    joined, seen, left = tuple[_Link, ...](), [failed], _MOST_TRIED
    while len(joined) < _MOST_JOINED:
        # Two more at once only where none alone gets further: there are many pairs.
        for tier in _steps(sizes, joined):
            found = _next(explainer, seen, [(*joined, *step) for step in tier[:left]])
            left -= len(tier)
            if found is not None:
                break
        else:
            return _behind_a_guard(explainer, seen[-1], joined) or _made_of(explainer, failed, sizes)
        trial, joined = found
        if trial.ok:
            return tuple(map(str, joined))
        seen.append(trial)
    return ()


def _behind_a_guard(explainer: Explainer, trial: Trial, joined: tuple[_Link, ...]) -> tuple[str, ...]:
    """Links that led to a guard, which other sizes pass: those that a block divides, say; which, was not confirmed."""
    merged = tuple((one.size, one.words) for one in joined if one.value is None)
    if not trial.guard or not joined or len(merged) < len(joined):
        return ()
    if explainer.explain(trial, Needs(merged=merged), ascending) is None:
        return ()
    return (*map(str, joined), f"sizes pass the {trial.guard}")


def _next(
    explainer: Explainer, seen: Sequence[Trial], tried: Iterable[tuple[_Link, ...]]
) -> tuple[Trial, tuple[_Link, ...]] | None:
    """The first trial that holds with some links; else what got furthest, or what says something else in one line."""
    furthest, sideways = None, None
    for links in tried:
        trial = _attempted(explainer, seen[0], dict(_together(seen[0], links)))
        if trial is None:
            continue
        if trial.ok:
            return trial, links
        if trial.progress > (seen[-1] if furthest is None else furthest[0]).progress:
            furthest = trial, links
        is_new = all(trial.complaint != one.complaint for one in seen)
        if sideways is None and trial.progress == seen[-1].progress and is_new:
            sideways = trial, links
    return furthest or sideways


def _of_batches(explainer: Explainer, failed: Trial) -> str | None:
    """What several `*name`s and `...` have to be for a trial to hold: of no axes, where only fields write them, since a
    record may be a batch of itself for those who map over it; or of one shape, where they are of several arrays."""
    held = [key for key, (rank, dots) in failed.ranks.items() if rank and not dots and _is_held(explainer, key)]
    for keys in (*((one,) for one in held), tuple(held)):
        if keys and _holds(explainer, failed, change_of(ranks=dict.fromkeys(keys, 0))):
            verb = "is" if len(keys) == 1 else "are"
            return f"{' and '.join(map(array_of, keys))} {verb} of {axes(0)}"
    every = tuple(failed.ranks)
    groups = [*itertools.islice(itertools.combinations(every, 2), _MOST_TRIED), *([every] if len(every) > 2 else [])]
    alike = next((one for one in groups if _holds(explainer, failed, _of_one_shape(one))), None)
    return None if alike is None else f"{' and '.join(map(array_of, alike))} are of one shape"


def _is_held(explainer: Explainer, key: str) -> bool:
    return f"*{key.rpartition('.')[2]}" not in explainer.target.written


def _of_one_shape(keys: Sequence[str]) -> Change:
    first, *rest = keys
    return change_of(ranks=dict.fromkeys(keys, 1), merged={f"{one}.0": f"{first}.0" for one in rest})


# What a name says by one of these between two others, or before a number: `T_minus_1`, `Tp1`, `width_x4`.
_SIGNS: Mapping[str, tuple[str, Callable[[int, int], int]]] = {
    **dict.fromkeys(("minus", "m"), ("-", operator.sub)),
    **dict.fromkeys(("plus", "p"), ("+", operator.add)),
    **dict.fromkeys(("times", "x"), ("*", operator.mul)),
}
_SIGN = re.compile(f"_?({'|'.join(_SIGNS)})_?")


def _by_name(failed: Trial) -> Iterator[_Link]:
    """The sizes whose names are expressions in letters, as `T_minus_1` beside `T`: an annotation takes `"T-1"`."""
    known = failed.assignment.sizes
    for key in known:
        for found in _SIGN.finditer(key):
            one, other = key[: found.start()], key[found.end() :]
            sign, function = _SIGNS[found[1]]
            if one in known and (other.isdigit() or (other in known and len(found[1]) > 1)):
                of = functools.partial(_applied, function, one, int(other) if other.isdigit() else other)
                if of(known) > 0:
                    yield _Link(key, f"{one} {sign} {other}", of)


def _applied(function: Callable[[int, int], int], one: str, other: str | int, sizes: Mapping[str, Any]) -> int:
    return function(sizes[one], sizes[other] if isinstance(other, str) else other)


def _attempted(explainer: Explainer, failed: Trial, change: Change) -> Trial | None:
    with contextlib.suppress(Unbuildable):
        return explainer.attempt(changed(failed, change))
    return None


def _holds(explainer: Explainer, failed: Trial, change: Change) -> bool:
    trial = _attempted(explainer, failed, change)
    return trial is not None and trial.ok


_UNNAMED = re.compile(r"\w+\[\d+\]")


@dataclass(frozen=True)
class _Sizes:
    """What may be linked.

    Attributes:
        given: the sizes of what is given, those that records among it share with the signature included.
        held: those that only records among the arguments name, which no annotation of a function can link to its own.
        unnamed: those that a shape writes `_` for.
        integers: the keys that are integers only.
        lengths: how many items collections among the arguments have, by what code asks for them with.
    """

    given: list[str]
    held: list[str]
    unnamed: list[str]
    integers: list[str]
    lengths: Mapping[str, int]

    @classmethod
    def of(cls, target: Target, failed: Trial, but: frozenset[int]) -> _Sizes:
        """Those of a trial, but for keys of some sizes."""
        free = [key for key, size in failed.assignment.sizes.items() if size not in but]
        known = [key for key in free if key not in failed.numbers]
        last = {key: key.rpartition(".")[2] for key in known}
        held = [key for key in known if last[key].isidentifier() and last[key] not in target.written]
        given = [key for key in known if "" in failed.scopes.get(key, ())]
        unnamed = [key for key in given if _UNNAMED.fullmatch(key)]
        items = items_of(failed.assignment, failed.options).items()
        lengths = {length_of(place): number for place, number in items}
        return cls(given, held, unnamed, sorted(failed.configured.intersection(free)), lengths)


def _together(failed: Trial, links: Iterable[_Link]) -> tuple[tuple[tuple[str, str], int | str], ...]:
    return tuple(entry for one in links for entry in one.change(failed).items())


def _made_of(explainer: Explainer, failed: Trial, sizes: _Sizes) -> tuple[str, ...]:
    """What an integer has to be of the sizes of what is given: one less or more, as the degree of a polynomial is one
    less than its terms, or a sum, as of what a network gets joined together."""
    known, given = failed.assignment.sizes, sizes.given
    values = [(f"{one} {sign} 1", known[one] + by) for one in given for sign, by in (("-", -1), ("+", 1))]
    values += [(f"{one} + {other}", known[one] + known[other]) for one, other in itertools.combinations(given, 2)]
    for (words, value), integer in itertools.islice(itertools.product(values, sizes.integers), _MOST_TRIED):
        if value and _holds(explainer, failed, change_of(sizes={integer: value})):
            return (f"{words} = {integer}",)
    return ()


def _steps(sizes: _Sizes, joined: tuple[_Link, ...]) -> Iterator[list[tuple[_Link, ...]]]:
    """One link more, and two, of sizes that are not linked yet: a product of two may have to be one of two others."""
    taken = {one.size for one in joined}
    free = [one for one in dict.fromkeys((*sizes.given, *sizes.held)) if one not in taken]
    # Those of like names first (`trace` and `trace_size`): in a product, they may be exchanged.
    pairs = sorted(itertools.product(free, sizes.integers), key=lambda pair: pair[0].lower() not in pair[1].lower())
    loose = (*sizes.held, *sizes.unnamed)
    pairs += [(one, other) for one in free if one not in loose for other in loose]
    pairs += itertools.combinations((one for one in sizes.unnamed if one in free), 2)
    links = [_Link(*pair) for pair in pairs]
    products = [
        _Link(one, f"{first} * {second}", functools.partial(_applied, operator.mul, first, second))
        for first, second in itertools.combinations(sizes.integers, 2)
        for one in free
    ]
    counts = [
        _Link(one, f"{length}{words}", lambda _, size=number + by: size)
        for length, number in sizes.lengths.items()
        for words, by in (("", 0), (" + 1", 1), (" - 1", -1))
        for one in free
        if number + by > 0
    ]
    several = [(one, other) for one, other in itertools.combinations(links, 2) if one.size != other.size]
    times = [
        _Link(one, f"{number} * {integer}", functools.partial(_applied, operator.mul, integer, number))
        for one, integer in itertools.product(free, sizes.integers)
        for number in _TIMES
    ]
    yield [(one,) for one in (*links, *products, *counts)]
    yield [*several, *((one,) for one in times)]
