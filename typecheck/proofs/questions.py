"""Every question that a program asks of its sizes, answered both ways.

Once a program holds, it is traced over sizes that know themselves (`sizes`). Each comparison that this asks, whose
answer is not the same for all sizes, is a *question*: `n = m`, `n % 4 = 0`, `b > v`. For each, sizes are looked for at
which the answer is the other one, and the program is traced there, which may ask further ones. It is proved where
nothing is left: both answers hold, or sizes with the other answer are ones that it refuses, which is then a condition,
in the words of the question.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.changing import changed
from weft.typecheck.proofs.explaining import Explainer
from weft.typecheck.proofs.options import at_guard
from weft.typecheck.proofs.preconditions import at_least
from weft.typecheck.proofs.trial import Trial
from weft.typecheck.proofs.under_needs import Written, written_under
from weft.typecheck.proofs.variations import Found
from weft.typecheck.proofs.violations import in_short
from weft.typecheck.proofs.whose import is_users
from weft.typecheck.sizes.clauses import Answer, Clause, beside
from weft.typecheck.sizes.deciding import Question, otherwise, question_of
from weft.typecheck.sizes.polynomials import constant, dims_of, plus
from weft.typecheck.sizes.space import Space

# Sizes that decide something more often than others, of keys that no question can be asked of; and how many of those
# that the program compares something with are tried beside them.
_USUAL = (1, 2, 4, 12, 15)
_MOST_COMPARED = 24
# Questions of one program that are gone after, and traces that they may take; what is left is told.
_MOST, _MOST_TRACES = 60, 80


@dataclass
class Answers:
    """What is known of the questions of a program.

    Attributes:
        free: the keys whose sizes knew themselves in every trace.
        sampled: the keys of which only particular sizes were tried, with why.
        open: the answers for which only some sizes were tried, or none, in words.
        traces: how many of such sizes there were. Nothing of them is shared, as JAX's own functions are among trials.
    """

    free: dict[str, None] = field(default_factory=dict[str, None])
    sampled: dict[str, str] = field(default_factory=dict[str, str])
    open: dict[str, None] = field(default_factory=dict[str, None])
    traces: int = 0


def answer(explainer: Explainer, found: Found) -> Answers:
    """Goes after the questions of each variant of a program that holds; adds what fails, and what it needs."""
    answers, seen = Answers(), set[Any]()
    variants = {
        (tuple(one.assignment.options.items()), tuple(one.assignment.ranks.items())): one
        for one in reversed(found.passed)
    }
    for trial in reversed(variants.values()):
        if answers.traces >= _MOST_TRACES:
            for key in trial.assignment.sizes:
                answers.sampled.setdefault(key, f"its sizes were followed in {_MOST_TRACES} traces, of more")
        elif not found.failed and trial.ok:
            _Variant(explainer, found, trial, answers, seen).answer()
    first = found.passed[0].assignment.sizes
    answers.free = {key: None for key in answers.free if key in first and key not in answers.sampled}
    return answers


@dataclass
class _Variant:
    """One variant of a program: its options, classes and numbers of axes."""

    explainer: Explainer
    found: Found
    trial: Trial
    answers: Answers
    seen: set[Any]
    written: Written = field(init=False)

    def answer(self) -> None:
        known = set(self.answers.sampled)
        space = self._first()
        self._sample([key for key in self.answers.sampled if key not in known])
        queue = list(self._new(space)) if space is not None else []
        while queue and not self.found.failed:
            asked = queue.pop(0)
            if len(self.seen) > _MOST or self.answers.traces >= _MOST_TRACES:
                self.answers.open.setdefault(asked.words(self.written))
                continue
            further = self._otherwise(asked)
            queue += self._new(further) if further is not None else ()

    def _first(self) -> Space | None:
        """The questions of a trace over sizes that know themselves; those whose number it takes are numbers in it."""
        sizes, plain = self.trial.assignment.sizes, set(self.explainer.dims)
        keys = [key for key in sizes if key not in plain]
        for _ in range(len(keys) + 1):
            self.written = written_under(self.found.needs, sizes, plain)
            space, traced, why = self._traced(self.written.numbers)
            if traced is not None and traced.ok and not space.pinned:
                asked = {*plain, *dict(self.found.needs.equal)}
                for key in keys:
                    if dims_of(self.written.terms[key]):
                        self.answers.free.setdefault(key)
                    elif key not in asked:
                        self.answers.sampled.setdefault(key, "")
                return space
            pinned = {key for key in keys if dims_of(self.written.terms[key]) & space.pinned.keys()} - plain
            if not pinned:
                pinned = set(keys) - plain
            for key in keys:
                if key in pinned:
                    self.answers.sampled.setdefault(key, why or _taken(space, self.written, key))
            if not pinned:
                return None
            plain |= pinned
        return None

    def _sample(self, keys: list[str]) -> None:
        """Other sizes of keys that no question can be asked of: those that usually decide something."""
        compared = (number + near for number in sorted(self.explainer.target.compared) for near in (0, -1, 1))
        usual = [(key, number) for key in keys for number in _USUAL]
        beside = [(key, number) for number in compared for key in keys]
        for key, number in dict.fromkeys((*usual, *beside[:_MOST_COMPARED])):
            sizes = {**self.trial.assignment.sizes, key: number}
            known = key in self.trial.assignment.sizes and number > 0
            if known and not self.found.failed and self.found.needs.allows(sizes):
                is_it = question_of(False, plus({(key,): 1}, constant(-number)))
                self._tried_at(sizes, [(is_it, False)], key)

    def _tried_at(self, sizes: Mapping[str, int], way: list[Answer], sampled: str = "", *, own: bool = True) -> bool:
        """Whether the trial at some sizes holds, as it has to unless it refuses them."""
        with contextlib.suppress(Unbuildable):
            plain = self.explainer.attempt(changed(self.trial, sizes=sizes))
            if plain.ok:
                self.found.passed.append(plain)
                return True
            if plain.guard and sampled:
                # Which other sizes it refuses is not known: no question is asked of this one.
                self.found.needs = self.found.needs.plus(asked=Clause(tuple(way), at_guard(plain)))
            else:
                self._refused(way, plain, own=own)
        return False

    def _traced(self, numbers: Mapping[str, int]) -> tuple[Space, Trial | None, str]:
        """The trace at some numbers of the free dims, and why there is none."""
        self.answers.traces += 1
        space, traced = self.explainer.followed(self.trial, self.written, numbers)
        if isinstance(traced, Exception):
            return space, None, str(traced).splitlines()[0]
        if traced.error is not None:
            return space, traced, in_short(traced.error)
        wrong = traced.violations
        return space, traced, f"{wrong[0].where}: {wrong[0].message}" if wrong else ""

    def _new(self, space: Space) -> Iterator[_Asked]:
        """The questions of a trace that were not met before.

        One of a library's is the same wherever it is met, and one of the program's own only after the same answers to
        all of these before: `n == 1 and m == 1` has more than two ways.
        """
        before, way = list[Answer](), list[Answer]()
        every = [(question, answered) for question, (answered, *_) in space.asked.items()]
        for question, (answered, at, own) in space.asked.items():
            one = (question, at, tuple(way) if own else ())
            if one not in self.seen:
                self.seen.add(one)
                after = tuple(every[len(before) + 1 :])
                yield _Asked(space.numbers, (question, answered), tuple(before), after, tuple(way) if own else (), own)
            before.append((question, answered))
            way += [(question, answered)] if own else ()

    def _otherwise(self, asked: _Asked) -> Space | None:
        """The questions of a trace with the other answer, if there is one that holds.

        Where all sizes with that answer are refused, or none of them has the same answers to what was asked before, the
        question has one answer only. Where none is found at all, it is open.
        """
        # With what is asked later as it was, first: what else is another there would be blamed on this question.
        alone = otherwise((*asked.before, *asked.after, asked.answer), asked.numbers, self.written.least)
        further = otherwise((*asked.before, asked.answer), asked.numbers, self.written.least)
        for other in itertools.chain(alone, further):
            sizes = self.written.at(other)
            if not self.found.needs.allows({**self.trial.assignment.sizes, **sizes}):
                continue
            space, traced, _ = self._traced(other)
            if traced is not None and traced.ok:
                if space.pinned:  # what else is asked there is only known of these sizes
                    self.answers.open.setdefault(asked.words(self.written))
                return space
            # Where nothing else could stay as it was, what came out in another order may be why it fails.
            turned = [
                (question, answer)
                for question, answer in asked.after
                if question.is_order and question in space.asked and space.asked[question][0] is not answer
            ]
            way = [asked.answer, *((question, not answer) for question, answer in (*asked.way, *asked.behind)), *turned]
            if self._tried_at(sizes, way, own=asked.own):
                self.answers.open.setdefault(asked.words(self.written))
            return None
        if next(otherwise((asked.answer,), asked.numbers, self.written.least), None) is None:
            self.answers.open.setdefault(asked.words(self.written))
        return None

    def _refused(self, way: list[Answer], plain: Trial, *, own: bool) -> None:
        """What fails with the other answer breaks its promise, or asks that the answer be as it was.

        A program that raises refuses these sizes, by a guard or as JAX does what makes no sense of them: too few, too
        many. That two sizes happen to be one, or one a multiple of a number, is nothing to refuse unless a guard says
        so.

        Args:
            way: the answers of which one, the first if it is the only one, would have kept the program from failing.
            plain: the trial.
            own: whether the program itself asked, and no library on its behalf. Of fewer elements than a library takes,
                as a window of three has, it may make something else.
        """
        found, written = self.found, [(self.written.of_keys(question), answer) for question, answer in way]
        one = _is_one(written[0][0])
        few = not own and (_is_least(*written[0]) or (one is not None and not self._holds_at_two(one, plain)))
        is_behind = not own and len(written) > 1
        if (plain.breaks_promise and not few) or not (plain.guard or one or written[0][0].is_order or is_behind):
            found.failed.append(plain)
        elif one is None:
            needed = {answer for clause in found.needs.asked if len(clause.answers) == 1 for answer in clause.answers}
            others = [(question, answer) for question, answer in written[1:] if (question, not answer) not in needed]
            if written[0][0].is_order and not others and not plain.guard:
                found.needs = at_least(*written[0], found.needs)
                return
            clause = Clause((written[0], *others), at_guard(plain))
            found.needs = dataclasses.replace(found.needs, asked=beside(found.needs.asked, clause))
        elif (one, 2) not in found.needs.least:
            found.needs = found.needs.plus(least=(one, 2))

    def _holds_at_two(self, key: str, plain: Trial) -> bool:
        """Whether what fails at size 1 is a matter of 1, as a squeezed axis is, and not of small sizes."""
        return key not in plain.assignment.sizes or self.explainer.attempt(changed(plain, sizes={key: 2})).ok


@dataclass(frozen=True)
class _Asked:
    """A question that a trace asked.

    Attributes:
        numbers: those of the free dims in that trace.
        answer: the question, and its answer.
        before, after: all that was asked before it, and after it.
        way: those of these that the program itself asked, if it asked this one, too.
        own: whether it did.
    """

    numbers: Mapping[str, int]
    answer: Answer
    before: tuple[Answer, ...]
    after: tuple[Answer, ...]
    way: tuple[Answer, ...]
    own: bool

    @property
    def behind(self) -> tuple[Answer, ...]:
        """The order that a library asked before, if it then asks that two of these sizes are one.

        A QR decomposition asks whether there are fewer rows than columns, and whoever inverts its factor asks only then
        whether there are as many: sizes that are not one are refused behind that order, and not everywhere.
        """
        question, answer = self.answer
        if self.own or question.is_order or not answer:
            return ()
        orders = (one for one in reversed(self.before) if one[0].is_order and one[0].dims & question.dims)
        return tuple(itertools.islice(orders, 1))

    def words(self, written: Written) -> str:
        """The answer that was not tried."""
        question, answer = self.answer
        return written.of_keys(question).said(not answer)


def _is_one(question: Question) -> str | None:
    """The dim of which it is asked whether it is 1, or less than 2."""
    if len(question.dims) != 1:
        return None
    (name,) = question.dims
    return (
        name if question.answer({name: 1}) and not any(question.answer({name: size}) for size in range(2, 30)) else None
    )


def _is_least(question: Question, answer: bool) -> bool:
    """Whether an answer is that one dim is at least a number larger than 1."""
    if not question.is_order or answer or len(question.dims) != 1:
        return False
    (monomial, number), *more = (term for term in question.terms if term[0])
    return (
        not more
        and len(monomial) == 1 == number
        and isinstance(monomial[0], str)
        and dict(question.terms).get((), 0) < -1
    )


def _taken(space: Space, written: Written, key: str) -> str:
    """Why a key was sampled: where its number was taken, if that is in the program."""
    file, line = next((at for name, at in space.pinned.items() if name in dims_of(written.terms[key])), ("", 0))
    return f"its number is taken at line {line}" if file and is_users(file) else ""
