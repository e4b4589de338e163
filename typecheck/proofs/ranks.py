"""Trials with other numbers of axes, once a program holds: for each `*name` and `...`, and for several together."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.changing import change_of, changed, goes_with
from weft.typecheck.proofs.explaining import Explainer
from weft.typecheck.proofs.needs import Needs, array_of, axes
from weft.typecheck.proofs.options import at_guard
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.proofs.variations import Results, is_excused_by_nothing, options_of_fields


def vary_ranks(explainer: Explainer, results: Results) -> None:
    """Tries other numbers of axes for each variadic name; for arrays without a shape together if each fails alone."""
    base = results.passed[0]
    if results.needs.of_one_shape:
        _other_ranks_of_all(explainer, results)
        return
    alone: dict[str, list[str]] = {}
    for key, (rank, is_unnamed, _) in base.ranks.items():
        if any(one == key for one, _ in results.needs.ranks):
            continue
        if is_unnamed and _speaks_of_axes(results.needs, key):
            # The needs name axes of this array by number, which has a meaning for this many axes alone.
            results.needs = results.needs.plus(ranks=(key, rank))
            continue
        notes = _other_ranks(explainer, results, key)
        if notes:
            alone[key] = notes
    # Two arrays without a shape that are added need the same number of axes, so another number for one of them fails.
    together = [key for key in alone if len(alone[key]) > 1 and base.ranks[key][:2] == (2, True)]
    if len(together) > 1:
        with contextlib.suppress(Unbuildable):
            trials = [_of_ranks(explainer, base, dict.fromkeys(together, other)) for other in (0, 1)]
            if all(trial.ok for trial in trials):
                results.passed += trials
                alone = {key: notes for key, notes in alone.items() if key not in together}
                results.notes.append(f"{' and '.join(map(array_of, together))} have the same number of axes, 2 at most")
    results.notes += [note for notes in alone.values() for note in notes]


def _other_ranks_of_all(explainer: Explainer, results: Results) -> None:
    """Tries other numbers of axes for the `...` of several arrays at once, which have the same shape."""
    base = results.passed[0]
    dots = {key.rpartition(".")[0] for pair in results.needs.alike for key in pair} & base.ranks.keys()
    for count in (0, 2) if dots and all(key.endswith("]") for key in dots) else ():
        with contextlib.suppress(Unbuildable):
            trial = _of_ranks(explainer, base, dict.fromkeys(dots, count))
            if trial.ok:
                results.passed.append(trial)
            else:
                results.notes.append(f"{array_of(min(dots))} is not of {axes(count)}{at_guard(trial)}")


def _other_ranks(explainer: Explainer, results: Results, key: str) -> list[str]:
    """Tries other numbers of axes for one variadic name, and says in words which of them the program does not take."""
    base = results.passed[0]
    rank, is_unnamed, _ = base.ranks[key]
    compared = explainer.target.compared_ranks
    # A body that compares `x.ndim` with 4 may branch there, so the numbers next to those that it writes are tried, too.
    further = sorted(number + offset for number in compared for offset in (-1, 0, 1))
    others = dict.fromkeys((0, 2, 1, *(number for number in further if number > 2)))
    holding, refused = {rank}, dict[int, Trial]()
    for count in others:
        if count == rank or results.failed:
            continue
        try:
            trial = _of_ranks(explainer, base, {key: count})
        except Unbuildable:
            continue
        if trial.ok:
            results.passed.append(trial)
            holding.add(count)
        elif (
            trial.guard
            or (is_unnamed and not is_excused_by_nothing(explainer, trial))
            or (count == 0 and trial.error is not None)
            or goes_with(explainer, base, change_of(ranks={key: count}), options_of_fields(base))
        ):
            refused[count] = trial
        else:
            results.failed.append(trial)
    # Fewer axes are refused: the refused numbers are told one by one, since more axes held.
    if refused and max(refused) < max(holding):
        return [f"{array_of(key)} is not of {axes(count)}{at_guard(trial)}" for count, trial in refused.items()]
    if refused:  # more axes than those that held were refused, so the numbers that held are told
        *few, last = [str(number) for number in sorted(holding)]
        said = f"{', '.join(few)} or {last} axes" if few else axes(int(last))
        return [f"{array_of(key)} is of {said}{at_guard(refused[max(refused)])}"]
    return []


def _of_ranks(explainer: Explainer, base: Trial, ranks: Mapping[str, int]) -> Trial:
    return explainer.attempt(changed(base, ranks=ranks))


def _speaks_of_axes(needs: Needs, key: str) -> bool:
    """Whether a need names a single axis of an array that may have any number of axes: `x.shape[1] = 3`.

    That an axis equals the same axis of another array is no such need.
    """
    pairs = [*needs.multiples, *needs.equal, *needs.least, *((one, other) for one, other, _ in needs.order)]
    # A need that `x.shape[0] = y.shape[0]` has a meaning for any number of axes.
    pairs += [pair for pair in needs.merged if len({axis.partition("....")[2] or axis for axis in pair}) > 1]
    return any(isinstance(part, str) and part.startswith(f"{key}.") for pair in pairs for part in pair)
