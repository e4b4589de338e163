"""Sizes drawn at random of those that a stated condition allows, and what jaxtyping with beartype finds at them."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Iterator, Mapping

from beartype import beartype
from jaxtyping import jaxtyped
from weft.typecheck.arguments.builder import Assignment, Builder, Unbuildable
from weft.typecheck.modes import mode
from weft.typecheck.proofs.explaining import USUAL, Trials
from weft.typecheck.proofs.guards import GuardPasser
from weft.typecheck.proofs.needs import Needs
from weft.typecheck.proofs.prover import target_instead
from weft.typecheck.proofs.search import search
from weft.typecheck.proofs.tracing import Target, trace


def draws(keys: Mapping[str, int], needs: Needs, source: random.Random, count: int) -> Iterator[dict[str, int]]:
    """Sizes that needs allow, by drawing until some are."""
    for _ in range(count):
        for _ in range(3000):
            # Each of a range of its own, so that one is often much larger than another.
            sizes = {key: source.randint(1, source.choice((4, 12, 48))) for key in keys}
            for key, known in needs.among:
                sizes[key] = source.choice(known)
            for key, number in needs.equal:
                sizes[key] = number
            for key, factor in needs.multiples:
                unit = sizes.get(factor, 1) if isinstance(factor, str) else factor
                sizes[key] = max(sizes.get(key, 1) // unit, 1) * unit
            if needs.allows(sizes):
                yield sizes
                break


def violations(target: Target, count: int, seconds: float = 600) -> tuple[int, list[str]]:
    """How often sizes were drawn that the condition of a target allows, and what was found at them.

    A proof without a condition is symbolic, or of the sizes that were tried, and nothing is drawn. Nor is anything
    where jaxtyping objects to what the search has seen hold: that is no matter of sizes. Drawing ends after some
    seconds of processor time.
    """
    outcome = search(Trials(target, {}, USUAL))
    replacement = target_instead(target, outcome.failed)
    if replacement is not None:
        return violations(replacement, count, seconds)
    if not outcome.needs.words() or outcome.failed or outcome.ended:
        return 0, []
    base = outcome.passed[0].assignment
    if objection(target, base):
        return 0, []
    drawn, objections, began = 0, [], time.process_time()
    for sizes in draws(base.sizes, outcome.needs, random.Random(0), count):
        if time.process_time() - began > seconds:
            break
        try:
            error = objection(target, Assignment(sizes, base.ranks, base.options, base.merged, base.names_per_record))
        except Unbuildable:
            continue
        drawn += 1
        if error:
            objections.append(f"{sizes}: {error}")
    return drawn, objections


def objection(target: Target, assignment: Assignment) -> str:
    """What jaxtyping with beartype, or JAX, says of a target at some sizes; "" if nothing.

    Raises:
        Unbuildable: if there are no arguments of these sizes.
    """
    try:
        with mode("off"), GuardPasser(target.own).going_on():
            function, args, kwargs = target.prepare(Builder(assignment))
            trace(jaxtyped(typechecker=beartype)(inspect.unwrap(function)), args, kwargs)
    except Unbuildable:
        raise
    except Exception as error:  # that it objects is what is asked, in whichever words
        return f"{type(error).__name__}: {error}"
    return ""
