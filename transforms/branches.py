"""cond and switch: one of several functions, chosen by a traced value.

Every branch is a body over the same lanes. Branches must return the same structure, avals and static leaves; the error
names the first branch that differs, with every path.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from weft.core.edge.untyped import lax
from weft.core.errors import BranchError
from weft.core.interpreter.boundary import Groups, Place
from weft.core.interpreter.rides import Role
from weft.core.interpreter.rules import Body, Exit, Lift, Lifted, OutcomeNode, Rule
from weft.core.records.agree import TreeDescription, differences, how_to_lie_alike
from weft.core.tracebacks import cutting
from weft.transforms.arguments import check_scalar
from weft.transforms.transformed import call_over_values


@dataclass(frozen=True)
class BranchOptions:
    """The name of the transform, and the names of its branches in errors."""

    name: str
    branches: tuple[str, ...]


@dataclass(frozen=True)
class _Output:
    """What one branch returned, without its tracers, which are dead after the branch's trace."""

    index: int
    outcome: OutcomeNode
    described: TreeDescription
    # The outputs that are operands: the output's place, and the operand's position.
    untouched: frozenset[tuple[Place, int]]


def _same_output(options: BranchOptions, first: _Output, latest: _Output) -> None:
    """Refuses branches whose outputs differ, once each has been traced."""
    differing = differences(first.described, latest.described)
    if differing:
        raise BranchError(
            f"{options.branches[first.index]} and {options.branches[latest.index]} of {options.name} "
            "do not return the same",
            at=differing,
            fix="return the same structure, shapes, dtypes and static leaves from every branch, and change the same "
            "leaves" + how_to_lie_alike(differing),
        )


# Calls JAX: takes the predicate or index, the branches and their operands, and returns the result of one branch.
Choose = Callable[[Any, Sequence[Callable[[Groups], tuple[Groups, Groups]]], Groups], tuple[Groups, Groups]]
# A single branch must not forward an operand, because JAX needs the same outputs from each. Operands that all branches
# return are forwarded afterwards.
OPERAND = Role("operand")


def _lift_branches(choose: Choose, lift: Lift[BranchOptions]) -> Lifted:
    options = lift.options

    def lifted(chosen: Any, *groups: tuple[Any, ...]) -> Exit:
        outputs: list[_Output] = []

        def branch(body: Body) -> Callable[[Groups], tuple[Groups, Groups]]:
            def run(groups: Groups) -> tuple[Groups, Groups]:
                out, updates, outcome = body(groups)
                # Described here, because the tracers are dead after this trace.
                types = jax.tree.map(jax.typeof, (*out, *updates))
                described = body.boundary.describe_outcome(body.crossing, outcome.value, types)
                # Compared as soon as it is traced, before JAX compares the outputs, whose error would name places in
                # lanes.
                outputs.append(_Output(body.index, outcome, described, _untouched(body, groups, out)))
                _same_output(options, outputs[0], outputs[-1])
                return out, updates

            return run

        # Every branch must return all leaves that any branch updates or replaces, since JAX needs the same outputs.
        distinct = [body for body in lift.bodies if body.same_as == body.index]
        outcomes = [outcome for body in distinct if (outcome := body.learn_outcome(groups)) is not None]
        updated = frozenset[int]().union(*(outcome.updated for outcome in outcomes))
        replaced = frozenset[int]().union(*(outcome.replaced for outcome in outcomes))
        # One function object for branches that are the same function, so that JAX traces it once.
        branches = {body.index: branch(body.departing(updated=updated, replaced=replaced)) for body in distinct}
        out, updates = choose(chosen, [branches[body.same_as] for body in lift.bodies], groups)
        # An operand that every branch returns in the same place is forwarded. JAX would return a copy or another
        # tracer, by which a loop around this could not see that the value is the same at every step.
        untouched = outputs[0].untouched.intersection(*(output.untouched for output in outputs))
        return out, updates, OutcomeNode(value=outputs[0].outcome.value.forwarding(dict(untouched)))

    return lifted


def _untouched(body: Body, groups: Groups, out: Groups) -> frozenset[tuple[Place, int]]:
    positions = {id(value): position for position, value in enumerate(body.crossing.ungroup(groups))}
    leaves = (((lane, place), leaf) for lane, group in enumerate(out) for place, leaf in enumerate(group))
    return frozenset((place, positions[id(leaf)]) for place, leaf in leaves if id(leaf) in positions)


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
    # Checked here, because without a branch there is no lane to lift, and JAX's error would be about those.
    if not branches:
        raise BranchError("switch needs at least one branch", fix="pass functions in `branches`")
    check_index(index)
    return call_over_values(SWITCH, tuple(branches), switch_options(branches), *operands, extra=index)


def check_predicate(pred: object) -> None:
    """Refuses a predicate of `cond` that is no scalar."""
    check_scalar(pred, "the predicate of cond", BranchError, "one boolean; jnp.where chooses for each element")


def check_index(index: object) -> None:
    """Refuses an index of `switch` that is no integer scalar."""
    check_scalar(index, "the index of switch", BranchError, "one integer, from 0 on", integer=True)


def switch_options(branches: Sequence[Any]) -> BranchOptions:
    """The options of a `switch` with these branches."""
    return BranchOptions("switch", tuple(f"branches[{i}]" for i in range(len(branches))))
