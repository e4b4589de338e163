"""Sizes that know themselves: their arithmetic is that of integers, and nothing is asked of them in silence."""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from weft.typecheck.sizes import dim
from weft.typecheck.sizes.clauses import Clause, with_clause
from weft.typecheck.sizes.deciding import Question, decided, is_impossible, otherwise, question_of
from weft.typecheck.sizes.dim import Dim, Real, is_same, known_to_python
from weft.typecheck.sizes.polynomials import constant, frozen, plus, quotient, remainder, value, written
from weft.typecheck.sizes.space import Space

NAMES = ("a", "b", "c")


def dims(**numbers: int) -> tuple[Space, dict[str, Dim]]:
    space = Space(dict(numbers), dict.fromkeys(numbers, 1))
    return space, {name: Dim(space, {(name,): 1}) for name in numbers}


# An expression is a function of the three sizes, with its text.
LEAVES = st.one_of(st.sampled_from(NAMES), st.integers(1, 6).map(str))
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda e: f"({e[0]} {e[1]} {e[2]})"),
        st.tuples(inner, st.sampled_from(["//", "%"]), st.integers(1, 6)).map(lambda e: f"({e[0]} {e[1]} {e[2]})"),
        st.tuples(inner, st.sampled_from(["//", "%"]), inner).map(lambda e: f"({e[0]} {e[1]} {e[2]})"),
        inner.map(lambda e: f"(-{e})"),
    ),
    max_leaves=6,
)
SIZES = st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(1, 40)))


def evaluated(text: str, sizes: dict[str, Any]) -> Any:
    """The value of an expression; an example that divides by 0 is none."""
    try:
        return eval(text, {}, sizes)
    except ZeroDivisionError:
        reject()


def number(size: Any) -> int:
    return size.number if type(size) is Dim else size


@given(EXPRESSIONS, SIZES)
def test_arithmetic_is_that_of_integers(text: str, sizes: dict[str, int]):
    expected, (_, known) = evaluated(text, sizes), dims(**sizes)
    assert number(eval(text, {}, known)) == expected


@given(EXPRESSIONS, EXPRESSIONS, SIZES)
def test_a_comparison_is_answered_by_the_numbers(lhs: str, rhs: str, sizes: dict[str, int]):
    on_lhs, on_rhs = evaluated(lhs, sizes), evaluated(rhs, sizes)
    for compare in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge):
        _, known = dims(**sizes)
        assert compare(eval(lhs, {}, known), eval(rhs, {}, known)) is compare(on_lhs, on_rhs)


def asked(lhs: str, rhs: str, compare: Callable[[Any, Any], bool]) -> Question | None:
    space, known = dims(a=5, b=7, c=11)
    compare(evaluated(lhs, known), evaluated(rhs, known))
    return next(iter(space.asked), None)


@given(EXPRESSIONS, EXPRESSIONS, st.sampled_from([operator.eq, operator.lt]), st.lists(SIZES, min_size=8, max_size=8))
def test_what_is_not_noted_has_one_answer(lhs: str, rhs: str, compare: Any, several: list[dict[str, int]]):
    if asked(lhs, rhs, compare) is None:
        answers = set[bool]()
        for sizes in [{"a": 5, "b": 7, "c": 11}, *several]:
            with contextlib.suppress(ZeroDivisionError):
                answers.add(compare(eval(lhs, {}, sizes), eval(rhs, {}, sizes)))
        assert len(answers) == 1


@given(EXPRESSIONS, EXPRESSIONS, st.sampled_from([operator.eq, operator.lt]))
def test_sizes_with_another_answer_have_another_answer(lhs: str, rhs: str, compare: Any):
    question = asked(lhs, rhs, compare)
    if question is not None:
        sizes = {"a": 5, "b": 7, "c": 11}
        now = compare(evaluated(lhs, sizes), evaluated(rhs, sizes))
        for changed in otherwise([(question, bool(question.answer(sizes)))], sizes, {}):
            with contextlib.suppress(ZeroDivisionError):
                assert compare(eval(lhs, {}, changed), eval(rhs, {}, changed)) is not now


COMPARISONS = st.tuples(EXPRESSIONS, EXPRESSIONS, st.sampled_from([operator.eq, operator.lt]))


@given(st.lists(st.tuples(COMPARISONS, st.booleans()), min_size=2, max_size=4))
def test_answers_that_exclude_each_other_are_given_by_no_sizes(comparisons: list[Any]):
    questions = [(asked(*compared), answer) for compared, answer in comparisons]
    answers = [(question, answer) for question, answer in questions if question is not None]
    if is_impossible(answers, {}):
        for sizes in ({"a": a, "b": b, "c": c} for a, b, c in itertools.product(range(1, 7), repeat=3)):
            assert not all(question.answer(sizes) is answer for question, answer in answers)


def test_what_excludes_an_answer_is_seen():
    n, m, unit = {("n",): 1}, {("m",): 1}, constant(1)
    less, equal = Question(True, frozen(plus(n, m, -1))), Question(False, frozen(plus(n, m, -1)))
    is_one, below_two = Question(False, frozen(plus(n, unit, -1))), Question(True, frozen(plus(n, unit, -2)))
    product_is_one = Question(False, frozen({("m", "n"): 1, (): -1}))
    for answers in (
        [(less, True), (equal, True)],
        [(below_two, True), (is_one, False)],
        [(product_is_one, True), (is_one, False)],
        [(equal, True), (is_one, True), (Question(False, frozen(plus(m, unit, -1))), False)],
    ):
        assert is_impossible(answers, {})
        assert not is_impossible(answers[:1], {})


def test_what_divides_by_zero_is_asked_at_no_sizes():
    difference = plus({("n",): 1}, {("m",): 1}, -1)
    for divide in (quotient, remainder):
        divides = Question(False, frozen(plus(divide({("m",): 1}, difference), {("k",): 1}, -1)))
        assert is_impossible([(Question(False, frozen(difference)), True), (divides, True)], {})
        assert not is_impossible([(divides, True)], {})


@pytest.mark.parametrize(
    ("text", "far"),
    [
        ("a > 1000", 1001),
        ("a == 12345", 12345),
        ("a % 10 == 7 and a > 20", 27),
        ("(a // 3) % 5 == 4", 12),
        ("3*a == 2*b + 5", 0),
    ],
)
def test_sizes_are_found_far_away_and_after_what_was_asked_before(text: str, far: int):
    space, known = dims(a=5, b=7)
    for _ in range(4):
        if eval(text, {}, known):
            break
        path = [(question, answer) for question, (answer, *_) in space.asked.items()]
        sizes = next(otherwise(path, space.numbers, space.least))
        space, known = dims(**sizes)
    assert eval(text, {}, space.numbers)
    assert not far or space.numbers["a"] == far


def test_quotients_of_ceilings_and_floors_are_known_to_be_one():
    space, known = dims(n=7)
    n: Any = known["n"]
    assert -(-n // 2) == (n + 1) // 2
    assert n // 2 * 2 + n % 2 == n
    assert n % 4 < 4
    assert (n + 3) // 4 >= n // 4
    assert not space.asked


def test_an_order_is_said_as_one_would_say_it():
    space, known = dims(k=3, n=7)
    k, n = known["k"], known["n"]
    assert [k <= n, n >= 5, n % 3 != 0, k * 2 < n, n == 7] == [True] * 5
    words = [question.said(answer) for question, (answer, *_) in space.asked.items()]
    assert words == ["k <= n", "n >= 5", "3 does not divide n", "2*k < n", "n = 7"]


@pytest.mark.parametrize(
    "take",
    [
        range,
        hash,
        str,
        "{}".format,
        lambda n: [0] * n,
        lambda n: {7: 1}.get(n),
        lambda n: n in {7, 17},
        lambda n: math.gcd(n, 4),
        lambda n: n**0.5 > 2,
        lambda n: f"{(n,)}",
        lambda n: f"{n / 2:.1f}",
        lambda n: math.isclose(n / 2, 3.5),
        lambda n: np.float64(n / 2),
        lambda n: np.zeros(n),
        lambda n: 2**n,
        int,
        float,
    ],
)
def test_what_takes_the_number_pins(take: Callable[[Any], Any]):
    space, known = dims(n=7)
    take(known["n"])
    assert {*space.pinned} == {"n"}


@pytest.mark.parametrize("file", [jax.__file__, np.__file__, dim.__file__])
@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        ("isinstance(n, int)", False),
        ("isinstance(n / 2, float)", False),
        ("str(n)", "n"),
        ("repr(n)", "n"),
        ("format(n, 'd')", "n"),
        ("f'{(n, 3)}'", "(n, 3)"),
        ("float(n)", 7.0),
        ("repr(n / 2)", "3.5"),
        ("hash(n) == hash(7)", False),
    ],
)
def test_what_a_library_or_the_checker_asks_is_no_decision_of_the_program(file: str, asks: str, expected: Any):
    space, known = dims(n=7)
    assert eval(compile(asks, file, "eval"), {}, known) == expected
    assert not space.pinned


def test_only_where_jax_tests_whether_a_size_is_a_number_it_is_none():
    space, known = dims(n=7)
    index, names = "operator.index(n)", {"operator": operator}
    with pytest.raises(TypeError, match="the size is symbolic"):
        eval(compile(index, str(Path(jax.__file__).parent / "_src" / "core.py"), "eval"), names, known)
    assert not space.pinned
    assert eval(compile(index, "program.py", "eval"), names, known) == 7
    assert {*space.pinned} == {"n"}


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda n: n / 2 == 3.5, True),
        (lambda n: n * 0.5 > 3, True),
        (lambda n: math.floor(n * 0.75) == 5, True),
        (lambda n: math.ceil(n / 2) == 4, True),
        (lambda n: n < 7.5, True),
        (lambda n: n >= 6.5, True),
        (lambda n: n << 1 == 14, True),
        (lambda n: n & 1 == 1, True),
        (lambda n: n >> 1 == 3, True),
    ],
)
def test_what_is_computed_is_asked_exactly(compute: Callable[[Any], bool], expected: bool):
    space, known = dims(n=7)
    assert compute(known["n"]) is expected is compute(7)
    assert not space.pinned


def test_a_scale_says_nothing_of_its_size():
    _space, known = dims(d=7)
    with known_to_python():
        scale = 1 / math.sqrt(known["d"]) + known["d"] ** -0.5 + 1 / np.sqrt(known["d"])
    assert type(scale) is Real
    assert abs(scale._pinned() - 3 / math.sqrt(7)) < 1e-12
    assert math.sqrt.__module__ == "math"


def traced(function: Callable[..., Any], *shapes: str, **numbers: int) -> tuple[Space, list[str]]:
    space, known = dims(**numbers)
    arrays = [
        jax.ShapeDtypeStruct(tuple(eval(word, {}, dict(known)) for word in shape.split()), "float32")
        for shape in shapes
    ]
    out = jax.make_jaxpr(function)(*arrays)
    return space, [",".join(map(text_of, aval.shape)) for aval in out.out_avals]


def text_of(size: Any) -> str:
    return written(size.terms) if type(size) is Dim else str(size)


@pytest.mark.parametrize(
    ("function", "shapes", "out"),
    [
        (lambda q, k: jnp.einsum("btd,bsd->bts", q, k), ["b t d", "b s d"], "b,t,s"),
        (lambda x: x.reshape(x.shape[0], 4, -1).swapaxes(1, 2), ["b 4*h"], "b,h,4"),
        (lambda x: jnp.concatenate([x, x[1:]]), ["t d"], "2*t - 1,d"),
        (lambda x: x[:, : x.shape[1] // 2], ["t d"], "t,(d // 2)"),
        (lambda x: x[x.shape[0] - 1], ["t d"], "d"),
        (lambda x: jnp.fft.rfft(x), ["t d"], "t,(d // 2) + 1"),
        (lambda x: jax.lax.scan(lambda c, row: (c + row, c), jnp.zeros(x.shape[1]), x)[1], ["t d"], "t,d"),
        (lambda x: jnp.tril(jnp.ones((x.shape[0],) * 2)), ["t d"], "t,t"),
        (lambda a, b: jax.vmap(jnp.linalg.solve)(a, b), ["b t t", "b t"], "b,t"),
        (lambda x: jnp.pad(x, ((0, 0), (1, x.shape[0]))), ["t d"], "t,d + t + 1"),
    ],
)
def test_jax_takes_them_for_symbolic_dimensions(function: Any, shapes: list[str], out: str):
    space, shapes_of_results = traced(function, *shapes, b=5, t=7, s=11, d=13, h=3)
    assert shapes_of_results == [out]
    assert not space.pinned


def test_isinstance_is_about_what_a_program_would_have():
    _, known = dims(n=7)
    assert isinstance(known["n"], int)
    assert type(known["n"]) is Dim


def test_sizes_of_two_traces_are_apart():
    (_, first), (_, second) = dims(n=7), dims(n=7)
    assert first["n"] != second["n"]
    assert is_same(first["n"], second["n"])


def test_a_condition_that_another_makes_needless_goes():
    even, large = question_of({("n",): 1, (): -2}, is_order=False), question_of({("n",): 1, (): -9}, is_order=True)
    clauses = with_clause((), Clause(((even, True), (large, True))))
    clauses = with_clause(clauses, Clause(((even, True), (large, False))))
    assert clauses == (Clause(((even, True),)),)
    assert with_clause(clauses, Clause(((even, True), (large, True)))) == clauses
    assert clauses[0].allows({"n": 2})
    assert not clauses[0].allows({"n": 3})


def test_what_is_decided_is_so_at_each_of_many_sizes():
    """All orders and equations of two small linear expressions, decided or tried at each size up to 12."""
    small = [plus({("n",): a}, constant(b)) for a, b in itertools.product((-2, -1, 1, 2), (-3, 0, 2))]
    for is_order, terms in itertools.product((False, True), small):
        question = Question(is_order, frozen(terms))
        answers = {(value(terms, {"n": n}) < 0) if is_order else (value(terms, {"n": n}) == 0) for n in range(1, 13)}
        assert decided(question, {"n": 1}) in ({None} if len(answers) == 2 else {None, *answers})


def test_an_equation_that_two_ends_of_a_remainder_lie_around_is_open():
    a, b = ({(name,): 1} for name in "ab")
    terms = plus(remainder(plus(a, quotient(a, b)), constant(3)), constant(-1))  # (a + a // b) % 3 = 1
    assert decided(question_of(terms, is_order=False), {}) is None


def test_a_size_of_an_earlier_trace_is_no_size_of_the_next_and_asks_nothing():
    # JAX's caches compare the sizes of a call with those of earlier ones, whose dims may not exist any more.
    space, known = dims(a=2, b=3)
    with space.making() as part:
        made = Dim(space, known["a"].terms)
    earlier, root = known["a"], known["a"] ** 0.5
    space.begin({"b": 4}, {"b": 1})
    now = Dim(space, {("b",): 1})
    assert earlier != 2
    assert earlier != now
    assert made != 2
    assert root != 2.0
    assert not space.asked
    assert earlier.number == 2
    space.begin({"a": 2}, {"a": 1})
    space.reuse(part)
    assert made == Dim(space, {("a",): 1})
    assert made == 2
    assert [question.said(answer) for question, (answer, *_) in space.asked.items()] == ["a = 2"]
