"""Lost successors: `debug_successors` finds those that nothing uses, and `drop` says that it is meant.

Records do not change, so a forgotten successor is no error to Python: `y, _ = self.bn(x)` runs, and statistics stay as
they were. While debugging, every public method of a record that is called in a trace has the changed leaves of its
successor *marked* (see `marks`): by the call, its line, and where the record belongs. Once the outermost transform is
traced, its program is all there is to know. A successor is

- *used* if a new leaf of it leads to something that leaves the program, a gradient too, or to a `drop`; that it is
  followed by another successor, which reads it as its old leaf, counts as leading there;
- *fresh* if it follows a record that was constructed in the same trace, or old leaves that depend on nothing from
  outside of the program: a stream or a layer that was made inside is gone with it;
- *lost* if it is neither.

Which evaluations are checked:

| outermost | when |
|---|---|
| `weft.jit`, `jax.jit`, `eqx.filter_jit`, ... | as it is compiled, and so once for each make of arguments |
| loops and branches (`scan`, `cond`, ...), called eagerly | the same: they are compiled |
| weft's other transforms (`value_and_grad`, `vmap`, ...), called eagerly | after a call in which there was a successor,
by tracing the function once more |
| none: Python at the top level; JAX's own eager transforms; `eval_shape`, `lower` | never: nothing leaves |

Marks are in the programs that are compiled under debugging, and lower to nothing. With debugging off there are none.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, cast

import equinox as eqx
import jax
import numpy as np
from weft.core.callers import calling_line
from weft.core.contexts import marking, successors_context
from weft.core.edge import _jax, trees
from weft.core.edge._jax import ClosedJaxpr
from weft.core.edge.levels import EAGER, current_level
from weft.core.edge.trees import PyTree
from weft.core.errors import SuccessorError
from weft.core.paths import Path, format_path, key_part
from weft.core.records.module import Given, construction_watchers, watch_methods
from weft.core.records.successors import find_records, is_successor_last, records_in, with_part
from weft.core.sowing.tags import take_arrays
from weft.core.threads.dataflow import Graph
from weft.core.threads.marks import (
    Mark,
    bind_drop,
    bind_mark,
    comes_from_outside,
    drops_in,
    is_told,
    last_of,
    marks_in,
    touched_in,
    watch_programs,
)

T = TypeVar("T")
R = TypeVar("R")
V = TypeVar("V")


@contextlib.contextmanager
def debug_successors(enabled: bool = True) -> Generator[None]:
    """Debugging mode: a successor that changed something and that nothing uses is an error.

    `y, _ = self.bn(x)`, a loss that returns no successor, a draw from `Keys` whose successor is forgotten: the error
    names the record's path, and the file and line of the call. It is found when the outermost `jit` is compiled, or
    after an eager call of another of weft's transforms; plain Python at the top level is not watched. Programs compute
    what they compute without it. `WEFT_DEBUG_SUCCESSORS=1` in the environment turns it on for the whole process, and
    pytest's option `--weft-debug-successors` for a test run.

    Where the loss is meant, `drop` says so. Records that are made inside of the compiled function may be forgotten.

    Args:
        enabled: `False` turns it off inside.

    Raises (when a transform is called):
        SuccessorError: naming each successor that is lost.

    >>> import jax, jax.numpy as jnp
    >>> from weft.core.records.module import Module
    >>> class Counter(Module):
    ...     count: jax.Array
    ...     def __call__(self, x):
    ...         return x + self.count, self.replace(count=self.count + 1)
    >>> @jax.jit
    ... def twice(counter, x):
    ...     y, counter = counter(x)
    ...     z, _ = counter(y)
    ...     return z, counter
    >>> with debug_successors():
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
    _install()
    watch_methods(_watch, 1)
    try:
        with successors_context(True):
            yield
    finally:
        watch_methods(_watch, -1)


def note_drop(successor: PyTree) -> None:
    """See `drop`."""
    leaves = list(filter(_can_be_marked, take_arrays(successor)[0]))
    for mark in filter(None, map(_marked.get, leaves)):
        mark.dropped = True  # also where JAX drops an equation that nothing reads before the program is looked at
    bind_drop(leaves)


# --- marking what methods return -------------------------------------------------------------------------------------


class _ByIdentity(Generic[V]):
    """What is known of objects that cannot be hashed, for as long as they live."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[object], V]] = {}

    def get(self, key: object) -> V | None:
        found = self._known.get(id(key))
        return found[1] if found is not None and found[0]() is key else None

    def put(self, key: object, value: V) -> None:
        place, known = id(key), self._known

        def forget(reference: object) -> None:
            if known.get(place, (None,))[0] is reference:
                del known[place]

        known[place] = (weakref.ref(key, forget), value)


# The public methods that are running: of which records, and what these are called.
_calls: ContextVar[tuple[tuple[object, str], ...]] = ContextVar("weft_marked_calls", default=())
# The successors that were marked in the eager evaluation that is running; None outside of one.
_met: ContextVar[list[Mark] | None] = ContextVar("weft_met_successors", default=None)
# Records that were constructed in a trace, and their successors.
_fresh = _ByIdentity[bool]()
# The mark of what a mark gave; and where records that were met on the way belong: the name of a root, and a path.
_marked, _places = _ByIdentity[Mark](), _ByIdentity[tuple[str, Path]]()


def _note_constructed(record: object) -> None:
    if marking():
        _fresh.put(record, True)


def note_place(record: object, root: str, path: Path) -> None:
    """Says where a record belongs, for errors: it may have been rebuilt, and not be found in its owner by identity."""
    _places.put(record, (root, path))


def _name_of(record: object) -> str:
    root, path = _places.get(record) or (None, ())
    for owner, name in reversed(_calls.get()):
        found = next((path for path, part in records_in(owner) if part is record), None)
        if found is not None:
            return format_path(found, name)
        if root == type(owner).__qualname__:
            return format_path(path, name)
    return format_path(path, root or type(record).__qualname__)


def _watch(record: eqx.Module, method: Callable[..., object], given: Given, proceed: Callable[[], PyTree]) -> PyTree:
    __tracebackhide__ = True
    if not marking():
        return proceed()
    name = _name_of(record)
    token = _calls.set((*_calls.get(), (record, name)))
    try:
        result = proceed()
    finally:
        _calls.reset(token)
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
        _places.put(marked, _places.get(record) or (name, ()))
        met = _met.get()
        if met is not None:
            met.append(mark)
        with contextlib.suppress(TypeError, ValueError):  # inside of a node whose items cannot be set
            result = with_part(result, path, marked, lenient=True)
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
            leaves[i] = bind_mark(mark, new, old)
            mark.leaves.append(format_path(tuple(map(key_part, path))))
            _marked.put(leaves[i], mark)
    return made_now.unflatten(leaves) if mark.leaves else successor


def _can_be_marked(leaf: object) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray) and not isinstance(leaf, jax.Ref)


# --- looking at programs ---------------------------------------------------------------------------------------------


def check_program(closed: ClosedJaxpr, name: str) -> None:
    """Looks for lost successors in the program of an outermost evaluation.

    Raises:
        SuccessorError: if there are any, with the path, leaves and line of each.
    """
    graph = Graph(closed, is_told)
    used, outside = graph.before([*graph.outputs, *drops_in(graph)]), comes_from_outside(graph)
    found = marks_in(graph)
    kept = touched_in(graph, used) | {one.mark for one in found if one.new in used or one.mark.dropped}
    lost = [one for one in found if one.mark not in kept and one.old in outside]
    if lost:
        raise _lost(last_of(graph, lost), name)


def _lost(marks: Sequence[Mark], name: str) -> SuccessorError:
    places = dict.fromkeys(f"{mark.name} at {mark.line}: {', '.join(dict.fromkeys(mark.leaves))}" for mark in marks)
    several = len(places) > 1
    return SuccessorError(
        f"{f'{len(places)} successors are' if several else 'a successor is'} lost: nothing that leaves {name} uses "
        + ("them" if several else "it"),
        at=places,
        fix="return it (a loss returns it beside its value, with has_aux=True), or say weft.drop(successor) if that is "
        "meant",
    )


def _look(closed: ClosedJaxpr, name: str) -> None:
    if successors_context.value is not None and _met.get() is None and current_level() == EAGER:
        check_program(closed, name)


def is_outermost() -> bool:
    """Whether a transform that is called now is an evaluation of its own, which nothing else looks at."""
    return successors_context.value is not None and _met.get() is None and current_level() == EAGER


def check_evaluation(name: str, run: Callable[..., R], args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> R:
    """Calls an outermost transform, and looks for lost successors if it met any.

    Raises:
        SuccessorError: if there are any.
    """
    met: list[Mark] = []
    token = _met.set(met)
    try:
        result = run(*args, **kwargs)
        if not met:
            return result
        arrays, arguments = take_arrays((args, dict(kwargs)))

        def flat(*arrays: jax.Array) -> list[jax.Array]:
            args, kwargs = arguments.fill(arrays)
            return take_arrays(run(*args, **kwargs))[0]

        try:
            closed = _jax.make_jaxpr(flat)(*arrays)
        except Exception:  # a function that branches on values can be run, and not be traced
            return result
    finally:
        _met.reset(token)
    check_program(closed, name)
    return result


def _install() -> None:
    watch_programs(_look)
    if _note_constructed not in construction_watchers:
        construction_watchers.append(_note_constructed)


if successors_context.value is not None:
    _install()
    watch_methods(_watch, 1)
