"""PytreeState: an object's trace level, and whether Linen's bridge is initialising it, under flax's names."""

from __future__ import annotations

from typing import Any

from weft.nnx.objects.objects import attributes_of
from weft.nnx.printing.reprlib import Attr, Representable
from weft.nnx.printing.reprlib import Object as ReprObject
from weft.nnx.variable.tracers import TraceState

# An attribute that objects have while they are initialised. It is part of their structure, so copies have it, and a
# trace made during initialisation is not used for later calls.
INITIALIZING = "_pytree__initializing"


class PytreeState(Representable):
    """The trace level of an object (without one, the current level), and whether the object is being initialised.

    Copies of flax's bridge assign `obj._pytree__state._initializing`; that changes the object `obj` itself.

    >>> PytreeState().trace_state.is_valid()
    True
    """

    __slots__ = ("_is_initializing", "_node", "_trace_state", "is_setup")

    def __init__(self, initializing: bool = False, is_setup: bool = False, *, node: Any = None):
        self._trace_state = TraceState() if node is None else node._pytree__trace
        self._is_initializing, self._node = initializing, node
        self.is_setup = is_setup

    @property
    def initializing(self) -> bool:
        return self._is_initializing if self._node is None else INITIALIZING in attributes_of(self._node)

    @property
    def _initializing(self) -> bool:
        return self.initializing

    @_initializing.setter
    def _initializing(self, initializing: bool) -> None:
        if self._node is None:
            self._is_initializing = initializing
        elif initializing:
            setattr(self._node, INITIALIZING, True)
        elif INITIALIZING in attributes_of(self._node):
            delattr(self._node, INITIALIZING)

    @property
    def trace_state(self) -> TraceState:
        return self._trace_state

    def __nnx_repr__(self):
        yield ReprObject(type(self))
        yield Attr("trace_state", self.trace_state)
