"""`placements`: what the annotations of a program place on the mesh, and which large arrays nothing places."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend.core import JaxprEqn
from jax.sharding import PartitionSpec
from weft.core.edge.contexts import tabulate_context
from weft.core.edge.equations import inner_jaxprs, iter_equations
from weft.core.errors import AxisError
from weft.core.logical_axes import FREE, Placed, noting, rules_in_force
from weft.insight.calls import is_object, nnx_if_loaded
from weft.insight.debug.places import place_of
from weft.insight.terminal import columns
from weft.transforms.tracing import make_jaxpr

# How many arrays that nothing places are listed.
_MOST = 10
_PLACING = ("sharding_constraint", "reshard")
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Unplaced:
    """The largest array of a line of the program that no annotation places.

    Attributes:
        where: the line.
        shape, dtype: of the array.
        bytes: of the whole array.
    """

    where: str
    shape: tuple[int, ...]
    dtype: Any
    bytes: int


@dataclass(frozen=True)
class Placements:
    """What the annotations of a program place; printed, it is a table.

    Attributes:
        placed: each annotated array, once, in the order of the trace; its `spec` is None if no rule is for its names.
        unplaced: arrays that nothing places and that are as large as the largest placed one, the largest first; the
            compiler places them by those around.
    """

    placed: Sequence[Placed]
    unplaced: Sequence[Unplaced]

    def __str__(self) -> str:
        rows = [("array", "axes", "lies", "annotation")]
        for each in self.placed:
            array = f"{np.dtype(each.dtype).name}{list(each.shape)}".replace(" ", "")
            lies = "no rule" if each.spec is None else f"({', '.join(map(_entry, each.spec))})"
            rows.append((array, " ".join(name or FREE for name in each.names), lies, each.where))
        lines = columns(rows)
        if self.unplaced:
            lines += ["", "large arrays that nothing places:"]
            lines += columns(
                [(f"{e.dtype}{list(e.shape)}".replace(" ", ""), f"{e.bytes:,} B", e.where) for e in self.unplaced]
            )
        return "\n".join(lines)


def placements(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Placements:
    """Traces a function in a block of `weft.axis_rules`, and tells which annotation places which array.

    Nothing is computed; arrays of `args` may be shapes.

    Args:
        function: a function, compiled or not.
        args, kwargs: its arguments.

    Raises:
        AxisError: outside of a block.

    >>> import jax, jax.numpy as jnp, weft
    >>> from jaxtyping import Array, Float
    >>> @weft.jit
    ... def double(x: Float[Array, "batch embed"]) -> Float[Array, "batch out"]:
    ...     return jnp.concatenate([x, x], 1)
    >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> with weft.axis_rules(mesh, {"batch": "data"}):
    ...     for each in weft.debug.placements(double, jnp.ones((4, 2))).placed:
    ...         print(each.names, each.spec)
    ('batch', 'embed') P('data', UNCONSTRAINED)
    ('batch', 'out') P('data', UNCONSTRAINED)
    """
    if rules_in_force() is None:
        raise AxisError(
            "there are no rules that could place arrays", fix="open a block: with weft.axis_rules(mesh, rules):"
        )
    trace: Any = make_jaxpr
    if any(map(is_object, args)):
        trace = nnx_if_loaded().make_jaxpr
    # What was traced before would come from JAX's caches, and place nothing.
    with noting() as notes, tabulate_context(next(_numbers)):
        jaxpr = trace(function)(*args, **kwargs)
    placed = list(dict.fromkeys(notes))
    least = max((_bytes(each) for each in placed if each.spec is not None), default=0)
    return Placements(placed, _unplaced(list(iter_equations(jaxpr.eqns)), least))


def _bytes(array: Any) -> int:
    return math.prod(array.shape) * getattr(array.dtype, "itemsize", 0)


def _unplaced(eqns: list[JaxprEqn], least: int) -> list[Unplaced]:
    # By identity, because literals have no hash; `eqns` keeps all of them alive.
    constrained = {id(var) for eqn in eqns if eqn.primitive.name in _PLACING for var in (*eqn.invars, *eqn.outvars)}
    largest: dict[str, Unplaced] = {}
    for eqn in eqns:
        if eqn.primitive.name in _PLACING or inner_jaxprs(eqn.params):
            continue
        for var in eqn.outvars:
            aval: Any = var.aval
            if id(var) in constrained or not getattr(aval, "shape", ()):
                continue
            where, size = place_of(eqn).where, _bytes(aval)
            if where and size >= least and (where not in largest or size > largest[where].bytes):
                largest[where] = Unplaced(where, tuple(aval.shape), aval.dtype, size)
    return sorted(largest.values(), key=lambda each: -each.bytes)[:_MOST]


def _entry(entry: Any) -> str:
    return "?" if entry is PartitionSpec.UNCONSTRAINED else repr(entry)
