"""Needs: sizes that respect them, and the symbolic dimensions made from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weft.typecheck.arguments.builder import Assignment
from weft.typecheck.language.symbolic import is_symbolic, symbolic_sizes
from weft.typecheck.proofs.needs import DEALS, Needs, assignment_for

KEYS = ["a", "b", "c", "d"]


@st.composite
def needs(draw: st.DrawFn) -> Needs:
    """Needs that can hold together: divisors and orders go from earlier keys to later ones."""
    pairs = [(KEYS[j], KEYS[i]) for i in range(4) for j in range(i + 1, 4)]
    multiples = draw(st.lists(st.sampled_from(pairs), max_size=3, unique=True))
    numbers = draw(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([2, 3, 8])), max_size=2, unique=True))
    order = draw(
        st.lists(
            st.sampled_from([(one, other, factor) for other, one in pairs for factor in (1, 2)]),
            max_size=3,
            unique=True,
        )
    )
    return Needs(multiples=(*multiples, *numbers), order=tuple(order))


@given(needs(), st.sampled_from(DEALS))
def test_dealt_sizes_are_distinct_and_respect_the_needs(wanted: Needs, deal):
    sizes = assignment_for(KEYS, wanted, deal, Assignment()).sizes
    assert wanted.allows(sizes)
    assert len(set(sizes.values())) == len(KEYS)


def test_without_needs_sizes_are_odd_primes():
    sizes = assignment_for(KEYS, Needs(), DEALS[0], Assignment()).sizes
    assert sizes == {"a": 5, "b": 7, "c": 11, "d": 13}


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Needs(multiples=(("m", "heads"),)), "heads divides m"),
        (Needs(order=(("k", "n", 1),)), "k <= n"),
        (Needs(equal=(("i", 8),)), "i = 8"),
        (Needs(merged=(("features", "inp"),)), "features = inp"),
        (Needs(least=(("n", 2),)), "n >= 2"),
    ],
)
def test_needs_are_said_in_words(wanted: Needs, words: str):
    assert wanted.words() == (words,)


def test_symbolic_sizes_of_multiples_divide():
    sizes = symbolic_sizes(["m", "heads"], {"m": ["heads", 2]})
    assert all(map(is_symbolic, sizes.values()))
    assert sizes["m"] % sizes["heads"] == 0
    assert sizes["m"] % 2 == 0


def test_any_key_can_be_symbolic():
    sizes = symbolic_sizes(["layers[0].width", "batch.0", "mod"], {})
    assert len({str(size) for size in sizes.values()}) == 3


def test_the_largest_size_of_a_key_bounds_what_it_is_at_least_as_large_as():
    wanted = Needs(order=(("a", "b", 2), ("b", "c", 1), ("c", "b", 1)), most=(("c", 8),))
    assert [wanted.ceiling(key) for key in KEYS] == [4, 8, 8, None]
    sizes = assignment_for(KEYS, Needs(most=(("a", 3), ("b", 3), ("c", 3))), DEALS[0], Assignment()).sizes
    assert all(sizes[key] <= 3 for key in "abc")
