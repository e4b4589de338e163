"""An interrupt at any instruction of a call leaves all that the call does to its objects, or nothing of it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft
from weft import nnx

pytestmark = pytest.mark.slow

_ROOT = os.path.dirname(os.path.abspath(weft.__file__)) + os.sep
# An environment may stand in the checkout, and what an interrupt inside of JAX leaves is not weft's to promise.
_ROOMS = ("core/", "modules/", "nnx/", "transforms/", "typecheck/")


class Interrupt:
    """What Ctrl-C does, made repeatable: KeyboardInterrupt at the n-th instruction that runs inside of weft's files.

    Args:
        at: which instruction (or line), from 1.
        files: how the files start, below weft's folder.
        lines: whether lines are counted instead of instructions.
    """

    def __init__(self, at: int, files: tuple[str, ...] = _ROOMS, *, lines: bool = False):
        self.at, self.count, self.fired = at, 0, ""
        self._files = tuple(_ROOT + file for file in files)
        self._event = "line" if lines else "opcode"

    def _in_file(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == self._event:
            self.count += 1
            if self.count == self.at:
                sys.settrace(None)
                self.fired = f"{frame.f_code.co_filename.removeprefix(_ROOT)}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self._in_file

    def _in_call(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self._files):
            return None
        frame.f_trace_opcodes = self._event == "opcode"
        return self._in_file

    def during(self, call: Callable[[], Any]) -> bool:
        """Runs a call; whether it was interrupted."""
        before = sys.gettrace()
        sys.settrace(self._in_call)
        try:
            call()
        except KeyboardInterrupt:
            return True
        except ValueError as error:
            # JAX makes a ValueError of whatever is raised while it compares the keys of its caches.
            if "checking equality of metadata" not in str(error):
                raise
            return True
        finally:
            sys.settrace(before)
        return False


def in_a_thread(run: Callable[[], Any]) -> None:
    """Runs in a thread of its own: JAX forgets a level of recursion for each error inside of its flattening."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


# Where a call ends: what runs before has not touched the caller's objects.
ENDING = (
    "core/interpreter/interpret.py",
    "nnx/crossing/outcomes.py",
    "nnx/crossing/quick.py",
    "nnx/graphs/writes.py",
    "nnx/graphs/unflattening.py",
    "nnx/objects/",
    "nnx/variable/",
)


class Model(nnx.Module):
    def __init__(self) -> None:
        self.a = nnx.Param(jnp.zeros(()))
        self.b = nnx.BatchStat(jnp.zeros(()))
        self.layers = nnx.List([nnx.Dict(w=nnx.Param(jnp.zeros(())))])
        self.spare = nnx.Param(jnp.zeros(()))


def variables(model: Model) -> list[Any]:
    return [model.a, model.b, model.layers[0]["w"]]


def bump(model: Model) -> None:
    for variable in variables(model):
        variable[...] += 1


def restructure(model: Model) -> None:
    bump(model)
    del model.spare
    model.spare = nnx.Param(model.a[...])
    model.count = 1
    model.layers.append(nnx.Dict(w=nnx.Param(model.a[...])))


def annotate(model: Model) -> None:
    bump(model)
    model.a.set_metadata("note", "a")
    model.b.set_metadata("note", "b")


def give_back(model: Model) -> Any:
    bump(model)
    return nnx.Dict(a=model.a, new=nnx.Param(model.b[...])), model.a[...]


def state_of(model: Model) -> Any:
    return (
        [float(v[...]) for v in variables(model)],
        getattr(model, "count", 0),
        float(model.spare[...]),
        len(model.layers),
        [v.get_metadata().get("note") for v in variables(model)],
    )


# Jitted functions, and whether a call is made on a model that was met before.
CALLS: dict[str, tuple[Callable[..., Any], bool]] = {
    "values": (nnx.jit(bump), True),
    "donated values": (nnx.jit(bump, donate_argnums=0), True),
    "values of a tree": (nnx.jit(bump, graph=False), True),
    "an output that shares": (nnx.jit(give_back), True),
    "structure": (nnx.jit(restructure), False),
    "metadata": (nnx.jit(annotate), False),
    "values of an object not met before": (nnx.jit(bump), False),
    "a gradient": (nnx.grad(lambda model: (bump(model), model.a[...] * 2)[1]), False),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_done_or_not(name: str):
    run, again = CALLS[name]

    def model_before() -> Model:
        model = Model()
        if again:
            run(model)
            run(model)
        return model

    def check() -> None:
        model = model_before()
        before = state_of(model)
        run(model)
        after = state_of(model)
        assert after != before
        at, outcomes, model = 0, set[bool](), model_before()
        while True:
            at += 1
            before_this = state_of(model)
            interrupt = Interrupt(at, ENDING, lines=not again)
            if not interrupt.during(lambda model=model: run(model)):
                break
            after_this = state_of(model)
            values, others = after_this[0], after_this[1:]
            done = values == [v + 1 for v in before_this[0]]
            assert done or values == before_this[0], interrupt.fired
            assert others == (after if done else before_this)[1:], interrupt.fired
            outcomes.add(done)
            if again:
                # The same objects go on; those that were given away are not lost.
                run(model)
                assert state_of(model)[0] == [v + 1 for v in values], interrupt.fired
            else:
                model = model_before()
        assert outcomes == {True, False}
        assert at > 20

    in_a_thread(check)


@pytest.mark.parametrize("body", [bump, restructure])
def test_an_interrupt_while_compiling_leaves_nothing_half_made(body: Callable[..., Any]):
    expected = Model()
    body(expected)

    def check() -> None:
        at = 1
        while True:
            run, model = nnx.jit(lambda model: body(model)), Model()
            interrupt = Interrupt(at, lines=True)
            if not interrupt.during(lambda run=run, model=model: run(model)):
                break
            before = state_of(Model())
            assert state_of(model) in (before, state_of(expected)), interrupt.fired
            model = Model()
            run(model)
            assert state_of(model) == state_of(expected), interrupt.fired
            at += 97
        assert at > 97 * 10

    in_a_thread(check)


class Net(weft.Module):
    weight: jax.Array
    rate: float = 0.5

    def __call__(self, x: Any) -> Any:
        return x * self.weight * self.rate, self.replace(weight=self.weight + 1)


@pytest.mark.parametrize("transform", [weft.jit, weft.scan])
def test_an_interrupt_leaves_no_half_plan_of_a_records_function(transform: Any):
    net, xs = Net(jnp.ones(3)), jnp.ones((3, 3))
    expected = jax.tree.leaves(transform(lambda net, x: net(x)[::-1])(net, xs))

    def check() -> None:
        at, interrupted = 1, True
        while interrupted:

            def function(net: Any, x: Any) -> Any:
                return net(x)[::-1]

            run = transform(function)
            interrupt = Interrupt(at, lines=True)
            interrupted = interrupt.during(lambda run=run: run(net, xs))
            # The function that was interrupted, and one made again, which shares what was learned of it.
            for again in (run, run, transform(function)):
                assert all(map(jnp.array_equal, jax.tree.leaves(again(net, xs)), expected)), interrupt.fired
            at += 31
        assert at > 31 * 15

    in_a_thread(check)


def test_many_interrupts_at_once_leave_a_call_done():
    from weft.nnx.graphs.writes import completed

    written: list[int] = []
    errors: list[BaseException] = [KeyboardInterrupt("third"), TimeoutError("second"), KeyboardInterrupt("first")]

    def write() -> None:
        written.clear()
        for i in range(3):
            written.append(i)
            if i == 1 and errors:
                raise errors.pop()

    with pytest.raises(KeyboardInterrupt, match="first"):
        completed(write)
    assert written == [0, 1, 2]


def test_an_error_of_the_writing_itself_is_raised():
    from weft.nnx.graphs.writes import completed

    with pytest.raises(ValueError, match="always"):
        completed(lambda: (_ for _ in ()).throw(ValueError("always")))
