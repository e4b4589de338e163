"""nnx.compat: the same functions, on graphs with updates whatever mode is set."""

import functools

import flax.nnx as flax_nnx
import jax
import jax.numpy as jnp
import pytest
from weft import nnx

NAMES = sorted(name for name, value in vars(flax_nnx.compat).items() if isinstance(value, functools.partial))


def test_it_has_the_names_of_the_real_one():
    assert [name for name in NAMES if not hasattr(nnx.compat, name)] == []
    assert len(NAMES) > 30


@pytest.mark.parametrize("name", NAMES)
def test_each_fixes_the_same_modes(name):
    ours, theirs = getattr(nnx.compat, name), getattr(flax_nnx.compat, name)
    assert (ours.func.__name__, ours.keywords) == (theirs.func.__name__.lstrip("_"), theirs.keywords)


def shared():
    weights = nnx.Param(jnp.ones(2))
    return nnx.Dict(a=nnx.Dict(w=weights), b=weights)


USES = {
    "split": lambda nnx, model: nnx.split(model)[1],
    "state": lambda nnx, model: nnx.state(model),
    "clone": lambda nnx, model: nnx.clone(model),
    "jit": lambda nnx, model: nnx.jit(lambda model: model.b * 2)(model),
    "grad": lambda nnx, model: nnx.grad(lambda model: (model.b * model.a.w).sum())(model),
    "vmap": lambda nnx, model: nnx.vmap(lambda model: model.b * 2)(model),
    "iter_graph": lambda nnx, model: list(nnx.iter_graph(model)),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_sharing_is_fine_in_compat_where_tree_mode_refuses_it(use):
    with nnx.set_graph_mode(False):
        with pytest.raises(ValueError, match="shared references"):
            use(nnx, shared())
        assert len(jax.tree.leaves(use(nnx.compat, shared()))) >= 1


def test_structural_changes_come_back():
    @nnx.compat.jit
    def add(model):
        model.c = nnx.Param(jnp.zeros(()))

    model = shared()
    with nnx.set_graph_mode(False):
        add(model)
    assert model.c[...] == 0
