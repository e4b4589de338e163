"""The order of attributes: as they were set, and sorted once a call with graph updates has described an object anew."""

import copy

import jax.numpy as jnp
import pytest
from flax import nnx as flax_nnx
from weft import nnx


def make():
    return nnx.Dict(b=nnx.Param(jnp.ones(1)), a=1, c=nnx.Dict(z=1, y=2))


WITH_UPDATES = {
    "jit": lambda m: nnx.jit(lambda m: None)(m),
    "grad": lambda m: nnx.grad(lambda m: m.b.sum(), argnums=nnx.DiffState(0, nnx.Param))(m),
    "vmap": lambda m: nnx.vmap(lambda m: None, in_axes=None, axis_size=2)(m),
    "cond": lambda m: nnx.cond(True, lambda m: None, lambda m: None, m),
}
SEEN = {
    "iteration": list,
    "items": lambda m: [name for name, _ in m.items()],
    "vars": lambda m: list(vars(m)),
    "a copy": lambda m: list(copy.copy(m)),
    "text": lambda m: [line.strip()[1] for line in repr(m).splitlines() if line.startswith("  '")],
}


@pytest.mark.parametrize("seen", SEEN)
def test_attributes_are_in_the_order_in_which_they_were_set(seen):
    assert SEEN[seen](make()) == ["b", "a", "c"]


@pytest.mark.parametrize("transform", WITH_UPDATES)
@pytest.mark.parametrize("seen", SEEN)
def test_a_call_with_updates_sorts_them(seen, transform):
    model = make()
    WITH_UPDATES[transform](model)
    assert SEEN[seen](model) == ["a", "b", "c"]
    assert SEEN[seen](model.c) == ["y", "z"]


def test_what_is_set_afterwards_comes_last_until_the_next_call():
    model = make()
    run = nnx.jit(lambda m: None)
    run(model)
    model.A = model.Z = 3
    del model.b
    assert list(model) == ["a", "c", "A", "Z"]
    run(model)
    assert list(model) == ["A", "Z", "a", "c"]


@pytest.mark.parametrize("options", [{"graph_updates": False}, {"graph": False}])
def test_calls_without_updates_leave_the_order(options):
    model = make()
    nnx.jit(lambda m: None, **options)(model)
    assert list(model) == ["b", "a", "c"]


def test_an_error_leaves_the_order():
    model = make()
    with pytest.raises(ZeroDivisionError):
        nnx.jit(lambda m: 1 / 0)(model)
    assert list(model) == ["b", "a", "c"]


def test_gradients_have_their_metadata_sorted():
    def names(library):
        model = library.Dict(w=library.Param(jnp.ones(2), unit="m", scale=2))
        gradient = library.grad(lambda model: model.w.sum())(model)
        return list(gradient["w"].get_metadata()), list(model.w.get_metadata())

    assert names(nnx) == names(flax_nnx)
    assert names(nnx)[0] == sorted(names(nnx)[1])
