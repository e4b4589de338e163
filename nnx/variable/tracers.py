"""Trace levels: which JAX trace an object belongs to.

A Variable or object may be mutated only at the trace level at which it was made: a value traced by `jit` that were
stored in a Variable from outside would leak. Objects made at one level share one `TraceState`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend
from weft.core.edge._tracers import running_trace, trace_ctx
from weft.nnx.printing.reprlib import Attr, Object, Representable


def current_jax_trace() -> Any:
    """JAX's own token for the current trace; equal for equal levels."""
    return jax.extend.core.get_opaque_trace_state(convention="nnx")


class TraceState(Representable):
    """The trace level at which something was made."""

    __slots__ = ("_jax_trace",)

    def __init__(self, jax_trace: Any = None):
        self._jax_trace = current_jax_trace() if jax_trace is None else jax_trace

    @property
    def jax_trace(self) -> Any:
        return self._jax_trace

    def is_valid(self) -> bool:
        """Whether this is the level of the running code."""
        return self is current_trace_state() or self._jax_trace == current_jax_trace()

    def __nnx_repr__(self):
        yield Object(type(self))
        yield Attr("jax_trace", self._jax_trace)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TraceState) and self._jax_trace == other._jax_trace

    __hash__ = None  # type: ignore[assignment]

    # A level does not outlive its process: what is unpickled or copied belongs to the level of whoever does it.
    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: Any) -> None:
        self._jax_trace = current_jax_trace()


jax.tree_util.register_pytree_node(TraceState, lambda _: ((), None), lambda _aux, _children: TraceState())

# Who can say where something is that the user's code reached. They walk graphs, which are made of what is made here, so
# they come to this list by themselves (see `graphs.whereabouts`).
LOCATORS: list[Callable[[Any], list[str]]] = []


def located(thing: Any) -> list[str]:
    """Where a thing is, as lines for an error; none if nobody knows."""
    return next((lines for locate in LOCATORS if (lines := locate(thing))), [])


# Outside of all transforms, where nearly all objects are made; and the last level within.
_outside: tuple[object, TraceState] = (running_trace(), TraceState())
_latest = _outside


def current_trace_state() -> TraceState:
    """The current level, as the one object that everything made at it shares (within, until levels alternate)."""
    global _latest
    now = trace_ctx.trace._weakref  # as `running_trace`, without the call: JAX rebuilds thousands of Variables at once
    known, state = _outside
    if known is now:
        return state
    known, state = _latest
    if known is not now:
        state = TraceState()
        _latest = (now, state)
    return state
