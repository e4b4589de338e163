"""Needs: sizes that respect them, and those that know themselves, written so that they do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from weft.typecheck.arguments.builder import Assignment
from weft.typecheck.proofs.needs import DEALS, Needs, assignment_for, written_under
from weft.typecheck.sizes.polynomials import dims_of
from weft.typecheck.sizes.space import Space

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


@given(needs())
def test_sizes_that_know_themselves_meet_the_needs_whatever_they_are(wanted: Needs):
    sizes = assignment_for(KEYS, wanted, DEALS[0], Assignment()).sizes
    written = written_under(wanted, sizes, ())
    assert written.at(written.numbers) == sizes
    multiples = tuple(one for one in wanted.multiples if dims_of(written.terms[one[0]]))
    for more in (1, 2, 5):
        sizes_beyond = written.at({name: number + more for name, number in written.numbers.items()})
        assert Needs(multiples=multiples).allows(sizes_beyond)


def test_a_divisor_is_asked_nothing_of():
    space = Space()
    written = written_under(Needs(multiples=(("m", "heads"), ("m", 2))), {"heads": 5, "m": 30}, ())
    sizes = written.dims({"heads": 5, "m'": 3}, space)
    assert sizes["m"] % sizes["heads"] == 0 == sizes["m"] % 2
    assert not space.asked
