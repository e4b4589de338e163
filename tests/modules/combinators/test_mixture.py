"""MoE: each token gets what its experts make of it, and nothing goes to an expert that is full."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (2, 5, 4))


def make(**options):
    return weft.MoE(lambda key: weft.Linear(4, 4, key=key), 3, 4, key=KEY, **options)


def by_hand(moe, x):
    probabilities = np.asarray(jax.nn.softmax(x @ moe.router, axis=-1))
    y = np.zeros_like(x)
    for place in np.ndindex(x.shape[:-1]):
        best = np.argsort(-probabilities[place])[: moe.top_k]
        total = probabilities[place][best].sum()
        for expert in best:
            out = np.asarray(x[place] @ moe.experts.kernel[expert] + moe.experts.bias[expert])
            y[place] += probabilities[place][expert] / total * out
    return y


@pytest.mark.parametrize("top_k", [1, 2])
def test_with_room_for_all_each_token_gets_the_weighted_sum_of_its_best_experts(top_k):
    moe = make(top_k=top_k, capacity_factor=None)
    np.testing.assert_allclose(weft.jit(lambda moe, x: moe(x))(moe, X), by_hand(moe, X), rtol=1e-4, atol=1e-5)


def test_what_finds_no_room_is_zero_and_first_choices_come_first():
    moe = make(top_k=1, capacity_factor=0.3).replace(router=jnp.zeros((4, 3)).at[:, 1].set(1.0))
    x = jnp.abs(X)
    assert moe.capacity(10) == 1
    y = np.asarray(moe(x)).reshape(10, 4)
    assert y[0].any()
    assert not y[1:].any()


@pytest.mark.slow
def test_the_loss_is_sown_and_returned_and_trains_the_router():
    moe = make()
    y, loss = moe.with_loss(X)
    same, sown = weft.capture(moe)(X)
    np.testing.assert_allclose(same, y, rtol=1e-6)
    np.testing.assert_allclose(sown["load_balancing"][0], loss, rtol=1e-6)
    assert np.asarray(weft.grad(lambda moe, x: moe.with_loss(x)[1])(moe, X).router).any()
    even = make().replace(router=jnp.zeros((4, 3)))
    np.testing.assert_allclose(even.with_loss(X)[1], 1.0, rtol=1e-5)


@pytest.mark.slow
def test_it_stands_in_a_stack_a_residual_and_half_precision():
    stack = weft.Stack(
        lambda key: weft.Residual(weft.MoE(lambda k: weft.Linear(4, 4, key=k), 2, 4, key=key)), 2, key=KEY
    )
    y, sown = weft.capture(stack)(X)
    np.testing.assert_allclose(y, stack[1](stack[0](X)), rtol=1e-5, atol=1e-6)
    assert jax.tree.leaves(sown)[0].shape == (2,)
    half = weft.MoE(lambda key: weft.Linear(4, 4, key=key, param_dtype=jnp.bfloat16), 2, 4, key=KEY)
    assert half(X.astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_what_makes_no_sense_is_named(unchecked):
    with pytest.raises(weft.errors.ConfigError, match="a token cannot go to top_k=4 of 3 experts"):
        make(top_k=4)
    with pytest.raises(weft.errors.ConfigError, match="capacity_factor must be positive"):
        make(capacity_factor=0)
    with pytest.raises(weft.errors.AxisError, match="MoE takes 4 features on the last axis, not 3"):
        make()(X[..., :3])
    with pytest.raises(weft.core.SuccessorError, match="a BatchNorm is stateful, and MoE would lose its successor"):
        weft.MoE(lambda key: weft.BatchNorm(4), 2, 4, key=KEY)(X)
