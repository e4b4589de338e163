"""Identity and Flatten."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.core.errors import AxisError

X = jax.random.normal(jax.random.key(0), (2, 3, 4, 5))


def test_identity_is_equinoxs():
    assert weft.Identity()(X) is eqx.nn.Identity()(X) is X
    chain = weft.Sequential(weft.Linear(5, 5, key=jax.random.key(0)), weft.Identity())
    np.testing.assert_array_equal(chain(X), chain[0](X))


@pytest.mark.parametrize(
    ("flatten", "shape"),
    [
        (weft.Flatten(), (2, 60)),
        (weft.Flatten(0), (120,)),
        (weft.Flatten(1, 2), (2, 12, 5)),
        (weft.Flatten(-3, -2), (2, 12, 5)),
        (weft.Flatten(3), (2, 3, 4, 5)),
    ],
)
def test_flatten_joins_axes(flatten, shape):
    np.testing.assert_array_equal(flatten(X), np.reshape(X, shape))


def test_flatten_under_vmap_is_of_one_example():
    np.testing.assert_array_equal(weft.vmap(weft.Flatten(0))(X), np.reshape(X, (2, 60)))
    assert weft.Flatten()(jnp.arange(6).reshape(1, 2, 3)).tolist() == [list(range(6))]


@pytest.mark.parametrize(
    ("flatten", "x"), [(weft.Flatten(), X[0, 0, 0]), (weft.Flatten(2, 1), X), (weft.Flatten(0, 7), X)]
)
def test_axes_that_are_not_there_are_refused(flatten, x):
    with pytest.raises(AxisError, match="Flatten joins the axes from") as caught:
        flatten(x)
    assert "fix: for one example, as under vmap, Flatten(0)" in str(caught.value)
