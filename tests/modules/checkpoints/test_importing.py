"""import_weights: each layer's layout, tables of names, stacks, and one error that lists all that does not fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from safetensors.numpy import save_file

KEY = jax.random.key(0)


def stack():
    return weft.init(weft.Stack, lambda key: weft.Linear(2, 2, key=key), 2, key=KEY)


def layer(value):
    return {"weight": np.full((2, 2), value, np.float32), "bias": np.full(2, value, np.float32)}


def named(**layers):
    return {f"{at.replace('_', '.')}.{name}": array for at, one in layers.items() for name, array in one.items()}


class Tensor:
    """What is used of a torch tensor of bfloat16, which NumPy cannot hold."""

    def __init__(self, array, dtype="torch.bfloat16"):
        self.array, self.dtype = np.asarray(array, np.float32), dtype

    def detach(self):
        return self

    def cpu(self):
        return self

    def float(self):
        return Tensor(self.array, "torch.float32")

    def numpy(self):
        assert self.dtype == "torch.float32"
        return self.array


@pytest.mark.parametrize(
    ("model", "weights", "field", "wanted"),
    [
        (weft.Linear(2, 3, use_bias=False, key=KEY), {"weight": (3, 2)}, "kernel", lambda w: w.T),
        (weft.Conv1d(2, 3, 5, use_bias=False, key=KEY), {"weight": (3, 2, 5)}, "kernel", lambda w: w.T),
        (
            weft.Conv2d(2, 3, (4, 5), use_bias=False, key=KEY),
            {"weight": (3, 2, 4, 5)},
            "kernel",
            lambda w: w.transpose(2, 3, 1, 0),
        ),
        (weft.Embed(4, 2, key=KEY), {"weight": (4, 2)}, "embedding", lambda w: w),
        (weft.RMSNorm(3), {"weight": (3,)}, "scale", lambda w: w),
        (weft.LayerNorm(3), {"bias": (3,), "weight": (3,)}, "scale", lambda w: w),
        (
            weft.BatchNorm(3),
            {"running_mean": (3,), "running_var": (3,), "bias": (3,), "weight": (3,)},
            "scale",
            lambda w: w,
        ),
    ],
)
def test_a_layer_of_torch_becomes_the_layer_of_its_name(model, weights, field, wanted):
    arrays = {name: np.random.default_rng(0).normal(size=shape) for name, shape in weights.items()}
    imported = weft.import_weights([model], {f"0.{name}": array for name, array in arrays.items()})[0]
    np.testing.assert_array_equal(getattr(imported, field), wanted(arrays["weight"]).astype(np.float32))
    assert jax.tree.structure(imported) == jax.tree.structure(model)


def test_numbered_layers_fill_a_stack_and_keep_its_dtype():
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.bfloat16), stack())
    imported = weft.import_weights({"body": like}, named(h_0=layer(1), h_1=layer(2)), rename={"h.*": "body[*]"})
    assert imported["body"].layers.bias.tolist() == [[1, 1], [2, 2]]
    assert imported["body"].layers.kernel.dtype == jnp.bfloat16


def test_one_array_is_divided_among_layers_by_their_sizes():
    parts = {"q": weft.Linear(2, 4, key=KEY), "k": weft.Linear(2, 1, key=KEY)}
    fused = {"qk.weight": np.arange(10.0).reshape(5, 2), "qk.bias": np.arange(5.0)}
    imported = weft.import_weights(parts, fused, rename={"qk": ["q", "k"]})
    assert imported["k"].kernel.tolist() == [[8], [9]]
    assert imported["q"].bias.tolist() == [0, 1, 2, 3]


def test_an_array_is_not_divided_among_scalars():
    with pytest.raises(weft.CheckpointError, match="these weights do not fit the model") as caught:
        weft.import_weights({"x": jnp.ones(()), "y": jnp.ones(())}, {"a": np.ones(2)}, rename={"a": ["x", "y"]})
    assert "a: float64[2] as stored here, not x: float32[] and y: float32[]" in str(caught.value)


def test_tensors_of_bfloat16_and_several_files_are_read(tmp_path):
    tensors = {name: Tensor(array) for name, array in layer(3).items()}
    assert weft.import_weights(weft.Linear(2, 2, key=KEY), tensors).bias.tolist() == [3, 3]
    files = [tmp_path / name for name in layer(1)]
    for file, (name, array) in zip(files, layer(1).items(), strict=True):
        save_file({name: array}, file)
    assert weft.import_weights(weft.Linear(2, 2, key=KEY), files).bias.tolist() == [1, 1]


def test_without_strict_what_is_left_over_and_missing_is_reported():
    model = stack()
    weights = {**named(h_1=layer(5)), "step": np.zeros(()), "old": np.zeros(1)}
    imported, report = weft.import_weights(model, weights, rename={"h.*": "[*]", "old": None}, strict=False)
    assert report.left_over == ("step", "old")
    assert report.missing == ("[0].kernel", "[0].bias")
    np.testing.assert_array_equal(imported[0].kernel, model[0].kernel)
    assert imported[1].bias.tolist() == [5, 5]


def test_one_error_lists_all_that_does_not_fit():
    weights = {
        "h.0.weight": np.zeros((2, 3), np.float32),
        "h.0.bias": np.zeros(2, np.int32),
        "h.1.bias": np.zeros(2, np.float32),
        "again.1.bias": np.zeros(2, np.float32),
        "mask": np.zeros(2),
    }
    with pytest.raises(weft.CheckpointError) as raised:
        weft.import_weights(stack(), weights, rename={"h.*": "[*]", "again.*": "[*]", "typo": "x"})
    for line in (
        "rename: typo fits no name",
        "h.0.weight: float32[3,2] as stored here, not [0].kernel: float32[2,2]",
        "h.0.bias: int32, not [0].bias: float32[2]",
        "[1].bias: both h.1.bias and again.1.bias are renamed to it",
        "mask: left over",
        "[1].kernel: missing, float32[2,2]",
    ):
        assert f"at: {line}" in str(raised.value)


def test_a_part_of_an_abstract_stack_is_not_left_without_values():
    like = jax.eval_shape(stack)
    with pytest.raises(weft.CheckpointError, match="missing in an abstract stack"):
        weft.import_weights(like, named(h_1=layer(5)), rename={"h.*": "[*]"}, strict=False)


def test_a_table_with_too_many_stars_is_refused():
    with pytest.raises(weft.CheckpointError, match="the same number of `\\*`"):
        weft.import_weights(stack(), named(h_1=layer(5)), rename={"h": "[*]"})


def test_a_function_may_rename_and_leave_out():
    weights = {"net/weight": np.ones((2, 2)), "net/bias": np.ones(2), "adam/m": np.ones(3)}
    imported = weft.import_weights(
        {"net": weft.Linear(2, 2, key=KEY)},
        weights,
        rename=lambda name: None if name.startswith("adam") else name.replace("/", "."),
    )
    assert imported["net"].bias.tolist() == [1, 1]


def test_a_file_of_weft_that_holds_more_than_weights_is_refused(tmp_path):
    weft.save_checkpoint(tmp_path / "own", {"key": KEY})
    with pytest.raises(weft.CheckpointError, match="not a weight\n  at: key\n  fix: load weft's own files"):
        weft.import_weights({"key": jnp.ones(2)}, tmp_path / "own")


@pytest.mark.parametrize(
    ("layout", "place"),
    [
        ("x", "layout: 'layout': 'x'"),
        ([weft.Linear], "layout: 'layout': "),
        ({"Linear": {"weight": ("kernel", None)}}, "layout: 'Linear': "),
        ({weft.Linear: None}, "Linear'>: None"),
        ({weft.Linear: {"weight": "kernel"}}, "Linear'>: {'weight': 'kernel'}"),
        ({weft.Linear: {"weight": ("kernel", None, 1)}}, "Linear'>: "),
        ({weft.Linear: {"weight": ("kernel", (1, 0))}}, "Linear'>: "),
        ({weft.Linear: {"weight": (0, None)}}, "Linear'>: "),
    ],
)
def test_a_malformed_layout_is_told_at_its_class(layout, place):
    with pytest.raises(weft.CheckpointError, match="a layout maps a class to names") as raised:
        weft.import_weights(weft.Linear(2, 2, key=KEY), layer(1), layout=layout)
    assert place in str(raised.value)
    assert "fix: write layout={weft.Linear: " in str(raised.value)
    layout = {weft.Linear: {"weight": ("kernel", np.transpose)}}
    assert weft.import_weights(weft.Linear(2, 2, key=KEY), layer(1), layout=layout).kernel.tolist() == [[1, 1], [1, 1]]
