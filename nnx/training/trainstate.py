"""TrainState: structure, parameters and optimizer state of a training run, as one immutable pytree."""

from __future__ import annotations

import dataclasses
from typing import Any, Generic, Protocol, Self, TypeVar, cast

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from typing_extensions import dataclass_transform
from weft.nnx.graphs.definitions import GraphDef
from weft.nnx.proxy_caller import ApplyCaller
from weft.nnx.states.states import State

M = TypeVar("M")
M_co = TypeVar("M_co", covariant=True)


@dataclass_transform(frozen_default=True)
class FrozenRecord:
    """Makes each subclass a frozen dataclass and a pytree; fields with `pytree_node: False` are static."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True)(cls)
        fields = dataclasses.fields(cast(Any, cls))
        static = [field.name for field in fields if not field.metadata.get("pytree_node", True)]
        jtu.register_dataclass(cls, [field.name for field in fields if field.name not in static], static)

    def replace(self, **updates: Any) -> Self:
        """A copy with other values in some fields."""
        return dataclasses.replace(cast(Any, self), **updates)


class TrainState(FrozenRecord, Generic[M]):
    """A training run's state.

    Attributes:
        graphdef: the model's structure.
        params: its parameters.
        opt_state: the optimizer's state.
        step: how many steps were made, an integer array.
        tx: the optimizer, static.

    >>> import optax
    >>> from weft import nnx
    >>> graphdef, params = nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Param)
    >>> state = nnx.TrainState.create(graphdef, params=params, tx=optax.sgd(0.1))
    >>> y, _ = state.apply("params")(jnp.ones((1, 2)))
    >>> y.shape, int(state.apply_gradients(jax.tree.map(jnp.ones_like, params)).step)
    ((1, 3), 1)
    """

    graphdef: GraphDef[M]
    params: State
    opt_state: Any
    step: jax.Array
    tx: Any = dataclasses.field(metadata={"pytree_node": False})

    @classmethod
    def create(cls, graphdef: GraphDef[M], *, params: State, tx: Any, step: int = 0, **kwargs: Any) -> Self:
        """A state before the first step."""
        return cls(graphdef=graphdef, params=params, opt_state=tx.init(params), step=jnp.asarray(step), tx=tx, **kwargs)

    def apply(self, state: State | str, *states: State | str) -> Any:
        """Calls a method of the model with these states; a string names a field.

        Raises:
            TypeError: if a field named is no state.
        """
        return self.graphdef.apply(*(self._state(given) for given in (state, *states)))

    def _state(self, given: State | str) -> State:
        if not isinstance(given, str):
            return given
        state = getattr(self, given)
        if not isinstance(state, State):
            raise TypeError(f"{type(self).__name__}.{given} is a {type(state).__name__}, not a State")
        return state

    def apply_gradients(self, grads: State, **kwargs: Any) -> Self:
        """The state after a step with these gradients."""
        import optax

        updates, opt_state = self.tx.update(grads, self.opt_state, self.params)
        params = optax.apply_updates(self.params, updates)
        return self.replace(params=params, opt_state=opt_state, step=self.step + 1, **kwargs)


class ModuleDefApply(Protocol, Generic[M_co]):
    """What calls a model with states, as `GraphDef.apply` does: it gives the output, and (new structure, new state)."""

    def __call__(self, state: State, *states: State) -> ApplyCaller: ...
