"""Questions of sizes: whether a question has one answer for all sizes, and sizes at which it has the other answer.

Every comparison of sizes is `d = 0` or `d < 0` for a polynomial `d`. Quotients and remainders by numbers vanish when
each dim is written as `period * t + rest`, once for each rest. This gives a polynomial in the `t`s, which are 0 or
more: it is 0 everywhere only if it has no terms, and has one sign if all its coefficients have.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from weft.typecheck.sizes.polynomials import (
    Atom,
    Frozen,
    Terms,
    atoms_of,
    constant,
    dims_of,
    frozen,
    is_negative,
    period,
    plus,
    product,
    remainder,
    replaced,
    value,
    without_common,
    written,
)

# The most combinations of remainders that `decided` goes through for one question, over all of its dims.
_MOST_RESTS = 600
# `otherwise` looks for the other answer among this many sizes of one dim,
_LARGEST = 400
# up to this size where its question is not linear in it, since each is looked at; and up to this one where it is,
_LARGEST_TRACED, _LARGEST_SIZE = 1 << 20, 1 << 40
# among this many of each of two dims that change together,
_LARGEST_OF_TWO = 30
# and among this many of each of at most `_MOST_TOGETHER` dims that change together.
_LARGEST_OF_MANY, _MOST_TOGETHER = 8, 4
# Among this many sizes with the other answer, `otherwise` looks for a size that no other dim has.
_FEW = 8
# The prefix of the variables that stand for quotients: no dim of a program has such a name.
_QUOTIENT = "\0"


@dataclass(frozen=True)
class Question:
    """A comparison that a trace made of its sizes: `terms = 0` or `terms < 0`.

    Attributes:
        is_order: whether the comparison is `terms < 0`.
        terms: the polynomial, frozen.
    """

    is_order: bool
    terms: Frozen

    @property
    def dims(self) -> set[str]:
        """The dims that the question is about."""
        return dims_of(dict(self.terms))

    @property
    def remainder(self) -> Atom | None:
        """The remainder of the question whether one size divides another; None for any other question."""
        if self.is_order or len(self.terms) != 1:
            return None
        ((monomial, number),) = self.terms
        atom = monomial[0] if len(monomial) == 1 == number else None
        return atom if isinstance(atom, Atom) and atom.op == "%" else None

    def answer(self, sizes: Mapping[str, int]) -> bool | None:
        """The answer at these sizes; None where the question divides by 0."""
        try:
            number = value(self.terms, sizes)
        except ZeroDivisionError:
            return None
        return number < 0 if self.is_order else number == 0

    def said(self, answer: bool) -> str:
        """The answer in words, as the end of "holds when", with each term on the side where its sign is positive.

        >>> Question(True, frozen({("k",): 1, ("n",): -1, (): -1})).said(True)
        'k <= n'
        >>> Question(False, frozen({(Atom("%", frozen({("n",): 1}), frozen({(): 3})),): 1})).said(False)
        '3 does not divide n'
        """
        terms = dict(self.terms)
        lhs = {factors: number for factors, number in terms.items() if number > 0}
        rhs = {factors: -number for factors, number in terms.items() if number < 0}
        op = ("<" if answer else ">=") if self.is_order else ("=" if answer else "!=")
        if (atom := self.remainder) is not None:
            does = "divides" if answer else "does not divide"
            return f"{written(dict(atom.divisor))} {does} {written(dict(atom.dividend))}"
        if not lhs or (lhs.keys() == {()} and rhs):
            lhs, rhs, op = rhs, lhs, {"<": ">", ">=": "<="}.get(op, op)
        # Of integers: `n < 6` is `n <= 5`, and `k < n + 1` is `k <= n`.
        closed, step = {"<": ("<=", -1), ">": (">=", 1)}.get(op, (op, 0))
        if step and (rhs.keys() <= {()} or rhs.get((), 0) == -step):
            op, rhs = closed, plus(rhs, constant(step))
        elif op == ">=" and rhs.get(()) == 1 and len(rhs) > 1:
            op, rhs = ">", plus(rhs, constant(-1))
        if op in (">", ">=") and rhs.keys() - {()}:
            lhs, rhs, op = rhs, lhs, {">": "<", ">=": "<="}[op]
        return f"{written(lhs)} {op} {written(rhs)}"


def question_of(terms: Terms, *, is_order: bool) -> Question:
    """The question in a normal form, by which equal questions are recognised.

    An equation is the same whichever of its sides came first, and `-n % m = 0` is `n % m = 0`. An order has no
    quotient: `x // c < y` is `x < c * y`, since no size is negative.
    """
    if is_order:
        terms = _without_quotient(terms)
    ordered = frozen(terms)
    if ordered and not is_order and ordered[-1][1] < 0:
        ordered = tuple((monomial, -coefficient) for monomial, coefficient in ordered)
    question = Question(is_order, ordered)
    atom = question.remainder
    if atom is not None and is_negative(dict(atom.dividend)):
        return question_of(remainder(plus({}, dict(atom.dividend), -1), dict(atom.divisor)), is_order=False)
    return question


def _without_quotient(terms: Terms) -> Terms:
    """The polynomial of `terms < 0` without its quotient, if a term is a quotient: `x // c < y` is `x < c * y`."""
    for monomial, coefficient in terms.items():
        atom = monomial[0] if len(monomial) == 1 and abs(coefficient) == 1 else None
        # A sum of products of dims is positive at all sizes. A quotient in it might be negative.
        if (
            isinstance(atom, Atom)
            and atom.op == "//"
            and all(
                number > 0 and all(isinstance(factor, str) for factor in factors) for factors, number in atom.divisor
            )
        ):
            divisor, rest = dict(atom.divisor), {key: number for key, number in terms.items() if key != monomial}
            if coefficient == 1:
                return plus(dict(atom.dividend), product(divisor, rest))
            return plus(plus(product(divisor, plus(rest, constant(1))), dict(atom.dividend), -1), constant(-1))
    return terms


def decided(question: Question, least: Mapping[str, int]) -> bool | None:
    """The answer to a question if it is the same for all sizes, else None.

    Args:
        question: the comparison to decide.
        least: the smallest size that each dim has.

    >>> half = frozen({("n",): 1}), frozen({(): 2})
    >>> halved = {("n",): -1, (Atom("//", *half),): 2, (Atom("%", *half),): 1}
    >>> decided(Question(False, frozen(halved)), {"n": 1})
    True
    """
    terms = dict(question.terms)
    names = sorted(dims_of(terms))
    step = period(terms)

    def exceeding(name: str) -> Terms:
        smallest = 0 if name.startswith(_QUOTIENT) else least.get(name, 1)
        return plus(constant(smallest), {(name,): 1})

    if step is None:
        # A divisor is no number. The *ends* are the polynomial at the least and greatest values of its remainders. A
        # sign that it has at all ends it has between them, too; if the ends differ in sign, it may be 0 between them.
        # They are polynomials in new variables: by how much each dim exceeds its smallest size, which is 0 or more.
        ends = [replaced(end, exceeding) for end in _without_atoms(terms, least)]
        below, above = ({_sign_of(plus({}, end, times), is_order=True) for end in ends} for times in (1, -1))
        if question.is_order:
            answers = below
        elif below == {True} or above == {True}:
            answers = {False}
        else:
            answers = {True if ends and not any(ends) else None}
    elif step ** len(names) <= _MOST_RESTS:
        answers = set[bool | None]()
        for dims in _by_rests(names, step, least):
            answers.add(_sign_of(replaced(terms, dims.get), is_order=question.is_order))
            if len(answers) > 1:
                break
    else:
        return None
    return answers.pop() if len(answers) == 1 else None


def _by_rests(names: Sequence[str], step: int, least: Mapping[str, int]) -> Iterator[dict[str, Terms]]:
    """The dims as `step` times a number of 0 or more, plus each combination of rests."""
    for rests in itertools.product(range(step), repeat=len(names)):
        starts = (least.get(name, 1) + rest for name, rest in zip(names, rests, strict=True))
        yield {name: plus(constant(start), {(name,): step}) for name, start in zip(names, starts, strict=True)}


def _without_atoms(terms: Terms, least: Mapping[str, int]) -> list[Terms]:
    """The polynomial at the least and the greatest value of each remainder, with a new variable for each quotient.

    The polynomial is linear in each remainder, so a sign that it has at both ends it also has between them. There are
    no ends where it is not linear, where a divisor may be 0 or less, or where a quotient is bounded on neither side.
    """
    atom = next((factor for monomial in terms for factor in monomial if isinstance(factor, Atom)), None)
    if atom is None:
        return [terms]
    low, high = _bounds_of(atom, least)
    ends: list[Terms] = []
    if atom.op == "%" and low == 0 and all(monomial.count(atom) < 2 for monomial in terms):
        ends = [{}, plus(dict(atom.divisor), constant(-1))]
    elif atom.op == "//" and (low > -math.inf or high < math.inf):
        bound, sign = (low, 1) if low > -math.inf else (high, -1)
        ends = [plus(constant(int(bound)), {(_QUOTIENT + atom.key,): sign})]
    of_each = [_without_atoms(_with(terms, atom, end), least) for end in ends]
    return list(itertools.chain(*of_each)) if all(of_each) else []


def _bounds_of(factor: str | Atom, least: Mapping[str, int]) -> tuple[float, float]:
    """The least and the greatest number that a factor may be, as far as they are known; else infinities."""
    if isinstance(factor, str):
        return (0 if factor.startswith(_QUOTIENT) else least.get(factor, 1)), math.inf
    (low, high), (below, above) = (_bounds(side, least) for side in (factor.dividend, factor.divisor))
    if below < 1:  # below 0 a quotient has the other sign, and so has a remainder
        return -math.inf, math.inf
    if factor.op == "%":
        return 0, above - 1
    return (
        low if math.isinf(low) else low // (below if low < 0 else above),
        high if math.isinf(high) else high // (above if high < 0 else below),
    )


def _bounds(terms: Frozen, least: Mapping[str, int]) -> tuple[float, float]:
    """The same of a polynomial."""
    # Integers stay integers, as a float would round a bound beyond 2**53 to either side.
    low, high = 0, 0
    for monomial, coefficient in terms:
        part: tuple[float, float] = coefficient, coefficient
        for factor in monomial:
            # 0 times any number is 0, however large that number may be; of an infinity it would be no number.
            ends = [a * b if a and b else 0 for a in part for b in _bounds_of(factor, least)]
            part = min(ends), max(ends)
        low, high = low + part[0], high + part[1]
    return low, high


def _with(terms: Terms, atom: Atom, end: Terms) -> Terms:
    """The polynomial with another polynomial, `end`, in place of an atom."""
    total: Terms = {}
    for monomial, coefficient in terms.items():
        part: Terms = {tuple(factor for factor in monomial if factor != atom): coefficient}
        for _ in range(monomial.count(atom)):
            part = product(part, end)
        total = plus(total, part)
    return total


def _sign_of(terms: Terms, *, is_order: bool) -> bool | None:
    """Whether a polynomial whose variables are 0 or more is below 0, or, if not `is_order`, whether it is 0.

    None if the signs of its terms do not decide it.
    """
    if not terms:
        return not is_order
    positive = all(coefficient > 0 for coefficient in terms.values())
    negative = all(coefficient < 0 for coefficient in terms.values())
    if is_order:
        if positive:
            return False
        return True if negative and () in terms else None
    if () not in terms:
        return None
    step = math.gcd(*(coefficient for monomial, coefficient in terms.items() if monomial))
    return False if positive or negative or (step and terms[()] % step) else None


def otherwise(
    asked: Sequence[tuple[Question, bool]], sizes: Mapping[str, int], least: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """Sizes at which a question has the other answer, while every earlier question keeps its answer.

    Args:
        asked: the questions of a trace with their answers; the last one is to have the other answer.
        sizes: of all dims in that trace.
        least: the smallest size that each dim has.

    Yields:
        Sizes that differ in one dim first, then in two, then in several; preferably sizes that no other dim has.
    """
    (question, now), before = asked[-1], [(earlier, answer, earlier.dims) for earlier, answer in asked[:-1]]
    names, sizes_of_dims = sorted(question.dims), set(sizes.values())

    def with_other_answer(*changed: tuple[str, Sequence[int]]) -> Iterator[dict[str, int]]:
        """The changes of these dims at which the question has the other answer and earlier ones keep theirs."""
        # All combinations are evaluated at once as arrays: one by one, they took a tenth of the time of a proof.
        dims = [name for name, _ in changed]
        grid = np.meshgrid(*(np.array(tried, np.int64) for _, tried in changed), indexing="ij")
        columns = dict(zip(dims, (axis.ravel() for axis in grid), strict=True))
        there = {**sizes, **columns}
        # The sizes answered every earlier question, so only those of the dims that change are asked again.
        wanted = [(question, not now), *((q, answer) for q, answer, about in before if not about.isdisjoint(dims))]
        with np.errstate(all="ignore"):
            agree = np.logical_and.reduce([q.answer(there) == answer for q, answer in wanted])
        for number in np.flatnonzero(np.broadcast_to(agree, grid[0].size)):
            change = {name: int(column[number]) for name, column in columns.items()}
            # Again as integers, since an array's division by 0 raises nothing, and its products may overflow.
            if all(q.answer({**sizes, **change}) is answer for q, answer in wanted):
                yield change

    for name in names:
        tried = [size for size in _candidates(question, name, sizes) if size >= least.get(name, 1)]
        changes = itertools.islice(with_other_answer((name, tried)), None if question.is_order else _FEW)
        # A size that another dim has, too, would be a coincidence that the question is not about. For an order,
        # the size nearest to its edge is preferred: further off, other questions may decide.
        best = min(
            ({**sizes, **change} for change in changes),
            key=lambda there: (there[name] in sizes_of_dims, question.is_order and abs(value(question.terms, there))),
            default=None,
        )
        yield from () if best is None else (best,)
    others = sorted(set[str]().union(*(about for *_, about in before)).difference(names))
    for pair in [*itertools.combinations(names, 2), *itertools.product(names, others)]:
        both = with_other_answer(*((name, range(least.get(name, 1), _LARGEST_OF_TWO)) for name in pair))
        yield from ({**sizes, **changed} for changed in itertools.islice(both, 1))
    several = (*names, *others)[:_MOST_TOGETHER]
    if len(several) > 2:
        small = ((name, range(least.get(name, 1), least.get(name, 1) + _LARGEST_OF_MANY)) for name in several)
        yield from ({**sizes, **changed} for changed in itertools.islice(with_other_answer(*small), 1))


def is_impossible(answers: Sequence[tuple[Question, bool]], least: Mapping[str, int]) -> bool:
    """Whether no sizes give all these answers; False where that is not known.

    All remainders by numbers are gone through. Then each equation among the answers is solved for a dim, which is put
    into the others, until two of them disagree.

    >>> product, n = Question(False, frozen({("n", "m"): 1, (): -1})), Question(False, frozen({("n",): 1, (): -1}))
    >>> is_impossible([(product, True), (n, False)], {})
    True
    """
    periods = [
        (step, dims_of(dict(question.terms))) for question, _ in answers if (step := period(dict(question.terms)))
    ]
    step = math.lcm(*(length for length, _ in periods))
    names = sorted(set[str]().union(*(dims for length, dims in periods if length > 1)))
    if step ** len(names) > _MOST_RESTS:  # quotients and remainders then stay as they are, and less is known
        names = []
    from_zero = {**least, **dict.fromkeys(names, 0)}
    for dims in _by_rests(names, step, least):
        # Where the answers make a divisor of a question 0, it is asked at no sizes: the program raises before.
        with contextlib.suppress(ZeroDivisionError):
            if not _disagree(answers, dims, from_zero):
                return False
    return True


def _disagree(answers: Sequence[tuple[Question, bool]], dims: Mapping[str, Terms], least: Mapping[str, int]) -> bool:
    """Whether these answers contradict each other, with `dims` in place of the dims of their questions."""
    # Each answer as a polynomial that is 0, that is not 0, or that is not negative.
    zero, nonzero, nonnegative = list[Terms](), list[Terms](), list[Terms]()
    for question, answer in answers:
        terms = replaced(dict(question.terms), dims.get)
        if question.is_order:
            nonnegative.append(plus(constant(-1), terms, -1) if answer else terms)
        else:
            (zero if answer else nonzero).append(terms)

    def is_below_zero(terms: Terms) -> bool:
        return decided(Question(is_order=True, terms=frozen(terms)), least) is True

    while True:
        sums = [*nonnegative, *(plus(*pair) for pair in itertools.combinations(nonnegative, 2))]
        if any(map(is_below_zero, sums)) or any(not terms for terms in nonzero):
            return True
        if any(decided(Question(is_order=False, terms=frozen(terms)), least) is False for terms in zero):
            return True
        # What is not negative and never nonnegative is 0: of sizes of 1 or more, `n <= 1` is `n = 1`.
        zero += (terms for terms in nonnegative if is_below_zero(plus(constant(-1), terms)))
        solved = next(filter(None, (_solved(terms, least) for terms in zero if terms)), None)
        if solved is None:
            return False
        # The dim that it is solved for is no smaller than before: without this, `n = m + 1` would allow `n = 1`.
        nonnegative += (plus({(name,): 1}, constant(-least.get(name, 1))) for name in solved)
        zero, nonzero, nonnegative = (
            [replaced(terms, solved.get) for terms in kind] for kind in (zero, nonzero, nonnegative)
        )


def _solved(terms: Terms, least: Mapping[str, int]) -> dict[str, Terms]:
    """Dims as polynomials over the others, where `terms` is 0; empty if it can be solved for none."""
    terms = without_common(terms, least)
    product, *more = [monomial for monomial in terms if monomial] or [()]
    if not more and all(isinstance(factor, str) for factor in product) and terms[product] == -terms.get((), 0):
        return dict.fromkeys(product, constant(1))  # a product of sizes that is 1
    for monomial, coefficient in terms.items():
        rest = {factors: number for factors, number in terms.items() if factors != monomial}
        is_dim = len(monomial) == 1 and isinstance(monomial[0], str) and monomial[0] not in dims_of(rest)
        if is_dim and all(number % coefficient == 0 for number in rest.values()):
            return {monomial[0]: {factors: -number // coefficient for factors, number in rest.items()}}
    return {}


def _candidates(question: Question, name: str, sizes: Mapping[str, int]) -> Iterator[int]:
    """Sizes of a dim at which a question may have the other answer: small ones, and those near a linear one's root."""
    yield from range(_LARGEST)
    terms = dict(question.terms)
    numbers = {abs(number) for atom in atoms_of(terms) for _, number in (*atom.dividend, *atom.divisor)}
    slope, rest = 0, 0
    if not numbers:  # where the others have the given sizes, the polynomial may be linear in the dim
        rest, at_1, at_2 = (value(terms, {**sizes, name: size}) for size in range(3))
        slope = at_1 - rest if at_2 - at_1 == at_1 - rest else 0
    if slope:
        root = -rest // slope
        yield from range(max(root - 1, 0), min(root + 3, _LARGEST_SIZE))
    elif (largest := max((*numbers, *map(abs, terms.values())))) > _LARGEST // 4:
        yield from range(_LARGEST, min(4 * largest, _LARGEST_TRACED))
