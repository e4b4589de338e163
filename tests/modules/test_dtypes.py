"""The dtype in which layers compute: under a policy and after `tree.cast`, that of every product and every result."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
import weft
from weft.modules import ops

from tests.modules.calls import CALLS, KEY, NO_LAYERS, SEQUENCE

LOW = jnp.bfloat16
POLICY = weft.Policy(compute=LOW)
PRODUCTS = ("dot_general", "conv_general_dilated")

# What is in another dtype, and why.
WIDE_PRODUCTS = {
    "SpectralNorm": (4, "the power iteration and the singular value are statistics"),
}
WIDE_RESULTS = {"ALiBi": "a bias by positions, which attention casts to its logits"}


def products(jaxpr: Any) -> Iterator[tuple[str, ...]]:
    """The dtypes of the operands of each product in a jaxpr. A result may be wider: a sum that is not rounded."""
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in PRODUCTS:
            yield tuple(str(atom.aval.dtype) for atom in eqn.invars[:2])
        for part in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(part, "eqns"):
                yield from products(getattr(part, "jaxpr", part))


def wide_products(function: Any, *args: Any) -> list[tuple[str, ...]]:
    return [pair for pair in products(jax.make_jaxpr(function)(*args).jaxpr) if {*pair} != {"bfloat16"}]


def float_dtypes(tree: Any) -> set[str]:
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(tree)}
    return {str(dtype) for dtype in dtypes if jnp.issubdtype(dtype, jnp.inexact)}


def test_every_layer_is_in_the_table():
    exported = {name: getattr(weft, name) for name in weft.modules.__all__}
    layers = {name for name, value in exported.items() if inspect.isclass(value) and issubclass(value, eqx.Module)}
    assert layers - NO_LAYERS == CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
def test_a_layer_computes_in_the_dtype_of_a_policy_or_of_its_parameters(name: str):
    row = CALLS[name]
    results: list[Any] = []

    def seen(layer: Any, *args: Any) -> Any:
        results.append(row(layer, *args))
        return results[-1]

    args = weft.tree.cast(row.args, LOW, ...)
    expected = WIDE_PRODUCTS.get(name, (0, ""))[0]
    assert len(wide_products(POLICY(seen), row.layer, *row.args)) == expected
    # The model may be in the closure of the function, too.
    assert len(wide_products(POLICY(lambda *args: seen(row.layer, *args)), *row.args)) == expected
    assert len(wide_products(seen, weft.tree.cast(row.layer, LOW), *args)) == expected
    wanted = {"float32"} if name in WIDE_RESULTS else {"bfloat16"}
    assert [float_dtypes(y) for y in results] == [wanted] * 3


@pytest.mark.parametrize("name", ["BatchNorm", "Embed", "GroupNorm", "MLP", "QuantizedLinear", "RNN", "Stack"])
def test_arrays_made_within_a_policy_do_not_widen_what_follows(name: str):
    row = CALLS[name]

    def computed() -> Any:
        y = row(row.layer, *(arg + jnp.zeros(arg.shape, arg.dtype) for arg in row.args))
        assert float_dtypes(y) == {"bfloat16"}
        return y

    assert wide_products(POLICY(computed)) == []
    assert float_dtypes(row(row.layer, *row.args)) == {"float32"}


def test_a_dtype_of_the_layer_wins_and_the_innermost_policy():
    head = weft.Linear(4, 3, dtype=jnp.float32, key=KEY)
    inner = weft.Policy(compute=jnp.float16, output=jnp.float16)
    seen = POLICY(lambda x: [head(x).dtype.name, inner(lambda x: CALLS["MLP"].layer(x))(x).dtype.name, x])
    assert seen(SEQUENCE)[:2] == ["float32", "float16"]


def test_a_compiled_function_is_traced_for_each_policy():
    compiled = weft.jit(lambda ids: CALLS["Embed"].layer(ids))
    ids = CALLS["Embed"].args[0]
    assert compiled(ids).dtype == jnp.float32
    policy = weft.Policy(compute=LOW, output=LOW)
    assert policy(compiled)(ids).dtype == LOW
    assert compiled(ids).dtype == jnp.float32


def test_a_forwarded_array_is_not_forwarded_where_a_policy_casts_it():
    promoted = weft.jit(lambda x: ops.promote(x)[0])
    x = jnp.ones(3)
    for _ in range(3):
        assert promoted(x).dtype == jnp.float32
        POLICY(lambda: pytest.fail("not cast") if promoted(x).dtype != LOW else None)()


def test_statistics_are_wide_inside_of_a_layer():
    x = 100 + jax.random.normal(KEY, (64, 4))
    layer = weft.BatchNorm(4).replace(mean=jnp.full(4, 100.3), var=jnp.ones(4))
    low, wide = layer(x.astype(LOW), inference=True)[0], layer(x.astype(LOW).astype(jnp.float32), inference=True)[0]
    y, _ = weft.tree.cast(layer, LOW)(x.astype(LOW), inference=True)
    assert (low.dtype, y.dtype) == (jnp.float32, LOW)
    assert abs(y.astype(jnp.float32) - wide).max() < 0.05
