"""A stated condition is true: at sizes drawn at random of those that it allows, jaxtyping with beartype finds nothing.

`WEFT_DRAWS=500` draws that many times for each function, and goes over the right version of each program of the corpus.
"""

from __future__ import annotations

import inspect
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import pytest
from beartype import beartype
from jaxtyping import Array, Float, jaxtyped
from weft.typecheck.arguments.builder import Assignment, Builder, Unbuildable
from weft.typecheck.modes import mode
from weft.typecheck.proofs.budget import USUAL
from weft.typecheck.proofs.needs import Needs
from weft.typecheck.proofs.prover import proofs_of
from weft.typecheck.proofs.search import Search
from weft.typecheck.proofs.trial import Target, trace

from .. import corpus
from . import test_conditions as conditions

MANY = int(os.environ.get("WEFT_DRAWS", "0"))
DRAWS = MANY or 6


def windows(x: Float[Array, "n d"], k: int) -> Float[Array, "k d"]:
    return jax.lax.top_k(x.T, k)[0].T


def in_heads(x: Float[Array, "n d"], heads: int) -> Float[Array, "n d"]:
    return x.reshape(x.shape[0], heads, -1).swapaxes(1, 2).reshape(x.shape)


def between(x: Float[Array, "n"]) -> Float[Array, "n"]:
    if not 5 <= x.shape[0] <= 30:
        raise ValueError("between 5 and 30")
    return x


def either(x: Float[Array, "n"]) -> Float[Array, "n"]:
    if x.shape[0] % 2 and x.shape[0] % 3:
        raise ValueError("neither 2 nor 3 divides it")
    return x


def at_most_half(x: Float[Array, "n"], k: Float[Array, "m"]) -> Float[Array, "n"]:
    if 2 * k.shape[0] > x.shape[0] or x.shape[0] < 10:
        raise ValueError("at most half, of ten or more")
    return x


OF_CONDITIONS = [
    conditions.long_enough,
    conditions.a_power,
    conditions.fewer,
    conditions.Attention,
    conditions.Residual,
]
FUNCTIONS = [windows, in_heads, between, either, at_most_half, *OF_CONDITIONS]


def draws(keys: Mapping[str, int], needs: Needs, source: random.Random) -> Iterator[dict[str, int]]:
    """Sizes that needs allow, by drawing until some are."""
    for _ in range(DRAWS):
        for _ in range(3000):
            most = source.choice((4, 12, 48))
            sizes = {key: source.randint(1, most) for key in keys}
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


def violations(target: Target) -> list[str]:
    """What is found at sizes that the condition of a target allows."""
    outcome = Search(target, {}, USUAL).run()
    if not outcome.needs.words() or outcome.failed or outcome.ended:
        return []  # nothing is stated; a proof without a condition is symbolic, or of the sizes tried
    base, found = outcome.passed[0].assignment, []
    for sizes in draws(base.sizes, outcome.needs, random.Random(0)):
        assignment = Assignment(sizes, base.ranks, base.options, base.merged, base.apart)
        try:
            with mode("off"):
                function, args, kwargs = target.prepare(Builder(assignment))
                trace(jaxtyped(typechecker=beartype)(inspect.unwrap(function)), args, kwargs)
        except Unbuildable:
            continue
        except Exception as error:
            found.append(f"{sizes}: {type(error).__name__}: {error}")
    return found


@pytest.mark.parametrize("thing", FUNCTIONS, ids=lambda one: one.__name__)
def test_a_stated_condition_is_true_wherever_it_allows(thing: Any):
    for proof in proofs_of(thing, {}, {}, USUAL):
        assert not violations(proof.target)


if MANY:

    @pytest.mark.slow
    @pytest.mark.parametrize("program", corpus.PROGRAMS, ids=lambda one: one.stem)
    def test_the_conditions_of_the_corpus_are_true(program: Path, tmp_path: Path):
        module = corpus.load(corpus.write(program, "right", tmp_path))
        for proof in proofs_of(module.entry, {}, {}, USUAL):
            assert not violations(proof.target)
