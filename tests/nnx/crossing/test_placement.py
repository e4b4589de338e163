"""After a jit with shardings all Variables are there, also those that have not changed: they move only once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx as flax_nnx
from jax.sharding import NamedSharding, PartitionSpec
from weft import nnx

MESH = jax.sharding.Mesh(np.asarray(jax.devices()[:2]), ("i",))
SPLIT, WHOLE = NamedSharding(MESH, PartitionSpec("i")), NamedSharding(MESH, PartitionSpec())


def model_of(library):
    return library.Dict(
        w=library.Param(jnp.ones((2, 2))), b=library.Param(np.ones(2)), count=library.Variable(jnp.zeros(()))
    )


def forward(model):
    model.count[...] += 1
    return model.w.sum()


def by_filter(library):
    return library.StateSharding({library.Param: SPLIT, ...: WHOLE})


SHARDINGS = {"one": lambda library: SPLIT, "by filter": by_filter}


def shardings_after(library, name, calls, **mode):
    model = model_of(library)
    if name == "one":
        del model.count
    function = library.jit(
        (lambda model: model.w.sum()) if name == "one" else forward, in_shardings=(SHARDINGS[name](library),), **mode
    )
    for _ in range(calls):
        function(model)
    values = {path[0]: leaf.get_value() for path, leaf in library.to_flat_state(library.state(model))}
    return {name: str(getattr(getattr(value, "sharding", None), "spec", None)) for name, value in values.items()}


@pytest.mark.parametrize("calls", [1, 2, 4])
@pytest.mark.parametrize("name", ["one", "by filter"])
def test_unchanged_variables_are_where_jit_was_asked_to_have_them(name, calls):
    shardings = shardings_after(nnx, name, calls)
    assert shardings == shardings_after(flax_nnx, name, calls)
    assert shardings["w"] == shardings["b"] == str(SPLIT.spec)


@pytest.mark.parametrize("mode", [{"graph": False}, {"graph_updates": False}])
def test_only_updates_come_back_in_the_other_modes(mode):
    assert shardings_after(nnx, "one", 3, **mode) == shardings_after(flax_nnx, "one", 3, **mode)


def test_without_shardings_nothing_moves():
    model = model_of(nnx)
    before = [model.w.get_value(), model.b.get_value()]
    nnx.jit(forward)(model)
    assert all(now is then for now, then in zip([model.w.get_value(), model.b.get_value()], before, strict=True))


def test_a_new_value_moves_too_and_one_that_is_there_stays():
    model = model_of(nnx)
    function = nnx.jit(forward, in_shardings=(by_filter(nnx),))
    for _ in range(3):
        function(model)
    bias = model.b.get_value()
    model.w[...] = jnp.zeros((2, 2))
    function(model)
    assert model.w.get_value().sharding == SPLIT
    assert model.b.get_value() is bias
    assert float(model.count[...]) == 4


def test_a_returned_argument_is_where_its_out_sharding_says():
    model = model_of(nnx)
    shardings = by_filter(nnx)
    assert nnx.jit(lambda model: model, in_shardings=(shardings,), out_shardings=shardings)(model) is model
    assert model.w.get_value().sharding == SPLIT


def test_nothing_moves_if_the_function_fails():
    model = model_of(nnx)
    before = model.w.get_value()

    def fails(model):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        nnx.jit(fails, in_shardings=(WHOLE,))(model)
    assert model.w.get_value() is before


def test_inside_another_jit_what_is_asked_for_is_left_to_it():
    model = model_of(nnx)
    inner = nnx.jit(forward, in_shardings=(WHOLE,))
    assert float(nnx.jit(lambda model: inner(model))(model)) == 4


def test_structural_changes_and_placement_go_together():
    model = model_of(nnx)

    def grow(model):
        model.new = nnx.Param(model.w[...] + 1)

    nnx.jit(grow, in_shardings=(WHOLE,))(model)
    assert model.w.get_value().sharding == WHOLE
    assert float(model.new.sum()) == 8
