"""`WeightNorm` and `SpectralNorm`: layers that are called with normalised weights.

The layer has the normalised weights while it is called. Afterwards its Params are what they were: what an optimizer
trains is what the norm normalises. flax leaves the normalised ones in the Params, which the switch `nnx_flax_faults`
does too.
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
from weft.nnx.nn.canonical import canonicalize_axes
from weft.nnx.nn.construct import first_given
from weft.nnx.nn.normalizer import Axes
from weft.nnx.objects.attributes import data
from weft.nnx.states.filters import Filter, PathContains, to_predicate
from weft.nnx.states.states import to_flat_state
from weft.nnx.streams.rngs import Rngs
from weft.nnx.variable.kinds import BatchStat, Param
from weft.nnx.variable.refs import is_array_ref
from weft.nnx.variable.variable import Variable

_KERNELS = PathContains("kernel")


class NewWeightError(StructureError, RuntimeError):
    """A weight that a norm did not find when it was made."""


def _lost(norm: Module, what: str, path: Path) -> NewWeightError:
    return NewWeightError(
        f"{type(norm).__name__} has no {what} of this weight: it was not there when the norm was made",
        at=format_path(path),
        fix="wrap the layer after its parameters are made, or replaced",
    )


class WeightNorm(Module):
    """A layer whose weights have length one for each feature, times a scale that is learned.

    Args:
        layer_instance: the layer.
        feature_axes: the axes of features, of each weight; all other axes are normalised together. None: all axes are.
        use_scale: whether to have scales, Params in the dict `scales` by the weights' paths.
        scale_init: initializer, called with a stream (or, if it takes none, with a key) and a shape; ones by default.
        epsilon: added to the squares of lengths.
        dtype: the dtype of the weights that the layer is called with; by default what weight and scale promote to.
        param_dtype, promote_dtype: are kept, and make no difference.
        variable_filter: which Variables of the layer are weights.
        rngs: the stream `params` is given to `scale_init`.

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
            RuntimeError: for a weight that has no scale.
        """
        weights = to_flat_state(state(self.layer_instance))
        normed = [
            (weight, _normed(self, path, weight)) for path, weight in weights if self.variable_filter(path, weight)
        ]
        with _weights_as(normed):
            return self.layer_instance(x, *args, **kwargs)


@contextlib.contextmanager
def _weights_as(normed: Sequence[tuple[Variable[Any], Any]]) -> Iterator[None]:
    """Weights have other values within; a weight that somebody else writes within keeps what was written."""
    before = [(raw := weight.get_raw_value(), raw[...] if is_array_ref(raw) else raw) for weight, _ in normed]
    for weight, value in normed:
        weight.set_value(value)
    within = [weight.get_raw_value() for weight, _ in normed]
    try:
        yield
    finally:
        for (weight, _), (raw, value), written in zip(normed, before, within, strict=True):
            if config.nnx_flax_faults or weight.get_raw_value() is not written:
                continue
            if is_array_ref(raw):
                raw[...] = value
            else:
                weight.set_raw_value(value)


def _scale(norm: WeightNorm, stream: Any, weight: Variable[Any]) -> Any:
    shape = tuple(weight.shape[axis] for axis in canonicalize_axes(weight.ndim, norm.feature_axes))
    try:
        return norm.scale_init(stream, shape)
    except TypeError:
        # JAX's own initializers take a key. Others may draw from the stream themselves, or leave it as it is.
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
    """A layer whose weights are divided by their largest singular value, which power iteration finds step by step.

    While training each call improves what is known of the singular vector and keeps it (`u`, and the value `sigma`, in
    the dict `batch_stats` by the weights' paths); otherwise it starts from the same vector each time. `model.train()`
    and `model.eval()` say which.

    Args:
        layer_instance: the layer.
        n_steps: steps of power iteration in each call; with none the weights are left as they are.
        epsilon: added to the squares of lengths.
        dtype: the dtype of the weights that the layer is called with; by default what weight and vector promote to.
        param_dtype: the dtype of `u` and `sigma`.
        error_on_non_matrix: whether weights of more than two axes are refused; else they are normalised as matrices of
            their last axis by all others.
        update_stats: whether to keep what was found; each call may say so too.
        rngs: a key for each weight is drawn from the stream `params`.

    Raises:
        ValueError: for a weight that is no matrix, if those are refused.

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
            update_stats: this call's mode, if it is not the layer's own.

        Returns:
            What the layer returns.

        Raises:
            ValueError: for a weight that is no matrix, if those are refused.
            RuntimeError: for a weight that the norm knows nothing of.
        """
        update_stats = first_given("update_stats", update_stats, not self.use_running_average, owner=self)
        matrices = _matrices(self)
        for path, _ in matrices:
            if (*path, "u") not in self.batch_stats or (*path, "sigma") not in self.batch_stats:
                raise _lost(self, "singular vector", path)
        normed: list[tuple[Variable[Any], jax.Array]] = []
        # A power iteration carries what rounding leaves from call to call: fused, it would drift away from flax's.
        with ops.op_by_op():
            for path, weight in matrices:
                kept_u, kept_sigma = self.batch_stats[*path, "u"], self.batch_stats[*path, "sigma"]
                value, u, sigma = ops.spectral_norm(weight[...], kept_u[...], steps=self.n_steps, epsilon=self.epsilon)
                if update_stats:
                    kept_u[...], kept_sigma[...] = u.astype(kept_u.dtype), sigma.astype(kept_sigma.dtype)
                dtype = dtypes.canonicalize_dtype(value, u, sigma, dtype=self.dtype)
                normed.append((weight, value.astype(dtype).astype(weight.dtype)))
            with _weights_as(normed):
                return self.layer_instance(x)


def _matrices(norm: SpectralNorm) -> list[tuple[Path, Variable[Any]]]:
    """The weights that have singular values, with their paths.

    Raises:
        ConfigError: for one that is no matrix, if those are refused.
    """
    weights = to_flat_state(state(norm.layer_instance, Param))
    matrices = [(path, weight) for path, weight in weights if weight.ndim > 1 and norm.n_steps >= 1]
    for path, weight in matrices:
        if weight.ndim > 2 and norm.error_on_non_matrix:
            raise ConfigError(
                f"error_on_non_matrix is True, and this weight is {weight.ndim}D",
                at=format_path(path),
                fix="without error_on_non_matrix=True it is normalised as a matrix of its last axis by all others",
            )
    return matrices
