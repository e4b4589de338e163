"""Trace levels: the JAX trace in which an object was created.

A Variable or object may be mutated only at the trace level at which it was created. Otherwise a function under `jit`
could store a tracer in a Variable that it closes over, where the tracer would outlive its trace. All objects of a level
share one `TraceState`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend
from weft.core.edge._tracers import running_trace, trace_ctx
from weft.nnx.printing.reprlib import Attr, Object, Representable


def current_jax_trace() -> Any:
    """JAX's token for the current trace; equal within a trace."""
    return jax.extend.core.get_opaque_trace_state(convention="nnx")


class TraceState(Representable):
    """The trace level at which an object was created."""

    __slots__ = ("_jax_trace",)

    def __init__(self, jax_trace: Any = None):
        self._jax_trace = current_jax_trace() if jax_trace is None else jax_trace

    @property
    def jax_trace(self) -> Any:
        return self._jax_trace

    def is_valid(self) -> bool:
        """Whether the running code is at this level."""
        return self is current_trace_state() or self._jax_trace == current_jax_trace()

    def __nnx_repr__(self):
        yield Object(type(self))
        yield Attr("jax_trace", self._jax_trace)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TraceState) and self._jax_trace == other._jax_trace

    __hash__ = None  # type: ignore[assignment]

    # A trace ends with its process, so an unpickled or copied object belongs to the level that unpickles or copies it.
    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: Any) -> None:
        self._jax_trace = current_jax_trace()


# flax has trace states in pytrees of its own state objects, and JAX rebuilds them at the level of the transform.
jax.tree_util.register_pytree_node(TraceState, lambda _: ((), None), lambda _aux, _children: TraceState())

# Functions that find a path to an object, for errors. `graphs.whereabouts` adds itself: it walks graphs, which build on
# this file, so it cannot be imported here.
LOCATORS: list[Callable[[Any], list[str]]] = []


def located(node: Any) -> list[str]:
    """Lines for an error that say by which path the user's code reached `node`; empty if no path was found."""
    return next((lines for locate in LOCATORS if (lines := locate(node))), [])


# The level outside all transforms, where nearly all objects are created; and the last level inside a transform.
_outside: tuple[object, TraceState] = (running_trace(), TraceState())
_latest = _outside


def current_trace_state() -> TraceState:
    """Returns the current level: the same object for the same trace, as long as traces do not alternate."""
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
