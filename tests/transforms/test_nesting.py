"""Transforms nest in any order, weft's in weft's and with JAX's own both ways round, with state threaded through.

Each transform is written twice as a wrapper of one type of function, `(net, x) -> (y, successor)`: over records with
weft, and over a tuple of arrays with plain JAX. Any composition must agree with the plain one, and leak no tracer.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jax import lax
from weft import BatchStat, Carry, Param, axes

NAMES = ("jit", "grad", "vmap", "scan", "cond", "remat")
PAIRS = list(itertools.product(NAMES, NAMES))
X = jnp.array([0.5, -1.0, 2.0])


class Net(weft.Module):
    """Two arrays of two kinds, and static leaves of every sort."""

    weight: jax.Array
    mean: Annotated[jax.Array, BatchStat]
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh
    name: str = "net"
    dtype: Any = jnp.dtype("float32")
    rate: float = 0.5
    axis: int = weft.static(default=-1)


def make_net() -> Net:
    return Net(jnp.array([1.0, 2.0, 3.0]), jnp.array([0.1, 0.2, 0.3]))


def base(net: Net, x: Any) -> Any:
    assert net.name == "net"
    y = net.activation(x.astype(net.dtype) * net.weight) - net.mean
    return y, net.replace(mean=net.mean + net.rate * y)


def plain_base(arrays: Any, x: Any) -> Any:
    weight, mean = arrays
    y = jnp.tanh(x * weight) - mean
    return y, (weight, mean + 0.5 * y)


def weft_grad(f: Any) -> Any:
    def loss(net: Any, x: Any) -> Any:
        y, net = f(net, x)
        return jnp.sum(y**2), net

    def wrapped(net: Any, x: Any) -> Any:
        gradient, successor = weft.grad(loss, has_aux=True)(net, x)
        assert gradient.mean is None
        return gradient.weight, successor

    return wrapped


def plain_grad(f: Any) -> Any:
    def loss(weight: Any, mean: Any, x: Any) -> Any:
        y, arrays = f((weight, mean), x)
        return jnp.sum(y**2), arrays

    return lambda arrays, x: jax.grad(loss, has_aux=True)(*arrays, x)


def weft_vmap(f: Any) -> Any:
    by_kind = axes({Param: None, BatchStat: 0})

    def wrapped(net: Any, x: Any) -> Any:
        stacked = net.replace(mean=jnp.stack([net.mean, 2 * net.mean]))
        mapped = weft.vmap(f, in_axes=(by_kind, 0), out_axes=(0, by_kind))
        ys, net = mapped(stacked, jnp.stack([x, 2 * x]))
        return ys.sum(0), net.replace(mean=net.mean.mean(0))

    return wrapped


def plain_vmap(f: Any) -> Any:
    def wrapped(arrays: Any, x: Any) -> Any:
        weight, mean = arrays
        mapped = jax.vmap(f, in_axes=((None, 0), 0), out_axes=(0, (None, 0)))
        ys, (weight, mean) = mapped((weight, jnp.stack([mean, 2 * mean])), jnp.stack([x, 2 * x]))
        return ys.sum(0), (weight, mean.mean(0))

    return wrapped


def weft_scan(f: Any) -> Any:
    def wrapped(net: Any, x: Any) -> Any:
        scanned = weft.scan(f, in_axes=(Carry, 1), out_axes=(-1, Carry), reverse=True)
        ys, net = scanned(net, jnp.stack([x, 2 * x], 1))
        return ys.sum(1), net

    return wrapped


def plain_scan(f: Any) -> Any:
    def wrapped(arrays: Any, x: Any) -> Any:
        arrays, ys = lax.scan(lambda c, x: f(c, x)[::-1], arrays, jnp.stack([x, 2 * x]), reverse=True)
        return ys.sum(0), arrays

    return wrapped


def cond_over(cond: Any) -> Any:
    return lambda f: lambda net, x: cond(x.sum() > 0, f, lambda net, x: (x, net), net, x)


WEFT: dict[str, Callable[[Any], Any]] = {
    "jit": weft.jit,
    "grad": weft_grad,
    "vmap": weft_vmap,
    "scan": weft_scan,
    "cond": cond_over(weft.cond),
    "remat": weft.remat,
}
PLAIN: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit,
    "grad": plain_grad,
    "vmap": plain_vmap,
    "scan": plain_scan,
    "cond": cond_over(lax.cond),
    "remat": jax.checkpoint,
}


def over_arrays(f: Any) -> Any:
    """A function of a record as one of its arrays."""

    def wrapped(arrays: Any, x: Any) -> Any:
        weight, mean = arrays
        y, net = f(make_net().replace(weight=weight, mean=mean), x)
        return y, (net.weight, net.mean)

    return wrapped


def over_record(f: Any) -> Any:
    """The inverse."""

    def wrapped(net: Any, x: Any) -> Any:
        y, (weight, mean) = f((net.weight, net.mean), x)
        return y, net.replace(weight=weight, mean=mean)

    return wrapped


@functools.cache
def expected(names: tuple[str, ...]) -> Any:
    f: Any = plain_base
    for name in reversed(names):
        f = PLAIN[name](f)
    net = make_net()
    return f((net.weight, net.mean), X)


def assert_agrees(actual: Any, names: tuple[str, ...]) -> None:
    y, (weight, mean) = expected(names)
    np.testing.assert_allclose(actual[0], y, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(actual[1].weight, weight, rtol=1e-6)
    np.testing.assert_allclose(actual[1].mean, mean, rtol=1e-4, atol=1e-5)
    assert (actual[1].activation, actual[1].name, actual[1].rate) == (jnp.tanh, "net", 0.5)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_weft_in_weft(outer: str, inner: str):
    f = WEFT[outer](WEFT[inner](base))
    assert_agrees(f(make_net(), X), (outer, inner))


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_weft_in_jax(outer: str, inner: str):
    f = over_record(PLAIN[outer](over_arrays(WEFT[inner](base))))
    assert_agrees(f(make_net(), X), (outer, inner))


@pytest.mark.parametrize(("outer", "inner"), PAIRS)
def test_jax_in_weft(outer: str, inner: str):
    f = WEFT[outer](over_record(PLAIN[inner](over_arrays(base))))
    assert_agrees(f(make_net(), X), (outer, inner))


@pytest.mark.parametrize("outer", NAMES)
def test_no_tracer_leaks_from_any_pair(outer: str, checking_leaks: Any):
    # Traced alone: with leaks checked nothing is cached, and every operation would be compiled anew.
    net = make_net()
    with checking_leaks():
        for inner in NAMES:
            jax.eval_shape(over_arrays(WEFT[outer](WEFT[inner](base))), (net.weight, net.mean), X)


def test_a_leak_is_seen(checking_leaks: Any):
    leaked: list[Any] = []
    with pytest.raises(Exception, match="Leaked"), checking_leaks():
        weft.jit(lambda x: leaked.append(x + 1) or x)(X)


TRIPLES = [
    ("jit", "grad", "scan"),
    ("jit", "vmap", "grad"),
    ("vmap", "grad", "cond"),
    ("grad", "scan", "remat"),
    ("scan", "vmap", "cond"),
    ("cond", "jit", "vmap"),
    ("grad", "grad", "vmap"),
    ("remat", "cond", "scan"),
    ("jit", "scan", "grad", "vmap"),
]


@pytest.mark.parametrize("names", TRIPLES, ids="-".join)
def test_deeper_nests(names: tuple[str, ...]):
    f: Any = base
    for name in reversed(names):
        f = WEFT[name](f)
    assert_agrees(f(make_net(), X), names)
