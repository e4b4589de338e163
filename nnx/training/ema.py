"""EMA: an exponential moving average of a model's Variables."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from weft.core.errors import WeftError
from weft.core.paths import format_path
from weft.nnx.errors import StructureError
from weft.nnx.graphs import splitting
from weft.nnx.modules.pytree import Pytree
from weft.nnx.objects.attributes import data
from weft.nnx.states.filters import Filter
from weft.nnx.states.states import State, map_state, merge_state, to_flat_state
from weft.nnx.variable.variable import Variable

__all__ = ["EMA"]

M = TypeVar("M")


class AveragedLeafError(WeftError, TypeError):
    """Raised for a leaf that cannot be averaged."""


class EMA(Pytree):
    """An exponential moving average of a model's Variables, in Variables of its own.

    Args:
        params: the model, or a State, with the initial values.
        decay: the weight of the old average in an update.
        only: a filter for the Variables to average; by default all, so pass a kind if the model has keys or counts.
        graph: whether the model is a graph or a tree; by default the mode of `set_graph_mode`.

    Attributes:
        decay: the constructor's `decay`.
        filter: the constructor's `only`.
        params: the averages, a State of Variables.

    Raises:
        TypeError: for a leaf that is no Variable.

    >>> from weft import nnx
    >>> model = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    >>> ema = EMA(model, decay=0.75, only=nnx.Param)
    >>> model.bias[...] += 1.0
    >>> ema.update(model)
    >>> ema.params["bias"][...].tolist(), ema.apply_to(model).bias[...].tolist()
    ([0.25, 0.25], [0.25, 0.25])
    """

    decay: Any
    filter: Any
    params: Any

    def __init__(self, params: Any, decay: float, *, only: Filter = ..., graph: bool | None = None):
        self.graph = graph
        self.decay = decay
        self.filter = only
        # Copied: an average that shared the model's Variables would change with each training step.
        chosen = splitting.state(params, only, graph=graph)
        self.params = data(map_state(_copy, chosen) if isinstance(chosen, State) else _copy((), chosen))

    def update(self, updates: Any) -> None:
        """Updates each average to `decay * average + (1 - decay) * value`.

        Args:
            updates: the model, or a State with the same Variables.

        Raises:
            ValueError: if it has other Variables than the average.
            TypeError: for a Variable that is not numeric, such as a random key.
        """
        now = _by_path(splitting.state(updates, self.filter, graph=self.graph))
        averages = _by_path(self.params)
        if now.keys() != averages.keys():
            raise StructureError(
                "the model has other Variables than its average",
                at=sorted(format_path(path) for path in now.keys() ^ averages.keys()),
                fix="create a new EMA when the model's structure changes",
            )
        # All averages are computed before the first is written, so that an error leaves all unchanged.
        moved = [(average, self._moved(path, average, now[path])) for path, average in averages.items()]
        for average, value in moved:
            average[...] = value

    def _moved(self, path: Any, average: Any, now: Any) -> jax.Array:
        old, new = average[...], now[...] if isinstance(now, Variable) else now
        # Keys of random streams, for example, have no sum.
        if not jnp.issubdtype(old.dtype, jnp.number):
            raise AveragedLeafError(
                f"EMA averages numbers, got a {type(average).__name__} of {old.dtype}",
                at=format_path(path),
                fix="choose the Variables to average: EMA(model, decay, only=nnx.Param)",
            )
        # A float `decay` promotes integers to floats. With another dtype in the Variable, a compiled step would trace
        # again.
        return (self.decay * old + (1.0 - self.decay) * new).astype(old.dtype)

    def apply_to(self, model: M) -> M:
        """Returns a copy of a model with the average's own Variables, so that later updates of the average change it.

        Args:
            model: the model; Variables without an average are shared with it.
        """
        graphdef, whole = splitting.split(model, graph=self.graph)
        # The averages come last: for a path in both States, the last value counts.
        return splitting.merge(graphdef, merge_state(whole, self.params))


def _by_path(state: Any) -> dict[Any, Any]:
    """Returns the leaves of a State by path; the state of a bare Variable is the Variable."""
    return dict(to_flat_state(state)) if isinstance(state, State) else {(): state}


def _copy(path: Any, leaf: Any) -> Any:
    if not isinstance(leaf, Variable):
        raise AveragedLeafError(
            f"EMA only supports Variable leaves, got {type(leaf).__name__}",
            at=format_path(path),
            fix="use the `only` filter to choose Variables, such as only=nnx.Param",
        )
    # A copy of the array, too: the model's own buffer may be donated to jit.
    return type(leaf)(jnp.copy(leaf.get_value()), **leaf.get_metadata())
