"""Hijax Variables in objects that go through transforms: JAX passes them on as they are, and they stay themselves."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx as flax_nnx
from weft import nnx

MODES = {"tree": {"graph": False}, "no updates": {"graph_updates": False}}
TRANSFORMS = {
    "jit": lambda library, f, mode: library.jit(f, **mode),
    "vmap": lambda library, f, mode: library.vmap(f, in_axes=None, out_axes=None, axis_size=2, **mode),
}


def model_of(library):
    return library.Dict(h=library.Param(jnp.ones(2), hijax=True), w=library.Param(jnp.ones(2)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_they_are_read_inside(transform, mode):
    def total(library):
        function = TRANSFORMS[transform](library, lambda d: (d.h * d.w).sum(), MODES[mode])
        return float(function(model_of(library)))

    assert total(nnx) == total(flax_nnx) == 2.0


@pytest.mark.parametrize("mode", MODES)
def test_they_are_written_inside_of_jit(mode):
    def after(library):
        def f(d):
            d.h[...] += 1
            d.w[...] += 2

        model = model_of(library)
        library.jit(f, **MODES[mode])(model)
        return model.h[...].tolist(), model.w[...].tolist()

    assert after(nnx) == after(flax_nnx) == ([2.0, 2.0], [3.0, 3.0])


@pytest.mark.skipif(jax.__version_info__ < (0, 10, 2), reason="older JAX fails an assertion of its own before it asks")
@pytest.mark.parametrize("mode", [{}, *MODES.values()], ids=str)
def test_their_derivative_is_refused_in_words(mode):
    with pytest.raises(NotImplementedError, match="reading a hijax Variable cannot be differentiated"):
        nnx.grad(lambda d: (d.h**2).sum(), **mode)(model_of(nnx))
    with pytest.raises(NotImplementedError):
        flax_nnx.grad(lambda d: (d.h**2).sum(), **mode)(model_of(flax_nnx))
