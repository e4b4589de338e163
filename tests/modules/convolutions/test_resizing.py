"""Larger images: Upsample and PixelShuffle against loops over their pixels, and against JAX's own resizing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.core.errors import AxisError

IMAGES = jax.random.normal(jax.random.key(0), (2, 3, 5, 8))


def linear_by_hand(row, factor):
    """One axis by half-pixel centres, the values at the edge held."""
    places = np.clip((np.arange(len(row) * factor) + 0.5) / factor - 0.5, 0, len(row) - 1)
    lower = np.floor(places).astype(int)
    upper = np.minimum(lower + 1, len(row) - 1)
    return row[lower] + (places - lower)[:, None] * (row[upper] - row[lower])


@pytest.mark.parametrize("factors", [(2, 2), (1, 3), (3, 2)])
def test_nearest_repeats_pixels(factors):
    expected = np.repeat(np.repeat(np.asarray(IMAGES), factors[0], 1), factors[1], 2)
    np.testing.assert_array_equal(weft.Upsample(factors)(IMAGES), expected)
    shape = (2, 3 * factors[0], 5 * factors[1], 8)
    np.testing.assert_array_equal(weft.Upsample(factors)(IMAGES), jax.image.resize(IMAGES, shape, "nearest"))


@pytest.mark.parametrize("factor", [2, 3])
def test_linear_lies_between_the_centres_of_pixels(factor):
    row = IMAGES[0, 0]
    resized = weft.Upsample((factor,), method="linear")(row)
    np.testing.assert_allclose(resized, linear_by_hand(np.asarray(row), factor), rtol=1e-5, atol=1e-6)
    both = weft.Upsample((factor, factor), method="bilinear")(IMAGES)
    rows = np.stack([[linear_by_hand(row, factor) for row in image] for image in np.asarray(IMAGES)])
    columns = np.stack([[linear_by_hand(image[:, i], factor) for i in range(rows.shape[2])] for image in rows])
    np.testing.assert_allclose(both, np.moveaxis(columns, 1, 2), rtol=1e-4, atol=1e-5)


def test_one_axis_or_three_and_any_batch():
    assert weft.Upsample((2,))(IMAGES).shape == (2, 3, 10, 8)
    assert weft.Upsample((2, 1, 2))(IMAGES[None]).shape == (1, 4, 3, 10, 8)
    assert weft.Upsample((2, 2), method="bicubic")(IMAGES[0]).shape == (6, 10, 8)


def test_an_upsample_that_makes_no_sense_is_refused(unchecked):
    with pytest.raises(weft.errors.ConfigError, match="factors must be a tuple with one for each spatial axis, not 2"):
        weft.Upsample(2)
    with pytest.raises(weft.errors.ConfigError, match="factors must be positive integers"):
        weft.Upsample((2, 0))
    with pytest.raises(weft.errors.ConfigError, match="unknown method 'best'"):
        weft.Upsample((2, 2), method="best")
    with pytest.raises(AxisError, match="needs 2 spatial axes and one of features"):
        weft.Upsample((2, 2))(jnp.ones((3, 4)))


@pytest.mark.parametrize("factor", [1, 2])
def test_pixel_shuffle_is_pytorchs(factor):
    shuffled = weft.PixelShuffle(factor)(IMAGES)
    n, height, width, channels = IMAGES.shape
    assert shuffled.shape == (n, height * factor, width * factor, channels // factor**2)
    for index in np.ndindex(*shuffled.shape):
        i, y, x, c = index
        channel = c * factor**2 + (y % factor) * factor + x % factor
        assert shuffled[index] == IMAGES[i, y // factor, x // factor, channel]


def test_pixel_shuffle_takes_any_batch_and_refuses_what_does_not_divide(unchecked):
    np.testing.assert_array_equal(weft.PixelShuffle(2)(IMAGES[0]), weft.PixelShuffle(2)(IMAGES)[0])
    with pytest.raises(AxisError, match="8 channels do not divide into squares of 3 by 3 pixels"):
        weft.PixelShuffle(3)(IMAGES)
    with pytest.raises(weft.errors.ConfigError, match="factor must be positive, not 0"):
        weft.PixelShuffle(0)
