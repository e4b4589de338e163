"""Optimizers: optax transformations with their state in Variables, so that a step is a mutation.

`Optimizer.update` takes the model; a `ModelAndOptimizer` stores it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import jax
import jax.numpy as jnp
from weft.core.records import kinds
from weft.modules.explicit import as_given
from weft.nnx.errors import MISSING, StructureError
from weft.nnx.graphs.splitting import as_pure, state
from weft.nnx.graphs.updating import update
from weft.nnx.modules.pytree import Pytree
from weft.nnx.objects.attributes import data
from weft.nnx.variable.kinds import Param
from weft.nnx.variable.variable import Variable

if TYPE_CHECKING:
    import optax

A = TypeVar("A")
M = TypeVar("M")


class OptState(Variable[A], kinds.OptState):
    """A Variable of an optimizer's state.

    >>> import optax
    >>> from weft import nnx
    >>> optimizer = nnx.Optimizer(nnx.Dict(w=nnx.Param(1.0)), optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    >>> sorted(type(value).__name__ for _, value in nnx.to_flat_state(nnx.state(optimizer, nnx.OptState)))
    ['OptState', 'OptVariable']
    """


class OptArray(OptState[A]):
    """An array of an optimizer's state that belongs to no single Variable, such as a step count.

    >>> import optax
    >>> from weft import nnx
    >>> optimizer = nnx.Optimizer(nnx.Dict(w=nnx.Param(jnp.ones(2))), optax.adam(0.1), wrt=nnx.Param)
    >>> [value.shape for value in jax.tree.leaves(nnx.state(optimizer, nnx.OptArray))]
    [()]
    """


class OptVariable(OptState[A]):
    """An array of an optimizer's state for one Variable, such as its momentum, with that Variable's metadata.

    >>> import optax
    >>> from weft import nnx
    >>> optimizer = nnx.Optimizer(nnx.Dict(w=nnx.Param(jnp.ones(2))), optax.adam(0.1), wrt=nnx.Param)
    >>> [value.shape for value in jax.tree.leaves(nnx.state(optimizer, nnx.OptVariable))]
    [(2,), (2,)]
    """


def to_opt_state(tree: Any) -> Any:
    """Puts the arrays of an optimizer's state into Variables.

    The metadata `optimizer_sharding` of a Variable, if any, becomes the `out_sharding` of its optimizer state. State
    with fewer axes than `out_sharding` has names is replicated.

    >>> type(to_opt_state({"count": jnp.array(0)})["count"]).__name__
    'OptArray'
    """
    return jax.tree.map(_opt_variable, tree, is_leaf=lambda leaf: isinstance(leaf, Variable))


def _opt_variable(leaf: Any) -> OptState[Any]:
    if not isinstance(leaf, Variable):
        return OptArray(leaf)
    metadata = dict(leaf.get_metadata())
    if "optimizer_sharding" in metadata:
        # The state of an optimizer may be divided over more devices than the parameter that it belongs to.
        metadata["out_sharding"] = metadata.pop("optimizer_sharding")
    elif isinstance(names := metadata.get("out_sharding"), tuple):
        # Adafactor stores a row and a column for a matrix, or a placeholder of shape (1,): `out_sharding` does not
        # name their axes, and sharding them by it would fail.
        shape = getattr(leaf.get_value(), "shape", None)
        if shape is not None and (len(shape) < len(cast("tuple[Any, ...]", names)) or shape == (1,)):
            del metadata["out_sharding"]
    return OptVariable(leaf.get_value(), **metadata)


class Optimizer(Pytree, Generic[M]):
    """An optax transformation and its state, for selected Variables of a model.

    Args:
        model: the model.
        tx: the optax transformation.
        wrt: a filter for the Variables to optimize, such as `nnx.Param`.
        graph: whether the model is a graph or a tree; by default the mode of `set_graph_mode`.

    Attributes:
        step: the number of steps so far.
        opt_state: the transformation's state, with its arrays in `OptVariable`s and `OptArray`s.

    Raises:
        TypeError: without `wrt`.

    >>> import optax
    >>> from weft import nnx
    >>> model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    >>> optimizer = Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)
    >>> grads = nnx.grad(lambda model: model(jnp.ones((1, 2))).sum())(model)
    >>> updates = optimizer.update(model, grads)
    >>> model.bias[...].tolist(), int(optimizer.step[...])
    ([-0.10000000149011612], 1)
    """

    def __init__(self, model: M, tx: optax.GradientTransformation, *, wrt: Any = MISSING, graph: bool | None = None):
        if wrt is MISSING:
            raise TypeError(
                "Missing required argument 'wrt': the filter of the Variables to optimize, such as nnx.Param. "
                "nnx.ModelAndOptimizer has it by default"
            )
        self.graph = graph
        # An array in a Variable: an int would be a part of the structure, and each step would compile again.
        self.step = OptState(jnp.array(0, dtype=jnp.uint32))
        self.tx = tx
        self.opt_state = data(to_opt_state(tx.init(state(model, wrt, graph=graph))))
        self.wrt = wrt

    def __getattr__(self, name: str) -> Any:
        # Programs written for older versions of flax read `optimizer.model`.
        hint = ": nnx.ModelAndOptimizer has it, and Optimizer.update takes it as an argument" if name == "model" else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def update(self, model: M, grads: Any = MISSING, /, **kwargs: Any) -> Any:
        """Runs a step: updates the model, the optimizer's state and the step count.

        Args:
            model: the model.
            grads: the gradients of the optimized Variables, as `nnx.grad` returns them.
            kwargs: further arguments of the transformation, such as `value`.

        Returns:
            The updates that were added to the Variables.

        Raises:
            TypeError: without gradients.
        """
        import optax

        if grads is MISSING:
            raise TypeError(
                "Missing required argument 'grads': update takes (model, grads). nnx.ModelAndOptimizer's takes (grads)"
            )
        state_of = functools.partial(state, graph=self.graph)
        # optax works on plain arrays: a State of Variables would make it compute on Variables' operators.
        params, gradients = as_pure(state_of(model, self.wrt)), as_pure(state_of(grads, self.wrt))
        before = as_pure(self.opt_state)
        try:
            updates, opt_state = as_given(
                self.tx.update, gradients, before, params, like=(gradients, before), **as_pure(kwargs)
            )
        except ValueError as error:
            _explain_labels(error)
            raise
        # Written only now: a transformation that raises leaves model, state and step count as they were.
        update(model, optax.apply_updates(params, updates))
        update(self.opt_state, state_of(opt_state))
        self.step[...] += 1
        return updates


def _explain_labels(error: ValueError) -> None:
    """Replaces JAX's error about a State of Variables where a State of plain values is expected, by a clearer one."""
    # Recognised by the class name in the text: JAX raises a plain ValueError for every two trees that do not match.
    if f"{Variable.__module__.rpartition('.')[0]}." in str(error):
        raise StructureError(
            "the transformation has labels or a mask that are a State of Variables, as jax.tree.map makes them of "
            "nnx.state; an update works on States of plain values",
            fix="make them by nnx.map_state(lambda path, variable: ..., nnx.state(model, nnx.Param)), or pass the "
            "transformation a function from params to labels or mask",
        ) from error


class ModelAndOptimizer(Optimizer[M]):
    """An `Optimizer` that stores its model.

    Args:
        model: the model.
        tx: the optax transformation.
        wrt: a filter for the Variables to optimize.

    >>> import optax
    >>> from weft import nnx
    >>> optimizer = ModelAndOptimizer(nnx.Linear(2, 1, rngs=nnx.Rngs(0)), optax.sgd(0.1))
    >>> grads = nnx.grad(lambda model: model(jnp.ones((1, 2))).sum())(optimizer.model)
    >>> updates = optimizer.update(grads)
    >>> optimizer.model.bias[...].tolist()
    [-0.10000000149011612]
    """

    model: M

    def __init__(self, model: M, tx: optax.GradientTransformation, *, wrt: Any = Param):
        super().__init__(model, tx, wrt=wrt)
        self.model = model

    def update(self, grads: Any, /, **kwargs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Runs a step with these gradients. See `Optimizer.update`."""
        return super().update(self.model, grads, **kwargs)
