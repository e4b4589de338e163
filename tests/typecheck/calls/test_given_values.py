"""What functions are given by mistake, or from elsewhere: a stateful call's whole return, and NumPy's arrays."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jaxtyping import Array, Float, Float32, Int
from weft import ContractError
from weft.core.errors import SuccessorError
from weft.typecheck import mode

X = jnp.ones((2, 4))
NORM, LINEAR = weft.BatchNorm(4), weft.Linear(4, 4, key=jax.random.key(0))
CONV = weft.Conv(4, 4, (3,), key=jax.random.key(0))
APART = "take it apart, y, bn = ..., or use thread"


# ---- a pair (value, successor) --------------------------------------------------------------------------------------


def test_a_pair_that_is_handed_to_the_next_layer_is_said_to_be_one():
    with pytest.raises(ContractError) as caught:
        LINEAR(NORM(X))
    assert caught.value.what == (
        "argument x of Linear.__call__ should be Float[*batch,in=4], and is a pair (value, successor of a BatchNorm)"
    )
    assert caught.value.fix.startswith(APART)


@pytest.mark.parametrize(
    ("call", "taker"),
    [
        (lambda pair: LINEAR(pair), "Linear"),
        (lambda pair: CONV(pair), "Conv"),
        (lambda pair: NORM(pair), "BatchNorm"),
        (lambda pair: weft.modules.ops.linear(pair, LINEAR.kernel), "a layer"),
        (lambda pair: weft.modules.ops.conv(pair, CONV.kernel), "a layer"),
    ],
)
def test_layers_say_so_without_contracts_too(call, taker):
    with mode("off"), pytest.raises(SuccessorError) as caught:
        call(NORM(X))
    assert caught.value.what == f"{taker} takes an array, and this is a pair (value, successor of a BatchNorm)"
    assert caught.value.fix.startswith(APART)


def test_a_value_with_more_beside_it_is_named_as_that():
    with pytest.raises(ContractError) as caught:
        LINEAR((X, {"loss": X}, LINEAR))
    assert "and is a tuple (value, ..., successor of a Linear)" in caught.value.what
    assert caught.value.fix.startswith("take it apart, y, aux, linear = ...")


@pytest.mark.parametrize("value", [(X, X), (LINEAR, NORM), (NORM,), [X, NORM]])
def test_other_tuples_are_no_pairs(value):
    with pytest.raises(ContractError) as caught:
        LINEAR(value)
    assert "successor" not in str(caught.value)


# ---- NumPy's arrays -------------------------------------------------------------------------------------------------


class Scale(weft.Module):
    factor: Float[Array, "d"]

    def __call__(self, x: Float32[Array, "*batch d"], shift: Int[Array, ""] | None = None) -> Float[Array, "*batch d"]:
        return x * self.factor + (0 if shift is None else shift)

    def last(self, batch: Batch) -> Float[Array, "d"]:
        return batch.x[-1] * self.factor


class Batch(NamedTuple):
    x: Float[Array, "n d"]


SCALE = Scale(jnp.ones(3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numpy_arrays_are_taken_eagerly_where_jit_takes_them(dtype):
    x = np.ones((2, 3), dtype)
    assert SCALE(x).shape == weft.jit(SCALE)(x).shape == (2, 3)
    assert SCALE(x, np.int64(3)).tolist() == weft.jit(SCALE)(x, np.int64(3)).tolist()
    assert SCALE.last(Batch(x)).shape == weft.jit(SCALE.last)(Batch(x)).shape == (3,)
    assert LINEAR(np.ones((2, 4), dtype)).shape == (2, 4)


class Later(NamedTuple):
    """An array that is not computed yet; its dtype is a class, as NumPy's scalars are."""

    shape: tuple[int, ...]
    dtype: type


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones((2, 4), np.float32), "should be f32[*batch,d=3], and is numpy f32[2,4]"),
        (np.ones((2, 3), int), "should be Float32[*batch,d=3], and is numpy i64[2,3]"),
        (np.array(["a", "b", "c"]), "should be Float32[*batch,d=3], and is numpy str_[3]"),
        (Later((2, 3), jnp.float32), "should be Float32[*batch,d=3], and is Later f32[2,3]"),
        ([1.0, 2.0, 3.0], "should be Float32[*batch,d=3], and is list"),
    ],
)
def test_their_shapes_and_dtypes_are_checked_like_those_of_others(x, message):
    with pytest.raises(ContractError) as caught:
        SCALE(x)
    assert message in caught.value.what


def test_a_record_holds_no_numpy_array_by_accident():
    with pytest.raises(ContractError, match=r"field Scale.factor should be f32\[d\], and is numpy f32\[3\]"):
        Scale(np.ones(3, np.float32))
