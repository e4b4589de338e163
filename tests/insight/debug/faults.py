"""Programs with a fault in the line that ends in `# here`, and right programs with infinities that are meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
import weft

X = jnp.array([1.0, 2.0, 0.0, 4.0])
XS = jnp.ones((6, 3, 4)).at[4, 2, 1].set(0.0)


def forward_log(x=X):
    return jnp.log(x).sum()  # here


def forward_div(x=X):
    return (1 / x).mean()  # here


def forward_sqrt(x=X):
    return jnp.sqrt(x - 1).sum()  # here


def forward_overflow(x=X):
    return jnp.exp(x * 100).sum()  # here


def forward_norm(x=X):
    return (x - x) / jnp.linalg.norm(x - x)  # here


def forward_matmul(x=X):
    y = x * 1e20
    return (y @ y) * 1e20  # here


def masked_row(x=X):
    scores = jnp.where(jnp.zeros(4, bool), x, -jnp.inf)
    return jax.nn.softmax(scores)  # here


def gradient_log(x=X):
    return jax.grad(lambda x: jnp.where(x > 0, jnp.log(x), 0.0).sum())(x)  # here


def gradient_sqrt(x=X):
    return jax.grad(lambda x: jnp.sqrt(x).sum())(x)  # here


def gradient_norm(x=X):
    return jax.grad(lambda x: jnp.sqrt(jnp.sum(x * x)))(x * 0)  # here


def gradient_div(x=X):
    return jax.grad(lambda x: jnp.where(x > 0, x / x, 1.0).sum())(x)  # here


def gradient_power(x=X):
    return jax.grad(lambda x: (x**0.5).sum())(x)  # here


def gradient_of_norm(x=X):
    return jax.grad(lambda x: jnp.linalg.norm(x))(x * 0)  # here


def gradient_of_powers_in_scan(xs=XS):
    def loss(w):
        return jax.lax.scan(lambda total, x: (total + ((w * x) ** 0.5).sum(), None), 0.0, xs)[0]  # here

    return jax.value_and_grad(loss)(1.0)


def value_of_power_in_gradient(x=X):
    return jax.value_and_grad(lambda x: ((x - 2) ** 0.5).sum())(x)  # here


def value_of_power_in_gradient_of_scan(xs=XS):
    def loss(w):
        return jax.lax.scan(lambda total, x: (total + ((x - w) ** -0.5).sum(), None), 0.0, xs)[0]  # here

    return jax.value_and_grad(loss)(0.0)


def tangent_of_power(x=X):
    return jax.jvp(lambda x: x**0.5, (x,), (x + 1,))  # here


def in_scan(xs=XS):
    def turn(total, x):
        return total + jnp.log(x).sum(), None  # here

    return jax.lax.scan(turn, 0.0, xs)[0]


def in_weft_scan(xs=XS):
    def turn(total, x):
        return total + (1 / x).sum(), x  # here

    return weft.scan(turn)(0.0, xs)


def in_reversed_scan(xs=XS):
    def turn(total, x):
        return total + jnp.log(x).sum(), None  # here

    return jax.lax.scan(turn, 0.0, xs, reverse=True)[0]


def in_stacked_outputs(xs=XS):
    return jax.lax.map(lambda x: jnp.log(x), xs)  # here


def in_gradient_of_scan(xs=XS):
    def loss(w):
        def turn(total, x):
            return total + jnp.where(x > 0, jnp.log(w * x), 0.0).sum(), None  # here

        return jax.lax.scan(turn, 0.0, xs)[0]

    return jax.grad(loss)(1.0)


def in_while(x=1.0):
    def body(state):
        i, x = state
        return i + 1, x * 1e10  # here

    return jax.lax.while_loop(lambda state: state[0] < 7, body, (0, x))


def in_fori(x=3.0):
    return jax.lax.fori_loop(0, 5, lambda i, x: jnp.log(x), x)  # here


def in_vmap(xs=XS):
    return weft.vmap(lambda x: jnp.log(x).sum())(xs[4])  # here


def in_vmap_of_axis_1(x=None):
    x = jnp.ones((4, 4)).at[1, 3].set(0.0)
    return jax.vmap(lambda x: jnp.log(x), in_axes=1)(x)  # here


def in_nested_vmap(xs=XS):
    return weft.vmap(weft.vmap(lambda x: 1 / x))(xs)  # here


def in_remat(x=X):
    return jax.grad(jax.checkpoint(lambda x: jnp.log(jnp.sin(x)).sum()))(x)  # here


@jax.custom_vjp
def _doubled(x):
    return 2 * x


def _doubled_backward(x, g):
    return (g / x,)  # here


_doubled.defvjp(lambda x: (2 * x, x), _doubled_backward)


def in_custom_vjp(x=X):
    return jax.grad(lambda x: _doubled(x).sum())(x)


@jax.custom_jvp
def _tripled(x):
    return 3 * x


@_tripled.defjvp
def _tripled_jvp(primals, tangents):
    (x,), (t,) = primals, tangents
    return _tripled(x), t * (1 / x)  # here


def in_custom_jvp(x=X):
    return jax.grad(lambda x: _tripled(x).sum())(x)


def in_cond(x=X):
    return jax.lax.cond(x[0] > 0, lambda x: jnp.log(x), lambda x: x, x)  # here


def in_switch(x=X):
    return weft.switch(1, [lambda x: x, lambda x: 1 / x], x)  # here


def in_cond_of_examples(x=X):
    def example(x):
        return jax.lax.cond(x > 1, lambda x: x * 2, lambda x: 1 / x, x)  # here

    return weft.vmap(example)(x)


def in_gradient_of_cond_of_examples(x=X):
    def example(x):
        return jax.lax.cond(x > 1, lambda x: x * 2, lambda x: jnp.sqrt(x), x)  # here

    return jax.grad(lambda x: weft.vmap(example)(x).sum())(x)


def in_while_of_examples(x=X):
    def example(count):
        return jax.lax.while_loop(lambda s: s[0] < count, lambda s: (s[0] + 1, s[1] / (2 - s[0])), (0, 1.0))[1]  # here

    return weft.vmap(example)(jnp.array([1, 2, 4]))


def in_half_precision(x=X):
    half = x.astype(jnp.float16) * 100
    return jnp.exp(half).sum()  # here


def in_brain_float(x=X):
    return (x.astype(jnp.bfloat16) * 3e38 * x.astype(jnp.bfloat16)).sum()  # here


def in_update(x=X):
    g = jax.grad(lambda x: (x**2).sum())(x)
    return x - 0.1 * g / jnp.sqrt(g)  # here


FAULTS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "forward_log": (forward_log, ("log of 0 gives -inf", "in the forward pass", "1 of 4 are 0")),
    "forward_div": (forward_div, ("div of 1 by 0 gives inf",)),
    "forward_sqrt": (forward_sqrt, ("sqrt of -1 gives nan",)),
    "forward_overflow": (forward_overflow, ("exp of 100 gives inf", "overflow")),
    "forward_norm": (forward_norm, ("div of 0 by 0 gives nan",)),
    "forward_matmul": (forward_matmul, ("inf",)),
    "masked_row": (masked_row, ("nan", "masked as a whole")),
    "gradient_log": (gradient_log, ("derivative of log", "in the backward pass", "jnp.where selects after the fact")),
    "gradient_sqrt": (gradient_sqrt, ("derivative of sqrt",)),
    "gradient_norm": (gradient_norm, ("derivative of sqrt",)),
    "gradient_div": (gradient_div, ("derivative of div",)),
    "gradient_power": (
        gradient_power,
        ("pow of 0 and -0.5 gives inf", "derivative of pow", "which prepares the backward one"),
    ),
    "gradient_of_norm": (
        gradient_of_norm,
        ("div of 0.5 by 0", "derivative of sqrt", "which prepares the backward one"),
    ),
    "gradient_of_powers_in_scan": (
        gradient_of_powers_in_scan,
        ("derivative of pow", "which prepares the backward one", "scan(iteration 4 of 6)"),
    ),
    "value_of_power_in_gradient": (
        value_of_power_in_gradient,
        ("pow of -1 and 0.5 gives nan, first seen in the forward pass\n",),
    ),
    "value_of_power_in_gradient_of_scan": (
        value_of_power_in_gradient_of_scan,
        ("pow of 0 and -0.5 gives inf, first seen in the forward pass\n", "scan(iteration 4 of 6)"),
    ),
    "tangent_of_power": (tangent_of_power, ("pow of 0 and -0.5 gives inf", "in forward-mode differentiation")),
    "in_scan": (in_scan, ("scan(iteration 4 of 6)",)),
    "in_weft_scan": (in_weft_scan, ("scan(iteration 4 of 6)",)),
    "in_reversed_scan": (in_reversed_scan, ("scan(iteration 1 of 6)",)),
    "in_stacked_outputs": (in_stacked_outputs, ("scan(iteration 4 of 6)",)),
    "in_gradient_of_scan": (in_gradient_of_scan, ("scan(iteration 1 of 6)", "in the backward pass")),
    "in_while": (in_while, ("while_loop(iteration 3 of 7)", "overflow")),
    "in_fori": (in_fori, ("(iteration 3 of 5)",)),
    "in_vmap": (in_vmap, ("vmap(example 2 of 3)",)),
    "in_vmap_of_axis_1": (in_vmap_of_axis_1, ("vmap(example 3 of 4)",)),
    "in_nested_vmap": (in_nested_vmap, ("vmap(example 4 of 6) > vmap(example 2 of 3)",)),
    "in_remat": (in_remat, ("0",)),
    "in_custom_vjp": (in_custom_vjp, ("div of 1 by 0", "in the backward pass")),
    "in_custom_jvp": (in_custom_jvp, ("div of 1 by 0",)),
    "in_cond": (in_cond, ("cond(branch 1)",)),
    "in_switch": (in_switch, ("cond(branch 1)",)),
    "in_cond_of_examples": (in_cond_of_examples, ("vmap(example 2 of 4) > cond(branch 0)",)),
    "in_gradient_of_cond_of_examples": (
        in_gradient_of_cond_of_examples,
        ("derivative of sqrt", "vmap(example 2 of 4) > cond(branch 0)"),
    ),
    "in_while_of_examples": (
        in_while_of_examples,
        ("while_loop(iteration 2 of 4) > vmap(example 2 of 3)", "div of 0.5 by 0"),
    ),
    "in_half_precision": (in_half_precision, ("overflow", "float16", "65504")),
    "in_brain_float": (in_brain_float, ("overflow", "bfloat16")),
    "in_update": (in_update, ("outside of the gradient",)),
}


def _attention(x):
    scores = jnp.where(jnp.tril(jnp.ones((4, 4), bool)), x[:, None] * x, -jnp.inf)
    return jax.nn.softmax(scores) @ x


RIGHT: dict[str, Callable[[], Any]] = {
    "attention": lambda x=X: _attention(x),
    "gradient_of_attention": lambda x=X: jax.grad(lambda x: _attention(x).sum())(x),
    "guarded_division": lambda x=X: jnp.where(x == 0, 0.0, 1 / jnp.where(x == 0, 1.0, x)),
    "gradient_of_guarded_division": lambda x=X: jax.grad(
        lambda x: jnp.where(x == 0, 0.0, 1 / jnp.where(x == 0, 1.0, x)).sum()
    )(x),
    "selected_away": lambda x=X: jnp.where(x > 0, jnp.log(x), 0.0),
    "running_maximum": lambda x=X: jax.lax.fori_loop(0, 4, lambda i, m: jnp.maximum(m, x[i]), -jnp.inf),
    "online_softmax": lambda x=X: jax.lax.scan(
        lambda c, v: ((m := jnp.maximum(c[0], v), c[1] * jnp.exp(c[0] - m) + jnp.exp(v - m)), None), (-jnp.inf, 0.0), x
    )[0],
    "logsumexp_of_masked": lambda x=X: jax.nn.logsumexp(x, where=x > 0),
    "nanmean": lambda x=X: jnp.nanmean(jnp.where(x > 0, x, jnp.nan)),
    "expected": lambda x=X: weft.debug.expected(jnp.where(x > 0, x, -jnp.inf)),
    "expected_in_scan": lambda xs=XS: jax.lax.map(lambda x: weft.debug.expected(jnp.log(x)), xs),
    "expected_in_vmap": lambda xs=XS: weft.vmap(lambda x: weft.debug.expected(jnp.log(x)))(xs[4]),
    "reciprocal_of_inf": lambda x=X: 1 / (1 / x),
    "tanh_of_inf": lambda x=X: jnp.tanh(1 / x),
    "sigmoid_of_inf": lambda x=X: jax.nn.sigmoid(jnp.log(x)),
    "exp_of_log": lambda x=X: jnp.exp(jnp.log(x)),
    "top_k": lambda x=X: jnp.exp(jnp.where(x >= jax.lax.top_k(x, 2)[0][-1], x, -jnp.inf)),
    "categorical": lambda x=X: jax.random.categorical(jax.random.key(0), jnp.where(x > 0, x, -jnp.inf)),
    "clip": lambda x=X: jnp.clip(1 / x, 0.0, 10.0),
    "count": lambda x=X: jnp.isfinite(1 / x).sum(),
    "nan_to_num": lambda x=X: jnp.nan_to_num(x / x),
    "branch_not_taken": lambda x=X: jax.lax.cond(x[0] < 0, jnp.log, lambda x: x, x),
    "xlogy": lambda x=X: jax.scipy.special.xlogy(x, x),
    "maximum": lambda x=X: jnp.max(x, initial=-jnp.inf, where=x > 0),
    "half_softmax": lambda x=X: jax.nn.softmax(x.astype(jnp.float16) * 1000),
    "safe_norm": lambda x=X: jax.grad(
        lambda x: jnp.where((s := (x * x).sum()) == 0, 0.0, jnp.sqrt(jnp.where(s == 0, 1.0, s)))
    )(x * 0),
    "adam": lambda x=X: optax.adam(0.1).update(x, optax.adam(0.1).init(x))[0],
    "argmax": lambda x=X: jnp.argmax(jnp.log(x)),
    "remat": lambda x=X: jax.grad(jax.checkpoint(lambda x: _attention(x).sum()))(x),
    "while_of_examples": lambda x=X: weft.vmap(
        lambda x: jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] / s[0]), (x, x))
    )(x + 1),
    "cond_of_examples": lambda x=X: weft.vmap(lambda x: jax.lax.cond(x > 0, jnp.log, lambda x: x, x))(x),
    "integers": lambda x=X: x.astype(jnp.int32) // 2,
}
