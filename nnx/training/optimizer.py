"""Optimizers: optax transformations with their state in Variables, so that a step is a mutation.

`Optimizer` is told the model at each step, `ModelAndOptimizer` holds it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import jax
import jax.numpy as jnp
from weft.core.records import kinds
from weft.modules.explicit import as_given
from weft.nnx.errors import StructureError
from weft.nnx.graphs.splitting import as_pure, state
from weft.nnx.graphs.updating import update
from weft.nnx.missing import MISSING
from weft.nnx.modules.pytree import Pytree
from weft.nnx.objects.attributes import data
from weft.nnx.variable.kinds import Param
from weft.nnx.variable.variable import Variable

if TYPE_CHECKING:
    import optax

A = TypeVar("A")
M = TypeVar("M")


class OptState(Variable[A], kinds.OptState):
    """An optimizer's state.

    >>> import optax
    >>> from weft import nnx
    >>> optimizer = nnx.Optimizer(nnx.Dict(w=nnx.Param(1.0)), optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)
    >>> sorted(type(value).__name__ for _, value in nnx.to_flat_state(nnx.state(optimizer, nnx.OptState)))
    ['OptState', 'OptVariable']
    """


class OptArray(OptState[A]):
    """An array of it that belongs to no Variable in particular, such as a count.

    >>> import optax
    >>> from weft import nnx
    >>> optimizer = nnx.Optimizer(nnx.Dict(w=nnx.Param(jnp.ones(2))), optax.adam(0.1), wrt=nnx.Param)
    >>> [value.shape for value in jax.tree.leaves(nnx.state(optimizer, nnx.OptArray))]
    [()]
    """


class OptVariable(OptState[A]):
    """What is kept for one Variable, such as its momentum; it has that one's metadata.

    >>> import optax
    >>> from weft import nnx
    >>> optimizer = nnx.Optimizer(nnx.Dict(w=nnx.Param(jnp.ones(2))), optax.adam(0.1), wrt=nnx.Param)
    >>> [value.shape for value in jax.tree.leaves(nnx.state(optimizer, nnx.OptVariable))]
    [(2,), (2,)]
    """


def to_opt_state(tree: Any) -> Any:
    """An optimizer's state with its arrays in Variables.

    A Variable's metadata `optimizer_sharding`, if any, becomes the `out_sharding` of what is kept for it; what is kept
    in fewer axes than its names are for lies on every device.

    >>> type(to_opt_state({"count": jnp.array(0)})["count"]).__name__
    'OptArray'
    """
    return jax.tree.map(_opt_variable, tree, is_leaf=lambda leaf: isinstance(leaf, Variable))


def _opt_variable(leaf: Any) -> OptState[Any]:
    if not isinstance(leaf, Variable):
        return OptArray(leaf)
    metadata = dict(leaf.get_metadata())
    if "optimizer_sharding" in metadata:
        metadata["out_sharding"] = metadata.pop("optimizer_sharding")
    elif isinstance(names := metadata.get("out_sharding"), tuple):
        # Adafactor keeps a row and a column of a matrix, or a number in their place: no names are for their axes.
        shape = getattr(leaf.get_value(), "shape", None)
        if shape is not None and (len(shape) < len(cast("tuple[Any, ...]", names)) or shape == (1,)):
            del metadata["out_sharding"]
    return OptVariable(leaf.get_value(), **metadata)


class Optimizer(Pytree, Generic[M]):
    """An optax transformation and its state, for some Variables of a model.

    Args:
        model: the model.
        tx: the transformation.
        wrt: a filter of the Variables to optimize, such as `nnx.Param`.
        graph: whether the model is a graph or a tree; by default what `set_graph_mode` says.

    Attributes:
        step: how many steps were made.
        opt_state: the transformation's state, its arrays in `OptVariable` and `OptArray`.

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
        self.step = OptState(jnp.array(0, dtype=jnp.uint32))
        self.tx = tx
        self.opt_state = data(to_opt_state(tx.init(state(model, wrt, graph=graph))))
        self.wrt = wrt

    def __getattr__(self, name: str) -> Any:
        hint = ": nnx.ModelAndOptimizer has, and an Optimizer is told at each update" if name == "model" else ""
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def update(self, model: M, grads: Any = MISSING, /, **kwargs: Any) -> Any:
        """Makes a step: updates the model, the optimizer's state and the count of steps.

        Args:
            model: the model.
            grads: gradients of the Variables that are optimized, as `nnx.grad` gives them.
            kwargs: further arguments of the transformation, such as `value`.

        Returns:
            What was added to the Variables.

        Raises:
            TypeError: without gradients.
        """
        import optax

        if grads is MISSING:
            raise TypeError(
                "Missing required argument 'grads': update takes (model, grads). nnx.ModelAndOptimizer's takes (grads)"
            )
        pure_state = functools.partial(state, graph=self.graph)
        params, gradients = as_pure(pure_state(model, self.wrt)), as_pure(pure_state(grads, self.wrt))
        before = as_pure(self.opt_state)
        try:
            updates, opt_state = as_given(
                self.tx.update, gradients, before, params, like=(gradients, before), **as_pure(kwargs)
            )
        except ValueError as error:
            _explain_labels(error)
            raise
        update(model, optax.apply_updates(params, updates))
        update(self.opt_state, pure_state(opt_state))
        self.step[...] += 1
        return updates


def _explain_labels(error: ValueError) -> None:
    """Raises a better error in place of JAX's about a State of Variables in the place of one of values."""
    if f"{Variable.__module__.rpartition('.')[0]}." in str(error):
        raise StructureError(
            "the transformation holds a State of Variables, and an update is given States of plain values: labels or a "
            "mask that jax.tree.map has made of nnx.state",
            fix="make it by nnx.map_state(lambda path, variable: ..., nnx.state(model, nnx.Param)), or give the "
            "transformation a function from params to it",
        ) from error


class ModelAndOptimizer(Optimizer[M]):
    """An `Optimizer` that holds its model.

    Args:
        model: the model.
        tx: the optax transformation.
        wrt: a filter of the Variables to optimize.

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
        """Makes a step with these gradients. See `Optimizer.update`."""
        return super().update(self.model, grads, **kwargs)
