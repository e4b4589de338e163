"""The stack of trace frames."""

from __future__ import annotations

import asyncio
import threading

import jax.numpy as jnp
import pytest
import weft
from weft.core.frames import Frame, current_frames, format_frames, open_frame


def test_frames_open_and_close_also_when_something_fails():
    def fail() -> None:
        with open_frame("jit"), open_frame("vmap", axis_name="batch", size=None):
            assert format_frames() == "jit > vmap(axis_name='batch')"
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert current_frames() == ()


def test_a_frame_is_data():
    with open_frame("scan", length=3) as frame:
        assert frame == Frame("scan", (("length", 3),))
        assert current_frames() == (frame,)
    assert format_frames((frame, Frame("jit"))) == "scan(length=3) > jit"


def test_threads_and_tasks_do_not_see_each_others_frames():
    seen: list[str] = []
    with open_frame("jit"):
        thread = threading.Thread(target=lambda: seen.append(format_frames()))
        thread.start()
        thread.join()

    async def task(name: str) -> None:
        with open_frame(name):
            await asyncio.sleep(0)
            seen.append(format_frames())

    async def both() -> None:
        await asyncio.gather(task("a"), task("b"))

    asyncio.run(both())
    assert seen == ["", "a", "b"]


FRAMES = {
    "jit": (lambda f: weft.jit(f)(jnp.ones(2)), "jit"),
    "vmap": (lambda f: weft.vmap(f, axis_name="i")(jnp.ones(2)), "vmap(axis_name='i', size=2)"),
    "grad": (lambda f: weft.grad(lambda x: f(x).sum())(jnp.ones(2)), "grad"),
    "value_and_grad": (lambda f: weft.value_and_grad(lambda x: f(x).sum())(jnp.ones(2)), "value_and_grad"),
    "vjp": (lambda f: weft.vjp(f, 1.0), "vjp"),
    "jvp": (lambda f: weft.jvp(f, (1.0,), (1.0,)), "jvp"),
    "linearize": (lambda f: weft.linearize(f, 1.0), "linearize"),
    "jacfwd": (lambda f: weft.jacfwd(f)(1.0), "jacfwd"),
    "jacrev": (lambda f: weft.jacrev(f)(1.0), "jacrev"),
    "scan": (lambda f: weft.scan(lambda c, x: (c, f(x)))(0.0, jnp.ones(3)), "scan(length=3)"),
    "lax_map": (lambda f: weft.lax_map(f, jnp.ones(3)), "lax_map(length=3)"),
    "while_loop": (lambda f: weft.while_loop(lambda c: False, f, 0.0), "while_loop"),
    "fori_loop": (lambda f: weft.fori_loop(0, 2, lambda i, c: f(c), 0.0), "fori_loop(length=2)"),
    "associative_scan": (
        lambda f: weft.associative_scan(lambda a, b: f(a + b), jnp.ones(3)),
        "associative_scan(length=3)",
    ),
    "cond": (lambda f: weft.cond(True, f, f, 1.0), "cond"),
    "switch": (lambda f: weft.switch(0, [f], 1.0), "switch"),
    "remat": (lambda f: weft.remat(f)(1.0), "remat"),
    "eval_shape": (lambda f: weft.eval_shape(f, 1.0), "eval_shape"),
    "make_jaxpr": (lambda f: weft.make_jaxpr(f)(1.0), "make_jaxpr"),
    "checkify": (lambda f: weft.checkify(f)(1.0), "checkify"),
}


@pytest.mark.parametrize("name", FRAMES)
def test_every_transform_opens_its_frame(name: str):
    run, text = FRAMES[name]
    seen: list[str] = []

    def f(x):
        seen.append(format_frames())
        return x

    run(f)
    assert set(seen) == {text}
    assert current_frames() == ()
