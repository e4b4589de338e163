"""Single needs that might explain a failure, for what no question is asked of: what to try next, the likeliest first.

Numbers of axes and of items are no sizes, and a size that was taken as a number asks nothing (`preconditions` has the
rest). Each rule takes a failing trial and the needs so far, and yields these and one more. Most look only at the sizes
that the failure speaks of.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import traceback
from collections.abc import Callable, Iterator

from weft.core.edge import names
from weft.typecheck.proofs.needs import Needs
from weft.typecheck.proofs.options import is_about_kinds, items_of, speaks_of_rank, takes_apart
from weft.typecheck.proofs.preconditions import may_merge
from weft.typecheck.proofs.rank_rules import Near, near_to, ranks_needed, same_dots, same_shapes
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.proofs.whose import Whose


def candidates(
    trial: Trial, needs: Needs, constants: frozenset[int], taken: frozenset[str], whole: bool
) -> Iterator[Needs]:
    """Single needs that might explain a failure, the likeliest first: those about the sizes that it speaks of.

    Args:
        trial: what failed.
        needs: those that it failed under.
        constants: sizes that the program is tied to from outside.
        taken: sizes whose numbers the program took.
        whole: whether two whole sizes disagree in it, however they are dealt.
    """
    near = near_to(trial, constants)
    of_ranks = (
        takes_apart(trial) or speaks_of_rank(trial) or is_about_kinds(trial) or names.NO_SUCH_AXIS in str(trial.error)
    )
    for rule in () if of_ranks else _OF_PROMISES if trial.breaks_promise else _RULES:
        yield from rule(trial, needs, near)
    if not (of_ranks or whole or trial.breaks_promise):  # two whole sizes that disagree do so at round sizes, too
        yield from _round_sizes(trial, needs, near, taken)
    if not (of_ranks or trial.guard):
        yield from _joined_configurations(trial, needs, near)


def of_no_size(trial: Trial, needs: Needs, constants: frozenset[int]) -> Iterator[Needs]:
    """Single needs that are about numbers of axes and of items, whatever sizes are asked for."""
    near = near_to(trial, constants)
    if takes_apart(trial):
        yield from ranks_needed(trial, needs, near)  # it takes a fixed number of axes, or of items
        return
    for rule in _OF_RANKS:
        yield from rule(trial, needs, near)


Rule = Callable[[Trial, Needs, Near], Iterator[Needs]]


def _merges(trial: Trial, needs: Needs, near: Near) -> Iterator[Needs]:
    # An integer that divides a size counts parts, as heads and groups do, and is no size of data. What asks for that
    # has mixed up two axes of a reshape.
    parts = {factor for _, factor in needs.multiples} & trial.numbers
    exact = [key for key in near.keys if near.sizes[key] in trial.mentioned and key not in parts]
    for one in exact:
        for other in exact:
            if one < other and may_merge(one, other, trial):
                yield needs.plus(merged=(other, one))


def _as_recorded(trial: Trial, needs: Needs, near: Near) -> Iterator[Needs]:
    """Dims of a record among the arguments that were one size in a recorded call, as its configuration may ask.

    An operator that is tagged as symmetric is square, whatever the annotation of its matrix says. The library that has
    such records refuses others itself: what JAX says of shapes is about the program.
    """
    if trial.error is None or trial.violations or not _is_of_a_library(trial.error):
        return
    inside = [key for key in near.sizes if not trial.scopes.get(key, frozenset()) & {"", "self."}]
    for one in inside:
        for other in inside:
            if one < other and one in trial.originals and trial.originals[one] == trial.originals.get(other):
                yield needs.plus(merged=(other, one))


def _is_of_a_library(error: Exception) -> bool:
    """Whether an installed package that defines records raised an error, and neither JAX nor the program."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and Whose(frozenset())[frames[-1].f_code.co_filename] == "library"


# What is said of lists of another length than is asked for, by `zip(strict=True)` and by an index; not of which.
_UNPAIRED = re.compile(r"zip\(\) argument|(list|tuple) index out of range")


def _items(trial: Trial, needs: Needs, near: Near) -> Iterator[Needs]:
    """Collections of one number of items, or a size that is the number of items of one.

    A grid has a size for each axis, and its points as many coordinates; no annotation of `tuple[int, ...]` can say so.
    """
    lengths = items_of(trial.assignment, trial.options)
    free = [place for place in lengths if place not in dict(needs.items)]
    # They were found where all collections have as many items: it may be another one's.
    for key, place in needs.counts:
        rest = tuple(one for one in needs.counts if one[0] != key)
        others = (other for other in free if lengths[other] != lengths[place])
        yield from (dataclasses.replace(needs, counts=(*rest, (key, other))) for other in others)
    unlike = [(one, other) for one in free for other in free if lengths[one] != lengths[other]]
    # What was varied is the one that is unlike all others: those follow it, one of them or all.
    unlike.sort(key=lambda pair: sum(one == pair[1] for _, one in unlike), reverse=True)
    yield from (needs.plus(items=pair) for pair in unlike)
    if len(unlike) > 2:
        leading = unlike[0][1]
        together = tuple(pair for pair in unlike if pair[1] == leading)
        yield dataclasses.replace(needs, items=(*needs.items, *together))
    of_items = bool(trial.guard) or _UNPAIRED.search(str(trial.error)) is not None
    for key in near.keys:
        for place in free:
            if (
                (of_items or {near.sizes[key], lengths[place]} <= trial.mentioned)
                and key not in dict(needs.equal)
                and near.sizes[key] != lengths[place]
            ):
                yield needs.plus(equal=(key, lengths[place]), counts=(key, place))


def _constants(trial: Trial, needs: Needs, near: Near) -> Iterator[Needs]:
    # Two dims that are one number would be one dim; two defaults may be one number by chance.
    fixed = dict(needs.equal)
    for number in sorted((near.constants | trial.by_default) & trial.mentioned):
        for key in near.keys:
            taken = key in fixed if number in trial.by_default else _is_fixed(key, number, trial, needs)
            if near.sizes[key] in trial.mentioned and not taken:
                yield needs.plus(equal=(key, number))


def _written(trial: Trial, needs: Needs, near: Near) -> Iterator[Needs]:
    """A number that is written in the program and met a dim of a record that a function is given, `x: "b 784"`, or an
    integer that no shape names: `Embed(rank=2)`."""
    known = {1, *near.sizes.values()}
    for key in near.keys:
        scopes = trial.scopes.get(key, frozenset())
        is_given = not any(scope in ("", "self.") for scope in scopes) and bool(scopes)
        configured = key in trial.configured and trial.error is not None
        # An error may name the numbers that it takes, and not the one that it was given: "8-, 16- or 32-bit".
        if not (is_given or configured) or not (configured or near.sizes[key] in trial.mentioned):
            continue
        for number in sorted(trial.mentioned - known - {0}):  # no size is 0: it would divide nothing
            if trial.originals.get(key, number) == number and not _is_fixed(key, number, trial, needs):
                fixed = {"among": (key, (number,))} if configured else {"equal": (key, number)}
                yield needs.plus(**fixed)


def _counts(trial: Trial, needs: Needs, near: Near) -> Iterator[Needs]:
    """An integer that no shape names and that an error takes for the number of an axis: there are few axes."""
    for key in near.keys if names.NO_SUCH_AXIS in str(trial.error) else ():
        if key in trial.configured and key not in dict(needs.equal):
            yield from (needs.plus(among=(key, (few,))) for few in (2, 1, 3) if few != near.sizes[key])


def _is_fixed(key: str, number: int, trial: Trial, needs: Needs) -> bool:
    """Whether a key is fixed already, or another dim of its scope is fixed to this very number."""
    scopes = trial.scopes.get(key, frozenset())
    return any(
        one == key or (fixed == number and scopes & trial.scopes.get(one, frozenset())) for one, fixed in needs.equal
    )


def _round_sizes(trial: Trial, needs: Needs, near: Near, taken: frozenset[str]) -> Iterator[Needs]:
    """Sizes at which divisions come out even, or roots, for sizes that the program took as numbers.

    Such a size asks nothing, so no condition can be read off it: where the program holds at some of these sizes, it is
    told with them, and no condition is guessed from them.
    """
    known = {*dict(needs.equal), *dict(needs.among)}
    about = [key for key in near.keys if key not in known]
    keys = [key for key in about if key in taken] or about
    for number in _written_in(trial.guard) if trial.guard else ():
        yield from (needs.plus(among=(key, (number,))) for key in keys if near.sizes[key] != number)
    pairs = [pair for pair in itertools.permutations(about, 2) if {*pair} & {*keys}]
    orders = itertools.chain(((key,) for key in keys), pairs[:_MOST_PAIRS])
    for order, chain in itertools.product(orders, _CHAINS):
        sizes = ((key, (size,)) for key, size in zip(order, chain, strict=False))
        yield dataclasses.replace(needs, among=(*needs.among, *sizes))


# Each number divides the next one, and what is left of the division is even, and none of them: with 4 heads of 16
# features, of which each head has 4, a program that mixes up the two would hold. The first keeps what may be few small,
# then come multiples of most numbers, of powers of two, squares, and odd ones.
_CHAINS = ((2, 12), (12, 288), (64, 1536), (4, 144), (3, 15))
# How many pairs of sizes are tried: a trace for each, and each chain.
_MOST_PAIRS = 12


def _written_in(guard: str) -> dict[int, None]:
    """The numbers that a guard writes, as sizes that it may ask for: `if image.shape[-1] not in (1, 3)`."""
    return dict.fromkeys(int(number) for number in re.findall(r"\b[1-9]\d{0,3}\b", guard.partition(": ")[2]))


def _joined_configurations(trial: Trial, needs: Needs, near: Near) -> Iterator[Needs]:
    """An integer that a record is made of and no shape names, as the size of an axis of what is given to it.

    `Likelihood(num_outputs=2)` takes targets of two columns, and no annotation can say that: the integer has none, so
    this joins no two dims of a contract. It is no number of rows, nor is it one with another integer: a program that
    has mixed up its widths, or broadcasts along a batch, would hold under such a need.
    """
    of_records = [key for key in near.sizes if key in trial.configured and trial.scopes.get(key, frozenset()) - {""}]
    of_data = [key for key in near.sizes if key not in trial.numbers and key not in trial.leading]
    given = [key for key in of_data if "" in trial.scopes.get(key, frozenset())]
    for one, other in itertools.product(of_records, given):
        if one not in dict(needs.merged) and other not in dict(needs.merged):
            yield needs.plus(merged=(one, other))


_RULES: tuple[Rule, ...] = (_merges, _constants, _written)

# Those for a result that is not what the annotations say. What raises asks something of its sizes, and refuses others;
# what returns another shape than it says is wrong at these sizes, and is not made right by forbidding them. It may only
# be that what annotations cannot link is one: dims of two records, a number of items, an array from outside.
_OF_PROMISES: tuple[Rule, ...] = (_merges, _constants)

# Those for what has another number of axes than is asked for, or is of another kind: whatever its sizes are.
_OF_RANKS: tuple[Rule, ...] = (_counts, same_dots, same_shapes, _as_recorded, _items, ranks_needed)
