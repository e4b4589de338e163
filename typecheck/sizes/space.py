"""The sizes of one trace: the dims with their numbers, the questions asked of them, and the pinned dims."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.typecheck.sizes.deciding import Question, decided, question_of
from weft.typecheck.sizes.polynomials import Terms, dims_of

# A file and a line.
Place = tuple[str, int]

_numbers = itertools.count()


@dataclass(eq=False)
class Space:
    """The dims of one trace, with every question that the trace asked of them.

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

    numbers: dict[str, int]
    least: Mapping[str, int] = field(default_factory=dict)
    asked: dict[Question, tuple[bool, Place, bool]] = field(default_factory=dict)
    pinned: dict[str, Place] = field(default_factory=dict)
    last: dict[Question, bool] = field(default_factory=dict)
    is_wrong: bool = False
    number: int = field(default_factory=lambda: next(_numbers))

    def ask(self, is_order: bool, terms: Terms, at: Place, *, own: bool) -> bool:
        """Whether `terms = 0`, or `terms < 0`. Recorded unless all sizes have the same answer."""
        question = question_of(is_order, terms)
        if question not in self.asked:
            answer = decided(question, self.least)
            if answer is not None:
                return answer
            self.asked[question] = bool(question.answer(self.numbers)), at, own
        answer = self.asked[question][0]
        if not self.is_wrong:
            # Taken out first, so that it moves to the end: a failure is explained by the questions that came last
            # before it.
            self.last.pop(question, None)
            self.last[question] = answer
        return answer

    def pin(self, terms: Terms, at: Place) -> None:
        """Records that the program read the number of a size."""
        for name in sorted(dims_of(terms)):
            self.pinned.setdefault(name, at)
