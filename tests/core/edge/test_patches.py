"""A function that is replaced for a while is replaced for the code that asks for it, and is itself again afterwards."""

from __future__ import annotations

import contextlib
import contextvars
import itertools
import math
import pickle
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jax.extend.core import primitives
from jaxtyping import Array, Float
from weft import nnx
from weft.core.edge import _tracers
from weft.core.edge.executables import compiling_anew
from weft.core.edge.patches import patched
from weft.core.sowing.hoisting import tracing_tags
from weft.typecheck.sizes.dim import known_to_python

SECONDS = 60  # a barrier that is not reached by then never will be


class Base:
    def size(self) -> int:
        return 1

    @staticmethod
    def unit() -> str:
        return "m"

    @property
    def area(self) -> int:
        return self.size() ** 2


class Derived(Base):
    pass


def more(function: Callable[..., int], *args: Any) -> int:
    return function(*args) + 10


@pytest.fixture
def module() -> ModuleType:
    new = ModuleType("patched_module")
    vars(new)["size"] = Base().size
    return new


def test_a_function_of_a_module_a_class_and_an_object_is_replaced_and_comes_back(module: ModuleType):
    instance = Derived()
    before = vars(module)["size"], vars(Base)["size"]
    with patched((module, "size", more), (Base, "size", more)):
        assert (module.size(), Base().size(), Derived().size()) == (11, 11, 11)
        assert module.size.__module__ == __name__
        with patched((instance, "size", more)):
            assert (instance.size(), Derived().size()) == (21, 11)
    assert (vars(module)["size"], vars(Base)["size"], vars(instance)) == (*before, {})


def test_an_inherited_method_is_inherited_again():
    with patched((Derived, "size", more)):
        assert (Derived().size(), Base().size()) == (11, 1)
    assert "size" not in vars(Derived)


def test_a_block_within_a_block_gets_the_replacement_around_it(module: ModuleType):
    with patched((module, "size", lambda size: size() * 2)), patched((module, "size", more)):
        assert module.size() == 12
    with patched((module, "size", more)), patched((module, "size", lambda size: size() * 2)):
        assert module.size() == 22
    assert module.size() == 1


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (math, "pi", TypeError),
        (math, "no_such", AttributeError),
        (int, "__add__", TypeError),
        (Base, "unit", TypeError),
        (Base, "area", TypeError),
    ],
)
def test_where_one_name_is_refused_nothing_is_replaced(owner: Any, name: str, error: type[Exception]):
    before = math.sqrt, getattr(owner, name, None)
    with pytest.raises(error), patched((math, "sqrt", more), (owner, name, more)):
        pass
    assert (math.sqrt, getattr(owner, name, None)) == before


def test_code_that_keeps_the_dispatcher_has_the_function(module: ModuleType):
    with patched((math, "sqrt", more)):
        sqrt = math.sqrt
        assert sqrt(4) == 12
        assert pickle.loads(pickle.dumps(sqrt)) is sqrt  # by its name, as the function itself
    assert sqrt(4) == 2
    with patched((math, "sqrt", more)):
        assert (sqrt(4), math.sqrt(4)) == (2, 12)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_blocks_of_threads_end_in_any_order(order: tuple[int, ...], module: ModuleType):
    opened, turns = threading.Barrier(4), [threading.Event() for _ in range(4)]
    original, seen = module.size, list[tuple[int, int]]()

    def run(i: int) -> None:
        with patched((module, "size", lambda size: size() + i)):
            opened.wait(SECONDS)
            assert turns[order.index(i)].wait(SECONDS)
            seen.append((i, module.size()))
        turns[order.index(i) + 1].set()

    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(run, i) for i in range(3)]
        opened.wait(SECONDS)
        assert module.size is not original
        assert module.size() == 1
        turns[0].set()
        for each in runs:
            each.result()
    assert seen == [(i, 1 + i) for i in order]
    assert module.size is original


@pytest.mark.parametrize("first", [0, 1])
def test_generators_that_take_turns_end_their_own_blocks(first: int, module: ModuleType):
    def generator(added: int) -> Generator[int]:
        with patched((module, "size", lambda size: size() + added)):
            yield module.size()
            yield module.size()

    generators, original = [generator(10), generator(20)], module.size
    next(generators[0])
    assert next(generators[1]) == 31
    generators[first].close()
    assert module.size() == [21, 11][first]
    generators[1 - first].close()
    assert module.size is original


def test_a_generator_may_end_in_another_context(module: ModuleType):
    def generator() -> Generator[None]:
        with patched((module, "size", more)):
            yield

    suspended, original = generator(), module.size
    context = contextvars.copy_context()
    context.run(next, suspended)
    assert module.size() == 1
    suspended.close()
    assert module.size is original
    with patched((module, "size", lambda size: size())):
        assert context.run(module.size) == 1  # its block has ended


def test_a_task_that_outlives_its_block_has_the_function(module: ModuleType):
    with patched((module, "size", more)):
        context = contextvars.copy_context()
        assert context.run(module.size) == 11
        size = module.size
    with patched((module, "size", more)):
        assert context.run(size) == context.run(module.size) == 1


def test_a_replacement_by_other_code_stays_and_ours_goes_when_it_ends(module: ModuleType):
    original = module.size
    with contextlib.ExitStack() as stack:
        with patched((module, "size", more)):
            replaced = stack.enter_context(mock.patch.object(module, "size", wraps=module.size))
            assert module.size() == 11
        assert module.size is replaced
        assert module.size() == 1
        with patched((module, "size", more)):
            assert module.size() == 11
        assert module.size is replaced
    assert module.size() == 1  # `mock` has put a dispatcher back, which the next block takes away
    with patched((module, "size", more)):
        assert module.size() == 11
    assert module.size is original


def test_what_other_code_puts_back_early_is_not_overwritten(module: ModuleType):
    original = module.size
    with contextlib.ExitStack() as stack:
        before = mock.patch.object(module, "size", return_value=5)
        before.start()
        stack.enter_context(patched((module, "size", more)))
        assert module.size() == 15
        before.stop()
        assert module.size is original
    assert module.size is original


# ------------------------------------------------------------------------------------------------- every patch of weft


class Waiting(nnx.Module):
    """A model whose call waits for the calls of other threads."""

    barrier: threading.Barrier | None = None

    def __init__(self):
        self.linear = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        if Waiting.barrier is not None:
            Waiting.barrier.wait(SECONDS)
        return self.linear(x)


@jax.custom_vjp
def doubled(x: jax.Array) -> jax.Array:
    return 2 * x


doubled.defvjp(lambda x: (2 * x, None), lambda _, g: (jnp.log(g - 1),))


def wait() -> None:
    if Waiting.barrier is not None:
        Waiting.barrier.wait(SECONDS)


def tabulate() -> Any:
    return nnx.tabulate(Waiting(), jnp.ones((1, 2)))


def captured_methods() -> Any:
    return jax.tree.map(jnp.shape, nnx.capture(Waiting(), nnx.Intermediate, method_outputs=nnx.Intermediate)(X)[1])


def captured() -> Any:
    def inner(x: jax.Array) -> jax.Array:
        wait()
        return weft.sow("y", jnp.sin(x))

    return weft.capture(jax.jit(lambda x: jax.lax.map(inner, x)))(X)[1]["y"][0].tolist()


def watched() -> Any:
    return weft.debug.table(weft.debug.watch(nnx.jit(lambda model, x: model(x)))(Waiting(), X)[1])


def not_finite() -> Any:
    def loss(x: jax.Array) -> jax.Array:
        wait()
        return jax.vmap(lambda row: jax.lax.cond(row[0] > 0, doubled, doubled, row))(x).sum()

    with pytest.raises(weft.errors.NonFiniteError) as caught:
        weft.debug.nonfinite(weft.grad(loss))(X)
    return str(caught.value)


def proved(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return x / math.sqrt(x.shape[0]) * np.arange(3).sum() + len(x)


X = jnp.ones((1, 2))
# What calls a user's code, which in other threads waits for the same: a lock would never be released.
FEATURES = {
    "tabulate": tabulate, "methods": captured_methods, "sow": captured, "watch": watched, "nonfinite": not_finite,
}  # fmt: skip
THREADS = 4
CLASSES = (nnx.Module, nnx.Linear, Waiting, jax.core.Tracer, jax.custom_vjp)


def places() -> dict[Any, Any]:
    """What is in each of the places where weft replaces something."""
    import builtins

    from jax._src import compilation_cache, pjit
    from jax._src.interpreters import ad, batching, partial_eval

    owners = [builtins, math, np, pjit, ad, batching, partial_eval, compilation_cache, batching.BatchTrace, *CLASSES]
    owners += [getattr(primitives, name) for name in ("jit_p", "scan_p", "cond_p", "while_p", "remat_p")]
    return {(id(owner), name): value for owner in owners for name, value in vars(owner).items() if callable(value)}


def at_once(functions: list[Callable[[], Any]]) -> list[Any]:
    with ThreadPoolExecutor(len(functions)) as pool:
        return [each.result(SECONDS) for each in [pool.submit(function) for function in functions]]


@pytest.mark.parametrize("name", FEATURES)
def test_users_code_of_several_threads_may_wait_for_each_other(name: str):
    Waiting.barrier = None
    expected = FEATURES[name]()
    before, Waiting.barrier = places(), threading.Barrier(THREADS)
    try:
        assert at_once([FEATURES[name]] * THREADS) == [expected] * THREADS
    finally:
        Waiting.barrier = None
    assert places() == before


def test_all_features_at_once_leave_nothing_behind():
    Waiting.barrier = None
    functions = [*FEATURES.values(), lambda: str(weft.typecheck.verify(proved))] * 2
    expected, before = [function() for function in functions], places()
    assert at_once(functions) == expected
    assert places() == before


BLOCKS: dict[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
    "truth_of_tracers": lambda: _tracers.truth_of_tracers(lambda frame: True),
    "own_functions_traced": lambda: _tracers.own_functions_traced(contextlib.nullcontext),
    "traced_to_explain": lambda: _tracers.traced_to_explain(lambda *_: None),
    "known_to_python": known_to_python,
    "compiling_anew": compiling_anew,
    "tracing_tags": tracing_tags,
    "wrapped_methods": lambda: nnx.modules.methods.wrapped_methods(
        [Waiting, nnx.Linear], lambda name, method, *args: method(*args)
    ),
}


@contextlib.contextmanager
def open_elsewhere(block: Callable[[], contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    """Another thread has a block open."""
    opened, ends = threading.Event(), threading.Event()

    def hold() -> None:
        with block():
            opened.set()
            assert ends.wait(SECONDS)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(hold)
        assert opened.wait(SECONDS)
        try:
            yield
        finally:
            ends.set()
            running.result(SECONDS)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_of_another_thread_changes_nothing_here(name: str):
    def asks(x: jax.Array) -> Any:
        with pytest.raises(jax.errors.TracerBoolConversionError):
            bool(x[0] > 0)
        return jnp.stack([jnp.linalg.norm(x), len(x) * math.sqrt(4.0)])

    def run() -> Any:
        out = jax.grad(lambda x: doubled(jax.vmap(jnp.sin)(x)).sum())(jnp.ones(2))
        return str(jax.make_jaxpr(asks)(jnp.ones(2))), out.tolist(), np.arange(3).tolist(), Waiting()(X).tolist()

    expected, before = run(), places()
    with open_elsewhere(BLOCKS[name]):
        assert places() != before
        assert run() == expected
    assert places() == before
