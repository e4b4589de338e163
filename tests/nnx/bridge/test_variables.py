"""Variables of Linen as Variables of NNX, and back."""

import jax
import jax.numpy as jnp
import pytest
from flax import linen, struct
from flax.core import meta
from weft import nnx
from weft.nnx.bridge import variables

X = jnp.ones(2)
PARTITIONED = linen.Partitioned(X, names=("a",))
LOGICAL = linen.LogicallyPartitioned(X, names=("a",), rules=(("a", "b"),))


class Noted(struct.PyTreeNode, meta.AxisMetadata):
    value: object
    note: str = struct.field(pytree_node=False, default="")

    def unbox(self):
        return self.value

    def replace_boxed(self, val):
        return self.replace(value=val)

    def add_axis(self, index, params):
        return self

    remove_axis = add_axis


def test_a_plain_variable_is_its_value():
    assert variables.to_linen_var(nnx.Param(X)) is X
    assert type(variables.to_nnx_var("batch_stats", X)) is nnx.BatchStat


@pytest.mark.parametrize("box", [PARTITIONED, LOGICAL, Noted(X, note="first")], ids=lambda box: type(box).__name__)
def test_boxes_of_linen_come_back_as_what_they_were(box):
    variable = variables.to_nnx_var("params", box)
    assert type(variable) is nnx.Param
    back = variables.to_linen_var(variable)
    assert type(back) is type(box)
    assert jax.tree.structure(back) == jax.tree.structure(box)


def test_metadata_of_nnx_survives_in_a_box():
    variable = nnx.Param(X, out_sharding=("a",), sharding_rules=(("a", "b"),), eager_sharding=False, note="first")
    box = variables.to_linen_var(variable)
    assert type(box) is nnx.bridge.NNXMeta
    assert box.get_partition_spec() == jax.sharding.PartitionSpec("b")
    back = variables.to_nnx_var("params", box.replace_boxed(X * 2))
    assert back.get_metadata() == variable.get_metadata()
    assert back[...].tolist() == [2, 2]


def test_the_box_follows_the_axes_of_linens_transforms():
    box = variables.to_linen_var(nnx.Param(X, out_sharding=("a",), eager_sharding=False))
    named = box.add_axis(0, {linen.PARTITION_NAME: "layers"})
    assert named.metadata["out_sharding"] == ("layers", "a")
    back = named.remove_axis(0, {linen.PARTITION_NAME: "layers"})
    # Not the boxes as such: from Python 3.13 on a dataclass asks its fields for `==`, and arrays give an array.
    assert (back.var_type, back.value is box.value, back.metadata) == (box.var_type, True, box.metadata)
    assert box.add_axis(1, {}).metadata["out_sharding"] == ("a", None)


def test_a_box_in_the_wrong_collection_is_an_error():
    box = variables.to_linen_var(nnx.Param(X, note="first"))
    with pytest.raises(ValueError, match="a Param in the collection 'batch_stats', which is for BatchStat"):
        variables.to_nnx_var("batch_stats", box)


def test_collections_are_one_tree_of_attributes():
    collections = {
        "params": {"d": {"kernel": X}},
        "batch_stats": {"d": {"mean": X}, "count": X},
        "steps": {"s": (1, 2)},
    }
    attributes = variables.linen_vars_to_nnx_attrs(collections)
    assert type(attributes["d"]["kernel"]) is nnx.Param
    assert type(attributes["s"]) is nnx.variable_type_from_name("steps")
    assert attributes["s"].get_value() == (1, 2)
    assert variables.nnx_attrs_to_linen_vars(attributes) == collections


@pytest.mark.parametrize("batch_stat", [X, {"inside": X}])
def test_two_variables_at_one_path_are_an_error(batch_stat):
    with pytest.raises(ValueError, match="both have this variable") as error:
        variables.linen_vars_to_nnx_attrs({"params": {"d": X}, "batch_stats": {"d": batch_stat}})
    assert "at: d" in str(error.value)


def test_what_is_in_no_collection_is_an_error():
    with pytest.raises(ValueError, match="Cannot infer collection name from value: 3"):
        variables.nnx_attrs_to_linen_vars({"a": {"b": 3}})
