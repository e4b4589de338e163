"""PytreeState: an object's trace level, and whether it is being initialised, under flax's names for them."""

from __future__ import annotations

from typing import Any

from weft.nnx.objects.objects import attributes_of
from weft.nnx.printing.reprlib import Attr, Representable
from weft.nnx.printing.reprlib import Object as ReprObject
from weft.nnx.variable.tracers import TraceState

# An attribute of objects that are being initialised: part of their structure, so that copies have it, and a transform
# does not reuse what it traced for other calls.
INITIALIZING = "_pytree__initializing"


class PytreeState(Representable):
    """The trace level of an object, by default a new one of where this is called, and whether it is being initialised.

    Copies of flax's bridge set `_initializing` of an object's: that object then is, or is no more.

    >>> PytreeState().trace_state.is_valid()
    True
    """

    __slots__ = ("_is", "_node", "_trace_state", "is_setup")

    def __init__(self, initializing: bool = False, is_setup: bool = False, *, node: Any = None):
        self._trace_state = TraceState() if node is None else node._pytree__trace
        self._is, self._node = initializing, node
        self.is_setup = is_setup

    @property
    def initializing(self) -> bool:
        return self._is if self._node is None else INITIALIZING in attributes_of(self._node)

    @property
    def _initializing(self) -> bool:
        return self.initializing

    @_initializing.setter
    def _initializing(self, initializing: bool) -> None:
        if self._node is None:
            self._is = initializing
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
