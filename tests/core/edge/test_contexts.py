"""What a trace reads beside its arguments is part of what the trace is kept under."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
import weft
from jaxtyping import Array, Float
from weft import ContractError
from weft.core.edge.contexts import Ambient
from weft.typecheck import current_mode, mode, set_mode


def first(x: Float[Array, "n"], y: Float[Array, "n"]) -> Float[Array, ""]:
    return x[0] + y[0]


class First(weft.Module):
    x: Float[Array, "n"]

    def __call__(self, y: Float[Array, "n"]) -> Float[Array, ""]:
        return self.x[0] + y[0]


X, Y = jnp.ones(2), jnp.ones(3)
WAYS: dict[str, Callable[[], Callable[[], Any]]] = {
    "weft.jit": lambda: _calls(weft.jit(first)),
    "jit of grad": lambda: _calls(weft.jit(weft.grad(first))),
    "jit over a method": lambda: _calls(weft.jit(lambda x, y: First(x)(y))),
    "plain jit": lambda: _calls(jax.jit(lambda x, y: First(x)(y))),
    "filter_jit": lambda: _calls(eqx.filter_jit(lambda x, y: First(x)(y))),
    "cond": lambda: _calls(lambda x, y: weft.cond(True, first, first, x, y)),
    "scan": lambda: _calls(lambda x, y: weft.scan(lambda c, y: (c, First(x)(y)))(0.0, jnp.stack([y, y]))),
}


def _calls(function: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: function(X, Y)


@pytest.mark.parametrize("way", WAYS)
def test_what_was_traced_without_contracts_is_traced_again_with_them(way: str) -> None:
    call = WAYS[way]()
    with mode("off"):
        for _ in range(4):
            call()
    with pytest.raises(ContractError):
        call()
    with mode("off"):
        call()


def test_the_mode_of_the_process_is_told_apart_too() -> None:
    call, before = WAYS["weft.jit"](), current_mode()
    try:
        set_mode("off")
        call()
        set_mode("on")
        with pytest.raises(ContractError):
            call()
    finally:
        set_mode(before)


def test_a_mode_that_is_the_same_makes_no_new_trace() -> None:
    traces: list[int] = []

    @weft.jit
    def double(x: Float[Array, "n"]) -> Float[Array, "n"]:
        traces.append(1)
        return 2 * x

    double(X)
    with mode(current_mode()):
        double(X)
    assert len(traces) == 1


def test_each_thread_and_task_has_its_own_value() -> None:
    setting, seen = Ambient("setting", 0), list[int]()

    async def look(value: int) -> int:
        with setting.scope(value):
            await asyncio.sleep(0)
            return setting.value

    async def both() -> list[int]:
        return await asyncio.gather(look(1), look(2))

    with setting.scope(5):
        thread = threading.Thread(target=lambda: seen.append(setting.value))
        thread.start()
        thread.join()
    assert asyncio.run(both()) == [1, 2]
    assert seen == [0]
    assert setting.value == 0
