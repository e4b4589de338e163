"""What no annotation links: sizes that a record has by itself, and integers, with the sizes of what a program is given.

`Attention(width)` takes `"features"` of that many, as does `fold(x, length)`, and nothing says so. A search joins the
two where it can be no mistake (`_joined_configurations` in `rules`). Where it can be one, as for the first axis of an
array, whoever wrote the program has to say which: the failure of an installed package is then undecided.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.typecheck.proofs.changing import Change, attempted, change_of, holds
from weft.typecheck.proofs.explaining import Explainer
from weft.typecheck.proofs.needs import Needs, array_of, ascending, axes, length_of, spelled
from weft.typecheck.proofs.options import argument_of, items_of
from weft.typecheck.proofs.trial import Target, Trial

# How many links are made one after the other, and how many of one kind are tried for each: a program of ten sizes and
# five integers has over a thousand pairs of links, and its author looks at the first that is missing.
_MOST_JOINED, _MOST_TRIED = 4, 160
# How many times an integer a size may have to be: the gates of a cell are three or four, side by side.
_TIMES = (2, 3, 4)


@dataclass(frozen=True)
class _Link:
    """That a size is one with another, or is `value` of the sizes; `words` are the other key, or what it is."""

    size: str
    words: str
    value: Callable[[Mapping[str, Any]], int] | None = None

    def size_in(self, sizes: Mapping[str, Any]) -> int:
        """What the size has to be beside others."""
        return sizes[self.words] if self.value is None else self.value(sizes)

    def change(self, failed: Trial) -> Change:
        """What it makes of the sizes of a trial."""
        if self.value is None:
            return change_of(merged={self.size: self.words})
        return change_of(sizes={self.size: self.size_in(failed.assignment.sizes)})

    def __str__(self) -> str:
        return spelled(f"{self.size} = {self.words}")


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
    """Sizes, each with what it has to be for a trial to hold, which no annotation says.

    Empty, if no such pairs make it hold: an integer is joined with several sizes, but no two integers are. A size of
    a wrong result that nothing wrong came before is promised, whatever else is linked.
    """
    failed = _with_dots_of_one_axis(explainer, failed)
    named = tuple(_by_name(failed))
    by_name = attempted(explainer, failed, dict(_together(failed, named))) if named else None
    if by_name is not None and by_name.ok:
        return tuple(map(str, named))
    if (alone := _of_batches(explainer, failed)) is not None:
        return (alone,)
    target = explainer.target
    own = [one for one in failed.violations[:1] if one.place[:2] == (target.file, target.line)]
    # What a guard refuses is told as its own, and a wrong number of axes, or a wrong dtype, is mended by no size.
    if failed.guard or any(not one.sizes for one in own):
        return ()
    sizes = _Sizes.of(target, failed, frozenset(one.sizes[0] for one in own), beside)
    if own:
        # Of rows that are left out, say, there are as many others that are put in their place, and fewer than all.
        few = {key: number for number, key in enumerate(sizes.integers, start=2)}
        fewer = attempted(explainer, failed, change_of(sizes=few))
        failed = failed if fewer is None or fewer.ok else fewer
    joined, seen = tuple[_Link, ...](), [failed]
    if by_name is not None and by_name.progress > failed.progress:
        # What a name says is taken as said: other links are looked for beside it, and not in its place.
        joined, seen = named, [failed, by_name]
    for _ in range(_MOST_JOINED):
        kinds = _steps(sizes, joined, seen[-1].spoken_of)
        together = ([(*joined, *step) for step in kind] for kind in kinds)
        steps = ([one for one in kind if not sizes.are_apart(one)][:_MOST_TRIED] for kind in together)
        found = next(filter(None, (_next(explainer, seen, one) for one in steps)), None)
        if found is None:
            return _with_needs(explainer, seen[-1], joined)
        trial, joined = found
        if trial.ok:
            return tuple(map(str, joined))
        seen.append(trial)
    return ()


def _with_dots_of_one_axis(explainer: Explainer, failed: Trial) -> Trial:
    """The failure with each `...` of one axis, which is what most of them stand for, as far as that gets."""
    several = {key: 1 for key, (rank, is_open) in failed.ranks.items() if is_open and key.endswith("]") and rank != 1}
    trial = attempted(explainer, failed, change_of(ranks=several)) if several else None
    return failed if trial is None or trial.ok or trial.progress < failed.progress else trial


def _with_needs(explainer: Explainer, trial: Trial, joined: tuple[_Link, ...]) -> tuple[str, ...]:
    """Links that led to where other sizes hold, those that a block divides, say; which, was not confirmed."""
    merged = tuple((one.size, one.words) for one in joined if one.value is None)
    if not joined or len(merged) < len(joined):
        return ()
    needs = explainer.explain(trial, Needs(merged=merged), ascending)
    if needs is None:
        return ()
    more = (f"sizes pass the {trial.guard}",) if trial.guard else dataclasses.replace(needs, merged=()).words()
    return (*map(str, joined), *more)


def _next(
    explainer: Explainer, seen: Sequence[Trial], tried: Iterable[tuple[_Link, ...]]
) -> tuple[Trial, tuple[_Link, ...]] | None:
    """The first trial that holds with some links; else what got furthest, or what says something else in one line."""
    furthest, sideways = None, None
    for links in tried:
        trial = attempted(explainer, seen[0], dict(_together(seen[0], links)))
        if trial is None:
            continue
        if trial.ok:
            return trial, links
        if trial.progress > (seen[-1] if furthest is None else furthest[0]).progress:
            furthest = trial, links
        # What merely moves the error leads on only where it is none that was met before, or links would go in circles.
        is_new = all(trial.complaint != one.complaint for one in seen)
        if sideways is None and trial.progress == seen[-1].progress and is_new:
            sideways = trial, links
    return furthest or sideways


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


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {"-": operator.sub, "+": operator.add, "*": operator.mul}
# What a name says by one of these between two others, or before a number: `T_minus_1`, `Tp1`, `width_x4`. One letter
# counts before a number only: `tempo` is not `te + o`.
_SIGNS = {"minus": "-", "m": "-", "plus": "+", "p": "+", "times": "*", "x": "*"}
_SIGN = re.compile(f"_?({'|'.join(_SIGNS)})_?")


_NUMBERS = {word: number for number, word in enumerate(("one", "two", "three", "four", "five", "six"), start=1)}


def _by_name(failed: Trial) -> Iterator[_Link]:
    """The sizes whose names are numbers, or expressions in letters, as `T_minus_1` beside `T`: an annotation takes
    `"2"` and `"T-1"`."""
    known = failed.assignment.sizes
    for key in known:
        if key in _NUMBERS:
            yield _Link(key, str(_NUMBERS[key]), lambda _, number=_NUMBERS[key]: number)
        for found in _SIGN.finditer(key):
            one, other = key[: found.start()], key[found.end() :]
            if one in known and (other.isdigit() or (other in known and len(found[1]) > 1)):
                link = _computed(key, _SIGNS[found[1]], one, int(other) if other.isdigit() else other)
                if link.size_in(known) > 0:
                    yield link


def _computed(key: str, sign: str, one: str, other: str | int) -> _Link:
    """That a size is what an operation makes of another one and a third, or a number."""

    def value(sizes: Mapping[str, Any]) -> int:
        return _OPERATIONS[sign](sizes[one], sizes[other] if isinstance(other, str) else other)

    words = f"{other} * {one}" if sign == "*" and isinstance(other, int) else f"{one} {sign} {other}"
    return _Link(key, words, value)


_UNNAMED = re.compile(r"\w+\[\d+\]")


@dataclass(frozen=True)
class _Sizes:
    """What may be linked.

    Attributes:
        given: the sizes of what is given, those that records among it share with the signature included.
        held: those that only records among the arguments name, which no annotation of a function can link to its own.
        unnamed: those that a shape writes `_` or `...` for.
        integers: the keys that are integers only.
        numbers: these, and those that are given as an integer, too.
        lengths: how many items collections among the arguments have, by what code asks for them with.
        beside: names that are not to be one, as they are written beside each other, for one array.
    """

    given: list[str]
    held: list[str]
    unnamed: list[str]
    integers: list[str]
    numbers: frozenset[str]
    lengths: Mapping[str, int]
    beside: tuple[frozenset[str], ...]

    @classmethod
    def of(cls, target: Target, failed: Trial, but: frozenset[int], beside: tuple[frozenset[str], ...]) -> _Sizes:
        """Those of a trial, but for keys of some sizes."""
        free = [key for key, size in failed.assignment.sizes.items() if size not in but]
        known = [key for key in free if key not in failed.configured]
        last = {key: key.rpartition(".")[2] for key in known}
        held = [key for key in known if last[key].isidentifier() and last[key] not in target.written]
        given = [key for key in known if "" in failed.scopes.get(key, ())]
        dots = {f"{key}.{axis}" for key, (rank, is_open) in failed.ranks.items() if is_open for axis in range(rank)}
        unnamed = [key for key in known if key in dots or (key in given and _UNNAMED.fullmatch(key))]
        items = items_of(failed.assignment, failed.options).items()
        lengths = {length_of(place): number for place, number in items}
        integers = sorted(failed.configured.intersection(free))
        return cls(given, held, unnamed, integers, failed.numbers | failed.configured, lengths, beside)

    def are_apart(self, links: Iterable[_Link]) -> bool:
        """Whether links make two sizes one that are two to whoever wrote them: two integers, as a constructor takes, or
        two dims that are written beside each other."""
        groups = collections.defaultdict[str, set[str]](set)
        for one in links:
            if one.value is None:
                groups[one.words] |= {one.size, one.words}
        if any(len(group & self.numbers) > 1 for group in groups.values()):
            return True
        named = [{key.rpartition(".")[2] for key in group} for group in groups.values()]
        return any(len(group & names) > 1 for group in named for names in self.beside)


def _together(failed: Trial, links: Iterable[_Link]) -> tuple[tuple[tuple[str, str], int | str], ...]:
    return tuple(entry for one in links for entry in one.change(failed).items())


def _are_alike(one: str, other: str) -> bool:
    """Whether two names say that they are of one size: `num_heads` and `num_q_heads`, `kv_len` and `kvlen`."""
    first, second = one.lower().split("_"), other.lower().split("_")
    return "".join(first) == "".join(second) or {*first} < {*second} or {*second} < {*first}


def _steps(sizes: _Sizes, joined: tuple[_Link, ...], about: Collection[str]) -> Iterator[list[tuple[_Link, ...]]]:
    """What may be linked next to what is linked already, one kind of step after the other, the likeliest first.

    Args:
        sizes: what there is.
        joined: what is linked already.
        about: the keys that the failure speaks of.
    """
    taken = {one.size for one in joined}
    free = [one for one in dict.fromkeys((*sizes.given, *sizes.held)) if one not in taken]
    # Those of like names first (`trace` and `trace_size`): in a product, they may be exchanged.
    pairs = sorted(itertools.product(free, sizes.integers), key=lambda pair: pair[0].lower() not in pair[1].lower())
    loose = (*sizes.held, *sizes.unnamed)
    pairs += [(one, other) for one in free if one not in loose for other in loose]
    pairs += itertools.combinations((one for one in free if one in loose), 2)
    named = [pair for pair in itertools.combinations(free, 2) if not {*pair} & {*loose}]
    links = [_Link(*pair) for pair in (*(one for one in named if _are_alike(*one)), *pairs)]
    products = [
        _computed(one, "*", first, second)
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
    yield [(one,) for one in (*links, *products, *counts)]
    # Names of one signature that are never written beside each other, as `k` in one argument and `kv_len` in another.
    yield [(_Link(*pair),) for pair in named if not _are_alike(*pair)]
    # Two at once: of a product of two integers that has to be one of two sizes, neither gets further alone.
    several = [(one, other) for one, other in itertools.combinations(links, 2) if one.size != other.size]
    times = [
        _computed(one, "*", integer, number)
        for one, integer in itertools.product(free, sizes.integers)
        for number in _TIMES
    ]
    yield [*several, *((one,) for one in times)]
    # The other way round: the degree of a polynomial is one less than its terms, and a layer gets two inputs joined.
    integers = [one for one in sizes.integers if one not in taken]
    made = [(one, sign, 1) for one in sizes.given for sign in "-+"]
    made += [(one, "+", other) for one, other in itertools.combinations(sizes.given, 2)]
    links = [_computed(integer, sign, one, other) for one, sign, other in made for integer in integers]
    # An annotation could say `"heads*size"`, but few do where the axis has a name of its own.
    links += [
        _computed(one, "*", first, second)
        for first, second in itertools.combinations(sizes.given, 2)
        for one in free
        if one in about and one not in (first, second)
    ]
    yield [(one,) for one in links]
