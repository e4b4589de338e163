"""`WeightNorm` and `SpectralNorm`: wrap a layer, and call it with normalised weights.

The layer's Params have normalised values during the call only, and are restored afterwards: an optimizer trains the
weights before normalisation. flax leaves the normalised values in the Params, as the switch `nnx_flax_faults` does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from weft.core.paths import Path, format_path
from weft.modules import ops
from weft.modules.construct import ConfigError
from weft.nnx.config import config
from weft.nnx.errors import StructureError
from weft.nnx.graphs.splitting import state
from weft.nnx.modules.module import Module
from weft.nnx.nn import dtypes, initializers
from weft.nnx.nn.canonical import Axes, canonicalize_axes
from weft.nnx.nn.construct import first_given
from weft.nnx.objects.attributes import data
from weft.nnx.states.filters import Filter, PathContains, to_predicate
from weft.nnx.states.states import to_flat_state
from weft.nnx.streams.rngs import Rngs
from weft.nnx.variable.kinds import BatchStat, Param
from weft.nnx.variable.refs import is_array_ref
from weft.nnx.variable.variable import Variable

_KERNELS = PathContains("kernel")


class NewWeightError(StructureError, RuntimeError):
    """Raised for a weight that the layer did not have when the norm was created."""


def _lost(norm: Module, statistic: str, path: Path) -> NewWeightError:
    return NewWeightError(
        f"{type(norm).__name__} has no {statistic} for this weight, which did not exist when the norm was created, "
        "or is no Param",
        at=format_path(path),
        fix="wrap the layer after its parameters are created or replaced, and let variable_filter accept Params only",
    )


class WeightNorm(Module):
    """Calls a layer with weights of length one for each feature, times a learned scale.

    Args:
        layer_instance: the layer.
        feature_axes: the feature axes of a weight; the norm is taken over all others. None: over all axes.
        use_scale: whether to learn scales: Params in the dict `scales`, by the weights' paths.
        scale_init: initializer, called with a stream (or a key, if it takes no stream) and a shape; ones by default.
        epsilon: added to squared norms.
        dtype: the dtype of the normalised weights; by default what weight and scale promote to.
        param_dtype, promote_dtype: are stored and ignored, as in flax.
        variable_filter: a filter for the Variables of the layer to normalise.
        rngs: the stream `params` is passed to `scale_init`.

    >>> from weft import nnx
    >>> layer = WeightNorm(nnx.Linear(8, 4, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))
    >>> jnp.linalg.norm(layer(jnp.eye(8)), axis=0).round(4).tolist()
    [1.0, 1.0, 1.0, 1.0]

    Source: Salimans and Kingma, "Weight Normalization", 2016.
    """

    layer_instance: Any
    scales: dict[Path, Any] | None

    def __init__(
        self,
        layer_instance: Module,
        *,
        feature_axes: Axes | None = -1,
        use_scale: bool = True,
        scale_init: Callable[..., Any] = initializers.ones,
        epsilon: float = 1e-12,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        variable_filter: Filter = _KERNELS,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        rngs: Rngs,
    ):
        self.layer_instance = layer_instance
        self.feature_axes = () if feature_axes is None else ops.hashable(feature_axes)
        self.use_scale = use_scale
        self.scale_init = scale_init
        self.epsilon = epsilon
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.variable_filter = to_predicate(variable_filter)
        self.promote_dtype = promote_dtype
        self.scales = None
        if use_scale:
            stream: Any = rngs["params"]
            # With the paths of this moment: parameters that the layer creates later have no scale, and a call names
            # them in an error.
            weights = to_flat_state(state(layer_instance, Param))
            chosen = [(path, weight) for path, weight in weights if self.variable_filter(path, weight)]
            self.scales = data({path: Param(_scale(self, stream, weight)) for path, weight in chosen})

    def __call__(self, x: jax.Array, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer with normalised weights.

        Args:
            x: the layer's first argument.
            args, kwargs: its further ones.

        Returns:
            What the layer returns.

        Raises:
            RuntimeError: for a weight without a scale.
        """
        weights = to_flat_state(state(self.layer_instance))
        normed = [
            (weight, _normed(self, path, weight)) for path, weight in weights if self.variable_filter(path, weight)
        ]
        with _weights_as(normed):
            return self.layer_instance(x, *args, **kwargs)


@contextlib.contextmanager
def _weights_as(normed: Sequence[tuple[Variable[Any], Any]]) -> Iterator[None]:
    """Gives weights other values inside the block. A weight that the block itself writes keeps that value."""
    before = [(raw := weight.get_raw_value(), raw[...] if is_array_ref(raw) else raw) for weight, _ in normed]
    for weight, value in normed:
        weight.set_value(value)
    # Read back after the write: a hook of the Variable may have stored another object.
    within = [weight.get_raw_value() for weight, _ in normed]
    try:
        yield
    finally:
        for (weight, _), (raw, value), written in zip(normed, before, within, strict=True):
            # The layer itself wrote the weight during the call, and its value counts; or the user asked for flax's
            # behaviour, which leaves the normalised weights in the model, so that a call in `eval` changes trained
            # parameters.
            if config.nnx_flax_faults or weight.get_raw_value() is not written:
                continue
            if is_array_ref(raw):
                # Written into the ref and not in its place: other Variables may have the same ref.
                raw[...] = value
            else:
                weight.set_raw_value(value)


def _scale(norm: WeightNorm, stream: Any, weight: Variable[Any]) -> Any:
    shape = tuple(weight.shape[axis] for axis in canonicalize_axes(weight.ndim, norm.feature_axes))
    try:
        return norm.scale_init(stream, shape)
    except TypeError:
        # JAX's own initializers need a key, and raise for a stream. A user's may draw from the stream, or not use it.
        return norm.scale_init(stream(), shape)


def _normed(norm: WeightNorm, path: Path, weight: Variable[Any]) -> jax.Array:
    value, scale = weight[...], None
    if norm.use_scale:
        scales = norm.scales or {}
        if path not in scales:
            raise _lost(norm, "scale", path)
        scale = scales[path][...]
    axes = canonicalize_axes(value.ndim, norm.feature_axes)
    normed = ops.weight_norm(value, scale, feature_axes=axes, epsilon=norm.epsilon)
    return jnp.asarray(normed, dtypes.canonicalize_dtype(value, scale, dtype=norm.dtype))


class SpectralNorm(Module):
    """Calls a layer with weights divided by their largest singular value, which power iteration approximates.

    In training mode each call improves the estimate of the singular vector and stores it: `u` and the singular value
    `sigma`, in the dict `batch_stats` by the weights' paths. Otherwise each call starts from the same vector.
    `model.train()` and `model.eval()` set the mode.

    Args:
        layer_instance: the layer.
        n_steps: steps of power iteration in each call; with 0 the weights are not normalised.
        epsilon: added to squared norms.
        dtype: the dtype of the normalised weights; by default what weight and vector promote to.
        param_dtype: the dtype of `u` and `sigma`.
        error_on_non_matrix: whether to refuse weights of more than two axes; otherwise they are reshaped to matrices,
            with the last axis as the second.
        update_stats: whether to store the estimates; a call may override it.
        rngs: a key for each weight is drawn from the stream `params`.

    Raises:
        ValueError: for a weight of more than two axes, with `error_on_non_matrix`.

    >>> from weft import nnx
    >>> layer = SpectralNorm(nnx.Linear(4, 5, rngs=nnx.Rngs(0)), n_steps=50, rngs=nnx.Rngs(0))
    >>> round(float(jnp.linalg.norm(layer(jnp.eye(4)), 2)), 3)
    1.0

    Source: Miyato et al., "Spectral Normalization for Generative Adversarial Networks", 2018.
    """

    layer_instance: Any
    use_running_average: bool

    def __init__(
        self,
        layer_instance: Module,
        *,
        n_steps: int = 1,
        epsilon: float = 1e-12,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        error_on_non_matrix: bool = False,
        update_stats: bool = True,
        rngs: Rngs,
    ):
        self.layer_instance = layer_instance
        self.n_steps = n_steps
        self.epsilon = epsilon
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.error_on_non_matrix = error_on_non_matrix
        self.use_running_average = not update_stats
        # A dict by path and not a nested object, as in flax: checkpoints have these keys.
        stats: dict[Path, BatchStat[Any]] = {}
        for path, weight in _matrices(self):
            key = rngs.params()
            stats[*path, "u"] = BatchStat(initializers.normal()(key, (1, weight.shape[-1]), param_dtype))
            stats[*path, "sigma"] = BatchStat(jnp.ones((), param_dtype))
        self.batch_stats = data(stats)

    def __call__(self, x: jax.Array, update_stats: bool | None = None) -> Any:
        """Calls the layer with normalised weights.

        Args:
            x: the layer's argument.
            update_stats: overrides the layer's mode for this call.

        Returns:
            What the layer returns.

        Raises:
            ValueError: for a weight of more than two axes, with `error_on_non_matrix`.
            RuntimeError: for a weight without statistics.
        """
        update_stats = first_given("update_stats", update_stats, not self.use_running_average, owner=self)
        matrices = _matrices(self)
        # All weights are looked up before the first statistic is written, so that a weight without one leaves
        # everything as it was.
        for path, _ in matrices:
            if (*path, "u") not in self.batch_stats or (*path, "sigma") not in self.batch_stats:
                raise _lost(self, "singular vector", path)
        normed: list[tuple[Variable[Any], jax.Array]] = []
        # Power iteration feeds its rounding errors into the next call. Compiled as a whole, XLA rounds differently,
        # and the vectors would drift away from flax's over many calls.
        with ops.op_by_op():
            for path, weight in matrices:
                stored_u, stored_sigma = self.batch_stats[*path, "u"], self.batch_stats[*path, "sigma"]
                value, u, sigma = ops.spectral_norm(
                    weight[...], stored_u[...], steps=self.n_steps, epsilon=self.epsilon
                )
                if update_stats:
                    # In their own dtype: a promoted one would change the Variable, and a compiled step would trace
                    # again.
                    stored_u[...], stored_sigma[...] = u.astype(stored_u.dtype), sigma.astype(stored_sigma.dtype)
                dtype = dtypes.canonicalize_dtype(value, u, sigma, dtype=self.dtype)
                normed.append((weight, value.astype(dtype).astype(weight.dtype)))
            with _weights_as(normed):
                return self.layer_instance(x)


def _matrices(norm: SpectralNorm) -> list[tuple[Path, Variable[Any]]]:
    """Returns the weights of at least two axes, with their paths.

    Raises:
        ConfigError: for a weight of more than two axes, with `error_on_non_matrix`.
    """
    weights = to_flat_state(state(norm.layer_instance, Param))
    matrices = [(path, weight) for path, weight in weights if weight.ndim > 1 and norm.n_steps >= 1]
    for path, weight in matrices:
        if weight.ndim > 2 and norm.error_on_non_matrix:
            raise ConfigError(
                f"error_on_non_matrix is True, but this weight is {weight.ndim}D",
                at=format_path(path),
                fix="pass error_on_non_matrix=False to normalise it as a matrix, reshaped to (-1, last axis)",
            )
    return matrices
