"""Specs, shardings and abstract models are flax's, for names on the mesh and logical ones."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx as flax_nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from weft import nnx
from weft.nnx.interop.installing import twin_module

from ..nn.twins import twins

KINDS = [AxisType.Auto, AxisType.Explicit]


def mesh_of(kind):
    count = 2 if jax.device_count() >= 4 else 1
    return jax.make_mesh((count, count), ("data", "model"), axis_types=(kind, kind))


def model_of(library, eager=False, names=(None, "model"), **metadata):
    init = library.with_partitioning(library.initializers.lecun_normal(), names, eager_sharding=eager, **metadata)

    class Model(library.Module):
        def __init__(self, rngs):
            self.linear = library.Linear(4, 8, kernel_init=init, rngs=rngs)
            self.count = library.BatchStat(3)
            self.table = library.data(jnp.ones(2))

    return Model(library.Rngs(0))


def seen(library, tree):
    """The leaves of a state by path: types, metadata and values."""
    leaves = {}
    for path, leaf in library.to_flat_state(tree):
        metadata = leaf.get_metadata() if isinstance(leaf, library.Variable) else None
        value = leaf.get_value() if isinstance(leaf, library.Variable) else leaf
        if isinstance(value, jax.ShapeDtypeStruct):
            value = (value.shape, value.dtype, value.sharding)
        leaves[path] = type(leaf).__name__, metadata, value
    return leaves


@pytest.mark.parametrize("kind", KINDS, ids=["auto", "explicit"])
def test_specs_and_shardings_of_a_state_are_flaxs(kind):
    mesh = mesh_of(kind)

    def run(library):
        state = library.state(model_of(library))
        with jax.set_mesh(mesh):
            specs = library.get_partition_spec(state)
        del state["count"]  # no array, so no sharding
        return seen(library, specs), seen(library, library.get_named_sharding(state, mesh))

    (their_specs, their_shardings), (specs, shardings) = twins(run)
    assert their_specs == specs
    assert their_shardings == shardings
    assert specs["linear", "kernel"][2] == PartitionSpec(None, "model")
    assert shardings["linear", "bias"][2] == NamedSharding(mesh, PartitionSpec())


@pytest.mark.parametrize("own", [{}, {"sharding_rules": (("in", "data"),)}])
def test_logical_names_mean_what_the_rules_say(own):
    def run(library):
        model = model_of(library, names=("in", "out"), **own)
        kernel = model.linear.kernel
        spmd = flax_nnx.spmd if library is flax_nnx else twin_module("flax.nnx.spmd")
        with library.logical_axis_rules((("out", "model"), ("in", "data"))):
            inside = spmd.get_var_pspec(kernel)
        return inside, spmd.get_var_pspec(model.linear.bias), spmd.get_var_pspec(kernel) if own else None

    theirs, ours = twins(run)
    assert theirs == ours
    assert ours[0] == PartitionSpec("data", "model")


def test_any_tree_has_specs():
    tree = {"a": jnp.ones(2), "b": 3}
    assert nnx.get_partition_spec(tree) == flax_nnx.get_partition_spec(tree) == {"a": PartitionSpec(), "b": None}


@pytest.mark.parametrize("graph", [None, True, False], ids=["default", "graph", "tree"])
@pytest.mark.parametrize("kind", KINDS, ids=["auto", "explicit"])
def test_abstract_models_are_flaxs(kind, graph):
    mesh = mesh_of(kind)

    def run(library):
        def make():
            init = library.with_partitioning(library.initializers.lecun_normal(), (None, "model"))
            return library.Linear(4, 8, kernel_init=init, rngs=library.Rngs(0))

        graphdef, state = library.get_abstract_model(make, mesh, graph=graph)
        return type(library.merge(graphdef, state)).__name__, seen(library, state)

    (their_name, theirs), (our_name, ours) = twins(run)
    assert their_name == our_name
    assert {path: leaf[2] for path, leaf in theirs.items()} == {path: leaf[2] for path, leaf in ours.items()}
    assert ours["kernel",][2] == ((4, 8), jnp.float32, NamedSharding(mesh, PartitionSpec(None, "model")))


@pytest.mark.parametrize("own", [False, True], ids=["in force", "own mesh"])
def test_an_abstract_model_says_where_it_lies(own):
    mesh = mesh_of(AxisType.Auto)

    def run(library):
        metadata = {"out_sharding": (None, "model"), "eager_sharding": False, **({"mesh": mesh} if own else {})}
        make = lambda: library.Linear(4, 8, kernel_metadata=metadata, rngs=library.Rngs(0))  # noqa: E731
        model = library.eval_shape(make)
        with jax.set_mesh(mesh):
            located = library.as_abstract(model)
        return type(located).__name__, seen(library, library.state(located))

    theirs, ours = twins(run)
    assert theirs == ours
    sharding = ours[1]["kernel",][2][2]
    assert sharding.spec == PartitionSpec(None, "model")


def test_the_former_name_warns():
    with pytest.warns(DeprecationWarning, match="Use as_abstract instead"):
        nnx.abstract_with_sharding(nnx.eval_shape(lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0))))
