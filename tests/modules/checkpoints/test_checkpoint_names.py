"""Loading weft's own files renamed and in part."""

import jax.numpy as jnp
import pytest
import weft
from jaxtyping import Array, Float
from weft.modules import CheckpointError, import_weights, load_checkpoint, save_checkpoint
from weft.modules.checkpoints.names import renamed


class Inner(weft.Module):
    weight: Float[Array, "n"]
    heads: int


class Old(weft.Module):
    encoder: Inner
    head: Float[Array, "n"]


class New(weft.Module):
    body: Inner
    head: Float[Array, "n"]


@pytest.fixture
def file(tmp_path):
    return tmp_path / "state.safetensors"


def old(heads=8):
    return Old(Inner(jnp.ones(2), heads), jnp.full(3, 2.0))


def new(heads=8):
    return New(Inner(jnp.zeros(2), heads), jnp.zeros(3))


@pytest.mark.parametrize("rename", [{"encoder": "body"}, lambda name: name.replace("encoder", "body")])
def test_a_field_that_was_renamed_loads_and_its_configuration_is_compared(file, rename):
    save_checkpoint(file, old())
    restored = load_checkpoint(file, new(), rename=rename)
    assert (restored.body.weight.tolist(), restored.head.tolist()) == ([1, 1], [2, 2, 2])
    with pytest.raises(CheckpointError, match=r"at: body.heads: 8, not 4"):
        load_checkpoint(file, new(heads=4), rename=rename)
    assert load_checkpoint(file, new(heads=4), rename=rename, strict=False).body.heads == 4


def test_a_part_of_a_checkpoint_loads_by_itself(file):
    save_checkpoint(file, {"model": old(), "step": 3})
    model, report = load_checkpoint(file, Old(Inner(jnp.zeros(2), 8), jnp.zeros(3)), rename={"model": ""}, partial=True)
    assert model.encoder.weight.tolist() == [1, 1]
    assert report == weft.LoadReport(missing=(), left_over=("step",))
    with pytest.raises(CheckpointError, match=r"encoder.heads: 8, not 2"):
        load_checkpoint(file, Old(Inner(jnp.zeros(2), 2), jnp.zeros(3)), rename={"model": ""}, partial=True)


def test_a_model_loads_into_a_part_of_a_tree(file):
    save_checkpoint(file, old())
    like = {"model": Old(Inner(jnp.zeros(2), 8), jnp.zeros(3)), "step": 5}
    tree, report = load_checkpoint(file, like, rename={"": "model"}, partial=True)
    assert (tree["model"].head.tolist(), tree["step"]) == ([2, 2, 2], 5)
    assert report == (("step",), ())


def test_a_partial_load_compares_the_configuration_that_both_have(file):
    save_checkpoint(file, {"a": Inner(jnp.ones(2), 8), "b": Inner(jnp.ones(2), 8)})
    tree, report = load_checkpoint(file, {"b": Inner(jnp.zeros(2), 8), "c": Inner(jnp.zeros(2), 1)}, partial=True)
    assert report == (("c.weight",), ("a.weight",))
    assert (tree["b"].weight.tolist(), tree["c"].weight.tolist()) == ([1, 1], [0, 0])
    with pytest.raises(CheckpointError, match=r"b.heads: 8, not 4"):
        load_checkpoint(file, {"b": Inner(jnp.zeros(2), 4)}, partial=True)


def test_the_longest_beginning_counts():
    rename = {"a": "x", "a.b": "y", "a.b[0]": None, "['odd name']": "even"}
    names = ["a", "a.c", "a.b", "a.b[0].w", "a.b[1]", "ab", "['odd name'].w"]
    assert renamed(rename, names, "f") == {
        "a": "x",
        "a.c": "x.c",
        "a.b": "y",
        "a.b[0].w": None,
        "a.b[1]": "y[1]",
        "ab": "ab",
        "['odd name'].w": "even.w",
    }


@pytest.mark.parametrize(
    ("rename", "name", "path"),
    [({"a": ""}, "a.b", "b"), ({"a": ""}, "a[0]", "[0]"), ({"a": ""}, "a", "<root>"), ({"": "a"}, "<root>", "a"),
     ({"": "a"}, "b", "a.b"), ({"": "a"}, "[0]", "a[0]"), ({"<root>": "a"}, "b", "a.b")],
)  # fmt: skip
def test_an_empty_text_is_the_root(rename, name, path):
    assert renamed(rename, [name], "f") == {name: path}


def test_a_name_that_the_file_does_not_hold_is_an_error(file):
    save_checkpoint(file, old())
    with pytest.raises(CheckpointError, match=r"does not hold\n  at: decoder\n  at: enc\n"):
        load_checkpoint(file, new(), rename={"enc": "body", "decoder": "x", "encoder": "body"})


def test_two_arrays_that_get_one_path_are_an_error(file):
    save_checkpoint(file, old())
    with pytest.raises(CheckpointError, match=r"renamed to the same path\n  at: w: encoder.weight\n  at: w: head\n"):
        load_checkpoint(file, {"w": jnp.ones(2)}, rename={"encoder.weight": "w", "head": "w"})


@pytest.mark.parametrize("rename", [{"head": 3}, lambda name: ("a", name)])
def test_a_name_becomes_a_text_or_nothing(file, rename):
    save_checkpoint(file, old())
    with pytest.raises(CheckpointError, match=r"rename maps a name to a (int|tuple)"):
        load_checkpoint(file, old(), rename=rename)


@pytest.mark.parametrize("rename", ["x", 3, ["head"], [("head", "tail")], {3: "x"}])
def test_what_is_no_table_and_no_function_of_names_is_refused(file, rename):
    save_checkpoint(file, old())
    for load in (load_checkpoint, lambda file, like, rename: import_weights(like, file, rename=rename)):
        with pytest.raises(CheckpointError, match=r"rename must be a mapping from names, or a function") as raised:
            load(file, old(), rename=rename)
        assert "fix: write names and paths as errors print them" in str(raised.value)
        assert load(file, old(), rename={"encoder": "encoder"}).encoder.weight.shape == old().encoder.weight.shape
