"""What a layer refuses says which layer of the model it was, where that is, and which argument."""

from __future__ import annotations

import inspect
import traceback
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft
from weft.core.errors import WeftError

from tests.made_on_use import MadeOnUse

KEY = jax.random.key(0)
X = jnp.ones((1, 3, 8))


class Net(weft.Module):
    encoder: Any

    def __call__(self, x: Any, **options: Any) -> Any:
        return self.encoder(x, **options)


def attention(**options: Any) -> weft.MultiHeadAttention:
    return weft.MultiHeadAttention(8, 2, key=KEY, **options)


REFUSED: MadeOnUse[tuple[Any, dict[str, Any], str, str]] = MadeOnUse(
    {
        "another size of features": lambda: (
            weft.LinearGeneral(4, (2, 3), key=KEY),
            {},
            "in Net.encoder (LinearGeneral)",
            "x: ",
        ),
        "a mask that does not broadcast": lambda: (
            attention(),
            {"mask": jnp.ones((5, 5), bool)},
            "in Net.encoder (MultiHeadAttention)",
            "mask: ",
        ),
        "a mask of a norm": lambda: (
            weft.BatchNorm(8),
            {"mask": jnp.ones((2, 5), bool)},
            "in Net.encoder (BatchNorm)",
            "mask: ",
        ),
        "an odd size of heads under RoPE": lambda: (
            weft.MultiHeadAttention(6, 2, rope=weft.RoPE(), key=KEY),
            {},
            "in Net.encoder.rope (RoPE)",
            "x: ",
        ),
        "no key": lambda: (
            weft.Sequential(weft.Linear(8, 8, key=KEY), weft.Dropout(0.5)),
            {},
            "layers[1] (Dropout)",
            "key=",
        ),
        "a full cache": lambda: (
            attention(causal=True).with_cache(2, batch=(1,)),
            {},
            "in Net.encoder (MultiHeadAttention)",
            "cache.keys",
        ),
        "lengths of other sequences": lambda: (
            weft.RNN(weft.GRUCell(8, 3, key=KEY)),
            {"lengths": jnp.array([1, 2])},
            "in Net.encoder (RNN)",
            "lengths: ",
        ),
    }
)


@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_names_the_layer_its_path_and_the_argument(case: str):
    layer, options, path, argument = REFUSED[case]
    x = X[..., :6] if "RoPE" in path else X
    with pytest.raises(WeftError) as caught:
        Net(layer)(x, **options)
    assert path in caught.value.at[0]
    assert argument in str(caught.value)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: weft.Linear(3, "4", key=KEY),
            weft.errors.ConfigError,
            "Linear: out_features must be an integer, not '4'",
        ),
        (lambda: weft.LayerNorm(8.0), weft.errors.ConfigError, "LayerNorm: features must be an integer, not 8.0"),
        (
            lambda: weft.Conv2d(1, 2, 3, strides=0, key=KEY),
            weft.errors.ConfigError,
            "strides must be positive integers, not 0",
        ),
        (
            lambda: weft.Linear(3, 4, key=jax.random.split(KEY)),
            weft.errors.SeedError,
            r"one typed key, not .* shape \(2,\)",
        ),
        (lambda: weft.MLP(3, 4, depth=2, key=KEY), TypeError, "MLP.* unexpected keyword argument 'depth'"),
        (lambda: weft.Conv2d(3, 4, 3, stride=2, key=KEY), TypeError, "Conv2d.* unexpected keyword argument 'stride'"),
        (lambda: weft.InstanceNorm(3, eps=1e-6), TypeError, "InstanceNorm.* unexpected keyword argument 'eps'"),
        (lambda: weft.LayerNorm(3, eps=1e-6), TypeError, "LayerNorm.* unexpected keyword argument 'eps'"),
        (lambda: weft.GRUCell(3, key=KEY), TypeError, "GRUCell.* 'hidden_features'"),
    ],
)
def test_what_a_constructor_cannot_be_given_is_said_in_its_words(make: Any, error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        make()


CONSTRUCTORS = {
    name: value
    for name in weft.modules.__all__
    if isinstance(value := getattr(weft, name), type) and issubclass(value, weft.Module)
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_arguments_that_a_constructor_does_not_take_are_told_with_those_that_it_takes(name: str):
    cls = CONSTRUCTORS[name]
    # A block takes all options of its attention, which tells them.
    passed_to = "MultiHeadAttention" if name == "TransformerBlock" else name
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    sizes = [4, 4] if any(p.kind is p.VAR_POSITIONAL for p in parameters) else []
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    needed: Any = {p.name: 4 for p in parameters if p.default is p.empty and p.kind in kinds}
    needed |= {"key": KEY} if "key" in needed else {}
    with pytest.raises(weft.errors.ArgumentError, match=rf"^{passed_to}\(\) .*'nonsense'\n") as caught:
        cls(*sizes, **needed, nonsense=1)
    takes = str(caught.value.fix)
    assert f"{passed_to} takes (" in takes
    if passed_to == name:
        assert all(p.name in takes for p in parameters if p.kind is not p.VAR_KEYWORD)
    assert "options" not in takes
    frames = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert not any("equinox" in frame for frame in frames)


@pytest.mark.parametrize(
    ("make", "nearest"),
    [
        (lambda: weft.GroupNorm(8, num_groups=2), "groups="),
        (lambda: weft.Conv2d(3, 4, 3, paddding="SAME", key=KEY), "padding="),
        (lambda: weft.MLP(3, 4, dtpe=jnp.float32, key=KEY), "dtype="),
        (lambda: Net(encodr=None), "encoder="),
    ],
)
def test_the_nearest_keyword_is_told_first(make: Any, nearest: str):
    with pytest.raises(weft.errors.ArgumentError, match=f"fix: {nearest}; "):
        make()


def test_an_argument_too_many_is_told_at_the_users_line():
    with pytest.raises(
        weft.errors.ArgumentError,
        match=r"GroupNorm\(\) too many positional arguments\n  fix: GroupNorm takes \(features, \*, ",
    ):
        weft.GroupNorm(8, 2)  # pyright: ignore[reportCallIssue]


def test_a_type_error_inside_of_a_constructor_stays_itself():
    class Broken(weft.Module):
        size: int

        def __init__(self, size: Any, **options: Unknown):  # pyright: ignore
            self.size = size + "1"

    with pytest.raises(TypeError, match="unsupported operand") as caught:
        Broken(1, more=2)
    assert not isinstance(caught.value, WeftError)
