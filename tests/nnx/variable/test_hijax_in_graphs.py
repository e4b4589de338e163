"""Hijax Variables in objects that go through transforms: JAX passes them on as they are, and they stay themselves."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx as flax_nnx
from weft import nnx
from weft.core.edge.hijax import CHANGING
from weft.nnx.errors import ImmutableVariableError

MODES = {"tree": {"graph": False}, "no updates": {"graph_updates": False}}
TRANSFORMS = {
    "jit": lambda library, f, mode: library.jit(f, **mode),
    "vmap": lambda library, f, mode: library.vmap(f, in_axes=None, out_axes=None, axis_size=2, **mode),
}
needs_changing = pytest.mark.skipif(not CHANGING, reason="this JAX has no hijax values that change in a trace")
needs_fixed = pytest.mark.skipif(CHANGING, reason="this JAX has hijax values that change in a trace")


def model_of(library):
    return library.Dict(h=library.Param(jnp.ones(2), hijax=True), w=library.Param(jnp.ones(2)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_they_are_read_inside(transform, mode):
    def total(library):
        function = TRANSFORMS[transform](library, lambda d: (d.h * d.w).sum(), MODES[mode])
        return float(function(model_of(library)))

    assert total(nnx) == 2.0
    if transform == "jit" or CHANGING:  # flax's have no rule for vmap on JAX 0.12
        assert total(flax_nnx) == 2.0


@needs_changing
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


@needs_changing
@pytest.mark.parametrize("mode", [{}, *MODES.values()], ids=str)
def test_their_derivative_is_refused_in_words(mode):
    with pytest.raises(NotImplementedError, match="reading a hijax Variable cannot be differentiated"):
        nnx.grad(lambda d: (d.h**2).sum(), **mode)(model_of(nnx))
    with pytest.raises(NotImplementedError):
        flax_nnx.grad(lambda d: (d.h**2).sum(), **mode)(model_of(flax_nnx))


WRITES = {
    "the value": lambda d: d.h.set_value(d.h[...] + 1),
    "metadata": lambda d: d.h.set_metadata(note=1),
}


@needs_fixed
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("mode", [{}, *MODES.values()], ids=str)
def test_where_values_do_not_change_in_a_trace_writing_there_is_an_error_and_changes_nothing(mode, write):
    model = model_of(nnx)
    with pytest.raises(ImmutableVariableError, match="Cannot update a hijax Variable inside of a JAX transform"):
        nnx.jit(write, **mode)(model)
    with pytest.raises(ImmutableVariableError):
        jax.jit(lambda: write(model))()  # closed over
    assert model.h[...].tolist() == [1.0, 1.0]
    assert not model.h.has_metadata("note")
    write(model)


@needs_fixed
@pytest.mark.parametrize("mode", [{}, *MODES.values()], ids=str)
def test_their_derivative_is_a_hijax_variable(mode):
    grads = nnx.grad(lambda d: (d.h**2).sum(), **mode)(model_of(nnx))
    assert isinstance(grads["h"], nnx.Param)
    assert grads["h"].hijax
    assert grads["h"][...].tolist() == [2.0, 2.0]


def squares(v):
    return (v[...] ** 2).sum() + (v * v).sum() + v[0]


# What JAX's own transforms give of v = [1, 2]: twice the sum of squares, and the first.
DERIVATIVES = {
    "grad": lambda v: jax.grad(squares)(v)[...],
    "grad of jit": lambda v: jax.grad(jax.jit(squares))(v)[...],
    "jit of grad": lambda v: jax.jit(jax.grad(squares))(v)[...],
    "grad of a new one": lambda v: jax.grad(lambda x: squares(nnx.Param(x, hijax=True)))(v[...]),
    "grad of a loop": lambda v: jax.grad(
        lambda v: jax.lax.scan(lambda total, _: (total + squares(v) / 3, None), 0.0, length=3)[0]
    )(v)[...],
}


@needs_fixed
def test_branches_return_new_ones():
    def make(x):
        return (nnx.Param(x, hijax=True),)

    for chosen in (nnx.cond(True, make, make, jnp.array(1.0)), nnx.switch(0, (make, make), jnp.array(1.0))):
        assert float(chosen[0][...]) == 1.0


@needs_fixed
@pytest.mark.parametrize("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
def test_jaxs_own_derivatives_are_those_of_their_values(derivative):
    v = nnx.Param(jnp.array([1.0, 2.0]), hijax=True)
    assert derivative(v).tolist() == pytest.approx([5.0, 8.0], rel=1e-6)


@needs_fixed
def test_they_are_pushed_forward_and_linearized():
    v = nnx.Param(jnp.array([1.0, 2.0]), hijax=True)
    assert [float(value) for value in jax.jvp(squares, (v,), (v,))] == [11.0, 21.0]
    assert float(jax.linearize(squares, v)[1](v)) == 21.0
