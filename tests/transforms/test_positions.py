"""What JAX's transforms take by position and weft's by name."""

import jax.numpy as jnp
import pytest
import weft


def function(x, y):
    return x * y


@pytest.mark.parametrize(
    ("call", "way"),
    [
        (lambda: weft.vmap(function, (0, None)), r"vmap\(function, in_axes=\(0, None\)\)$"),
        (lambda: weft.grad(function, 1, True), r"grad\(function, argnums=1, has_aux=True\)$"),
        (lambda: weft.value_and_grad(function, 1), r"value_and_grad\(function, argnums=1\)$"),
        (lambda: weft.hessian(function, (0, 1)), r"hessian\(function, argnums=\(0, 1\)\)$"),
        (lambda: weft.scan(function, 0.0, jnp.ones(3)), r"scan\(step\)\(init, xs\)$"),
    ],
)
def test_who_gives_options_by_position_is_told_their_names(call, way):
    with pytest.raises(TypeError, match=way):
        call()
