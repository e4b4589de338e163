"""The sizes of one trace: the dims with their numbers, what was asked of them, and which were taken as numbers."""

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
    """The dims of one trace.

    Attributes:
        numbers: the number that each dim has: its *witness*, by which questions are answered.
        least: the smallest size that each dim has.
        asked: the questions, in order, each with its answer, where it was asked first, and whether the program itself
            asked it, and no library on its behalf.
        pinned: the dims whose number was taken, for a loop or a name, with where: what was traced then is traced for
            that number alone.
        last: the questions with their answers, each where it was asked last, up to what went wrong first.
        is_wrong: whether something went wrong already: what is asked then says nothing of why.
        number: tells the sizes of one trace from those of another.
    """

    numbers: dict[str, int]
    least: Mapping[str, int] = field(default_factory=dict)
    asked: dict[Question, tuple[bool, Place, bool]] = field(default_factory=dict)
    pinned: dict[str, Place] = field(default_factory=dict)
    last: dict[Question, bool] = field(default_factory=dict)
    is_wrong: bool = False
    number: int = field(default_factory=lambda: next(_numbers))

    def ask(self, is_order: bool, terms: Terms, at: Place, *, own: bool) -> bool:
        """Whether `terms = 0`, or `terms < 0`; noted, unless the answer is the same for all sizes."""
        question = question_of(is_order, terms)
        if question not in self.asked:
            answer = decided(question, self.least)
            if answer is not None:
                return answer
            self.asked[question] = bool(question.answer(self.numbers)), at, own
        answer = self.asked[question][0]
        if not self.is_wrong:
            self.last.pop(question, None)
            self.last[question] = answer
        return answer

    def pin(self, terms: Terms, at: Place) -> None:
        """Notes that the number was taken that a size has."""
        for name in sorted(dims_of(terms)):
            self.pinned.setdefault(name, at)
