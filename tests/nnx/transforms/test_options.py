"""Options that flax.nnx lists and weft does not carry out are refused, not left out in silence."""

from __future__ import annotations

import pytest
from weft import nnx


def square(x):
    return x * x


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "vjp"])
def test_a_gradient_that_is_to_reduce_axes_is_refused(name):
    with pytest.raises(NotImplementedError, match=rf"nnx.{name} does not carry out reduce_axes\n(.|\n)*jax.lax.psum"):
        getattr(nnx, name)(square, reduce_axes=("rows",))
    getattr(nnx, name)(square, reduce_axes=[])


def test_static_arguments_of_pmap_are_refused():
    with pytest.raises(NotImplementedError, match=r"at: static_broadcasted_argnums=0\n(.|\n)*close over"):
        nnx.pmap(square, static_broadcasted_argnums=0)
    nnx.pmap(square, static_broadcasted_argnums=[], donate_argnums=(0,))
