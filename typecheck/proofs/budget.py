"""The budget of a proof's search: how many trials, and how much time, before the contract counts as undecided.

Which trials a search makes, in which order, and what it concludes from them follow from the program alone: on any
machine, idle or busy, with a small heap or a large one. The budget only says where a search ends. A search that ends
there has decided nothing: its contract is *undecided*, which is no failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from weft.typecheck.errors import BudgetError


@dataclass(frozen=True)
class Budget:
    """The limits of one search.

    Attributes:
        trials: the most traces. The longest search over 200 collected programs took 183.
        seconds: the most time by `clock`, far more than the trials should take: it ends what nobody would wait for.
        clock: the time in seconds; by default this thread's processor time, in which other processes do not count.

    Raises:
        BudgetError: for a budget of no trials or no time.
    """

    # The limit is one of trials, since a trial takes longer in a process with a large heap: under a limit of processor
    # time alone, right programs were undecided at the end of long runs.
    trials: int = 1000
    seconds: float = 300.0
    clock: Callable[[], float] = time.thread_time

    def __post_init__(self) -> None:
        for name, amount in (("trials", self.trials), ("seconds", self.seconds)):
            if not amount > 0:
                raise BudgetError(f"a proof cannot be tried in {amount} {name}", fix=f"give it some: {name} > 0")


USUAL = Budget()


class Exhausted(Exception):
    """A search has come to the end of its budget; the message says of which part.

    Attributes:
        of_time: whether time ran out, of which another machine may need less.
    """

    def __init__(self, message: str, *, of_time: bool = False):
        super().__init__(message)
        self.of_time = of_time


class Meter:
    """Counts what one search has used of its budget."""

    def __init__(self, budget: Budget):
        self.budget = budget
        self.spent = 0
        self._end = budget.clock() + budget.seconds

    def spend(self) -> None:
        """Pays for one trial.

        Raises:
            Exhausted: if no trials, or no seconds, are left.
        """
        if self.spent >= self.budget.trials:
            raise Exhausted(f"{self.spent} trials (`trials=` of `verify`, `--trials` of `weft check`)")
        if self.budget.clock() >= self._end:
            limit = f"{self.budget.seconds:g} seconds (`seconds=` of `verify`, `--seconds` of `weft check`)"
            raise Exhausted(f"{limit} and {self.spent} trials", of_time=True)
        self.spent += 1
