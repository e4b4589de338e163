"""`watch`: statistics of parameters, updates and activations by path, beside what a step returns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from weft.core.contexts import insight_context
from weft.core.errors import FilterError, StructureError
from weft.core.paths import format_path
from weft.core.records.filters import predicate
from weft.core.records.leaves import iter_leaves
from weft.core.records.module import Module, static, watch_methods
from weft.core.sowing.capturing import capture, sow
from weft.core.sowing.tags import capturing
from weft.core.threads.calls import calling
from weft.insight.debug.interpreting import is_inexact
from weft.transforms import jit

COLUMNS = ("mean", "rms", "max", "zeros", "nonfinite")


class Row(Module):
    """The statistics of one value, or of one a layer in a `scan`.

    Attributes:
        values: mean, rms, largest magnitude, share of zeros and share of what is not finite, in this order, along the
            last axis; axes before it are layers.
        ratio: of an update, its rms by that of its parameter; of anything else, nan.
        kind: `parameter`, `update` or `activation`.
        path: of the leaf, or of the module whose call gave the activation.
    """

    values: jax.Array
    ratio: jax.Array
    kind: str = static()
    path: str = static()


def watch(step: Callable[..., Any], filter: Any = ..., *, every: int = 100) -> Callable[..., Any]:
    """Gives statistics beside the output of a step, at each `every`-th call from the first on.

    The calls between run `step` as it is, and cost nothing. A watched call is another compiled program.

    Args:
        step: compiled by `weft.jit`, or to be compiled, over records; the first argument is the model, and where the
            output has a record of its type, that is the model after the step.
        filter: which leaves of the model have rows, as parameters and as updates; activations have one for each public
            method of a record that returns an array.
        every: the number of calls from one watched call to the next.

    Returns:
        A function of the same arguments, which returns `(output, rows)`; `rows` is `None` between watched calls.

    Raises:
        StructureError: if `every` is less than 1, or the first argument is no record.
        FilterError: if the filter picks no leaf.

    >>> import jax, jax.numpy as jnp, weft
    >>> model = weft.Linear(2, 2, key=jax.random.key(0))
    >>> watched = weft.debug.watch(lambda model, x: model(x).sum(), every=2)
    >>> loss, rows = watched(model, jnp.ones((1, 2)))
    >>> [(row.kind, row.path) for row in rows]
    [('parameter', 'kernel'), ('parameter', 'bias'), ('activation', 'Linear')]
    >>> watched(model, jnp.ones((1, 2)))[1] is None
    True
    """
    if every < 1:
        raise StructureError(f"every={every} is not a number of calls", fix="give 1 to watch each call")
    is_picked = predicate(filter)

    @functools.wraps(step)
    def observed(model: Any, *args: Any, **kwargs: Any) -> Any:
        out, sown = capture(step, only=lambda name, kind: name.startswith(_PREFIX))(model, *args, **kwargs)
        rows = _parameters(is_picked, model, out)
        if not rows:
            raise FilterError("the filter of watch picks no leaf of the model", at=repr(filter), fix="widen it")
        for name, several in sown.items():
            rows += [Row(one, jnp.array(jnp.nan), "activation", name.removeprefix(_PREFIX)) for one in several]
        return out, tuple(rows)

    watching, plain, calls = jit(observed), step, [0]

    @functools.wraps(step)
    def called(*args: Any, **kwargs: Any) -> Any:
        if not args or not isinstance(args[0], Module):
            raise StructureError("watch needs a record as the step's first argument", fix="pass the model first")
        number, calls[0] = calls[0], calls[0] + 1
        if number % every:
            return plain(*args, **kwargs), None
        watch_methods(_sow_output, 1)
        try:
            with insight_context(True):
                return watching(*args, **kwargs)
        finally:
            watch_methods(_sow_output, -1)

    return called


_PREFIX = "weft.watch:"


def _sow_output(record: Any, method: Any, given: Any, proceed: Callable[[], Any]) -> Any:
    __tracebackhide__ = True
    if not (capturing() and insight_context.value):
        return proceed()
    with calling(record) as name:
        result = proceed()
    value = result[0] if isinstance(result, tuple) and result else result
    if is_inexact(value):
        sow(
            f"{_PREFIX}{name}{'' if method.__name__ == '__call__' else '.' + method.__name__}",
            statistics_of(cast(Any, value)),
        )
    return result


def statistics_of(value: jax.Array) -> jax.Array:
    """Mean, rms, largest magnitude, share of zeros and of what is not finite, in float32."""
    x = jnp.abs(value) if jnp.issubdtype(value.dtype, jnp.complexfloating) else value
    x = x.astype(jnp.float32)
    shares = (x == 0).mean(), (~jnp.isfinite(x)).mean()
    return jnp.stack([x.mean(), jnp.sqrt((x * x).mean()), jnp.abs(x).max(initial=0.0), *shares])


def _parameters(is_picked: Callable[..., bool], model: Any, out: Any) -> list[Row]:
    after = next(
        (x for x in jax.tree.leaves(out, is_leaf=lambda x: type(x) is type(model)) if type(x) is type(model)), None
    )
    new = {} if after is None else {leaf.path: leaf.value for leaf in iter_leaves(after)}
    rows: list[Row] = []
    for leaf in iter_leaves(model):
        if not is_inexact(leaf.value) or not is_picked(leaf):
            continue
        path, values = format_path(leaf.path), statistics_of(leaf.value)
        rows.append(Row(values, jnp.array(jnp.nan), "parameter", path))
        if leaf.path in new and new[leaf.path] is not leaf.value:
            update = statistics_of(new[leaf.path] - leaf.value)
            rows.append(Row(update, update[1] / jnp.maximum(values[1], 1e-30), "update", path))
    return rows
