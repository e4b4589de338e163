"""`nnx.eval_shape` says where Variables would lie on a mesh: as the arrays do that the same function makes."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx as flax_nnx
from jax.experimental.layout import Format, Layout
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from weft import nnx


def mesh_of(kind):
    return jax.make_mesh((2, 1), ("i", "j"), axis_types=(kind,) * 2, devices=np.asarray(jax.devices()[:2]))


AUTO, EXPLICIT = mesh_of(AxisType.Auto), mesh_of(AxisType.Explicit)
METADATA = {
    "nothing": {},
    "names": {"out_sharding": ("i", None)},
    "rules": {"out_sharding": ("row", None), "sharding_rules": (("row", "i"),)},
    "not eager": {"out_sharding": (None, "i"), "eager_sharding": False},
}
FUNCTIONS = {
    "a Variable": lambda library, make: make(),
    "a model": lambda library, make: library.Dict(one=make(), other=library.List([make()])),
    "split": lambda library, make: library.split(library.Dict(one=make())),
    "a tuple": lambda library, make: (make(), [make()], 3.0),
    "shared": lambda library, make: (lambda v: (v, library.Dict(v=v)))(make()),
}


def layouts(library, function, metadata, **mode):
    def make():
        return library.Param(jnp.ones((2, 2)), **metadata)

    abstract = library.eval_shape(lambda: function(library, make), **mode)
    return [str(leaf.sharding) for leaf in jax.tree.leaves(abstract)]


@pytest.mark.parametrize("mode", [{}, {"graph_updates": False}, {"graph": False}], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("metadata", METADATA)
def test_layouts_are_those_of_flax(metadata, function, mode):
    if function == "shared" and mode == {"graph": False}:
        pytest.skip("trees share nothing")
    with jax.set_mesh(AUTO):
        ours = layouts(nnx, FUNCTIONS[function], METADATA[metadata], **mode)
        theirs = layouts(flax_nnx, FUNCTIONS[function], METADATA[metadata], **mode)
        if mode and metadata in ("names", "rules"):  # flax drops them unless there are graph updates
            assert set(theirs) == {"None"}
            theirs = layouts(flax_nnx, FUNCTIONS[function], METADATA[metadata])
        assert ours == theirs


def test_without_a_mesh_there_is_no_layout():
    assert layouts(nnx, FUNCTIONS["a model"], {}) == ["None", "None"]


def test_a_variable_may_bring_its_own_mesh():
    sharded = nnx.eval_shape(lambda: nnx.Param(jnp.ones((2, 2)), out_sharding=NamedSharding(AUTO, PartitionSpec("i"))))
    assert sharded.get_value().sharding.spec == PartitionSpec("i")
    own = nnx.eval_shape(lambda: nnx.Param(jnp.ones((2, 2)), out_sharding=("i", None), mesh=AUTO))
    assert own.get_value().sharding == NamedSharding(AUTO, PartitionSpec("i", None))


def test_on_an_explicit_mesh_the_layout_is_the_types():
    with jax.set_mesh(EXPLICIT):
        param = nnx.eval_shape(lambda: nnx.Param(jnp.ones((2, 2)), out_sharding=("i", None)))
    assert param.get_value().sharding.spec == PartitionSpec("i", None)


def test_what_is_there_without_arrays_is_left_as_it_is():
    with jax.set_mesh(AUTO):
        model = nnx.eval_shape(lambda: nnx.Dict(n=nnx.Variable(None), k=nnx.RngStream(0, tag="k")))
    assert model.n.get_value() is None
    assert model.k.key.get_value().sharding.spec == PartitionSpec()


MODES = pytest.mark.parametrize("mode", [{}, {"graph_updates": False}, {"graph": False}], ids=str)
OVER_I, OVER_AXIS_1 = (NamedSharding(AUTO, PartitionSpec(*spec)) for spec in [("i",), (None, "i")])


@MODES
def test_what_is_passed_through_lies_where_it_lay(mode):
    value = jax.device_put(jnp.ones((2, 2)), OVER_I)
    shape = jax.ShapeDtypeStruct((2, 2), jnp.float32, sharding=OVER_AXIS_1)
    for context in (AUTO, None):
        with jax.set_mesh(context) if context else contextlib.nullcontext():
            model, array, doubled = nnx.eval_shape(
                lambda model, array: (nnx.Dict(w=nnx.Param(model.w.get_value())), array, array * 2),
                nnx.Dict(w=nnx.Param(value)),
                shape,
                **mode,
            )
        assert (model.w.get_value().sharding, array.sharding) == (OVER_I, OVER_AXIS_1)
        assert doubled.sharding is None  # the compiler will say


def test_constraints_say_where_a_value_lies_also_inside_of_jit():
    @jax.jit
    def inner(x):
        return jax.lax.with_sharding_constraint(x * 2, OVER_I)

    outer = jax.jit(lambda x: x * 3, out_shardings=OVER_AXIS_1)
    outputs = nnx.eval_shape(lambda x: (inner(x), outer(x), inner(x) + 1), jnp.ones((2, 2)))
    assert [one.sharding for one in outputs] == [OVER_I, OVER_AXIS_1, None]


def test_a_restored_model_lies_where_its_constructor_puts_it():
    def make():
        model = nnx.Dict(w=nnx.Param(jnp.ones((2, 2))), n=nnx.BatchStat(jnp.zeros(2)))
        state = nnx.state(model)
        state["w"] = jax.lax.with_sharding_constraint(state["w"], OVER_AXIS_1)
        nnx.update(model, state)
        return model

    shapes, arrays = nnx.eval_shape(make), nnx.jit(make)()
    assert shapes.w.get_value().sharding == OVER_AXIS_1
    assert arrays.w.get_value().sharding.is_equivalent_to(OVER_AXIS_1, 2)
    assert shapes.n.get_value().sharding is None


def test_a_format_out_of_the_ordinary_is_kept():
    columns = Format(Layout((1, 0)), OVER_I)
    abstract = nnx.eval_shape(lambda x: x, jax.ShapeDtypeStruct((2, 2), jnp.float32, sharding=columns))
    assert abstract.format == columns


def test_arrays_on_one_device_have_no_layout():
    assert nnx.eval_shape(lambda x: x, jnp.ones(2)).sharding is None
