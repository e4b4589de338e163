"""Conditions as clauses: of several answers to questions, one at least has to be so.

A guard that refuses some sizes is met on a *way*: after certain answers to what was asked before it. What it asks is
that its own question be answered otherwise, or one of those before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.typecheck.sizes.deciding import Question

Answer = tuple[Question, bool]


@dataclass(frozen=True)
class Clause:
    """Answers of which one is so.

    Attributes:
        answers: them, in the order in which they are said.
        at: the place of the guard that asks for it, in brackets.
    """

    answers: tuple[Answer, ...]
    at: str = ""

    def allows(self, sizes: Mapping[str, int]) -> bool:
        """Whether one is so at some sizes, as far as these are known."""
        return any(not q.dims <= sizes.keys() or q.answer(sizes) is answer for q, answer in self.answers)

    def __str__(self) -> str:
        return " or ".join(question.said(answer) for question, answer in self.answers) + self.at


def beside(clauses: tuple[Clause, ...], more: Clause) -> tuple[Clause, ...]:
    """Some clauses and one more: where two say the same but for one answer, which is yes in one and no in the other, it
    does not matter."""
    for clause in clauses:
        if set(clause.answers) <= set(more.answers):
            return clauses
        apart = set(clause.answers) ^ set(more.answers)
        if len(apart) == 2 and len({question for question, _ in apart}) == 1:
            rest = tuple(one for one in clause.answers if one not in apart)
            return beside(tuple(one for one in clauses if one is not clause), Clause(rest, clause.at))
    return (*clauses, more)
