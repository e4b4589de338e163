"""The sizes of a trace: the dims with their numbers, the questions asked of them, and the pinned dims."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from weft.typecheck.sizes.deciding import Question, decided, question_of
from weft.typecheck.sizes.polynomials import Terms, dims_of

# A file and a line.
Place = tuple[str, int]

_numbers = itertools.count()


@dataclass
class Asked:
    """What a part of a trace asked of its sizes: the questions, those asked last at the end, and the pinned dims."""

    questions: dict[Question, tuple[bool, Place, bool]] = field(default_factory=dict)
    pinned: dict[str, Place] = field(default_factory=dict)


@dataclass(eq=False)
class Space:
    """The dims of one trace at a time, with every question that the trace asked of them.

    The traces of one proof share a space, so that an instance made in one of them may be an argument of the next.

    Attributes:
        numbers: the number that each dim has: its *witness*, by which questions are answered.
        least: the smallest size that each dim has.
        asked: the questions in the order in which they were first asked, each with its answer, the file and line that
            asked first, and whether the program itself asked rather than a library on its behalf.
        pinned: the dims whose number the program read, for a loop or a name, with the file and line that read it. The
            trace is then valid for that number alone.
        last: the questions with their answers, in the order in which they were asked last, up to the first violation.
        is_wrong: whether a violation was found already: later questions do not explain it.
        number: an identifier, by which sizes of one trace hash apart from those of another.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    asked: dict[Question, tuple[bool, Place, bool]] = field(default_factory=dict)
    pinned: dict[str, Place] = field(default_factory=dict)
    last: dict[Question, bool] = field(default_factory=dict)
    is_wrong: bool = False
    number: int = field(default_factory=lambda: next(_numbers))
    _listening: list[Asked] = field(default_factory=list, repr=False)

    def begin(self, numbers: Mapping[str, int], least: Mapping[str, int]) -> None:
        """Starts another trace, of which nothing is known yet, and in which the dims have these numbers."""
        vars(self).update(vars(Space(dict(numbers), least)))

    def ask(self, is_order: bool, terms: Terms, at: Place, *, own: bool) -> bool:
        """Whether `terms = 0`, or `terms < 0`. Recorded unless all sizes have the same answer."""
        question = question_of(is_order, terms)
        if question not in self.asked:
            answer = decided(question, self.least)
            if answer is not None:
                return answer
            self.asked[question] = bool(question.answer(self.numbers)), at, own
        return self._note(question, *self.asked[question])

    def _note(self, question: Question, answer: bool, at: Place, own: bool) -> bool:
        self.asked.setdefault(question, (answer, at, own))
        # Taken out first, so that it moves to the end: a failure is explained by the questions that came last before
        # it.
        for listening in self._listening:
            listening.questions.pop(question, None)
            listening.questions[question] = answer, at, own
        if not self.is_wrong:
            self.last.pop(question, None)
            self.last[question] = answer
        return answer

    def pin(self, terms: Terms, at: Place) -> None:
        """Records that the program read the number of a size."""
        for name in sorted(dims_of(terms)):
            for pinned in (self.pinned, *(one.pinned for one in self._listening)):
                pinned.setdefault(name, at)

    @contextlib.contextmanager
    def listening(self) -> Iterator[Asked]:
        """Collects what is asked and pinned inside of a `with` block, so that `ask_again` can repeat it."""
        asked = Asked()
        self._listening.append(asked)
        try:
            yield asked
        finally:
            self._listening.remove(asked)

    def ask_again(self, asked: Asked) -> None:
        """Notes what an earlier trace asked where it made a value that this trace reuses, at the same numbers."""
        for question, (answer, at, own) in asked.questions.items():
            self._note(question, answer, at, own)
        for name, at in asked.pinned.items():
            self.pin({(name,): 1}, at)
