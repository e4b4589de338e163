"""What programs import from the modules of flax's layers, underscore or not, does what flax's does."""

import jax
import jax.numpy as jnp
import pytest
from flax.nnx import module as flax_module
from flax.nnx.nn import linear as flax_linear
from flax.nnx.nn import normalization as flax_normalization
from weft.nnx.interop.installing import twin_module

from .twins import assert_equal

linear, normalization, module = (
    twin_module(f"flax.nnx.{name}") for name in ("nn.linear", "nn.normalization", "module")
)
X = jax.random.normal(jax.random.key(0), (2, 3, 4))


@pytest.mark.parametrize("padding", ["SAME", "anything", 2, [1, 2], [(0, 1), 2], ((1, 2), (3, 4))])
def test_paddings_are_flaxs(padding):
    expected = flax_linear.canonicalize_padding(padding, 2)
    assert linear.canonicalize_padding(padding, 2) == expected


@pytest.mark.parametrize("padding", [[1], [1, 2, 3], [(1, 2, 3), 1], ["a", 1], 1.5, None, [[1, 2], [3, 4]]])
def test_other_paddings_are_refused_in_flaxs_words(padding):
    for library in (flax_linear, linear):
        with pytest.raises(ValueError, match="Invalid padding format"):
            library.canonicalize_padding(padding, 2)


@pytest.mark.parametrize("shape", [(1, 2, 3), (1, 2, 3, 4), (1, 2, 3, 4, 5)])
def test_the_axes_of_convolutions_are_flaxs(shape):
    assert linear._conv_dimension_numbers(shape) == flax_linear._conv_dimension_numbers(shape)


@pytest.mark.parametrize("axes", [(-1,), (0, -1), (-1, 0), [1, -2]])
def test_axes_are_flaxs(axes):
    assert linear._normalize_axes(axes, 3) == flax_linear._normalize_axes(axes, 3)
    assert normalization._canonicalize_axes(3, axes) == flax_normalization._canonicalize_axes(3, axes)
    assert linear._canonicalize_tuple(axes) == flax_linear._canonicalize_tuple(axes)
    assert linear._canonicalize_tuple(3) == flax_linear._canonicalize_tuple(3)


@pytest.mark.parametrize("options", [{}, {"use_mean": False}, {"use_fast_variance": False}, {"mask": X > 0}])
def test_statistics_and_what_is_normalised_by_them_are_flaxs(options):
    theirs = flax_normalization._compute_stats(X, (0, 1), None, **options)
    assert_equal(theirs, normalization._compute_stats(X, (0, 1), None, **options), 1e-6)
    rest = (*theirs, jnp.arange(4.0), jnp.ones(4), (0, 1), -1, jnp.bfloat16, 1e-3)
    assert_equal(flax_normalization._normalize(X, *rest), normalization._normalize(X, *rest), 1e-2)
    for axis in (None, -1, (0, 2)):
        assert_equal(flax_normalization._l2_normalize(X, axis), normalization._l2_normalize(X, axis), 1e-6)


def test_the_first_option_that_is_given_counts():
    for library in (flax_module, module):
        assert library.first_from(None, False, True, error_msg="nothing") is False
        with pytest.raises(ValueError, match="nothing was given"):
            library.first_from(None, None, error_msg="nothing was given")
