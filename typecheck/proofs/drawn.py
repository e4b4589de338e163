"""Sizes that needs allow, by which a condition is refuted: small ones, some at random, and each against all others."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping

from weft.typecheck.proofs.needs import Needs

Sizes = Mapping[str, int]

# Of how many keys each is drawn much larger, and much smaller, than all others.
_MOST_AGAINST = 6
# Sizes that guards refuse one after the other.
_MOST_SKIPPED = 50


def draws(given: Sizes, needs: Needs, source: random.Random, fixed: frozenset[str]) -> Iterator[dict[str, int]]:
    """Sizes that the needs allow: the smallest, some at random, and the largest where guards refuse larger ones."""
    for wanted in _wishes(given, needs, source):
        sizes = {key: given[key] for key in fixed & given.keys()}
        for key in given:
            _draw(key, wanted, needs, sizes, ())
        if needs.allows(sizes):
            yield sizes


def _wishes(given: Sizes, needs: Needs, source: random.Random) -> Iterator[Sizes]:
    yield dict.fromkeys(given, 1)
    for most in (12, 40, 4):
        yield {key: source.randrange(1, most) for key in given}
    # One size against all others, for a relation that the dealt sizes happen to keep is seldom broken by chance.
    for key in itertools.islice(given, _MOST_AGAINST):
        for alone, others in ((48, 6), (3, 48)):
            yield {
                **{one: source.randrange(others // 2, others) for one in given},
                key: source.randrange(alone // 2, alone),
            }
    if needs.most:
        yield {key: needs.ceiling(key) or 1 for key in given}


def _draw(key: str, wanted: Sizes, needs: Needs, sizes: dict[str, int], above: tuple[str, ...]) -> int:
    """The first size from a wanted one on that the needs allow."""
    if key in sizes or key in above or key not in wanted:
        return sizes.get(key, 1)
    among, equal = dict(needs.among).get(key), dict(needs.equal).get(key)
    if among:
        sizes[key] = among[wanted[key] % len(among)]
    elif equal is not None:
        sizes[key] = equal
    else:
        unit, least = needs.unit_and_least(key, lambda one: _draw(one, wanted, needs, sizes, (*above, key)))
        sizes[key] = -(-max(wanted[key], least) // unit) * unit
        if key in needs.squares:
            root = math.isqrt(sizes[key] - 1) + 1
            sizes[key] = (-(-root // unit) * unit) ** 2
        ceiling = needs.ceiling(key)
        if ceiling is not None:
            sizes[key] = max(min(sizes[key], ceiling // unit * unit), 1)
        refused = itertools.takewhile(lambda size: not needs.admits(key, size), itertools.count(sizes[key], unit))
        sizes[key] += unit * sum(1 for _ in itertools.islice(refused, _MOST_SKIPPED))
    return sizes[key]
