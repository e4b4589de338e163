"""Needs about numbers of axes and of items, which are no sizes: no question of the trace shows them.

They are gone through one after the other. A `...`, and an array without a shape, may stand for the axes of another one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

from weft.core.edge import names
from weft.typecheck.proofs.needs import Needs
from weft.typecheck.proofs.options import items_of, takes_apart
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.proofs.whose import is_of_jax
from weft.typecheck.proofs.wording import UNPAIRED, numbers_in, says

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
        together = tuple((f"{one}.{axis}", f"{first}.{axis}") for one in rest for axis in range(_MOST_DOTS))
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
        others = (one for one in (*ranks, *_rank_of_error(trial, rank)) if one not in (rank, needless))
        yield from (needs.plus(ranks=(key, other)) for other in others)


def _rank_of_error(trial: Trial, rank: int) -> Iterator[int]:
    """The number of axes that an array needs according to JAX's error, if it names two numbers that disagree."""
    ranks = numbers_in(str(trial.error).partition(names.UNLIKE_RANKS)[2])[:2] if is_of_jax(trial.error) else []
    more = max(ranks) - min(ranks) if ranks else 0
    if more and rank + more not in _RANKS:
        yield rank + more
