"""Guesses of single needs that might explain a failure, where no question of the trace does; the likeliest first.

Numbers of axes and of items are no sizes, and a size whose number the program read asks no questions (`preconditions`
reads the needs of all other sizes). Each rule takes a failing trial and the needs so far, and yields the needs with one
more. Most rules look only at the sizes that the failure mentions.
"""

from __future__ import annotations

import dataclasses
import itertools
import traceback
from collections.abc import Callable, Iterator

from weft.core.edge import names
from weft.typecheck.proofs.needs import Needs
from weft.typecheck.proofs.options import is_about_kinds, items_of, speaks_of_rank, takes_apart
from weft.typecheck.proofs.preconditions import may_merge
from weft.typecheck.proofs.rank_rules import Suspects, ranks_needed, same_dots, same_shapes, suspects_of
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.proofs.whose import Whose
from weft.typecheck.proofs.wording import UNPAIRED, numbers_in, says


def candidates(
    trial: Trial, needs: Needs, constants: frozenset[int], pinned: frozenset[str], whole: bool
) -> Iterator[Needs]:
    """Yields the needs with one more, the likeliest to explain a failure first: needs of the sizes that it mentions.

    Args:
        trial: the failing trial.
        needs: the needs under which it failed.
        constants: sizes that the program is tied to from outside.
        pinned: keys whose numbers the program read.
        whole: whether the error shows two sizes of keys that disagree, and shows the same keys at other sizes.
    """
    suspects = suspects_of(trial, constants)
    of_ranks = (
        takes_apart(trial) or speaks_of_rank(trial) or is_about_kinds(trial) or names.NO_SUCH_AXIS in str(trial.error)
    )
    for rule in () if of_ranks else _OF_PROMISES if trial.breaks_promise else _RULES:
        yield from rule(trial, needs, suspects)
    if not (of_ranks or whole or trial.breaks_promise):  # two unequal sizes still disagree at round sizes
        yield from _round_sizes(trial, needs, suspects, pinned)
    if not (of_ranks or trial.guard):
        yield from _joined_configurations(trial, needs, suspects)


def of_no_size(trial: Trial, needs: Needs, constants: frozenset[int]) -> Iterator[Needs]:
    """The needs with one more that is about numbers of axes or of items, whichever questions the trace asked."""
    suspects = suspects_of(trial, constants)
    if takes_apart(trial):
        yield from ranks_needed(trial, needs, suspects)  # it takes a fixed number of axes, or of items
        return
    for rule in _OF_RANKS:
        yield from rule(trial, needs, suspects)


Rule = Callable[[Trial, Needs, Suspects], Iterator[Needs]]


def _merges(trial: Trial, needs: Needs, suspects: Suspects) -> Iterator[Needs]:
    # An integer that divides a size counts parts, as heads and groups do, and is no size of data. What asks for that
    # has mixed up two axes of a reshape.
    parts = {factor for _, factor in needs.multiples} & trial.keys.numbers
    exact = [key for key in suspects.keys if suspects.sizes[key] in trial.mentioned and key not in parts]
    for first in exact:
        for second in exact:
            if first < second and may_merge(first, second, trial.keys):
                yield needs.plus(merged=(second, first))


def _as_recorded(trial: Trial, needs: Needs, suspects: Suspects) -> Iterator[Needs]:
    """The needs with two dims of a record equal, if they were equal in the instance that is generalised.

    A record's configuration may require it: an operator that is tagged as symmetric is square, whatever the annotation
    of its matrix says. The library that defines the record then raises, so only a library's own errors count.
    """
    if trial.error is None or trial.violations or not _is_of_a_library(trial.error):
        return
    inside = [key for key in suspects.sizes if not trial.keys.scopes_of(key) & {"", "self."}]
    for first in inside:
        for second in inside:
            originals = trial.keys.originals
            if first < second and first in originals and originals[first] == originals.get(second):
                yield needs.plus(merged=(second, first))


def _is_of_a_library(error: Exception) -> bool:
    """Whether an installed package that defines records raised an error, and neither JAX nor the program."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and Whose(frozenset())[frames[-1].f_code.co_filename] == "library"


def _items(trial: Trial, needs: Needs, suspects: Suspects) -> Iterator[Needs]:
    """The needs with two collections of the same length, or with a size that is the length of a collection.

    A grid has a size for each axis, and its points as many coordinates; an annotation `tuple[int, ...]` cannot say so.
    """
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
    for key in suspects.keys:
        for place in free:
            if (
                (of_items or {suspects.sizes[key], lengths[place]} <= trial.mentioned)
                and key not in dict(needs.equal)
                and suspects.sizes[key] != lengths[place]
            ):
                yield needs.plus(equal=(key, lengths[place]), counts=(key, place))


def _constants(trial: Trial, needs: Needs, suspects: Suspects) -> Iterator[Needs]:
    # Two dims that are one number would be one dim; two defaults may be one number by chance.
    fixed = dict(needs.equal)
    for number in sorted((suspects.constants | trial.keys.by_default) & trial.mentioned):
        for key in suspects.keys:
            is_excluded = key in fixed if number in trial.keys.by_default else _is_fixed(key, number, trial, needs)
            if suspects.sizes[key] in trial.mentioned and not is_excluded:
                yield needs.plus(equal=(key, number))


def _written(trial: Trial, needs: Needs, suspects: Suspects) -> Iterator[Needs]:
    """The needs with a size fixed to a number in the error: for a record's dim (`x: "b 784"`) or a nameless integer."""
    known = {1, *suspects.sizes.values()}
    for key in suspects.keys:
        scopes = trial.keys.scopes_of(key)
        is_given = not any(scope in ("", "self.") for scope in scopes) and bool(scopes)
        configured = key in trial.keys.configured and trial.error is not None
        # An error may name the numbers that it takes, and not the one that it was given: "8-, 16- or 32-bit".
        if not (is_given or configured) or not (configured or suspects.sizes[key] in trial.mentioned):
            continue
        for number in sorted(trial.mentioned - known - {0}):  # no size is 0: it would divide nothing
            if trial.keys.originals.get(key, number) == number and not _is_fixed(key, number, trial, needs):
                fixed = {"among": (key, (number,))} if configured else {"equal": (key, number)}
                yield needs.plus(**fixed)


def _counts(trial: Trial, needs: Needs, suspects: Suspects) -> Iterator[Needs]:
    """The needs with a nameless integer of 1 to 3, where an error takes it for the number of an axis."""
    for key in suspects.keys if names.NO_SUCH_AXIS in str(trial.error) else ():
        if key in trial.keys.configured and key not in dict(needs.equal):
            yield from (needs.plus(among=(key, (few,))) for few in (2, 1, 3) if few != suspects.sizes[key])


def _is_fixed(key: str, number: int, trial: Trial, needs: Needs) -> bool:
    """Whether a key has a fixed size already, or another dim of its scope is fixed to this very number."""
    scopes = trial.keys.scopes_of(key)
    return any(one == key or (fixed == number and scopes & trial.keys.scopes_of(one)) for one, fixed in needs.equal)


def _round_sizes(trial: Trial, needs: Needs, suspects: Suspects, pinned: frozenset[str]) -> Iterator[Needs]:
    """The needs with round sizes, at which divisions and roots come out even, for keys whose numbers the program read.

    Such a key asks no questions, so no condition can be read off. If the program holds at some round sizes, the report
    lists these sizes as tried, and no condition is guessed from them.
    """
    # A number that was tried before may be replaced: with it, the program may only have got a little further.
    about = [key for key in suspects.keys if key not in dict(needs.equal)]
    keys = [key for key in about if key in pinned] or about
    # The numbers in a guard's text may be the sizes that it asks for: `if image.shape[-1] not in (1, 3)`.
    for number in dict.fromkeys(numbers_in(trial.guard.partition(": ")[2])):
        if 0 < number < 10_000:
            wanted = (key for key in keys if suspects.sizes[key] != number and key not in dict(needs.among))
            yield from (needs.plus(among=(key, (number,))) for key in wanted)
    pairs = [pair for pair in itertools.permutations(about, 2) if {*pair} & {*keys}]
    # Grouped attention has three: key heads divide heads, and these the features.
    triples = itertools.permutations(about) if len(about) == 3 else ()
    for order, chain in itertools.product((*((key,) for key in keys), *pairs[:_MOST_PAIRS], *triples), _CHAINS):
        sizes = tuple((key, (size,)) for key, size in zip(order, chain, strict=False))
        if len(sizes) == len(order):
            yield dataclasses.replace(needs, among=tuple({**dict(needs.among), **dict(sizes)}.items()))


# Each number divides the next one, and the quotient is no number of the chain: with 4 heads of 16
# features, of which each head has 4, a program that mixes up the two would hold. The first keeps what may be few small,
# then come multiples of most numbers, of powers of two, squares, and odd ones.
_CHAINS = ((2, 12, 120), (12, 288), (64, 1536), (4, 144, 3600), (3, 15))
# The most pairs of keys that are tried, with a trace for each pair and each chain.
_MOST_PAIRS = 12


def _joined_configurations(trial: Trial, needs: Needs, suspects: Suspects) -> Iterator[Needs]:
    """The needs with a record's nameless integer equal to an axis of the data that the record is given.

    `Likelihood(num_outputs=2)` takes targets of two columns, and no annotation can say that. No two dims of a contract
    are joined by this need, as the integer is none. It is never the first axis of the data, nor equal to another
    integer: otherwise a program that mixes up its widths, or broadcasts along a batch, would hold.
    """
    of_records = [key for key in suspects.sizes if key in trial.keys.configured and trial.keys.scopes_of(key) - {""}]
    of_data = [key for key in suspects.sizes if key not in trial.keys.numbers and key not in trial.keys.leading]
    of_arguments = [key for key in of_data if "" in trial.keys.scopes_of(key)]
    for integer, axis in itertools.product(of_records, of_arguments):
        if integer not in dict(needs.merged) and axis not in dict(needs.merged):
            yield needs.plus(merged=(integer, axis))


_RULES: tuple[Rule, ...] = (_merges, _constants, _written)

# The rules for a result that breaks its annotation. A program that raises refuses sizes. A program that returns another
# shape than it promises is wrong at these sizes, and forbidding them does not make it right. All that can excuse it is
# that sizes are equal which annotations cannot link: dims of two records, a number of items, an array from outside.
_OF_PROMISES: tuple[Rule, ...] = (_merges, _constants)

# The rules for a wrong number of axes, or a value of a wrong kind, whatever its sizes are.
_OF_RANKS: tuple[Rule, ...] = (_counts, same_dots, same_shapes, _as_recorded, _items, ranks_needed)
