"""Tries both answers to every question that a program asks of its sizes.

Once a program holds, it is traced over symbolic sizes (`sizes`). Each comparison of the trace whose answer is not the
same for all sizes is a *question*: `n = m`, `n % 4 = 0`, `b > v`. For each question, sizes are looked for at which it
has the other answer, and the program is traced at these, which may ask further questions. The program is proved when
no question is left: it holds with both answers, or it refuses the sizes with the other answer. The refusal is then a
condition of the contract, in the words of the question.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.typecheck.arguments.builder import Unbuildable
from weft.typecheck.proofs.explaining import Trials
from weft.typecheck.proofs.frames import is_of_jax, is_users
from weft.typecheck.proofs.needs import Written, written_under
from weft.typecheck.proofs.preconditions import at_least
from weft.typecheck.proofs.trial import DTYPE_NAMES, Trial, at_guard
from weft.typecheck.proofs.variations import Results, changed
from weft.typecheck.proofs.violations import in_short
from weft.typecheck.sizes.clauses import Answer, Clause, with_clause
from weft.typecheck.sizes.deciding import Question, is_impossible, otherwise, question_of
from weft.typecheck.sizes.polynomials import constant, dims_of, plus
from weft.typecheck.sizes.space import Space

# The sizes that are tried of a key whose number a program read: programs often treat them differently. The most numbers
# that are tried in addition because the program compares something with them.
_USUAL = (1, 2, 4, 12, 15)
_MOST_COMPARED = 24
# The most questions of one program that are tried both ways, and the most traces for them, and operations in these
# traces (an operation takes about a millisecond); the rest is reported open.
_MOST, _MOST_TRACES, _MOST_OPERATIONS = 60, 80, 8_000


@dataclass
class QuestionResults:
    """What trying both answers to a program's questions has shown.

    Attributes:
        free: the keys whose sizes were symbolic in every trace.
        sampled: the keys of which only particular sizes were tried, with the reason.
        open: the answers for which only some sizes were tried, or none, in words.
        variants, seen: the variants whose questions were tried, and their questions.
        traces: the number of traces over symbolic sizes, which share no traces of JAX's own functions, as trials do.
        operations: the number of operations in these traces.
    """

    free: dict[str, None] = field(default_factory=dict[str, None])
    sampled: dict[str, str] = field(default_factory=dict[str, str])
    open: dict[str, None] = field(default_factory=dict[str, None])
    traces: int = 0
    operations: int = 0
    variants: set[Any] = field(default_factory=set[Any])
    seen: set[Any] = field(default_factory=set[Any])

    @property
    def is_full(self) -> bool:
        """Whether no further trace is made for questions: the limits are counts, which no machine changes."""
        return self.traces >= _MOST_TRACES or self.operations >= _MOST_OPERATIONS


def answer(trials: Trials, results: Results, answers: QuestionResults) -> None:
    """Tries the questions of each variant of a program both ways; adds failures and needs to `results`."""
    variants: dict[Any, Trial] = {}
    for trial in reversed(results.passed):
        # The options and numbers of axes that may decide which sizes it asks for. A dtype may, where the program reads
        # one.
        options, ranks = trial.assignment.options.items(), trial.assignment.ranks.items()
        by_dtype = not DTYPE_NAMES.isdisjoint(trial.names)
        variant = (change for change in options if by_dtype or not change[0].endswith(" arrays"))
        variants[tuple(variant), tuple(ranks)] = trial
    # The first of the trials goes first: where not all variants can be followed, the usual options are.
    new = [trial for variant, trial in variants.items() if variant not in answers.variants]
    answers.variants |= variants.keys()
    for trial in reversed(new):
        if answers.is_full:
            for key in trial.assignment.sizes:
                answers.sampled.setdefault(
                    key, f"its questions were tried in {answers.traces} traces, and more are left"
                )
        elif not results.failed and trial.ok:
            _Variant(trials, results, trial, answers, answers.seen).answer()
    first = results.passed[0].assignment.sizes
    answers.free = {key: None for key in answers.free if key in first and key not in answers.sampled}


@dataclass
class _Variant:
    """Tries the questions of one variant of a program, which has options, classes and numbers of axes of its own."""

    trials: Trials
    results: Results
    trial: Trial
    answers: QuestionResults
    seen: set[Any]
    written: Written = field(init=False)
    queue: list[_TracedQuestion] = field(default_factory=list["_TracedQuestion"])

    def answer(self) -> None:
        known = set(self.answers.sampled)
        space = self._first()
        self._sample([key for key in self.answers.sampled if key not in known])
        self.queue = list(self._new(space)) if space is not None else []
        while self.queue and not self.results.failed:
            asked = self.queue.pop(0)
            if len(self.seen) > _MOST or self.answers.is_full:
                self.answers.open.setdefault(asked.words(self.written))
                continue
            further = self._try_other_answer(asked)
            self.queue += self._new(further) if further is not None else ()

    def _first(self) -> Space | None:
        """The space of a trace in which all sizes are symbolic, but for keys whose numbers the program reads."""
        sizes = self.trial.assignment.sizes
        plain = set(self.trials.dims)
        keys = [key for key in sizes if key not in plain]
        # Each round makes at least one more key a number, as what a trace asks after reading a number is valid for that
        # number alone.
        for _ in range(len(keys) + 1):
            self.written = written_under(self.results.needs, sizes, plain)
            space, traced, why = self._traced(self.written.numbers)
            if traced is not None and traced.ok and not space.pinned:
                asked = {*plain, *dict(self.results.needs.equal)}
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
                    # The program's line that read the number of the key, unless a library read it.
                    read = (at for name, at in space.pinned.items() if name in dims_of(self.written.terms[key]))
                    file, line = next(read, ("", 0))
                    by_program = f"the program reads its number at line {line}" if file and is_users(file) else ""
                    self.answers.sampled.setdefault(key, why or by_program)
            if not pinned:
                return None
            plain |= pinned
        return None

    def _sample(self, keys: list[str]) -> None:
        """Tries other sizes of keys whose number the program reads, since such keys ask no questions."""
        compared = (number + offset for number in sorted(self.trials.target.compared) for offset in (0, -1, 1))
        usual = [(key, number) for key in keys for number in _USUAL]
        neighbours = [(key, number) for number in compared for key in keys]
        for key, number in dict.fromkeys((*usual, *neighbours[:_MOST_COMPARED])):
            sizes = {**self.trial.assignment.sizes, key: number}
            known = key in self.trial.assignment.sizes and number > 0
            if known and not self.results.failed and self.results.needs.allows(sizes):
                is_it = question_of(plus({(key,): 1}, constant(-number)), is_order=False)
                self._tried_at(sizes, [(is_it, False)], key)

    def _tried_at(
        self, sizes: Mapping[str, int], way: list[Answer], sampled: str = "", *, own: bool = True, is_few: bool = False
    ) -> bool:
        """Whether the trial at some sizes holds; if it fails, adds the failure, or the condition that refuses them."""
        with contextlib.suppress(Unbuildable):
            plain = self.trials.attempt(changed(self.trial, sizes=sizes))
            if plain.ok:
                self.results.passed.append(plain)
                return True
            if plain.guard and sampled:
                # A guard refuses this size. Which others it refuses is not known, as this key asks no questions.
                self.results.needs = self.results.needs.plus(asked=Clause(tuple(way), at_guard(plain)))
            else:
                self._refused(way, plain, own=own, is_few=is_few)
        return False

    def _traced(self, numbers: Mapping[str, int]) -> tuple[Space, Trial | None, str]:
        """Traces over symbolic sizes: the space, the trial (None without one), and its failure in one line."""
        self.answers.traces += 1
        space, traced = self.trials.followed(self.trial, self.written, numbers)
        if isinstance(traced, Exception):
            return space, None, str(traced).splitlines()[0]
        self.answers.operations += traced.operations
        if traced.error is not None:
            return space, traced, in_short(traced.error)
        wrong = traced.violations
        return space, traced, f"{wrong[0].where}: {wrong[0].message}" if wrong else ""

    def _new(self, space: Space) -> Iterator[_TracedQuestion]:
        """The questions of a trace that have not been tried yet.

        A question counts once in each variant: what the program does where `n == m` may depend on an option that it
        looks at later. A question of the program's own counts once for each way that leads to it: with
        `n == 1 and m == 1` the program goes three ways.
        """
        variant = tuple(self.trial.assignment.options.items())
        before, way = list[Answer](), list[Answer]()
        every = [(question, answered) for question, (answered, *_) in space.asked.items()]
        for question, (answered, at, own) in space.asked.items():
            identity = (question, at, variant, tuple(way))
            if identity not in self.seen:
                self.seen.add(identity)
                after = tuple(every[len(before) + 1 :])
                answer = question, answered
                yield _TracedQuestion(space.numbers, answer, tuple(before), after, tuple(way), own)
            before.append((question, answered))
            way += [(question, answered)] if own or question.is_order else ()

    def _try_other_answer(self, asked: _TracedQuestion) -> Space | None:
        """Traces the program at sizes at which a question has the other answer; returns the space if that trace holds.

        If the program refuses all sizes with the other answer, or there are none that leave earlier questions their
        answers, the question has one answer only. If none are found, though there may be some, it stays open.
        """
        # Sizes that also leave later questions their answers come first. If several answers change, a failure is blamed
        # on this question, whichever of them is the reason: three contracts of traceax were undecided for that.
        alone = otherwise((*asked.before, *asked.after, asked.answer), asked.numbers, self.written.least)
        further = otherwise((*asked.before, asked.answer), asked.numbers, self.written.least)
        # A library's equations, such as whether an axis is 1, may change together with an answer that decides the way.
        decides = asked.own or asked.answer[0].is_order
        loosely = otherwise((*asked.way, asked.answer), asked.numbers, self.written.least) if decides else ()
        for numbers in itertools.chain(alone, further, loosely):
            sizes = self.written.at(numbers)
            if not self.results.needs.allows({**self.trial.assignment.sizes, **sizes}):
                continue
            is_known = asked.failed is not None and asked.failed[0].numbers == numbers
            space, traced = asked.failed if asked.failed is not None and is_known else self._traced(numbers)[:2]
            if traced is not None and traced.ok:
                if space.pinned:  # further questions of this trace are known for these sizes alone
                    self.answers.open.setdefault(asked.words(self.written))
                return space
            # Where later questions came out otherwise as well, one of them may be the reason for the failure. They are
            # tried first, and these sizes again if they are still allowed then.
            turned = [
                (question, answer)
                for question, answer in asked.after
                if (question.is_order or question.remainder is not None)
                and space.asked.get(question, (answer,))[0] is not answer
            ]
            if turned and asked.failed is None:
                self.queue.append(dataclasses.replace(asked, failed=(space, traced)))
                return None
            behind = asked.way if asked.own else asked.behind
            way = [asked.answer, *((question, not answer) for question, answer in behind), *turned]
            own = (question for question, (_, _, own) in space.asked.items() if own)
            is_few = not asked.own and all(question.dims.isdisjoint(asked.answer[0].dims) for question in own)
            if self._tried_at(sizes, way, own=asked.own, is_few=is_few):
                self.answers.open.setdefault(asked.words(self.written))
            return None
        question, answer = asked.answer
        wanted = (*(asked.way if decides else asked.before), (question, not answer))
        # About keys a question may come to nothing: `2 * n' - n` where `n'` is half of `n`.
        if self.written.of_keys(question).terms and not is_impossible(wanted, self.written.least):
            self.answers.open.setdefault(asked.words(self.written))
        return None

    def _refused(self, way: list[Answer], plain: Trial, *, own: bool, is_few: bool) -> None:
        """Notes a trial that fails with the other answer: as a failure, or as a condition that keeps the first answer.

        A program that raises refuses these sizes, by a guard, or because JAX makes no sense of sizes that are too small
        or too large, or of a size that nothing divides. That two sizes happen to be equal, or one is a multiple of a
        number, is a reason to refuse them only for a guard.

        Args:
            way: answers of which at least one, or the first if it is alone, would have kept the program from failing.
            plain: the failing trial.
            own: whether the program itself asked, rather than a library on its behalf.
            is_few: whether a library asked, and the program itself asks nothing about these sizes. A library may return
                another shape for fewer elements than it needs, as for a window of three.
        """
        results, written = self.results, [(self.written.of_keys(question), answer) for question, answer in way]
        key = None if written[0][1] else _is_one(written[0][0])
        few = is_few and _is_least(*written[0])
        if is_few and not few and key is not None and key in plain.assignment.sizes:
            # A failure at size 1 that is none at size 2 is one of size 1 alone, as with a squeezed axis.
            few = not self.trials.attempt(changed(plain, sizes={key: 2})).ok
        is_behind = not own and len(written) > 1
        divides = written[0][1] and written[0][0].remainder is not None and is_of_jax(plain.error)
        refused = plain.guard or key or written[0][0].is_order or is_behind or divides
        if (plain.breaks_promise and not few) or not refused:
            results.failed.append(plain)
        elif key is None:
            needed = {answer for clause in results.needs.asked if len(clause.answers) == 1 for answer in clause.answers}
            others = [(question, answer) for question, answer in written[1:] if (question, not answer) not in needed]
            if written[0][0].is_order and not others and not plain.guard:
                results.needs = at_least(*written[0], results.needs)
                return
            clause = Clause((written[0], *others), at_guard(plain))
            results.needs = dataclasses.replace(results.needs, asked=with_clause(results.needs.asked, clause))
        elif (key, 2) not in results.needs.least:
            results.needs = results.needs.plus(least=(key, 2))


@dataclass(frozen=True)
class _TracedQuestion:
    """A question of a trace, with the questions that the trace asked before and after it.

    Attributes:
        numbers: the numbers of the free dims in that trace.
        answer: the question and its answer.
        before, after: all questions of the trace before this one, and after it, with their answers.
        way: the earlier questions that may decide which way the program goes: its own, and a library's orders.
        own: whether the program itself asked this question.
        failed: the failing trace with the other answer, after which it was put off until later questions were tried.
    """

    numbers: Mapping[str, int]
    answer: Answer
    before: tuple[Answer, ...]
    after: tuple[Answer, ...]
    way: tuple[Answer, ...]
    own: bool
    failed: tuple[Space, Trial | None] | None = None

    @property
    def behind(self) -> tuple[Answer, ...]:
        """The last order of the same sizes that a library asked for, before it asked whether two of them are equal.

        A QR decomposition compares the numbers of rows and columns. An inversion of its factor then asks whether they
        are equal: it refuses unequal sizes after one answer to that order, and is not reached after the other.
        """
        question, answer = self.answer
        if self.own or question.is_order or not answer:
            return ()
        orders = (asked for asked in reversed(self.before) if asked[0].is_order and asked[0].dims & question.dims)
        return tuple(itertools.islice(orders, 1))

    def words(self, written: Written) -> str:
        """The other answer to the question, in words."""
        question, answer = self.answer
        return written.of_keys(question).said(not answer)


def _is_one(question: Question) -> str | None:
    """The dim of a question that is true at size 1 alone, such as `n = 1` or `n < 2`; None for any other question."""
    if len(question.dims) != 1:
        return None
    (name,) = question.dims
    answers = [bool(question.answer({name: size})) for size in range(1, 30)]
    return name if answers[0] and sum(answers) == 1 else None


def _is_least(question: Question, answer: bool) -> bool:
    """Whether an answer says that one dim is at least a number larger than 1."""
    if not question.is_order or answer or len(question.dims) != 1:
        return False
    (monomial, number), *more = (term for term in question.terms if term[0])
    return (
        not more
        and len(monomial) == 1 == number
        and isinstance(monomial[0], str)
        and dict(question.terms).get((), 0) < -1
    )
