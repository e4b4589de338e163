"""Initializers: functions of a key, a shape and a dtype. They are JAX's own, with two more constructors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.nn.initializers import (
    constant,
    delta_orthogonal,
    glorot_normal,
    glorot_uniform,
    he_normal,
    he_uniform,
    kaiming_normal,
    kaiming_uniform,
    lecun_normal,
    lecun_uniform,
    normal,
    ones,
    orthogonal,
    truncated_normal,
    uniform,
    variance_scaling,
    xavier_normal,
    xavier_uniform,
    zeros,
)

Initializer = Callable[..., Any]
DtypeLikeInexact = Any


def zeros_init() -> Initializer:
    """The initializer `zeros`, from a constructor like that of the others.

    >>> import jax, jax.numpy as jnp
    >>> zeros_init()(jax.random.key(0), (2,), jnp.float32).tolist()
    [0.0, 0.0]
    """
    return zeros


def ones_init() -> Initializer:
    """The initializer `ones`. See `zeros_init`."""
    return ones


__all__ = [
    "Initializer",
    "constant",
    "delta_orthogonal",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "ones_init",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
    "zeros_init",
]
