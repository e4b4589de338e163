"""Calls that are recognised: what may differ between two calls is in the key of the plan."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft import nnx
from weft.core.errors import AliasError, AxisError, DifferentiationError


class Net(weft.Module):
    weight: jax.Array
    rate: float = 0.5


def loss(net: Any, x: Any) -> Any:
    return (net.weight * net.rate * x).sum()


X = jnp.ones(2)


def test_configuration_statics_and_dtypes_tell_calls_apart():
    grad = weft.grad(loss)
    for rate in (0.5, 0.5, 2.0, 2):
        np.testing.assert_allclose(grad(Net(X, rate), X).weight, rate * np.ones(2))
    power = weft.grad(lambda x, name, n: (x**2).sum() if name == "square" else (x * n).sum())
    for name, n, expected in (("square", 1, 2.0), ("square", 1, 2.0), ("scale", 3, 3.0), ("scale", 3.0, 3.0)):
        assert power(X, name, n).tolist() == [expected] * 2
    for _ in range(2):
        grad(Net(X), X)
        with pytest.raises(DifferentiationError, match="nothing to differentiate"):
            grad(Net(jnp.arange(2)), X)


def test_aliases_and_sizes_are_refused_after_calls_that_fit():
    two, double = weft.grad(lambda pair, x: loss(pair[0], x) + loss(pair[1], x)), weft.vmap(lambda x, y: x + y)
    for _ in range(2):
        two((Net(X), Net(X + 1)), X)
        with pytest.raises(AliasError, match="two places"):
            two((Net(X), Net(X)), X)
        double(jnp.ones(3), jnp.ones(3))
        with pytest.raises(AxisError, match="inconsistent sizes"):
            double(jnp.ones(3), jnp.ones(4))


def test_a_filter_that_reads_values_is_asked_at_each_call():
    small = weft.grad(lambda pair: pair[0].sum() + pair[1].sum(), wrt=lambda path, kind, value: bool(value[0] < 2))
    for first, second in ((1.0, 3.0), (1.0, 3.0), (3.0, 1.0)):
        gradient = small((jnp.full(2, first), jnp.full(2, second)))
        assert [leaf is None for leaf in gradient] == [first > 2, second > 2]


def test_objects_whose_structure_or_metadata_changed_are_described_again():
    model = nnx.Dict(w=nnx.Param(X))
    grad = nnx.grad(
        lambda model: sum((v[...] ** 2).sum() for v in jax.tree.leaves(nnx.state(model), is_leaf=is_variable))
    )
    assert list(grad(model)) == list(grad(model)) == ["w"]
    model.b = nnx.Param(X)
    assert sorted(grad(model)) == ["b", "w"]
    model.w = nnx.BatchStat(X)
    assert list(grad(model)) == list(grad(model)) == ["b"]


def is_variable(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


def test_the_places_of_objects_among_arrays_are_told_apart():
    model, x = nnx.Dict(w=nnx.Param(X)), 3 * X
    apply = nnx.vmap(lambda a, b: _value(a) - _value(b), in_axes=(None, None), axis_size=1)
    for _ in range(2):
        assert apply(model, x).tolist() == [[-2.0, -2.0]]
        assert apply(x, model).tolist() == [[2.0, 2.0]]


def _value(node: Any) -> Any:
    return node.w[...] if isinstance(node, nnx.Dict) else node


def test_a_function_over_objects_reads_what_it_closes_over_at_each_call():
    closed = nnx.Dict(w=nnx.Param(X))
    for scale in (1.0, 2.0, 3.0):
        closed.w[...] = scale * X
        out, pull = nnx.vjp(lambda x: (closed.w[...] * x).sum(), X)
        assert (out.item(), pull(jnp.ones(()))[0].tolist()) == (2 * scale, [scale] * 2)
