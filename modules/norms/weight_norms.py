"""Norms of weights: divide kernels by their lengths, or by their largest singular value.

The ops return a normalised kernel, which any layer can use. The records `WeightNorm` and `SpectralNorm` hold a layer
and normalise its kernel at each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

import jax.numpy as jnp
from jax import lax
from jax.nn import initializers
from jaxtyping import Array, Float, Key
from weft.core.records.kinds import BatchStat
from weft.core.records.module import Module, static
from weft.modules.calling import Combinator, L_co, call_layer, key_option
from weft.modules.construct import ConfigError, Initializer, check_key, check_positive
from weft.modules.op import op


# Not an `op`: on some processors a fused sum of squares rounds differently from squares that are summed afterwards, and
# these functions are compared with code that runs operation by operation.
def unit_length(
    x: Float[Array, "*shape"], *, axes: Sequence[int] | None = None, epsilon: float = 1e-12
) -> Float[Array, "*shape"]:
    """Scales vectors to length one.

    Args:
        x: any array.
        axes: the axes that a vector ranges over; None: all.
        epsilon: added to the square of the length.

    >>> unit_length(jnp.array([3.0, 4.0])).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    return x * lax.rsqrt((x * x).sum(None if axes is None else tuple(axes), keepdims=True) + epsilon)


def weight_norm(  # weft: skip(the feature axes decide the shape of the scale)
    kernel: Float[Array, "*shape"],
    scale: Float[Array, "..."] | None = None,
    *,
    feature_axes: Sequence[int] = (-1,),
    epsilon: float = 1e-12,
) -> Float[Array, "*shape"]:
    """Scales the weights of each feature of a kernel to length one, and multiplies by a scale.

    Args:
        kernel: weights.
        scale: one number for each feature: the kernel's sizes along its feature axes.
        feature_axes: the axes of features; the weights of one range over all others.
        epsilon: added to the squares of the lengths.

    >>> weight_norm(jnp.array([[3.0, 0.0], [4.0, 2.0]]), jnp.array([5.0, 1.0])).round(4).tolist()
    [[3.0, 0.0], [4.0, 1.0]]

    Source: Salimans and Kingma, "Weight Normalization", 2016.
    """
    features = sorted({range(kernel.ndim)[axis] for axis in feature_axes})
    others = [axis for axis in range(kernel.ndim) if axis not in features]
    normed = unit_length(kernel, axes=others, epsilon=epsilon)
    if scale is None:
        return normed
    return normed * jnp.reshape(scale, [1 if axis in others else size for axis, size in enumerate(kernel.shape)])


@op
def spectral_norm(
    kernel: Float[Array, "*window features"], u: Float[Array, "1 features"], *, steps: int = 1, epsilon: float = 1e-12
) -> tuple[Float[Array, "*window features"], Float[Array, "1 features"], Float[Array, ""]]:
    """Divides a kernel by the largest singular value of the matrix of its features by all other axes.

    Args:
        kernel: weights.
        u: the estimate of the singular vector, from the previous call; random before the first.
        steps: how many steps of power iteration to make.
        epsilon: added to the squares of lengths.

    Returns:
        The kernel, the new estimate of the vector, and the singular value. The vector is not differentiated.

    >>> kernel, u, sigma = spectral_norm(jnp.diag(jnp.array([1.0, 4.0])), jnp.ones((1, 2)), steps=8)
    >>> round(float(sigma), 4), round(float(kernel[1, 1]), 4)
    (4.0, 1.0)

    Source: Miyato et al., "Spectral Normalization for Generative Adversarial Networks", 2018.
    """
    matrix = jnp.reshape(kernel, (-1, kernel.shape[-1]))
    # Without steps there is no left vector, and the singular value is 0. Each step computes `v` from `u` first.
    v = u if steps else jnp.zeros((1, matrix.shape[0]), matrix.dtype)
    for _ in range(steps):
        v = unit_length(u @ matrix.T, epsilon=epsilon)
        u = unit_length(v @ matrix, epsilon=epsilon)
    # As in the paper: the gradient treats the singular vectors as constants. Through the iterations it would be that of
    # the estimate, and cost as much as they do.
    u, v = lax.stop_gradient((u, v))
    sigma = (v @ matrix @ u.T)[0, 0]
    # A kernel of zeros has the singular value 0, and would become NaN.
    return (matrix / jnp.where(sigma != 0, sigma, 1)).reshape(kernel.shape), u, sigma


class WeightNorm(Combinator[L_co]):
    """A layer whose kernel has a direction and, for each feature, a length of its own: `kernel * scale / |kernel|`.

    It is called like its layer.

    Args:
        layer: a record with a kernel.
        name: the field that holds it.
        feature_axes: the kernel's axes of features; the weights of one range over all others.
        scale_init: initialiser of the lengths from `jax.nn.initializers`; by default they are the kernel's own, so
            that nothing is changed at first.
        epsilon: added to the squares of the lengths.
        key: only for an initialiser that draws.

    Raises:
        ConfigError: if the layer has no such field, or no array in it.

    >>> import jax
    >>> from weft.modules import Linear
    >>> layer = WeightNorm(Linear(3, 4, key=jax.random.key(0)), scale_init=initializers.ones)
    >>> layer.scale.shape, jnp.linalg.norm(layer.normed().kernel, axis=0).round(4).tolist()
    ((4,), [1.0, 1.0, 1.0, 1.0])

    Source: Salimans and Kingma, "Weight Normalization", 2016.
    """

    __stands_for__ = "layer"

    layer: L_co
    scale: Float[Array, "*features"]
    name: str = static()
    feature_axes: tuple[int, ...] = static()
    epsilon: float = static()

    def __init__(
        self,
        layer: L_co,
        *,
        name: str = "kernel",
        feature_axes: int | Sequence[int] = -1,
        scale_init: Initializer | None = None,
        epsilon: float = 1e-12,
        key: Key[Array, ""] | None = None,
    ):
        kernel = _kernel_of("WeightNorm", layer, name)
        axes = (feature_axes,) if isinstance(feature_axes, int) else tuple(feature_axes)
        # Counted from the end, because in a `Stack` the kernel has axes of layers in front.
        self.feature_axes = tuple(sorted(range(kernel.ndim)[axis] - kernel.ndim for axis in axes))
        if scale_init is None:
            others = [axis for axis in range(-kernel.ndim, 0) if axis not in self.feature_axes]
            self.scale = jnp.sqrt((kernel * kernel).sum(tuple(others)))
        else:
            self.scale = scale_init(key, tuple(kernel.shape[axis] for axis in self.feature_axes), kernel.dtype)
        self.layer, self.name, self.epsilon = layer, name, epsilon

    def normed(self) -> L_co:
        """Returns the layer with its normalised kernel, without `WeightNorm`: inference then costs no norm."""
        kernel = getattr(self.layer, self.name)
        kernel = weight_norm(kernel, self.scale, feature_axes=self.feature_axes, epsilon=self.epsilon)
        return _with_kernel(self.layer, self.name, kernel)

    def _run(self, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> tuple[Any, Self | None]:
        layer: Any = self.normed()
        y, successor = call_layer(layer, "WeightNorm.layer", x, *args, **kwargs, **key_option(layer, key))
        if successor is None:
            return y, None
        # The successor has the normalised kernel of this call. The trained one goes back into its place, or each call
        # would normalise the kernel once more.
        return y, self.replace(layer=_with_kernel(successor, self.name, getattr(self.layer, self.name)))


class SpectralNorm(Module):  # weft: skip(of any layer)
    """A layer whose kernel is divided by its largest singular value, which power iteration finds: `y, norm = norm(x)`.

    Each call returns a successor. In training mode the successor has a better estimate of the singular vector (kind
    `BatchStat`). In inference mode the estimate stays, and only a successor of the layer itself is taken over.

    Args:
        layer: a record with a kernel.
        name: the field that holds it; as a matrix it is its last axis by all others.
        steps: of power iteration in each call.
        epsilon: added to the squares of lengths.
        inference: the mode; `weft.inference_mode(model)` sets it in a whole model.
        key: a typed key, for the vector to begin with.

    Raises:
        ConfigError: if the layer has no such field, or no array in it.

    >>> import jax
    >>> from weft.modules import Linear
    >>> keys = jax.random.split(jax.random.key(0))
    >>> norm = SpectralNorm(Linear(4, 5, key=keys[0]), steps=50, key=keys[1])
    >>> y, norm = norm(jnp.ones((3, 4)))
    >>> round(float(jnp.linalg.norm(norm.normed().kernel, 2)), 3)
    1.0

    Source: Miyato et al., "Spectral Normalization for Generative Adversarial Networks", 2018.
    """

    __stands_for__ = "layer"

    layer: Any
    u: Annotated[Float[Array, "1 features"], BatchStat]
    sigma: Annotated[Float[Array, ""], BatchStat]
    name: str = static()
    steps: int = static()
    epsilon: float = static()
    inference: bool = static()

    def __init__(
        self,
        layer: Any,
        *,
        name: str = "kernel",
        steps: int = 1,
        epsilon: float = 1e-12,
        inference: bool = False,
        key: Key[Array, ""],
    ):
        check_positive("SpectralNorm", steps=steps)
        check_key(key, "SpectralNorm")
        kernel = _kernel_of("SpectralNorm", layer, name)
        self.u = initializers.normal()(key, (1, kernel.shape[-1]), jnp.float32)
        self.sigma = jnp.ones((), jnp.float32)
        self.layer, self.name, self.steps, self.epsilon, self.inference = layer, name, steps, epsilon, inference

    def normed(self) -> Any:
        """Returns the layer with its normalised kernel, without `SpectralNorm`: inference then costs no norm."""
        return self._normed()[0]

    def __call__(
        self, x: Any, /, *args: Any, inference: bool | None = None, key: Any = None, **kwargs: Any
    ) -> tuple[Any, Self]:
        """Calls the layer, and gives the successor.

        Args:
            x: what the layer takes.
            args, kwargs: further arguments of the layer.
            inference: this call's mode, if it is not the record's own.
            key: for a layer whose call takes one.
        """
        layer, u, sigma = self._normed()
        y, successor = call_layer(layer, "SpectralNorm.layer", x, *args, **kwargs, **key_option(layer, key))
        changed: dict[str, Any] = {}
        if successor is not None:
            changed["layer"] = _with_kernel(successor, self.name, getattr(self.layer, self.name))
        if not (self.inference if inference is None else inference):
            changed |= {"u": u.astype(self.u.dtype), "sigma": sigma.astype(self.sigma.dtype)}
        return y, self.replace(**changed) if changed else self

    def _normed(self) -> tuple[Any, Any, Any]:
        kernel = getattr(self.layer, self.name)
        # In the wider of the two dtypes: the division by a half-precision singular value would round every weight.
        work = jnp.promote_types(kernel.dtype, self.u.dtype)
        normed, u, sigma = spectral_norm(
            kernel.astype(work), self.u.astype(work), steps=self.steps, epsilon=self.epsilon
        )
        return _with_kernel(self.layer, self.name, normed.astype(kernel.dtype)), u, sigma


def _kernel_of(owner: str, layer: Any, name: str) -> Any:
    kernel = getattr(layer, name, None)
    if not isinstance(layer, Module) or not hasattr(kernel, "dtype"):
        raise ConfigError(
            f"{owner} wraps a layer with an array in the field {name!r}, and this {type(layer).__qualname__} has none",
            fix="put it around the layer itself, a Linear or a Conv, or say which field: name=",
        )
    return kernel


def _with_kernel(layer: Any, name: str, kernel: Any) -> Any:
    return layer.replace(**{name: kernel})
