"""Which sizes may vary, once a program holds: 1, even ones, multiples, and those beside numbers that its body writes.

The trials of a search have odd primes for sizes, so that no two are one by chance; what a program decides by a size of
another sort is seen here. Each function takes what was found so far, as those of `variations` do.
"""

from __future__ import annotations

import contextlib
import dataclasses

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.changing import changed
from weft.typecheck.proofs.explaining import Explainer
from weft.typecheck.proofs.needs import ascending, multiples
from weft.typecheck.proofs.options import at_guard
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.proofs.variations import Found
from weft.typecheck.proofs.whose import is_of_jax


def vary_ones(explainer: Explainer, found: Found) -> None:
    """Each size 1, where the program takes that."""
    base = found.passed[0]
    for key in base.assignment.sizes:
        ones = changed(base, sizes={key: 1})
        if key in explainer.dims or not found.needs.allows(ones.sizes):
            continue
        try:
            trial = explainer.attempt(ones)
        except Unbuildable:
            continue
        if trial.ok:
            found.passed.append(trial)
        elif trial.violations and min(trial.violations[0].sizes, default=0) >= 0 and _is_of_one(explainer, base, key):
            found.failed.append(trial)
        else:  # it raises, or the annotation itself (`h-2`) makes no sense there, or it needs some more
            found.needs = found.needs.plus(least=(key, 2))


def vary_remainders(explainer: Explainer, found: Found) -> None:
    """Even sizes, and multiples of twelve, for what branches on a remainder: all other sizes are odd primes.

    JAX's symbolic sizes do not tell: whether `n % 4` is zero counts as no.
    """
    if not explainer.with_needs(found.passed[0], found.needs, ascending).ok:
        return  # they are the needs of another class than the one that this trial has
    guards = set[str]()
    for factor in (2, 12):
        deal = multiples(factor)
        try:
            trial = explainer.with_needs(found.passed[0], found.needs, deal)
            more = None if trial.ok or trial.guard else explainer.explain(trial, found.needs, deal)
            if more is not None:
                explained = explainer.with_needs(trial, more, deal)
                # The search may have dealt other sizes: only what still has the remainder explains the failure.
                if all(size % factor == 0 for size in explained.assignment.sizes.values()):
                    found.needs = more
                    trial = explained
            trial = _with_usual_numbers(explainer, found, trial)
        except Unbuildable:
            continue
        if trial.guard in guards:
            continue  # multiples of twelve are even
        guards |= {trial.guard} - {""}
        if trial.guard and not _refuses_alone(explainer, found, factor):
            keys = [key for key in trial.assignment.sizes if key not in explainer.dims]
            if _refuses_common(explainer, found, trial.guard):
                sizes = found.passed[0].assignment.sizes
                among = (*found.needs.among, *((key, (sizes[key],)) for key in keys if key in sizes))
                found.needs = dataclasses.replace(found.needs, among=among)
            else:
                found.notes.append(f"not all of {', '.join(keys)} are multiples of {factor}{at_guard(trial)}")
        elif not trial.guard:
            _take(found, trial)


def _with_usual_numbers(explainer: Explainer, found: Found, trial: Trial) -> Trial:
    """A trial that ends in an error about no shape, with an integer that no shape names as it was, if it holds so.

    A number of axes, or what is a power, is nothing to be multiplied: `3**60` is too large a number before it is a
    shape, and JAX takes no `2**60`. That it holds at the sizes tried is then all that is said of that integer.
    """
    if trial.error is None or trial.guard or trial.violations:
        return trial
    if is_of_jax(trial.error) and not isinstance(trial.error, OverflowError):
        return trial
    for key in sorted(trial.configured & found.passed[0].assignment.sizes.keys()):
        held = tuple(sorted({one.assignment.sizes[key] for one in found.passed if key in one.assignment.sizes}))
        again = explainer.attempt(changed(trial, sizes={key: held[0]}))
        if again.ok:
            found.needs = found.needs.plus(among=(key, held))
            return again
    return trial


def _refuses_alone(explainer: Explainer, found: Found, factor: int) -> bool:
    """Whether a guard refuses a multiple of one size, all others as they were; what it refuses is noted."""
    base, refused = found.passed[0], False
    parts = [one for one in range(2, factor + 1) if factor % one == 0]
    for key, size in base.assignment.sizes.items():
        for part in parts if key not in explainer.dims else ():
            multiple = changed(base, sizes={key: size * part})
            if not found.needs.allows(multiple.sizes):
                continue
            with contextlib.suppress(Unbuildable):
                trial = explainer.attempt(multiple)
                if trial.guard:
                    _note_refused(found, key, size * part, trial)
                    refused = True
                    break
    return refused


def _refuses_common(explainer: Explainer, found: Found, guard: str) -> bool:
    """Whether a guard refuses sizes with other common divisors, too: it may be any that it refuses."""
    refused = False
    for factor in (3, 5):
        with contextlib.suppress(Unbuildable):
            refused |= explainer.with_needs(found.passed[0], found.needs, multiples(factor)).guard == guard
    return refused


def _note_refused(found: Found, key: str, size: int, trial: Trial) -> None:
    """That a guard refuses a size. Which other ones it refuses is for `conditions` to find out."""
    at = found.needs.guards if key in dict(found.needs.guards) else (*found.needs.guards, (key, at_guard(trial)))
    found.needs = dataclasses.replace(found.needs.plus(unlike=(key, size)), guards=at)


# Trials of sizes that a body compares with, at most.
_MOST_COMPARED = 24


def vary_compared(explainer: Explainer, found: Found) -> None:
    """Each size at the numbers that the body compares with, and beside them: the branches that they decide."""
    base = found.passed[0]
    numbers = dict.fromkeys(n + near for n in sorted(explainer.target.compared) for near in (0, -1, 1))
    pairs = [(key, number) for number in numbers for key in base.assignment.sizes if key not in explainer.dims]
    for key, number in pairs[:_MOST_COMPARED]:
        compared = changed(base, sizes={key: number})
        if number < 2 or not found.needs.allows(compared.sizes) or found.failed:
            continue
        with contextlib.suppress(Unbuildable):
            trial = explainer.attempt(compared)
            if not trial.ok and not trial.guard:
                more = explainer.explain(trial, found.needs, ascending)
                if more is not None and explainer.with_needs(trial, more, ascending).assignment.sizes[key] == number:
                    continue  # it holds at this number, too, where something else is so
            if trial.guard:
                _note_refused(found, key, number, trial)
            else:
                _take(found, trial)


def _take(found: Found, trial: Trial) -> None:
    (found.passed if trial.ok else found.failed).append(trial)


def _is_of_one(explainer: Explainer, base: Trial, key: str) -> bool:
    """Whether what fails at size 1 is a matter of 1, as a squeezed axis is, and not of small sizes."""
    return explainer.attempt(changed(base, sizes={key: 2})).ok
