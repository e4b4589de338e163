"""The text of a `NonFiniteError`: the equation, the transforms and loops around it, its inputs, and a remedy."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from weft.core.edge import _jax
from weft.core.errors import NonFiniteError
from weft.insight.debug.interpreting import Origin, Step, is_inexact, prepares_backward
from weft.insight.debug.places import Place, argument_names, count_own_maps, place_of
from weft.insight.equations import scopes

# Remedies, by the primitive (for a derivative, the primitive that was differentiated) and whether it is a derivative.
# `jnp.where` around a bad value helps the value only: its gradient multiplies 0 by inf, which is NaN.
_HINTS = {
    ("log", True): "the gradient of log at 0 is inf: jnp.where selects after the fact; mask its argument",
    ("sqrt", True): "the gradient of sqrt at 0 is inf: jnp.where selects after the fact; mask its argument",
    ("div", True): "the gradient of a division by 0 is not finite: mask the divisor, not the quotient",
    ("pow", True): "the gradient of pow at 0 is not finite: jnp.where selects after the fact; mask its argument",
    ("log", False): "log is finite above 0: keep its argument there (jnp.maximum, an epsilon), or mask it",
    ("sqrt", False): "sqrt has no value below 0: keep its argument there (jnp.maximum)",
    ("rsqrt", False): "rsqrt is finite above 0: add an epsilon to its argument",
    ("div", False): "mask the divisor before it divides: x / jnp.where(y == 0, 1, y)",
    ("exp", False): "subtract the maximum before exp, as jax.nn.softmax and logsumexp do",
}


# By variable: the size and the position of each batch axis.
BatchAxes = dict[Any, list[tuple[int, int]]]
_CASTS = ("convert_element_type", "broadcast_in_dim")


def words_of(origin: Origin, place: Place) -> str:
    """Describes what the equation computed: `log of 0.0 gives -inf`."""
    step, name = origin.step, origin.step.eqn.primitive.name
    values, out = step.values
    items = [_item(x, origin.index if np.ndim(x) else ()) for x in values] if step.pointwise else []
    result = _item(out, origin.index)
    of = (" by " if name == "div" else " and ").join(
        f"{float(x):.6g}" if np.ndim(x) == 0 and np.isrealobj(x) else str(x) for x in items
    )
    text = f"{name}{f' of {of}' if of else ''} gives {result}"
    at = [x for x in items if x is not None]
    finite = all(np.isfinite(np.asarray(x, np.float64)) for x in at if np.isrealobj(x))
    # An infinity at a pole (log of 0, division by 0) is no overflow, and a wider dtype would not help.
    is_pole = name in ("log", "rsqrt", "log1p", "atanh") or (
        name in ("div", "pow", "integer_pow") and bool(at) and not np.any(at[-1 if name == "div" else 0])
    )
    if np.isinf(result) and finite and not is_pole and step.generates:
        text += f": an overflow, the largest {out.dtype} is {float(jnp.finfo(out.dtype).max):.6g}"
    return text + (f" (the derivative of {place.derived})" if place.derived else "")


def _item(value: Any, index: tuple[int, ...]) -> Any:
    return np.asarray(value)[index] if len(index) == np.ndim(value) else None


def _pass(transforms: Sequence[str], place: Place, program: Container[str]) -> str:
    if "transpose" in transforms:
        return "in the backward pass"
    if "jvp" in transforms and "transpose" not in program:  # nothing tells a value from its tangent
        return "in forward-mode differentiation"
    if place.derived or place.is_backward:
        return "in the forward pass, which prepares the backward one"
    outside = "jvp" in program and "jvp" not in transforms
    return "outside of the gradient (an update, a metric)" if outside else "in the forward pass"


def _example(origin: Origin, transforms: Sequence[str], axes: BatchAxes, stacked: bool) -> list[str]:
    """Names the example of each `vmap` around an equation, from the batch axes of its output."""
    step, shape = origin.step, origin.step.mask.shape
    frames = [f"shard {origin.index[0]} of {shape[0]}"] if stacked else []
    known = next((axes[var] for var in step.eqn.outvars if var in axes), None)
    # Some equations of a batching rule have no entry; if their first axis has a mapped size, it is taken for the batch
    # axis.
    if known is None and "vmap" in transforms and shape[stacked:]:
        sizes = {size for several in axes.values() for size, _ in several}
        known = [(shape[int(stacked)], 0)] if shape[int(stacked)] in sizes else []
    own = count_own_maps(step.eqn)  # the innermost: what the user maps is around the function of JAX's
    known = known[: len(known) - own] if known else known
    return frames + [f"vmap(example {origin.index[axis + stacked]} of {size})" for size, axis in known or ()]


def _place(step: Step, transforms: Sequence[str]) -> Place:
    """Returns the place of a step's equation. An equation in a function of JAX's that is compiled separately has no
    line of the user's: its place is the call of that function."""
    place, outer = place_of(step.eqn, "jvp" in transforms), step.run.context.outer
    while not place.where and outer is not None:
        place, outer = replace(place_of(outer.eqn), derived=place.derived), outer.run.context.outer
    if "jvp" not in transforms or "transpose" in transforms or not prepares_backward(step.run, step.index):
        return place
    # A coefficient has the traceback of the value that it is of. Where several values have it, none is named.
    lines, before = _jax.lines_of(step.eqn), enumerate(step.run.jaxpr.eqns[: step.index])
    alike = [(i, eqn.primitive.name) for i, eqn in before if _jax.lines_of(eqn) == lines]
    values = {name for i, name in alike if name not in _CASTS and not prepares_backward(step.run, i)}
    return replace(place, derived=place.derived or (values.pop() if len(values) == 1 else ""), is_backward=True)


def _inputs(step: Step, place: Place) -> list[str]:
    read = [i for i, atom in enumerate(step.eqn.invars) if not _jax.is_literal(atom)]
    # Inputs of a derivative rule are not the operands of the user's expression.
    names = argument_names("" if place.derived else place.text, len(read), step.eqn.primitive.name) or [
        step.run.name_of(step.eqn.invars[i], place.text) for i in read
    ]
    # A linear solve takes the same matrix several times.
    lines = (f"{name} {_described(step.values[0][i])}" for name, i in zip(names, read, strict=True))
    return list(dict.fromkeys(lines))


def _described(value: Any) -> str:
    """Describes an input: its type and, if it is inexact, its range and its counts of 0, nan and inf."""
    text = jax.typeof(value).str_short(short_dtypes=True)
    if not is_inexact(value) or jnp.issubdtype(value.dtype, jnp.complexfloating) or not value.size:
        return text
    array = np.asarray(jnp.asarray(value).astype(jnp.float32) if value.dtype.itemsize < 4 else value)
    if (finite := array[np.isfinite(array)]).size:
        text += f" min {finite.min():.6g} max {finite.max():.6g}"
    masks = (array == 0, "are 0"), (np.isnan(array), "are nan"), (np.isposinf(array), "are inf")
    masks += ((np.isneginf(array), "are -inf"),)
    return text + "".join(f", {mask.sum()} of {array.size} {what}" for mask, what in masks if mask.any())


def error_of(origin: Origin, axes: BatchAxes, reached: str, program: Container[str]) -> NonFiniteError:
    """Returns the error about an origin.

    Args:
        origin: the place where a bad value began.
        axes: the batch axes of the program's variables.
        reached: the outputs that the value reaches, as `reaching` lists them.
        program: the names of all transforms in the program.
    """
    step, context = origin.step, origin.step.run.context
    transforms, modules, branches = scopes(step.eqn)
    every, path = [*context.transforms, *transforms], [*context.modules, *modules]
    place = _place(step, every)
    frames = [frame for frame in context.frames if frame != "vmap"]
    inside = ["jit", *frames, *_example(origin, every, axes, "shard_map" in frames), *branches]
    name = place.derived or step.eqn.primitive.name
    derivative = bool(place.derived) or place.is_backward or "transpose" in every
    hint, words = _HINTS.get((name, derivative)), words_of(origin, place)
    operand = _item(step.values[0][-1 if step.eqn.primitive.name == "div" else 0], origin.index)
    # `x ** y` has the derivative `log(x) * x ** y`, which is no number below 0.
    if derivative and operand is not None and np.isrealobj(operand) and operand < 0:
        hint = f"{name} and its gradient have no value below 0: jnp.where selects after the fact; mask its argument"
    if hint is None and "overflow" in words:
        hint = f"scale it down, or compute it in a wider dtype than {step.values[1].dtype}"
    if hint is None and step.makes_nan and step.causes:
        hint = "intended infinities gave this NaN: a row that is masked as a whole has no softmax; mask its result"
    at = f"{path[-1]}, {place.where}" if path else place.where
    return NonFiniteError(
        f"{words}, first seen {_pass(every, place, program)}",
        at=at,
        lines=(("inside", " > ".join(inside)), *(("inputs", line) for line in _inputs(step, place)),
               ("reaches", reached), *((("hint", hint),) if hint else ())),
    )  # fmt: skip


def reaching(paths: Sequence[str], loss: str | None = None, kinds: Mapping[str, str] = MappingProxyType({})) -> str:
    """Lists the outputs that are not finite on one line: the loss first, then the other outputs by kind.

    >>> reaching(["output[0]", "output[1].a", "output[1].b", "output[1].c", "output[1].d"])
    'output[0], output[1].a, output[1].b and 2 more'
    >>> reaching(["output[0]", "output[1].a"], "output[0]", {"output[1].a": "Param"})
    'the loss (output[0]); 1 Param: output[1].a'
    """
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(kinds.get(path, ""), []).append(re.sub(r"^<root>$", "output", path))
    parts: list[str] = []
    for kind, several in sorted(groups.items()):
        shown = [f"the loss ({path})" if path == loss else path for path in several[:3]]
        more = f" and {len(several) - 3} more" if len(several) > 3 else ""
        count = f"{len(several)} {kind}{'s' * (len(several) > 1)}: " if kind else ""
        parts.append(count + ", ".join(shown) + more)
    return "; ".join(parts)
