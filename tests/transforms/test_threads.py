"""Threads: many at once trace and call the same and different functions, and never see each other's state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft import BatchStat, Carry, axes
from weft.core.frames import format_frames

THREADS = 8


class Net(weft.Module):
    weight: jax.Array
    mean: Annotated[jax.Array, BatchStat]
    activation: Callable[[jax.Array], jax.Array] = jnp.tanh
    name: str = "net"

    def __call__(self, x: Any) -> Any:
        y = self.activation(x * self.weight)
        return y, self.replace(mean=self.mean + y)


def at_once(run: Callable[[int], Any]) -> list[Any]:
    """Runs a function in eight threads, started together."""
    barrier = threading.Barrier(THREADS)

    def start(i: int) -> Any:
        barrier.wait()
        return run(i)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start, range(THREADS)))


def net_of(i: int) -> Net:
    return Net(jnp.float32(i + 1), jnp.float32(0))


def wanted(i: int, x: float, steps: int = 1) -> tuple[Any, Any]:
    y = np.tanh(np.float32(x) * (i + 1))
    return y, steps * y


FUNCTIONS: list[Callable[[Net, Any], Any]] = [
    lambda net, x: weft.jit(lambda net, x: net(x))(net, x),
    lambda net, x: weft.scan(lambda net, x: net(x)[::-1])(net, x[None])[::-1],
    lambda net, x: weft.cond(x > 0, lambda net: net(x), lambda net: (x, net), net),
    lambda net, x: weft.remat(lambda net, x: net(x))(net, x),
    lambda net, x: weft.vmap(
        lambda net, x: net(x),
        in_axes=(None, None),
        out_axes=(None, axes({BatchStat: None, ...: None})),
        axis_size=2,
    )(net, x),
    lambda net, x: weft.value_and_grad(lambda net, x: net(x), has_aux=True)(net, x)[0],
    lambda net, x: weft.fori_loop(0, 1, lambda i, c: c[1](x), (x, net)),
    lambda net, x: weft.switch(1, [lambda net: (x, net), lambda net: net(x)], net),
]


def test_eight_threads_trace_and_call_different_functions():
    def run(i: int) -> Any:
        compiled = weft.jit(FUNCTIONS[i])
        return [compiled(net_of(i), jnp.float32(0.5)) for _ in range(4)]

    for i, results in enumerate(at_once(run)):
        for y, net in results:
            np.testing.assert_allclose(y, wanted(i, 0.5)[0], rtol=1e-5)
            np.testing.assert_allclose(net.mean, wanted(i, 0.5)[1], rtol=1e-5)
            assert (net.name, net.activation) == ("net", jnp.tanh)


def test_eight_threads_call_one_function_at_once():
    step = weft.jit(lambda net, x: net(x))

    def run(i: int) -> Any:
        net = net_of(i)
        for _ in range(20):
            y, net = step(net, 0.5)
        return y, net

    for i, (y, net) in enumerate(at_once(run)):
        np.testing.assert_allclose(y, wanted(i, 0.5)[0], rtol=1e-5)
        np.testing.assert_allclose(net.mean, wanted(i, 0.5, 20)[1], rtol=1e-4)


@pytest.mark.filterwarnings("ignore::weft.errors.RetraceWarning")
def test_eight_threads_call_one_function_with_different_structures():
    step = weft.jit(lambda tree: {**tree, "sum": sum(tree["xs"])})

    def run(i: int) -> Any:
        return [step({"xs": [jnp.float32(j) for j in range(1 + (i + n) % 8)], "name": str(i)}) for n in range(20)]

    for i, results in enumerate(at_once(run)):
        for n, result in enumerate(results):
            size = 1 + (i + n) % 8
            assert result["name"] == str(i)
            assert len(result["xs"]) == size
            assert float(result["sum"]) == size * (size - 1) / 2


def test_eager_loops_of_one_body_in_eight_threads():
    def body(i: Any, c: Any) -> Any:
        return c + i

    def run(i: int) -> Any:
        return [float(weft.fori_loop(0, n, body, float(i))) for n in range(4)]

    assert at_once(run) == [[i + n * (n - 1) / 2 for n in range(4)] for i in range(THREADS)]


def test_frames_of_one_thread_are_not_seen_by_another():
    def run(i: int) -> Any:
        seen: list[str] = []

        def f(x: Any) -> Any:
            seen.append(format_frames())
            return x

        weft.jit(weft.vmap(f, axis_name=f"axis{i}"))(jnp.ones(2))
        return seen, format_frames()

    for i, (seen, after) in enumerate(at_once(run)):
        assert set(seen) == {f"jit > vmap(axis_name='axis{i}', size=2)"}
        assert after == ""


def test_custom_derivatives_in_eight_threads():
    f = weft.custom_vjp(lambda t: t["x"] ** 2)
    f.defvjp(
        lambda t: (t["x"] ** 2, {"x": t["x"], "by": t["by"]}), lambda r, ct: ({"x": ct * r["x"] * r["by"], "by": None},)
    )

    def run(i: int) -> Any:
        return [float(weft.jit(weft.grad(f))({"x": jnp.float32(2), "by": i})["x"]) for _ in range(3)]

    assert at_once(run) == [[2.0 * i] * 3 for i in range(THREADS)]


def test_scans_with_carries_of_their_own():
    scanned = weft.scan(lambda net, x: net(x)[::-1], in_axes=(Carry, 0))

    def run(i: int) -> Any:
        return scanned(net_of(i), jnp.full(3 + i % 3, 0.5))[0].mean

    for i, mean in enumerate(at_once(run)):
        np.testing.assert_allclose(mean, wanted(i, 0.5, 3 + i % 3)[1], rtol=1e-5)
