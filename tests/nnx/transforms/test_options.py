"""Options that flax.nnx lists are carried out or refused, not left out in silence."""

from __future__ import annotations

import functools
import weakref

import jax.numpy as jnp
import pytest
from weft import nnx
from weft.core.errors import DifferentiationError


def square(x):
    return x * x


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "vjp"])
def test_a_gradient_that_is_to_reduce_axes_is_refused(name):
    with pytest.raises(NotImplementedError, match=rf"nnx.{name} does not implement reduce_axes\n(.|\n)*jax.lax.psum"):
        getattr(nnx, name)(square, reduce_axes=("rows",))
    getattr(nnx, name)(square, reduce_axes=[])


class Scaled(nnx.Module):
    def __init__(self):
        self.scale = nnx.Param(jnp.ones(2))
        self.calls = nnx.BatchStat(jnp.zeros(2))


@pytest.mark.parametrize("axes", [0, (0, 0, None, None)])
def test_static_arguments_of_pmap_are_whole_and_known(axes):
    def call(model, x, times, mode):
        assert isinstance(times, int)
        model.calls[...] += 1
        return x * model.scale * times if mode == "scaled" else x

    model, mapped = Scaled(), nnx.pmap(call, in_axes=axes, static_broadcasted_argnums=(2, 3))
    assert mapped(model, jnp.arange(2.0), 3, "scaled").tolist() == [0, 3]
    assert mapped(model, jnp.arange(2.0), 3, "plain").tolist() == [0, 1]
    assert mapped(model, jnp.arange(2.0), 5, "scaled").tolist() == [0, 5]
    assert model.calls[...].tolist() == [3, 3]


def test_a_custom_vjp_without_a_rule_is_the_error_that_flax_raises():
    function = nnx.custom_vjp(lambda m: m.w.sum())
    with pytest.raises(ValueError, match="has no derivative rule yet"):
        function(nnx.Dict(w=nnx.Param(jnp.ones(2))))


def test_how_much_is_compiled_is_asked_under_the_name_that_trainers_use():
    def double(w, x):
        return w * x

    step, w = nnx.jit(double), nnx.Param(jnp.ones(2))
    cached = functools.partial(nnx.cached_partial(step, w)).func
    assert step.jitted_fn._cache_size() == cached.jitted_fn._cache_size() == 0
    step(w, 2.0)
    assert step.jitted_fn._cache_size() == cached.jitted_fn._cache_size() == 1
    step(w, 3.0)
    step(w, jnp.ones(2))
    assert step.jitted_fn._cache_size() == 2
    step.clear_cache()
    assert step._cache_size() == 0
    assert nnx.jit_partial(double, w, graph_updates=False).jitted_fn._cache_size() == 0
    dropped = weakref.ref(nnx.jit(double))
    assert dropped() is None


@pytest.mark.parametrize("argnums", [{nnx.Param}, {nnx.Param: 0}, {nnx.Param: 0, ...: 1}])
def test_argnums_that_are_kinds_are_refused(argnums):
    with pytest.raises(TypeError, match=r"argnums must be the position(.|\n)*nnx.DiffState"):
        nnx.grad(lambda x: x**2, argnums=argnums)


@pytest.mark.parametrize(
    ("value", "place"), [("x", "s: 'x'"), ([jnp.ones(2), "x"], r"s\[1\]: 'x'"), ({"f": len}, r"s\.f: ")]
)
@pytest.mark.parametrize("make", [nnx.grad, nnx.value_and_grad])
def test_a_static_value_in_a_differentiated_argument_is_refused_at_its_place(make, value, place):
    with pytest.raises(DifferentiationError, match=rf"a static value cannot be differentiated\n  at: {place}"):
        make(lambda s: 1.0)(value)
    model = nnx.Dict(w=nnx.Param(jnp.ones(2)), name=nnx.static("x"))
    assert nnx.grad(lambda m, s: m.w.sum())(model, value)["w"].shape == (2,)
