"""`watch`: returns statistics of parameters, gradients, updates and activations by path, with the output of a step.

A watched call runs another program: the step with statistics sown into it. Parameters and updates are sown around the
step, activations around each method of a module, and gradients where `grad` returns them. The rule `WATCH` compiles as
`jit` does, and returns the sown statistics together with the output.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from weft.core.errors import FilterError, StructureError
from weft.core.interpreter.interpret import Interpreted, Plan, guards
from weft.core.interpreter.rules import Lift
from weft.core.paths import format_path
from weft.core.records.filters import predicate
from weft.core.records.kinds import Intermediate
from weft.core.records.leaves import iter_leaves
from weft.core.records.module import Module, static
from weft.core.sowing.capturing import capture
from weft.core.sowing.tags import Sown, bind_tag, capturing, take_arrays
from weft.insight.calls import Replaced, around_calls, is_object, nnx_if_loaded
from weft.insight.debug.interpreting import is_inexact
from weft.transforms import jit
from weft.transforms.autodiff import GRAD
from weft.transforms.compilation import JIT, JitFunction

COLUMNS = ("mean", "rms", "max", "zeros", "nonfinite")
_RMS = COLUMNS.index("rms")
KINDS = ("parameter", "gradient", "update", "activation")


class Row(Module):
    """The statistics of one value, or of one value for each layer of a `scan`.

    Attributes:
        values: mean, rms, largest magnitude, share of zeros and share of values that are not finite, in this order,
            along the last axis; axes before it are layers.
        ratio: for an update, its rms divided by its parameter's rms; for any other value, nan.
        kind: `parameter`, `gradient`, `update` or `activation`.
        path: the path of the leaf, or of the module whose call returned the activation.

    >>> import jax.numpy as jnp, weft
    >>> row = weft.debug.Row(jnp.array([0.0, 1.0, 2.0, 0.5, 0.0]), jnp.array(0.25), "update", "w")
    >>> dict(zip(("mean", "rms", "max", "zeros", "nonfinite"), row.values.tolist()))["rms"]
    1.0
    """

    values: jax.Array
    ratio: jax.Array
    kind: str = static()
    path: str = static()


def watch(step: Callable[..., Any], filter: Any = ..., *, every: int = 100) -> Callable[..., Any]:
    """Wraps a step so that every `every`-th call, the first included, returns statistics with its output.

    The other calls run `step` unchanged, at no cost. A watched call is a compiled program of its own.

    Args:
        step: a function compiled by `weft.jit` or `nnx.jit`; `weft.jit` compiles any other function. The first
            argument is the model, a record or an NNX object. If the output has a record of the model's type, that
            record is taken as the model after the step.
        filter: selects the leaves of the model that get rows: as parameters, as updates, and as gradients, where
            `grad` or `value_and_grad` of weft or of NNX differentiates by the model. A module with a selected leaf gets
            a row of activations for each public method that returns an array; a `vmap`'s examples count as one array.
        every: the number of calls from one watched call to the next.

    Returns:
        A function of the same arguments, which returns `(output, rows)`; `rows` is `None` between watched calls.

    Raises:
        StructureError: if `every` is less than 1, or the first argument is neither a record nor an NNX object.
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
    compiled = step if isinstance(step, JitFunction) else jit(step)
    watching, number = _watched(compiled, filter), itertools.count()

    @functools.wraps(step)
    def called(*args: Any, **kwargs: Any) -> Any:
        return (compiled(*args, **kwargs), None) if next(number) % every else watching(*args, **kwargs)

    return called


def _watched(compiled: JitFunction[..., Any], filter: Any) -> JitFunction[..., Any]:
    """Returns the compiled function for watched calls, with the `jit` options of the step."""
    # JAX keeps what it traces for this program apart: what is sown in it depends on the filter.
    function: Any = compiled._interpreted.user_functions[0]
    purpose = f"watch {next(_numbers)}"

    @functools.wraps(function)
    def observed(*args: Any, **kwargs: Any) -> Any:
        model = args[0] if args else None
        if not isinstance(model, Module) and not is_object(model):
            raise StructureError("watch needs a record or an NNX object as the step's first argument")
        before = dict(_picked(model, filter))
        if not before:
            raise FilterError("the filter of watch picks no leaf of the model", at=repr(filter), fix="widen it")
        gradients = dict[int, jax.Array]()
        token = guards.set(functools.partial(_watch_gradient, before, gradients))
        try:
            with around_calls(functools.partial(_watch_call, type(model).__qualname__, before), purpose):
                out = function(*args, **kwargs)
        finally:
            guards.reset(token)
        after = dict(_picked(_after(model, out, gradients), filter))
        for path, value in before.items():
            _sow("parameter", path, value)
            # A leaf that is returned as it came in was not updated; a row of zeros would suggest a dead parameter.
            # What a step prunes or grows has no update.
            if path in after and after[path] is not value and after[path].shape == value.shape:
                change = after[path] - value
                _sow("update", path, change, _statistics(change)[_RMS] / _statistics(value)[_RMS])
        return out

    return JitFunction(observed, compiled._options, compiled._interpreted.boundary, WATCH)


def _capture(body: Any, *args: Any) -> Any:
    (out, updates, outcome), sown = capture(body, only=_Statistic)(*args)
    # The sown name is `kind path`; kinds have no spaces.
    rows = [Row(*value, *name.split(" ", 1)) for name, several in sown.items() for value in several]
    return out, updates, (outcome, tuple(sorted(rows, key=lambda row: KINDS.index(row.kind))))


def _with_rows(lifted: Any, *args: Any) -> Any:
    out, updates, (outcome, rows) = lifted(*args)
    return out, updates, outcome, rows


def _lift(lift: Lift[Any]) -> Any:
    bodies: Any = tuple(Replaced(body, _capture) for body in lift.bodies)
    return Replaced(JIT.lift(replace(lift, bodies=bodies)), _with_rows)


# `jit` for a function that sows statistics; its calls return `(output, rows)`. The quick path of `jit` returns the
# output alone, so this rule has none.
WATCH = replace(JIT, lift=_lift, finish=lambda out, finish: (out, finish.more[0]), quick=False)
_numbers = itertools.count()


class _Statistic(Intermediate):
    """The kind of values that `watch` sows, which keeps them apart from values that the user sows."""


def _sow(kind: str, path: str, value: jax.Array, ratio: Any = math.nan) -> None:
    if capturing():
        # `custom_vmap` has no rule for derivatives, so a statistic inside of `grad` would fail without this.
        value = jax.lax.stop_gradient(value)
        arrays, skeleton = take_arrays((_statistics(value), jnp.asarray(ratio, jnp.float32)))
        bind_tag(Sown(f"{kind} {path}", skeleton, _Statistic, "append", of_all=True), arrays)


def _watch_call(root: str, picked: Mapping[str, Any], path: str, module: Any, method: str, proceed: Any) -> Any:
    __tracebackhide__ = True
    result = proceed()
    value = result[0] if isinstance(result, tuple) and result else result
    # A transform may have rebuilt the module. If several modules are alike, the rebuilt one has no path from the model:
    # an activation too many is better than a missing one, so such a module counts as selected.
    inside = path.removeprefix(root).removeprefix(".") if path.startswith(root) else ""
    is_around = any(leaf.startswith(inside) and (not inside or leaf[len(inside)] in ".[") for leaf in picked)
    # A record may have a field `dtype`, too.
    if isinstance(value, jax.Array | np.ndarray) and is_inexact(value) and is_around:
        _sow("activation", path if method == "__call__" else f"{path}.{method}", jnp.asarray(value))
    return result


def _watch_gradient(
    picked: Mapping[str, Any], gradients: dict[int, jax.Array], interpreted: Interpreted[Any], plan: Plan
) -> Plan:
    if interpreted.rule is not GRAD:
        return plan
    positions = plan.crossing.group(list(range(len(plan.crossing.rides))))[0]

    def lifted(extra: Any, *groups: Any) -> Any:
        *exit, gradient = plan.lifted(extra, *groups)
        for position, value in zip(positions, gradient, strict=True):
            path = format_path(plan.crossing.structure.path_of(position)[1:], "")
            # `grad(loss)(model.head)` differentiates a part of the model, whose paths are the ends of the model's
            # paths.
            full = path if path in picked else next((leaf for leaf in picked if leaf.endswith(f".{path}")), None)
            # A gradient is a record of the model's type, too. Without these ids, `_after` would take it for the updated
            # model. The dict keeps the arrays alive, so that their ids stay theirs.
            gradients[id(value)] = value
            if full is not None and is_inexact(value):
                _sow("gradient", full, value)
        return *exit, gradient

    return replace(plan, lifted=lifted)


def _picked(model: Any, filter: Any) -> Iterator[tuple[str, jax.Array]]:
    """Returns the inexact arrays of a model that a filter selects, with their paths."""
    if is_object(model):
        nnx = nnx_if_loaded()
        leaves = [(path, variable.get_value()) for path, variable in nnx.to_flat_state(nnx.state(model, filter))]
    else:
        leaves = [(leaf.path, leaf.value) for leaf in iter_leaves(model) if predicate(filter)(leaf)]
    return ((format_path(path), value) for path, value in leaves if is_inexact(value))


def _after(model: Any, out: Any, gradients: Mapping[int, jax.Array]) -> Any:
    """Returns the model after the step: the object itself, or the first record of its type that is no gradient."""
    if is_object(model):
        return model
    records = jax.tree.leaves(out, is_leaf=lambda x: type(x) is type(model))
    return next(
        (
            x
            for x in records
            if type(x) is type(model) and not any(id(leaf) in gradients for leaf in jax.tree.leaves(x))
        ),
        None,
    )


@jax.custom_batching.custom_vmap
def _statistics(value: jax.Array) -> jax.Array:
    """Returns mean, rms, largest magnitude, share of zeros and of non-finite values; a `vmap` counts as one array."""
    x = jnp.abs(value) if jnp.issubdtype(value.dtype, jnp.complexfloating) else value
    x = x.astype(jnp.float32)
    largest = jnp.abs(x).max(initial=0.0)
    # The rms squares its values, which overflows float32 from 2e19 on. Scaled values do not overflow.
    scale = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1)
    y = x / scale
    shares = (x == 0).mean(), (~jnp.isfinite(x)).mean()
    return jnp.stack([y.mean() * scale, jnp.sqrt((y * y).mean()) * scale, largest, *shares])


@_statistics.def_vmap
# One row counts all examples of a batch: a row for each example would have the batch size as an axis.
def _(size: int, in_batched: Any, value: jax.Array) -> tuple[jax.Array, bool]:
    return _statistics(value), False
