"""Conditions on sizes as clauses: a program holds where each clause has an answer that is true.

A program reaches a guard on a *way*: after certain answers to earlier questions. So the condition that the guard asks
for is a disjunction: its own question has the other answer, or one of the earlier questions has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.typecheck.sizes.deciding import Question

Answer = tuple[Question, bool]


@dataclass(frozen=True)
class Clause:
    """A disjunction of answers to questions.

    Attributes:
        answers: the questions, each with its answer, in the order in which a report prints them.
        at: the place of the guard that asks for the clause, in brackets; empty if no guard does.
    """

    answers: tuple[Answer, ...]
    at: str = ""

    def allows(self, sizes: Mapping[str, int]) -> bool:
        """Whether an answer is true at these sizes, or may be true because a dim of its question has no size here."""
        return any(not q.dims <= sizes.keys() or q.answer(sizes) is answer for q, answer in self.answers)

    def __str__(self) -> str:
        return " or ".join(question.said(answer) for question, answer in self.answers) + self.at


def with_clause(clauses: tuple[Clause, ...], more: Clause) -> tuple[Clause, ...]:
    """The clauses with one more, simplified: two clauses that differ only in the answer to one question become one."""
    for clause in clauses:
        # Of two disjunctions the shorter asks for more: a report that says `n <= 3` need not say `n <= 3 or k = 2`.
        if set(clause.answers) <= set(more.answers):
            return clauses
        # `A or n = 1` and `A or n != 1` together are `A`: a guard that a program reaches on both sides of an earlier
        # comparison would be told as two conditions.
        difference = set(clause.answers) ^ set(more.answers)
        if len(difference) == 2 and len({question for question, _ in difference}) == 1:
            rest = tuple(answer for answer in clause.answers if answer not in difference)
            return with_clause(tuple(old for old in clauses if old is not clause), Clause(rest, clause.at))
    return (*clauses, more)
