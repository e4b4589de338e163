"""Activations, initializers, pooling and dtypes are flax's."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx as flax_nnx
from flax.nnx.nn import activations as flax_activations
from flax.nnx.nn import dtypes as flax_dtypes
from weft import nnx
from weft.nnx.nn import activations, dtypes, initializers

from .twins import assert_equal, twins


def test_every_activation_is_here_and_is_jaxs_own():
    assert sorted(activations.__all__) == sorted(flax_activations.__all__)
    for name in set(activations.__all__) - {"PReLU"}:
        assert getattr(nnx, name) is getattr(flax_nnx, name), name


def test_every_initializer_is_here():
    names = [name for name in dir(flax_nnx.initializers) if name.islower() and not name.startswith("_")]
    functions = [name for name in names if inspect.isfunction(getattr(flax_nnx.initializers, name))]
    assert [name for name in functions if not hasattr(initializers, name)] == []
    assert nnx.initializers is initializers
    for make in ("zeros_init", "ones_init"):
        made = [getattr(library.initializers, make)() for library in (flax_nnx, nnx)]
        assert_equal(*(init(jax.random.key(0), (2,), jnp.float32) for init in made))


X = jax.random.normal(jax.random.key(0), (2, 6, 5, 3))


@pytest.mark.parametrize("x", [X, X[0], X[None]], ids=["batch", "single", "batches"])
@pytest.mark.parametrize("function", ["max_pool", "min_pool", "avg_pool"])
@pytest.mark.parametrize(
    ("window", "options"),
    [
        ((2, 2), {}),
        ((2, 3), {"strides": (2, 1)}),
        ((3, 3), {"strides": (2, 2), "padding": "SAME"}),
        ((2, 2), {"padding": ((1, 0), (0, 1))}),
    ],
)
def test_pooling_is_flaxs(function, window, options, x):
    theirs = getattr(flax_nnx, function)
    # flax pads pairs for one batch axis only.
    many = x.ndim > 4 and not isinstance(options.get("padding", ""), str)
    y = jax.vmap(lambda x: theirs(x, window, **options))(x) if many else theirs(x, window, **options)
    assert_equal(y, getattr(nnx, function)(x, window, **options), 1e-6)


@pytest.mark.parametrize("padding", ["SAME", "VALID", ((1, 1), (0, 1))])
def test_an_average_may_leave_padding_out(padding):
    assert_equal(
        *twins(lambda n: n.avg_pool(X, (3, 2), strides=(2, 2), padding=padding, count_include_pad=False)), 1e-6
    )


def test_pool_reduces_by_any_function():
    assert_equal(*twins(lambda library: library.pool(X, 1.0, jax.lax.mul, (2, 2), (1, 2), "SAME")), 1e-6)


def test_pooling_differentiates():
    assert_equal(*twins(lambda library: jax.grad(lambda x: library.max_pool(x, (2, 2)).sum())(X)))


def test_too_few_axes_to_pool_are_refused():
    with pytest.raises(ValueError, match="a window of 2 axes needs 2 spatial axes and one of features, not 2 axes"):
        nnx.max_pool(jnp.ones((4, 4)), (2, 2))


ARGS = [
    (jnp.ones(2), None, jnp.ones(2, jnp.bfloat16)),
    (jnp.arange(2), 1.5),
    (1, None),
    (jnp.ones(2, jnp.bfloat16), 2.0),
    (np.ones(2, np.float32),),
]


@pytest.mark.parametrize("args", ARGS)
@pytest.mark.parametrize("options", [{}, {"dtype": jnp.float16}, {"inexact": False}])
def test_dtypes_are_those_flax_finds(args, options):
    expected = jnp.dtype(flax_dtypes.canonicalize_dtype(*args, **options))
    assert jnp.dtype(dtypes.canonicalize_dtype(*args, **options)) == expected
    theirs, ours = flax_dtypes.promote_dtype(args, **options), dtypes.promote_dtype(args, **options)
    assert type(ours) is tuple
    assert [value is None for value in theirs] == [value is None for value in ours]
    assert_equal(theirs, ours)


def test_an_integer_dtype_is_refused_where_floats_are_computed():
    with pytest.raises(ValueError, match="a computation's dtype must be floating-point, not int32"):
        dtypes.promote_dtype((jnp.ones(2),), dtype=jnp.int32)
