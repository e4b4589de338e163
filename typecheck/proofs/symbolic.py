"""The last step of a proof: the program traced once more with symbols for its sizes, for all of them at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from weft.typecheck.arguments.builder import Assignment, Unbuildable
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.symbolic import symbolic_sizes
from weft.typecheck.proofs.needs import Needs
from weft.typecheck.proofs.search import Outcome
from weft.typecheck.proofs.trial import Target, Trial, run_trial
from weft.typecheck.proofs.violations import in_short

# Of how many dims one is left out where not all can be symbols: each takes a trace, and of many, several would fail.
_MOST_FREE = 8


def symbolically(
    target: Target, outcome: Outcome, dims: Mapping[str, Any]
) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """Which dims the proof holds for all sizes of, which were only sampled, and why."""
    trial = outcome.passed[0]
    free = [key for key in trial.assignment.sizes if key not in dims and key not in dict(outcome.needs.equal)]
    variants = {
        (tuple(trial.assignment.options.items()), tuple(trial.assignment.ranks.items())): trial
        for trial in reversed(outcome.passed)
    }
    order = list(variants.values())
    failure = _attempt_symbolic(target, outcome, order, free, dims)
    if failure is None:
        return tuple(free), (), ""
    reason = f"not symbolic: {failure}"
    if len(free) <= _MOST_FREE:
        for sampled in free:
            rest = [key for key in free if key != sampled]
            if rest and _attempt_symbolic(target, outcome, order, rest, dims) is None:
                return tuple(rest), (sampled,), reason
    return (), tuple(free), reason


def _attempt_symbolic(
    target: Target, outcome: Outcome, variants: list[Trial], free: list[str], dims: Mapping[str, Any]
) -> str | None:
    """None if every variant of the program traces symbolically, or why one does not; that one comes first from then on.

    With fewer symbols it is the likeliest to fail again, and it alone decides that.
    """
    first = outcome.passed[0].assignment.sizes
    keys = {key: None for one in variants for key in one.assignment.sizes if key in free or key not in first}
    try:
        # The same symbols in each: what a class and JAX's own functions made of them need not be made again.
        sizes = symbols(outcome.needs, list(keys))
    except (ValueError, TypeError) as error:
        return str(error).splitlines()[0]
    for number, trial in enumerate(variants):
        why = _why_not_symbolic(target, trial, sizes, dims)
        if why is not None:
            variants.insert(0, variants.pop(number))
            return why
    return None


def _why_not_symbolic(target: Target, trial: Trial, sizes: Mapping[str, Any], dims: Mapping[str, Any]) -> str | None:
    try:
        found = run_trial(target, with_symbols(trial, sizes), dims)
    except (Unbuildable, AnnotationError, ValueError, TypeError) as error:
        return str(error).splitlines()[0]
    if found.error is not None:
        return in_short(found.error)
    return f"{found.violations[0].where}: {found.violations[0].message}" if found.violations else None


def symbols(needs: Needs, keys: list[str]) -> dict[str, Any]:
    """A symbol for the size of each key, as needs ask.

    Raises:
        ValueError: if JAX has no symbols that need so.
    """
    of_products = {key: [*factors] for key, *factors in needs.products}
    factors = {key: _known((*needs.divisors(key), *of_products.get(key, ())), keys) for key in keys}
    return symbolic_sizes(keys, factors, needs.order)


def with_symbols(trial: Trial, sizes: Mapping[str, Any]) -> Assignment:
    """The assignment of a trial, with symbols for those of its sizes that have one."""
    known = {key: sizes.get(key, size) for key, size in trial.assignment.sizes.items()}
    return dataclasses.replace(trial.assignment, sizes=known)


def _known(factors: tuple[str | int, ...], keys: list[str]) -> list[str | int]:
    return [one for one in factors if isinstance(one, int) or one in keys]
