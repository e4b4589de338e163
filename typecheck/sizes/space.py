"""The sizes of a trace: the dims with their numbers, the questions asked of them, and the pinned dims."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from weft.typecheck.sizes.deciding import Question, decided, question_of
from weft.typecheck.sizes.polynomials import Terms, dims_of, with_remainders, without_common

# A file and a line.
Place = tuple[str, int]

_numbers = itertools.count()
# What no size of an array that fits into memory is.
_OF_MACHINES = 1 << 30


class QuestionNote(NamedTuple):
    """What is noted of a question.

    Attributes:
        answer: its answer in the trace.
        at: the file and line that asked first.
        own: whether the program itself ever asked, rather than a library on its behalf.
    """

    answer: bool
    at: Place
    own: bool


@dataclass(eq=False)
class Part:
    """A part of a trace: the trace itself, or the making of one instance in it, which a later trace may reuse.

    Attributes:
        numbers: the number that each dim has in the trace.
        questions: the questions that were asked, those asked last at the end; noted while an instance is made.
        pinned: the dims whose number was read, likewise.
        within: the parts that the running trace reused before, whose sizes may be in the instance.
        is_running: whether the running trace made this part, or reuses it. A size of another trace meets sizes of this
            one in JAX's caches alone.
    """

    numbers: Mapping[str, int]
    questions: dict[Question, QuestionNote] = field(default_factory=dict)
    pinned: dict[str, Place] = field(default_factory=dict)
    within: tuple[Part, ...] = ()
    is_running: bool = True


@dataclass(eq=False)
class Space:
    """The dims of one trace at a time, with every question that the trace asked of them.

    The traces of one proof share a space, so that an instance made in one of them may be an argument of the next.

    Attributes:
        numbers: the number that each dim has: its *witness*, by which questions are answered.
        least: the smallest size that each dim has.
        asked: the questions in the order in which they were first asked, with what is noted of each.
        pinned: the dims whose number the program read, for a loop or a name, with the file and line that read it. The
            trace is then valid for that number alone.
        last: the questions with their answers, in the order in which they were asked last, up to the first violation.
        is_wrong: whether a violation was found already: later questions do not explain it.
        number: an identifier, by which sizes of one trace hash apart from those of another.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    asked: dict[Question, QuestionNote] = field(default_factory=dict)
    pinned: dict[str, Place] = field(default_factory=dict)
    last: dict[Question, bool] = field(default_factory=dict)
    is_wrong: bool = False
    number: int = field(default_factory=lambda: next(_numbers))
    _making: list[Part] = field(default_factory=list, repr=False)
    _parts: list[Part] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        self._parts.append(Part(self.numbers))

    @property
    def part(self) -> Part:
        """The part of the trace that is being made."""
        return self._making[-1] if self._making else self._parts[0]

    def begin(self, numbers: Mapping[str, int], least: Mapping[str, int]) -> None:
        """Starts another trace, of which nothing is known yet, and in which the dims have these numbers."""
        self.end()
        vars(self).update(vars(Space(dict(numbers), least)))

    def end(self) -> None:
        """Ends the trace: what JAX's caches still ask of its sizes is no question of a program."""
        for part in self._parts:
            part.is_running = False

    def ask(self, is_order: bool, terms: Terms, at: Place, *, own: bool) -> bool:
        """Whether `terms = 0`, or `terms < 0`. Recorded unless all sizes have the same answer."""
        terms = with_remainders(without_common(terms, self.least))
        if not terms:
            return not is_order
        question = question_of(terms, is_order=is_order)
        note = self.asked.get(question)
        if note is None:
            answer = decided(question, self.least)
            # JAX asks whether a size fits into its integers, which any size of an array in memory does.
            is_of_machines = is_order and not own and abs(dict(question.terms).get((), 0)) >= _OF_MACHINES
            if answer is None and is_of_machines:
                answer = dict(question.terms)[()] < 0
            if answer is not None:
                return answer
            note = QuestionNote(bool(question.answer(self.numbers)), at, own)
        elif own and not note.own:
            # What the program does with the answer may depend on what it asked since the library did.
            del self.asked[question]
            note = QuestionNote(note.answer, at, own)
        return self._note(question, note)

    def _note(self, question: Question, note: QuestionNote) -> bool:
        self.asked[question] = note  # a question keeps its place in the order
        # In the other two it moves to the end, and so is taken out first: a failure is explained by the questions that
        # came last before it.
        for part in self._making:
            part.questions.pop(question, None)
            part.questions[question] = note
        if not self.is_wrong:
            self.last.pop(question, None)
            self.last[question] = note.answer
        return note.answer

    def pin(self, terms: Terms, at: Place) -> None:
        """Records that the program read the number of a size."""
        for name in sorted(dims_of(terms)):
            for pinned in (self.pinned, *(part.pinned for part in self._making)):
                pinned.setdefault(name, at)

    @contextlib.contextmanager
    def making(self) -> Iterator[Part]:
        """Notes what is asked and pinned while an instance is made in a `with` block, for traces that reuse it."""
        part = Part(self.numbers, within=tuple(self._parts[1:]))
        self._parts.append(part)
        self._making.append(part)
        try:
            yield part
        finally:
            self._making.remove(part)

    def reuse(self, part: Part) -> None:
        """Notes what an earlier trace asked while it made an instance that this trace reuses, at the same numbers."""
        for reused in (*part.within, part):
            reused.is_running = True
            self._parts.append(reused)
        for question, note in part.questions.items():
            self._note(question, note)
        for name, at in part.pinned.items():
            self.pin({(name,): 1}, at)
