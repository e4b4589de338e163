"""One call over graphs, step by step and without JAX: what goes into a transform, and what would come out of it.

A test of a whole transform says that something is wrong. These steps say where: on the way in (`rides`), at the end of
the function (`end`: lanes and an outcome), or outside again (`hand_over`). Values inside are others than the caller's,
as tracers are, so that what is the same by accident is not taken for what is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from weft import nnx
from weft.core.interpreter.boundary import Crossing, Departure
from weft.core.interpreter.prefixes import distinct, rides_in
from weft.core.interpreter.rides import Read, read_axis
from weft.nnx.crossing.leaving import CallExit
from weft.nnx.crossing.references import References


class Node(nnx.Module):
    """An object with whatever parts it is given, those of them that are data said to be so."""

    def __init__(self, **parts: Any):
        for name, part in parts.items():
            setattr(self, name, part)


def param(*values: float) -> nnx.Param[Any]:
    return nnx.Param(jnp.asarray(values))


@dataclasses.dataclass
class Ended:
    """The end of a function inside: the lanes of its output and of updates, and the outcome."""

    outputs: Any
    updates: Any
    outcome: Any

    @property
    def groups(self) -> Any:
        return (*self.outputs, *self.updates)

    def value(self, place: tuple[int, int]) -> list[float]:
        """What left at a place."""
        lane, index = place
        return self.groups[lane][index].tolist()


class ByHand:
    """One call of a function, on its way into a transform and out again.

    Args:
        function: the user's.
        args: its arguments.
        in_axes, out_axes: as in `vmap`, or whatever `read` reads.
        read: what the entries of the two mean.
        mode: of the boundary: `graph`, `updates`, `copies`.
        departure: more of the departure's fields.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *args: Any,
        in_axes: Any = 0,
        out_axes: Any = 0,
        read: Read = read_axis,
        mode: dict[str, bool] | None = None,
        **departure: Any,
    ):
        mode = {"graph": True, "updates": True, **(mode or {})}
        self.function = function
        self.boundary = References(function="vmap", **mode)
        self.call = ((function,), args, {})
        self.prefix = (None, in_axes, 0)
        structure, leaves, self.entered = self.boundary.enter(self.call)
        self.given = [leaf.value for leaf in leaves]
        self.paths = [leaf.path for leaf in leaves]
        self.rides = self.boundary.rides(self.prefix, self.call, self.entered, leaves, read, "in_axes")
        self.crossing = Crossing(structure, tuple(self.rides), distinct(self.rides))
        self.departure = Departure(
            out_axes,
            distinct(rides_in(out_axes, read)),
            distinct(ride.update for ride in self.rides if ride.update is not None),
            read,
            "out_axes",
            lambda call: self.prefix,
            **departure,
        )

    def end(self) -> Ended:
        """Runs the function on fresh objects around other arrays, and takes its end apart."""
        values = [jnp.array(value, copy=True) for value in self.given]
        live, memory = self.boundary.rebuild(self.crossing, values)
        out = self.function(*live[1], **live[2])
        leaving = CallExit(self.boundary.mode, self.crossing, values, live, memory, self.departure)
        return Ended(*leaving.outcome(out))

    def hand_over(self, ended: Ended) -> Any:
        """Puts the end of a call into effect on the caller's own objects."""
        return self.boundary.hand_over(self.entered, ended.outcome, self.given, ended.groups)
