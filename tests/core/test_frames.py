"""The stack of trace frames, whose code a file holds, and room for deep calls: what is called there behaves as
elsewhere, and its frames lie in one piece.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import json
import os
import platform
import sys
import threading
from collections.abc import Callable

import equinox
import jax
import jax.numpy as jnp
import optax
import pytest
import weft
from weft import nnx
from weft.core.frames import (
    Frame,
    call_with_room,
    calling_line,
    current_frames,
    format_frames,
    is_users,
    open_frame,
    owner_of,
)
from weft.typecheck import verify


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


def file_of(function: Callable[..., object]) -> str:
    return function.__code__.co_filename


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        (file_of(weft.tree.split), "machinery"),
        (file_of(verify), "contracts"),
        (file_of(nnx.split), "nnx"),
        (str(weft.modules.__file__), "modules"),
        (jnp.__file__, "jax"),
        (equinox.__file__, "equinox"),
        (optax.__file__, "installed"),
        (os.__file__, "standard"),
        (json.__file__, "standard"),
        ("<frozen runpy>", "frozen"),
        ("<string>", "generated"),
        ("<stdin>", "generated"),
        (__file__, "user"),
        ("/project/jax/train.py", "user"),
        # Of another environment than the one that runs.
        ("/project/.venv/lib/python3.12/site-packages/jax/numpy.py", "installed"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "installed"),
    ],
)
def test_every_file_has_one_owner(file: str, owner: str):
    assert owner_of(file) == owner


def test_an_error_is_told_by_whoever_is_outside_of_weft_and_what_it_stands_on():
    assert is_users(test_every_file_has_one_owner)
    assert is_users(optax.adam)
    assert not is_users(weft.tree.split)
    assert not is_users(jax.make_jaxpr)
    assert not is_users(equinox.partition)


def test_the_calling_line_is_the_users():
    assert calling_line().rpartition(":")[0] == __file__


def places(depth: int) -> list[int]:
    """Where the frames of `depth` nested calls lie in memory."""
    # The second field of a frame object, after its header: where the interpreter keeps the frame itself.
    address = ctypes.c_void_p.from_address(id(sys._getframe()) + object.__basicsize__ + 8).value
    assert address is not None
    return [address, *(places(depth - 1) if depth else ())]


def steps(addresses: list[int]) -> set[int]:
    return {after - before for before, after in itertools.pairwise(addresses)}


@pytest.mark.skipif(platform.python_implementation() != "CPython", reason="about the memory of CPython's frames")
def test_the_frames_below_lie_one_after_another():
    assert len(steps(places(400))) > 1, "400 calls do not fit into an ordinary chunk"
    assert len(steps(call_with_room(places, 400))) == 1


def test_results_arguments_and_errors_pass():
    assert call_with_room(lambda *args, **kwargs: (args, kwargs), 1, function=2) == ((1,), {"function": 2})
    with pytest.raises(ZeroDivisionError):
        call_with_room(lambda: 1 // 0)


def test_it_nests_and_runs_in_threads():
    def nested(depth: int) -> int:
        return depth if depth == 0 else 1 + call_with_room(nested, depth - 1)

    depths: list[int] = []
    threads = [threading.Thread(target=lambda: depths.append(call_with_room(nested, 50))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert depths == [50] * 4


def test_endless_recursion_is_still_python_s_error():
    def endless() -> int:
        return call_with_room(endless)

    with pytest.raises(RecursionError):
        endless()
