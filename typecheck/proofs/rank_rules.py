"""Guesses about numbers of axes, and about shapes that arrays without a shape may have in common; see `rules`."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from weft.core.edge import names
from weft.typecheck.proofs.needs import Needs
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.proofs.whose import is_of_jax
from weft.typecheck.proofs.wording import numbers_in


@dataclass(frozen=True)
class Suspects:
    """The sizes and keys that a rule may use.

    Attributes:
        sizes: the sizes of all keys, where they are plain numbers.
        keys: the keys whose sizes the failure mentions; all keys, if it mentions none.
        constants: sizes of arrays and numbers outside of the program, which it may require.
    """

    sizes: Mapping[str, int]
    keys: list[str]
    constants: frozenset[int] = frozenset()


def suspects_of(trial: Trial, constants: frozenset[int] = frozenset()) -> Suspects:
    """The sizes and keys that rules may use for a failing trial."""
    sizes = {key: size for key, size in trial.assignment.sizes.items() if isinstance(size, int)}
    return Suspects(sizes, list(trial.spoken_of) or list(sizes), constants)


_RANKS = (1, 2, 0, 3, 4)
# The most axes of a `...`.
_MOST_DOTS = 3


def same_shapes(trial: Trial, needs: Needs, suspects: Suspects) -> Iterator[Needs]:
    """The needs that all arrays without a shape in their annotations have one shape, or one number of axes."""
    keys = [key for key in trial.keys.unnamed if key in suspects.sizes]
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


def same_dots(trial: Trial, needs: Needs, suspects: Suspects) -> Iterator[Needs]:
    """The needs that the `...` of two arrays, or of all arrays, stand for the same axes.

    A `...` binds nothing, but the author of `"batch ... d"`, written twice, may mean the same axes.
    """
    dots = [key for key, rank in trial.ranks.items() if rank.is_unnamed and key.endswith("]")]
    groups = [*itertools.combinations(dots, 2), *([tuple(dots)] if len(dots) > 2 else [])]
    for first, *rest in groups if not needs.merged else ():
        together = tuple((f"{one}.{axis}", f"{first}.{axis}") for one in rest for axis in range(_MOST_DOTS))
        yield dataclasses.replace(needs, merged=together, alike=together)


def ranks_needed(trial: Trial, needs: Needs, suspects: Suspects) -> Iterator[Needs]:
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
