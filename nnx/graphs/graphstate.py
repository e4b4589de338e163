"""GraphState: a State together with the structure of its graph, so that `merge` needs nothing else."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, Generic, TypeVar

import jax.tree_util as jtu
from weft.nnx.errors import StructureError
from weft.nnx.graphs.definitions import GraphDef
from weft.nnx.printing.reprlib import Attr, Object, Representable
from weft.nnx.states.states import State, flatten_state, flatten_state_with_keys, unflatten_state

A = TypeVar("A")


class GraphState(MutableMapping[Any, Any], Representable, Generic[A]):
    """A `State` with the structure of its graph; `unpack` returns it, and `merge` takes it alone.

    Raises:
        ValueError: if `_state` is no `State`.

    >>> from weft import nnx
    >>> state = nnx.unpack(nnx.Dict(w=nnx.Param(1.0)))
    >>> type(state).__name__, list(state), nnx.merge(state).w.get_value()
    ('GraphState', ['w'], 1.0)
    """

    __slots__ = ("_graphdef", "_state")

    def __init__(self, _graphdef: GraphDef[A], _state: State):
        if not isinstance(_state, State):
            raise StructureError(f"expected a State, got {type(_state).__name__}")
        object.__setattr__(self, "_graphdef", _graphdef)
        object.__setattr__(self, "_state", _state)

    _graphdef: GraphDef[A]
    _state: State

    # Attributes are the State's items, so programs that use `state.layer.kernel` work with either.
    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in GraphState.__slots__:
            object.__setattr__(self, name, value)
        else:
            setattr(self._state, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._state[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._state[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._state[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)

    def __contains__(self, key: object) -> bool:
        return key in self._state

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, GraphState)
            and self._graphdef == other._graphdef
            and dict(self._state) == dict(other._state)
        )

    # Mutable: as a key of a dict it could not be found again after a write.
    __hash__ = None

    def __reduce__(self) -> Any:
        return (GraphState, (self._graphdef, self._state))

    def __nnx_repr__(self):
        yield Object(type(self))
        yield Attr("_graphdef", self._graphdef)
        yield Attr("_state", self._state)


def _flatten(state: GraphState[Any]) -> tuple[Any, Any]:
    values, keys = flatten_state(state._state)
    return values, (state._graphdef, keys)


def _flatten_with_keys(state: GraphState[Any]) -> tuple[Any, Any]:
    values, keys = flatten_state_with_keys(state._state)
    return values, (state._graphdef, keys)


jtu.register_pytree_with_keys(
    GraphState,
    _flatten_with_keys,
    lambda aux, values: GraphState(aux[0], unflatten_state(State, aux[1], values)),
    _flatten,
)
