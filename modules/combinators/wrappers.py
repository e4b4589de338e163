"""Residual, Frozen and Lambda: wrappers around one layer or one function.

`Residual` and `Frozen` hold a layer and are called like the layer (see `calling`); `Lambda` makes a layer of a
function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Generic, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from weft.core.errors import AxisError
from weft.core.records.kinds import FrozenParam
from weft.core.records.leaves import is_array
from weft.core.records.module import Module, static
from weft.modules.calling import Combinator, L_co, key_option
from weft.modules.construct import ConfigError

Y_co = TypeVar("Y_co", covariant=True)


class Residual(Combinator[L_co]):
    """A layer with a residual connection: `x + layer(x)`.

    It is called like its layer: of a stateful one the call returns `(y, successor)`.

    Args:
        layer: a record or a function that returns what it takes, in shape.

    Raises (when it is called):
        AxisError: if the layer's output has another shape than `x`; nothing is broadcast.

    >>> from weft.modules import BatchNorm, Linear
    >>> Residual(Linear(3, 3, key=jax.random.key(0)))(jnp.ones((5, 3))).shape
    (5, 3)
    >>> y, residual = Residual(BatchNorm(3))(jnp.ones((5, 3)))
    >>> y.tolist()[0], residual.layer.mean.shape
    ([1.0, 1.0, 1.0], (3,))

    Source: He et al., "Deep Residual Learning for Image Recognition", 2015.
    """

    layer: L_co

    def __init__(self, layer: L_co):
        self.layer = layer

    def _run(self, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> tuple[Any, Self | None]:
        y, successor = super()._run(x, args, kwargs, key)
        return _sum(x, y), successor


def _sum(x: Any, y: Any) -> Any:
    if jax.tree.structure(x) != jax.tree.structure(y):
        differing = [((), x, y)]
    else:
        # `+` would broadcast: a branch that returns (batch, 1) would be added to every feature without a word.
        pairs = zip(jax.tree.leaves_with_path(x), jax.tree.leaves(y), strict=True)
        differing = [(path, a, b) for (path, a), b in pairs if jnp.shape(a) != jnp.shape(b)]
    if differing:
        raise AxisError(
            "a Residual adds its input to the output of its layer, and their shapes differ",
            at=[f"{jax.tree_util.keystr(path)}x: {_shown(a)}, layer(x): {_shown(b)}" for path, a, b in differing],
            fix="make the layer keep the shape, or convert x: Parallel(layer, shortcut, merge=sum)",
        )
    return jax.tree.map(lambda a, b: a + b, x, y)


def _shown(value: Any) -> str:
    return str(jax.typeof(value)) if is_array(value) else str(jax.tree.structure(value))


class Frozen(Combinator[L_co]):
    """A layer that is not trained: its parameters are of kind `FrozenParam`, which is no `Param`.

    `weft.grad`, optimizers, `select(model, Param)` and all other functions with the filter `Param` skip them. Gradients
    still flow through the layer to what comes before it. State keeps its kind: statistics in a frozen `BatchNorm` still
    move while it trains; `inference_mode(Frozen(...))` stops that too.

    It is called like its layer.

    Args:
        layer: a record; `frozen.layer` gives it back as it was.

    >>> from weft.core import FrozenParam, Param
    >>> from weft.tree import select
    >>> from weft.modules import Linear
    >>> body, head = (Linear(2, 2, key=key) for key in jax.random.split(jax.random.key(0)))
    >>> model = {"body": Frozen(body), "head": head}
    >>> [leaf.shape for leaf in jax.tree.leaves(select(model, Param))]
    [(2, 2), (2,)]
    >>> len(jax.tree.leaves(select(model, FrozenParam)))
    2
    """

    __stands_for__ = "layer"

    layer: Annotated[L_co, FrozenParam]

    def __init__(self, layer: L_co):
        self.layer = layer


class Lambda(Module, Generic[Y_co]):
    """A function as a layer: `Lambda(lambda x: x.reshape(len(x), -1), "flatten")`.

    The function is configuration: part of the structure, compared by identity. It may not close over arrays, which
    would be hidden there from every transform, optimizer and checkpoint.

    Args:
        function: of what the layer takes; a `key` of the call is passed on if it has such an argument.
        name: what to call it; by default the function's own name.

    Raises:
        ConfigError: if the function is a record, which is a layer already.
        StaticError: if the function closes over arrays.

    >>> flatten = Lambda(lambda x: x.reshape(len(x), -1), "flatten")
    >>> flatten(jnp.ones((5, 2, 3))).shape, flatten.name, jax.tree.leaves(flatten)
    ((5, 6), 'flatten', [])
    """

    function: Callable[..., Y_co]
    name: str = static()

    def __init__(self, function: Callable[..., Y_co], name: str | None = None):
        if isinstance(function, eqx.Module):
            raise ConfigError(
                f"Lambda takes a function, and a {type(function).__qualname__} is a layer already",
                fix="use it as it is",
            )
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__) if name is None else name

    def __call__(self, *args: Any, key: Any = None, **kwargs: Any) -> Y_co:
        """Calls the function."""
        return self.function(*args, **kwargs, **key_option(self.function, key))
