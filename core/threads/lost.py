"""Lost successors: `debug_successors` reports successors that nothing uses.

Records are immutable, so Python accepts a forgotten successor: `y, _ = self.bn(x)` runs, and the statistics stay as
they were. While somebody debugs, weft *looks at* each function that `weft.jit`, a loop or a branch traces, the
outermost first: when a public method of a record returns a successor there, weft *marks* the leaves that changed (see
`marks`) with the call, its line and the record's place. When the function has been traced, its jaxpr shows where the
marks lead. A successor is

- *used* if one of its new leaves leads to an output of the program (a gradient too), to a `drop`, or to the successor
  that follows it, which reads the leaf as its old one;
- *fresh* if it follows a record that was constructed in the same program, or whose old leaves depend on nothing from
  outside of the program: a stream or a layer that is made inside may be forgotten;
- *lost* if it is neither.

JAX's `grad` prunes unread values from loops, branches and remat before weft can see the jaxpr. So weft looks at the
functions of inner transforms one by one, from the inside out: it traces each, takes the marks out of its jaxpr, and
puts new marks on the outputs that they led to. JAX's transforms and the compiler see programs without marks.

Weft cannot look at what it does not trace: eager calls, eager transforms, `jax.jit`. A warning reports each call there
that returned a successor, and each mark that JAX's own `grad` has pruned.
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
from weft.core.edge import _jax, trees
from weft.core.edge.contexts import LOOKING, MARKING, marking, successors_context
from weft.core.edge.trees import PyTree, key_part
from weft.core.errors import SuccessorError
from weft.core.frames import calling_line
from weft.core.paths import format_path
from weft.core.records.module import Given, construction_watchers, watch_methods
from weft.core.records.successors import find_records, is_successor_last, with_part
from weft.core.sowing.tags import take_arrays, traced
from weft.core.threads.calls import ByIdentity, calling, drop_watchers, note_successor, running_calls
from weft.core.threads.marks import Mark, bind_mark, summarise

T = TypeVar("T")
R = TypeVar("R")
V = TypeVar("V")


@contextlib.contextmanager
def debug_successors(enabled: bool = True) -> Generator[None]:
    """A debugging mode in which a successor that changed something and that nothing uses is an error.

    `y, _ = self.bn(x)`, a loss that returns no successor, a draw from `Keys` whose successor is forgotten: the error
    names the record's path, and the file and line of the call. It is raised when `weft.jit`, a loop or a branch of
    weft's traces the function that makes the call. Eager calls, eager transforms and functions under `jax.jit` are not
    examined, which a warning says. Results of programs do not change. `WEFT_DEBUG_SUCCESSORS=1` in the environment
    turns the mode on for the whole process, pytest's option `--weft-debug-successors` for a test run.

    `weft.drop_successor` declares that a loss is meant. Records that are made inside of the compiled function may be
    forgotten.

    Args:
        enabled: `False` turns the mode off inside of the block.

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
    _watch_all()
    try:
        with successors_context(MARKING if marking() else LOOKING):
            yield
    finally:
        watch_methods(_watch, -1)


def note_drop(successor: PyTree) -> None:
    """See `drop_successor`."""
    leaves = list(filter(_can_be_marked, take_arrays(successor)[0]))
    for mark in filter(None, map(_marked.get, leaves)):
        mark.dropped = True  # the equation below is not enough: JAX may prune it, since nothing reads its output
    for leaf in leaves:
        bind_mark(None, leaf, leaf)


drop_watchers.append(note_drop)


# --- marking the successors that methods return ----------------------------------------------------------------------


# The marks that were made while the outermost function is traced.
_made: ContextVar[list[Mark]] = ContextVar("weft_marks_made")
# Records that were constructed in a trace, and the successors of these.
_fresh = ByIdentity[bool]()
# The mark of each marked leaf.
_marked = ByIdentity[Mark]()


def _note_constructed(record: object) -> None:
    if marking():
        _fresh.put(record, True)


def _watch(
    record: eqx.Module, method: Callable[..., object], arguments: Given, proceed: Callable[[], PyTree]
) -> PyTree:
    __tracebackhide__ = True
    if successors_context.value is None:
        return proceed()
    with calling(record) as name:
        result = proceed()
    called = name + ("(...)" if method.__name__ == "__call__" else f".{method.__name__}(...)")
    mark = Mark(called, calling_line())
    records = list(find_records(cast("type[Any]", type(record)), result))
    # A method with several records of its own type in its result may declare that the last one is the successor.
    for path, successor in records[-1:] if is_successor_last(method) else records:
        if _fresh.get(record):
            _note_constructed(successor)
            continue
        marked = _marked_successor(record, successor, mark)
        if marked is successor:
            continue
        note_successor(record, marked, name)
        with contextlib.suppress(TypeError, ValueError):  # the successor lies in a node whose items cannot be set
            result = with_part(result, path, marked, lenient=True)
    if mark.leaves and marking():
        _made.get().append(mark)
    elif mark.leaves and not running_calls():  # only for the outermost call: its successor holds those of its parts
        _warn(mark, "weft does not compile what calls it")
    return result


def _marked_successor(record: PyTree, successor: PyTree, mark: Mark) -> PyTree:
    if successor is record:
        return record
    (before, treedef), (after, treedef_after) = trees.flatten_with_path(record), trees.flatten_with_path(successor)
    # A record whose structure differs is no successor: `split`, for one, returns records of the same type.
    if treedef != treedef_after:
        return successor
    leaves = [leaf for _, leaf in after]
    for i, ((path, old), (_, new)) in enumerate(zip(before, after, strict=True)):
        if old is not new and _can_be_marked(old) and _can_be_marked(new):
            mark.leaves.append(format_path(tuple(map(key_part, path))))
            if marking():
                leaves[i] = bind_mark(mark, new, old)
                _marked.put(leaves[i], mark)
    return treedef.unflatten(leaves) if mark.leaves and marking() else successor


def _can_be_marked(leaf: object) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and not isinstance(leaf, jax.Ref)


# The registry in which Python notes the warnings that it has shown, so that it shows each only once.
_warned: dict[Any, int] = {}


def _warn(mark: Mark, why: str) -> None:
    file, _, line = mark.line.rpartition(":")
    text = f"debug_successors cannot follow the successor of {mark.name}: {why}"
    fix = "call it in a function under weft.jit, and weft's grad, scan and remat in place of JAX's"
    warnings.warn_explicit(f"{text}\n  at: {mark.line}\n  fix: {fix}", UserWarning, file, int(line), registry=_warned)


# --- looking at programs ---------------------------------------------------------------------------------------------


def look(run: Callable[..., R], name: str, args: tuple[PyTree, ...]) -> R:
    """Traces a function, checks where the successors in it lead, and runs its program without marks.

    Raises:
        SuccessorError: for the outermost function, if a successor is lost.
    """
    outermost, made = not marking(), list[Mark]()
    token = _made.set(made) if outermost else None
    try:
        with successors_context(MARKING):
            closed, arrays, rebuild = traced(run, args, {})
        summary = summarise(closed)
    finally:
        if token is not None:
            _made.reset(token)
    outs = _jax.run(summary.program, arrays)
    if outermost:
        if lost := summary.lost():
            raise _lost(lost, name)
        present = {(mark.name, mark.line) for mark in summary.marks}
        for mark in made:
            if not mark.dropped and (mark.name, mark.line) not in present:
                _warn(mark, "a transform of JAX's own pruned it")
        return rebuild(outs)
    # This program is inlined into that of an outer function, which knows whether the outputs that the marks lead to are
    # used: so they are marked again there.
    for trail in summary.trails:
        old = arrays[trail.old] if isinstance(trail.old, int) else trail.old
        for i in trail.outputs:
            outs[i] = bind_mark(trail.mark, outs[i], old)
        if not trail.outputs:
            # Nothing uses the result of this equation. It only tells the outer function that the mark led nowhere; the
            # outer program decides by `old` whether the successor is fresh there, or lost.
            bind_mark(trail.mark, old, old)
    for i in summary.dropped:
        bind_mark(None, arrays[i], arrays[i])
    return rebuild(outs)


def _lost(marks: Sequence[Mark], name: str) -> SuccessorError:
    places = dict.fromkeys(f"{mark.name} at {mark.line}: {', '.join(dict.fromkeys(mark.leaves))}" for mark in marks)
    several = len(places) > 1
    return SuccessorError(
        f"{f'{len(places)} successors are' if several else 'a successor is'} lost: nothing that leaves {name} uses "
        + ("them" if several else "it"),
        at=places,
        fix="return it (a loss returns it next to its value, with has_aux=True), or say weft.drop_successor(successor) "
        "if that is meant",
    )


def _watch_all() -> None:
    watch_methods(_watch, 1)
    if _note_constructed not in construction_watchers:
        construction_watchers.append(_note_constructed)


if successors_context.value is not None:
    _watch_all()
