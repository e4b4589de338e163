"""cond and switch: one of several functions, chosen by a traced value.

Every branch is a body over the same lanes. Branches must return the same thing, static leaves included; the first that
differs is reported with every path.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from weft.core.edge.untyped import lax
from weft.core.errors import BranchError
from weft.core.interpreter.boundary import Groups, Place
from weft.core.interpreter.rides import Role
from weft.core.interpreter.rules import Body, Exit, Lift, Lifted, OutcomeNode, Rule
from weft.core.records.agree import Described, differences, how_to_lie_alike
from weft.core.tracebacks import cutting
from weft.transforms._wrap import call_over_values, check_scalar


@dataclass(frozen=True)
class BranchOptions:
    """The options of one choice: what it is called, and what its branches are called in errors."""

    name: str
    branches: tuple[str, ...]


@dataclass(frozen=True)
class _Output:
    """What one branch returned, without its tracers: these must not outlive the branch's trace."""

    index: int
    outcome: OutcomeNode
    described: Described
    # Of which operand an array of the output is the very one: the operand's position, by the array's place.
    untouched: frozenset[tuple[Place, int]]


def _same_output(options: BranchOptions, first: _Output, latest: _Output) -> None:
    """Refuses branches whose outputs differ, once each has been traced."""
    found = differences(first.described, latest.described)
    if found:
        raise BranchError(
            f"{options.branches[first.index]} and {options.branches[latest.index]} of {options.name} "
            "do not return the same",
            at=found,
            fix="return the same structure, shapes, dtypes and static leaves from every branch, and change the same"
            + how_to_lie_alike(found),
        )


# From what is chosen by, the branches and their operands to what one returned.
Choose = Callable[[Any, Sequence[Callable[[Groups], tuple[Groups, Groups]]], Groups], tuple[Groups, Groups]]
# Not forwarded by a branch on its own: JAX wants the same arrays of each. What all of them hand through is told after.
OPERAND = Role("operand")


def _lift_branches(choose: Choose, lift: Lift[BranchOptions]) -> Lifted:
    options = lift.options

    def lifted(chosen: Any, *groups: tuple[Any, ...]) -> Exit:
        outputs: list[_Output] = []

        def branch(body: Body) -> Callable[[Groups], tuple[Groups, Groups]]:
            def run(groups: Groups) -> tuple[Groups, Groups]:
                out, updates, outcome = body(groups)
                # In words at once, as tracers go with the trace; the comparison is by structure, and words are made if
                # it fails.
                described = body.boundary.describe_outcome(body.crossing, outcome.value, (*out, *updates))
                outputs.append(_Output(body.index, outcome, described, _untouched(body, groups, out)))
                _same_output(options, outputs[0], outputs[-1])
                return out, updates

            return run

        # What one branch updates or replaces, every branch must return.
        distinct = [body for body in lift.bodies if body.same_as == body.index]
        learned = [found for body in distinct if (found := body.learn_outcome(groups)) is not None]
        updated = frozenset[int]().union(*(found.updated for found in learned))
        replaced = frozenset[int]().union(*(found.replaced for found in learned))
        # JAX traces a function that stands in two places once.
        made = {body.index: branch(body.departing(updated=updated, replaced=replaced)) for body in distinct}
        out, updates = choose(chosen, [made[body.same_as] for body in lift.bodies], groups)
        # An operand that every branch returns in one place is the caller's own there. JAX would give a copy of it, or
        # another tracer, in which a loop around the choice cannot tell that it is the same at every step.
        untouched = outputs[0].untouched.intersection(*(output.untouched for output in outputs))
        return out, updates, OutcomeNode(value=outputs[0].outcome.value.forwarding(dict(untouched)))

    return lifted


def _untouched(body: Body, groups: Groups, out: Groups) -> frozenset[tuple[Place, int]]:
    given = {id(value): position for position, value in enumerate(body.crossing.ungroup(groups))}
    leaves = (((lane, place), leaf) for lane, group in enumerate(out) for place, leaf in enumerate(group))
    return frozenset((place, given[id(leaf)]) for place, leaf in leaves if id(leaf) in given)


def _rule(name: str, choose: Choose) -> Rule[BranchOptions]:
    return Rule(
        name,
        functools.partial(_lift_branches, choose),
        read=lambda node: OPERAND if node is None else None,
        lanes=(OPERAND,),
        staged=True,
        options=("operands", "output"),
    )


COND = _rule("cond", lambda chosen, branches, groups: lax.cond(chosen, *branches, groups))
SWITCH = _rule("switch", lax.switch)
COND_OPTIONS = BranchOptions("cond", ("true_fun", "false_fun"))


@cutting
def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], /, *operands: Any) -> Any:
    """Calls one of two functions, by a boolean.

    Args:
        pred: a boolean scalar.
        true_fun: called with the operands if it is true.
        false_fun: called with them if it is false.
        operands: pytrees of records.

    Raises:
        BranchError: if the two return different structures, shapes, dtypes or static leaves, with each path.

    Source: `jax.lax.cond`.

    >>> cond(True, lambda m: m["w"] + 1, lambda m: m["w"] - 1, {"w": 1, "name": "m"}).item()
    2
    """
    check_predicate(pred)
    return call_over_values(COND, (true_fun, false_fun), COND_OPTIONS, *operands, extra=pred)


@cutting
def switch(index: Any, branches: Sequence[Callable[..., Any]], /, *operands: Any) -> Any:
    """Calls one of several functions, by an index; one out of range is clamped.

    Args:
        index: an integer scalar.
        branches: the functions, at least one.
        operands: pytrees of records.

    Raises:
        BranchError: as in `cond`.

    Source: `jax.lax.switch`.

    >>> switch(1, [lambda x: x, lambda x: x * 2], 3).item()
    6
    """
    if not branches:
        raise BranchError("switch needs at least one branch", fix="pass functions in `branches`")
    check_index(index)
    return call_over_values(SWITCH, tuple(branches), switch_options(branches), *operands, extra=index)


def check_predicate(pred: object) -> None:
    """Refuses what no branch of a `cond` can be chosen by."""
    check_scalar(pred, "the predicate of cond", BranchError, "one boolean; jnp.where chooses for each element")


def check_index(index: object) -> None:
    """Refuses what no branch of a `switch` can be chosen by."""
    check_scalar(index, "the index of switch", BranchError, "one integer, from 0 on", integer=True)


def switch_options(branches: Sequence[Any]) -> BranchOptions:
    """The options of a `switch` with these branches."""
    return BranchOptions("switch", tuple(f"branches[{i}]" for i in range(len(branches))))
