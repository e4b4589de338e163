"""TrainState: structure, parameters and optimizer state of a training run, as an immutable pytree."""

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
    """Makes each subclass a frozen dataclass and a pytree; fields with metadata `pytree_node: False` are static."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True)(cls)
        fields = dataclasses.fields(cast(Any, cls))
        static = [field.name for field in fields if not field.metadata.get("pytree_node", True)]
        jtu.register_dataclass(cls, [field.name for field in fields if field.name not in static], static)

    def replace(self, **updates: Any) -> Self:
        """Returns a copy with new values in some fields."""
        return dataclasses.replace(cast(Any, self), **updates)


class TrainState(FrozenRecord, Generic[M]):
    """The state of a training run.

    Attributes:
        graphdef: the model's structure.
        params: the model's parameters.
        opt_state: the optimizer's state.
        step: the number of steps so far, an integer array.
        tx: the optax transformation, static.

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
    # Static, because a transformation is a pair of functions.
    tx: Any = dataclasses.field(metadata={"pytree_node": False})

    @classmethod
    def create(cls, graphdef: GraphDef[M], *, params: State, tx: Any, step: int = 0, **kwargs: Any) -> Self:
        """Makes the state before the first step."""
        return cls(graphdef=graphdef, params=params, opt_state=tx.init(params), step=jnp.asarray(step), tx=tx, **kwargs)

    def apply(self, state: State | str, *states: State | str) -> Any:
        """Calls a method of the model with these States; a string stands for the field of that name.

        Raises:
            TypeError: if a named field is no State.
        """
        return self.graphdef.apply(*(self._state(state_or_name) for state_or_name in (state, *states)))

    def _state(self, state_or_name: State | str) -> State:
        if not isinstance(state_or_name, str):
            return state_or_name
        state = getattr(self, state_or_name)
        if not isinstance(state, State):
            raise TypeError(f"{type(self).__name__}.{state_or_name} is a {type(state).__name__}, not a State")
        return state

    def apply_gradients(self, grads: State, **kwargs: Any) -> Self:
        """Returns the state after a step with these gradients."""
        import optax

        updates, opt_state = self.tx.update(grads, self.opt_state, self.params)
        params = optax.apply_updates(self.params, updates)
        return self.replace(params=params, opt_state=opt_state, step=self.step + 1, **kwargs)


class ModuleDefApply(Protocol, Generic[M_co]):
    """The type of `GraphDef.apply`: called with States, it returns a proxy for the model's methods."""

    def __call__(self, state: State, *states: State) -> ApplyCaller: ...
