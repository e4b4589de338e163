"""Policy: what is computed in low precision, and that nothing that stays was rounded by it."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from hypothesis import given
from hypothesis import strategies as st
from weft import BatchNorm, BatchStat, Linear, Policy, StatefulSequential

POLICY = Policy(param=jnp.float32, compute=jnp.bfloat16, output=jnp.float32)
KEYS = jax.random.split(jax.random.key(0), 2)
X = jax.random.normal(jax.random.key(1), (8, 3))


def net() -> Any:
    return StatefulSequential(Linear(3, 4, key=KEYS[0]), BatchNorm(4), jax.nn.relu, Linear(4, 1, key=KEYS[1]))


def loss(model: Any, x: Any) -> Any:
    y, model = model(x)
    return (y**2).mean(), model


def dtypes(tree: Any) -> set[str]:
    return {str(leaf.dtype) for leaf in jax.tree.leaves(tree)}


def test_a_function_computes_in_one_dtype_and_returns_another():
    seen: list[Any] = []

    def f(layer: Any, x: Any, *, scale: Any, ids: Any) -> Any:
        y = layer(x) * scale
        seen.extend([layer.kernel.dtype, x.dtype, scale.dtype, ids.dtype, y.dtype])
        return {"y": y, "ids": ids, "name": "out"}

    out = POLICY(f)(Linear(3, 2, key=KEYS[0]), X, scale=jnp.ones(()), ids=jnp.arange(2))
    assert seen == [jnp.bfloat16, jnp.bfloat16, jnp.bfloat16, jnp.int32, jnp.bfloat16]
    assert (out["y"].dtype, out["ids"].dtype, out["name"]) == (jnp.float32, jnp.int32, "out")
    assert f.__name__ == POLICY(f).__name__


def test_statistics_are_never_rounded():
    model = net()
    model = weft.at(model).layers[1].replace(mean=jnp.full(4, 1 + 2**-12), var=jnp.full(4, 1 - 2**-12))
    _, new = POLICY(loss)(weft.inference_mode(model), X)
    np.testing.assert_array_equal(new.layers[1].mean, model.layers[1].mean)
    _, new = POLICY(loss)(model, X)
    norm = new.layers[1]
    assert norm.mean.dtype == jnp.float32
    # A step of a hundredth from where it was, which low precision could not tell from no step, or from a larger one.
    low = weft.tree.cast(model, jnp.bfloat16).layers[0](X.astype(jnp.bfloat16)).astype(jnp.float32)
    np.testing.assert_allclose(norm.mean, 0.99 * (1 + 2**-12) + 0.01 * low.mean(0), rtol=1e-5)


def test_parameters_that_did_not_change_are_the_masters_themselves():
    model = net()
    _, new = POLICY(loss)(model, X)
    assert new.layers[0].kernel is model.layers[0].kernel
    assert jax.tree.structure(new) == jax.tree.structure(model)
    assert dtypes(new) == {"float32"}


def test_gradients_are_those_of_the_masters():
    model = net()
    (value, new), gradient = weft.value_and_grad(POLICY(loss), has_aux=True)(model, X)
    assert value.dtype == jnp.float32
    assert dtypes(gradient) == {"float32"}
    opt = weft.Optimizer(model, optax.set_to_zero())
    moved, _ = opt.update(model, gradient, state_of=new)
    np.testing.assert_array_equal(moved.layers[0].kernel, model.layers[0].kernel)
    np.testing.assert_array_equal(moved.layers[1].mean, new.layers[1].mean)


def test_a_compiled_step_keeps_every_dtype():
    opt = weft.Optimizer(net(), optax.adam(1e-2))

    @weft.jit(donate_argnums=(0, 1))
    def step(model: Any, opt: Any) -> Any:
        value, model, opt = opt.minimize(POLICY(loss), model, X)
        return value, model, opt

    model = net()
    before = jax.tree.map(lambda leaf: leaf.dtype, (model, opt))
    for _ in range(2):
        _, model, opt = step(model, opt)
    assert jax.tree.map(lambda leaf: leaf.dtype, (model, opt)) == before


def test_what_a_function_changes_keeps_the_dtype_it_had():
    class Scale(weft.Module):
        weight: jax.Array
        mean: Annotated[jax.Array, BatchStat]
        half: Annotated[jax.Array, BatchStat]

        def __call__(self, x: Any) -> Any:
            return x, self.replace(weight=self.weight * 2, mean=self.mean + x.mean(), half=self.half + 1.0)

    scale = Scale(jnp.ones(2), jnp.zeros(()), jnp.zeros((), jnp.bfloat16))
    _, new = POLICY(lambda scale, x: scale(x))(scale, X)
    assert (new.weight.dtype, new.mean.dtype, new.half.dtype) == (jnp.float32, jnp.float32, jnp.bfloat16)
    assert new.weight.tolist() == [2, 2]
    # Inside of another record, and beside one that is made alike, too.
    bf16_scale = scale.replace(weight=jnp.zeros(2, jnp.bfloat16))
    swapped = POLICY(lambda a, b: {"b": b(X)[1], "a": a})(scale, bf16_scale)
    assert (swapped["a"].weight is scale.weight, swapped["b"].half.dtype) == (True, jnp.bfloat16)


def test_new_records_have_their_parameters_in_the_dtype_of_results():
    class Prediction(weft.Module):
        mean: jax.Array
        count: Annotated[jax.Array, BatchStat]

    out = POLICY(lambda x: Prediction(x * 2, x[0, 0]))(X)
    assert (out.mean.dtype, out.count.dtype) == (jnp.float32, jnp.bfloat16)


def test_a_model_is_held_in_one_dtype_and_computes_in_another():
    half = weft.tree.cast(net(), jnp.float16)
    model = POLICY(half)
    assert dtypes(model) == {"float32"}
    y, after = model(X)
    expected, _ = POLICY(lambda model, x: model(x))(weft.tree.cast(half, jnp.float32), X)
    np.testing.assert_array_equal(y, expected)
    assert y.dtype == jnp.float32
    assert jax.tree.structure(after) == jax.tree.structure(model)
    assert (after.layer.layers[1].mean != model.layer.layers[1].mean).any()
    pure = POLICY(Linear(3, 2, key=KEYS[0]))
    assert pure(X).dtype == jnp.float32
    assert weft.Sequential(pure, jax.nn.relu)(X).shape == (8, 2)


def test_dropout_gets_its_key():
    model = POLICY(weft.Dropout(0.5))
    assert (model(jnp.ones(100), key=KEYS[0]) == 0).any()


def test_frozen_layers_compute_in_low_precision_too():
    seen: list[Any] = []
    POLICY(lambda layer: seen.append(layer.layer.kernel.dtype))(weft.Frozen(Linear(3, 2, key=KEYS[0])))
    assert seen == [jnp.bfloat16]


def test_a_policy_is_of_floats():
    with pytest.raises(weft.errors.ConfigError, match="the dtypes of a policy must be floating-point, not int8"):
        Policy(compute=jnp.int8)
    assert Policy(compute=jnp.bfloat16) == Policy("float32", "bfloat16", "float32")


def test_a_policy_without_a_dtype_to_compute_in_casts_what_it_says_and_nothing_else():
    model, x = weft.tree.cast(net(), jnp.float16), X.astype(jnp.bfloat16)
    seen = []
    out = Policy()(lambda model, x: seen.append((model, x)) or model(x))(model, x)
    assert seen == [(model, x)]
    assert dtypes(out[0]) == dtypes(model(x)[0])
    assert all(map(operator.is_, jax.tree.leaves(Policy()(model).layer), jax.tree.leaves(model)))
    assert dtypes(Policy(output="float16")(model)(x)[0]) == {"float16"}
    assert dtypes(Policy("bfloat16").cast_params(model).layers[0]) == {"bfloat16"}


@given(
    st.sampled_from([jnp.float32, jnp.bfloat16, jnp.float16]), st.sampled_from([jnp.float32, jnp.bfloat16, jnp.float16])
)
def test_whatever_the_dtypes_a_record_that_only_passes_through_is_itself(compute: Any, output: Any):
    model = {"net": net(), "keys": weft.Keys(0)}
    through, x = Policy(compute=compute, output=output)(lambda model, x: (model, x))(model, X)
    assert all(a is b for a, b in zip(jax.tree.leaves(through), jax.tree.leaves(model), strict=True))
    assert x.dtype == output
