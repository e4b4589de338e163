"""Norms of weights: the pure ops that divide a layer's kernel by its length, or by its largest singular value.

They make a kernel of a kernel, so that a layer of any kind can be given what they return.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float
from weft.modules.op import op


@op("axes", "epsilon")
def unit_length(
    x: Float[Array, "*shape"], *, axes: Sequence[int] | None = None, epsilon: float = 1e-12
) -> Float[Array, "*shape"]:
    """Vectors of length one.

    Args:
        x: any array.
        axes: the axes that a vector ranges over; None: all.
        epsilon: added to the square of the length.

    >>> unit_length(jnp.array([3.0, 4.0])).tolist()
    [0.6000000238418579, 0.800000011920929]
    """
    return x * lax.rsqrt((x * x).sum(None if axes is None else tuple(axes), keepdims=True) + epsilon)


@op("feature_axes", "epsilon")
def weight_norm(  # weft: skip(the feature axes decide the shape of the scale)
    kernel: Float[Array, "*shape"],
    scale: Float[Array, "..."] | None = None,
    *,
    feature_axes: Sequence[int] = (-1,),
    epsilon: float = 1e-12,
) -> Float[Array, "*shape"]:
    """A kernel whose weights have length one for each feature, times a scale.

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
    return normed if scale is None else normed * jnp.expand_dims(scale, others)


@op("steps", "epsilon")
def spectral_norm(
    kernel: Float[Array, "*window features"], u: Float[Array, "1 features"], *, steps: int = 1, epsilon: float = 1e-12
) -> tuple[Float[Array, "*window features"], Float[Array, "1 features"], Float[Array, ""]]:
    """A kernel divided by its largest singular value, as a matrix of its features by everything else.

    Args:
        kernel: weights.
        u: what is known of the singular vector, from the call before or drawn at first.
        steps: of power iteration.
        epsilon: added to the squares of lengths.

    Returns:
        The kernel, what is known of the vector now, and the singular value; the vector is not differentiated.

    >>> kernel, u, sigma = spectral_norm(jnp.diag(jnp.array([1.0, 4.0])), jnp.ones((1, 2)), steps=8)
    >>> round(float(sigma), 4), round(float(kernel[1, 1]), 4)
    (4.0, 1.0)

    Source: Miyato et al., "Spectral Normalization for Generative Adversarial Networks", 2018.
    """
    matrix = jnp.reshape(kernel, (-1, kernel.shape[-1]))
    v = jnp.zeros((1, matrix.shape[0]), matrix.dtype)
    for _ in range(steps):
        v = unit_length(u @ matrix.T, epsilon=epsilon)
        u = unit_length(v @ matrix, epsilon=epsilon)
    u, v = lax.stop_gradient((u, v))
    sigma = (v @ matrix @ u.T)[0, 0]
    return (matrix / jnp.where(sigma != 0, sigma, 1)).reshape(kernel.shape), u, sigma
