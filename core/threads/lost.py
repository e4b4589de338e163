"""Lost successors: `debug_successors` finds those that nothing uses, and `drop_successor` says that it is meant.

Records do not change, so a forgotten successor is no error to Python: `y, _ = self.bn(x)` runs, and statistics stay as
they were. While debugging, what `weft.jit`, a loop or a branch traces is *looked at*, from the outermost on: every
public method of a record that is called there has the changed leaves of its successor *marked* (see `marks`): by the
call, its line, and where the record belongs. Once the function is traced, its program is all there is to know. A
successor is

- *used* if a new leaf of it leads to something that leaves the program, a gradient too, or to a `drop_successor`; that
  it is followed by another successor, which reads it as its old leaf, counts as leading there;
- *fresh* if it follows a record that was constructed in the same program, or old leaves that depend on nothing from
  outside of it: a stream or a layer that was made inside is gone with it;
- *lost* if it is neither.

JAX's `grad` prunes what nobody reads from loops, branches and remat before anybody can look at it. So the functions of
transforms within are looked at one by one, from the inside out: each is traced, its marks are taken out of the program,
and put on what they led to. JAX's transforms see programs without marks, and what is compiled has none.

What weft does not trace is not looked at: eager calls, eager transforms, `jax.jit`. A warning says so of each call
there that returned a successor, and of those that JAX's own `grad` has pruned.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import numpy as np
from weft.core.callers import calling_line
from weft.core.contexts import LOOKING, MARKING, marking, successors_context
from weft.core.edge import _jax, trees
from weft.core.edge.trees import PyTree
from weft.core.errors import SuccessorError
from weft.core.paths import format_path, key_part
from weft.core.records.module import Given, construction_watchers, watch_methods
from weft.core.records.successors import find_records, is_successor_last, with_part
from weft.core.sowing.tags import take_arrays
from weft.core.threads.calls import ByIdentity, calling, note_successor, running_calls
from weft.core.threads.marks import Mark, bind_mark, summarise

T = TypeVar("T")
R = TypeVar("R")
V = TypeVar("V")


@contextlib.contextmanager
def debug_successors(enabled: bool = True) -> Generator[None]:
    """Debugging mode: a successor that changed something and that nothing uses is an error.

    `y, _ = self.bn(x)`, a loss that returns no successor, a draw from `Keys` whose successor is forgotten: the error
    names the record's path, and the file and line of the call. It is found when `weft.jit`, a loop or a branch of
    weft's traces a function, in all that is called there. Elsewhere nothing is looked at, and a warning says so: in
    eager calls and eager transforms, and under `jax.jit`. Programs compute what they compute without it.
    `WEFT_DEBUG_SUCCESSORS=1` in the environment turns it on for the whole process, and pytest's option
    `--weft-debug-successors` for a test run.

    Where the loss is meant, `drop_successor` says so. Records that are made inside of the compiled function may be
    forgotten.

    Args:
        enabled: `False` turns it off inside.

    Raises (when a transform is called):
        SuccessorError: naming each successor that is lost.

    >>> import jax, jax.numpy as jnp, weft
    >>> class Counter(weft.Module):
    ...     count: jax.Array
    ...     def __call__(self, x):
    ...         return x + self.count, self.replace(count=self.count + 1)
    >>> @weft.jit
    ... def twice(counter, x):
    ...     y, counter = counter(x)
    ...     z, _ = counter(y)
    ...     return z, counter
    >>> with weft.debug.debug_successors():
    ...     y, counter = twice(Counter(jnp.array(1)), 0)
    Traceback (most recent call last):
    ...
    weft.core.errors.SuccessorError: a successor is lost: nothing that leaves twice uses it
      at: Counter(...) at ...: count...
    """
    if not enabled:
        with successors_context(None):
            yield
        return
    _watch_all(1)
    try:
        with successors_context(MARKING if marking() else LOOKING):
            yield
    finally:
        watch_methods(_watch, -1)


def note_drop(successor: PyTree) -> None:
    """See `drop_successor`."""
    leaves = list(filter(_can_be_marked, take_arrays(successor)[0]))
    for mark in filter(None, map(_marked.get, leaves)):
        mark.dropped = True  # also where JAX drops an equation that nothing reads before the program is looked at
    for leaf in leaves:
        bind_mark(None, leaf, leaf)


# --- marking what methods return -------------------------------------------------------------------------------------


# The marks that were made in the program that is looked at.
_made: ContextVar[list[Mark]] = ContextVar("weft_marks_made")
# Records that were constructed in a trace, and their successors.
_fresh = ByIdentity[bool]()
# The mark of what a mark gave.
_marked = ByIdentity[Mark]()


def _note_constructed(record: object) -> None:
    if marking():
        _fresh.put(record, True)


def _watch(record: eqx.Module, method: Callable[..., object], given: Given, proceed: Callable[[], PyTree]) -> PyTree:
    __tracebackhide__ = True
    if successors_context.value is None:
        return proceed()
    with calling(record) as name:
        result = proceed()
    called = name + ("(...)" if method.__name__ == "__call__" else f".{method.__name__}(...)")
    mark = Mark(called, calling_line())
    found = dict(find_records(cast("type[Any]", type(record)), result))
    for path, successor in [*found.items()][-1 if is_successor_last(method) else 0 :]:
        if _fresh.get(record):
            _note_constructed(successor)
            continue
        marked = _marked_successor(record, successor, mark)
        if marked is successor:
            continue
        note_successor(record, marked, name)
        with contextlib.suppress(TypeError, ValueError):  # inside of a node whose items cannot be set
            result = with_part(result, path, marked, lenient=True)
    if mark.leaves and marking():
        _made.get().append(mark)
    elif mark.leaves and not running_calls():  # said of the outermost call alone
        _warn(mark, "weft does not compile what calls it")
    return result


def _marked_successor(record: PyTree, successor: PyTree, mark: Mark) -> PyTree:
    if successor is record:
        return record
    (before, made), (after, made_now) = trees.flatten_with_path(record), trees.flatten_with_path(successor)
    if made != made_now:
        return successor  # what is of another structure is no successor
    leaves = [leaf for _, leaf in after]
    for i, ((path, old), (_, new)) in enumerate(zip(before, after, strict=True)):
        if old is not new and _can_be_marked(old) and _can_be_marked(new):
            mark.leaves.append(format_path(tuple(map(key_part, path))))
            if marking():
                leaves[i] = bind_mark(mark, new, old)
                _marked.put(leaves[i], mark)
    return made_now.unflatten(leaves) if mark.leaves and marking() else successor


def _can_be_marked(leaf: object) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and not isinstance(leaf, jax.Ref)


# What was said already, by which Python says it once.
_said: dict[Any, int] = {}


def _warn(mark: Mark, why: str) -> None:
    file, _, line = mark.line.rpartition(":")
    text = f"debug_successors does not look at the successor of {mark.name}: {why}"
    fix = "call it in a function under weft.jit, and weft's grad, scan and remat in place of JAX's"
    warnings.warn_explicit(f"{text}\n  at: {mark.line}\n  fix: {fix}", UserWarning, file, int(line), registry=_said)


# --- looking at programs ---------------------------------------------------------------------------------------------


def look(run: Callable[..., R], name: str, args: tuple[PyTree, ...]) -> R:
    """Calls a function that weft traces, and looks where the successors in it lead.

    Raises:
        SuccessorError: in the outermost one, if any are lost.
    """
    outermost, made = not marking(), list[Mark]()
    arrays, arguments = take_arrays(args)
    returned: list[Any] = []

    def flat(*arrays: jax.Array) -> list[jax.Array]:
        leaves, rest = take_arrays(run(*arguments.fill(arrays)))
        returned.append(rest)
        return leaves

    token = _made.set(made) if outermost else None
    try:
        with successors_context(MARKING):
            summary = summarise(_jax.make_jaxpr(flat)(*arrays))
    finally:
        if token is not None:
            _made.reset(token)
    outs = _jax.run(summary.program, arrays)
    if outermost:
        if lost := summary.lost():
            raise _lost(lost, name)
        found = {(mark.name, mark.line) for mark in summary.marks}
        for mark in made:
            if not mark.dropped and (mark.name, mark.line) not in found:
                _warn(mark, "a transform of JAX's own pruned it")
        return returned[0].fill(outs)
    for led in summary.led:
        old = arrays[led.old] if isinstance(led.old, int) else led.old
        for i in led.outputs:
            outs[i] = bind_mark(led.mark, outs[i], old)
        if not led.outputs:
            bind_mark(led.mark, old, old)
    for i in summary.dropped:
        bind_mark(None, arrays[i], arrays[i])
    return returned[0].fill(outs)


def _lost(marks: Sequence[Mark], name: str) -> SuccessorError:
    places = dict.fromkeys(f"{mark.name} at {mark.line}: {', '.join(dict.fromkeys(mark.leaves))}" for mark in marks)
    several = len(places) > 1
    return SuccessorError(
        f"{f'{len(places)} successors are' if several else 'a successor is'} lost: nothing that leaves {name} uses "
        + ("them" if several else "it"),
        at=places,
        fix="return it (a loss returns it beside its value, with has_aux=True), or say weft.drop_successor(successor) "
        "if that is meant",
    )


def _watch_all(change: int) -> None:
    watch_methods(_watch, change)
    if _note_constructed not in construction_watchers:
        construction_watchers.append(_note_constructed)


if successors_context.value is not None:
    _watch_all(1)
