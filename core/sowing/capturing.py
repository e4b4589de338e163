"""`sow`, `perturb` and `capture`: return, or differentiate by, intermediate values of a pure function.

`sow(name, value)` marks a value, and `capture(fun)` returns it with the output, from inside of any transform.
`perturb(name, value)` adds a zero, and the gradient by that zero is the gradient by the value. Outside of a capture
both are the identity and leave nothing in the jaxpr.

    def mlp(x):
        h = sow("hidden", jnp.tanh(x))
        return h.sum()

    out, sown = capture(mlp)(x)            # sown["hidden"] == (tanh(x),)

What comes out depends on the transform in which a value is sown:

| inside | a sown value comes out | a perturbation goes in |
|---|---|---|
| `jit`, `remat`, custom derivatives | as it is | as it is |
| `scan`, `lax.map`, `fori_loop` of static length | stacked over the iterations, in the order of `ys` | stacked alike |
| `vmap` | with the mapped axis in front, even if it does not depend on it | per example alike |
| `cond`, `switch` | as it is if its branch was taken, **zeros** if not | of the taken branch only |
| `while_loop` | of the last iteration, **zeros** if there was none | one, the same in every iteration |
| `grad`, `vjp`, `jvp` | the primal value | to the primal value |

To distinguish zeros from a branch that was not taken, sow a flag too: `sow("taken", True)` comes out as `False` if it
was not. The branches of a `cond` share entries: the n-th value that one branch sows under a name, and the n-th of
another branch with the same shapes and dtypes, are one entry.

The outputs of a function with a custom derivative keep their rule. Values sown in its body, and perturbations in it,
are differentiated like the body, because the rule says nothing about them. If `fun` itself differentiates such a
function, JAX runs the forward rule *instead of* the body, so sow in the forward rule as well.

The arrays among the captured function's arguments are traced; everything else, Python numbers too, is static. `fun` is
traced at each call, so put `jit` around `capture(fun)` for speed; all transforms compose with it. Values that are
computed under `jax.ensure_compile_time_eval` are not captured, and a tag inside a primitive that no rule knows
(`custom_linear_solve`, `shard_map` and so `pmap`, a kernel) is an error that names the primitive.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Literal, ParamSpec, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.typing import ArrayLike
from weft.core.edge import _jax
from weft.core.edge.trees import PyTree
from weft.core.errors import DifferentiationError, StructureError
from weft.core.records.kinds import Intermediate, Kind
from weft.core.records.leaves import NUMBERS, is_array
from weft.core.sowing.hoisting import evaluate, tracing_tags
from weft.core.sowing.tags import (
    CaptureError,
    Perturbed,
    Program,
    Sown,
    Tag,
    bind_tag,
    capturing,
    current_scope,
    take_arrays,
    traced,
)

__all__ = ["CaptureError", "capture", "name_scope", "perturb", "perturbations", "sow"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

Mode = Literal["append", "clobber", "strict"]
Selector = str | type[Kind] | Callable[[str, type[Kind]], bool]


def sow(name: str, value: T, /, *, kind: type[Kind] = Intermediate, mode: Mode = "append") -> T:
    """Marks a value as observable under a name, and returns it.

    Args:
        name: the key in the dict that `capture` returns; the names of open scopes are put before it.
        value: any tree. Its arrays and numbers are sown; other leaves are returned unchanged.
        kind: the kind of the value, for captures that select by kind.
        mode: the entry of a name under which several values are sown: `append` gives a tuple of all, in program order
            (also of one); `clobber` the last; `strict` the only value, and a second one is an error.

    Raises:
        CaptureError: under `capture`, for any other mode, and for a second value if the mode is `strict`.

    >>> out, sown = capture(lambda x: sow("square", x * x) + 1)(jnp.array([1.0, 2.0]))
    >>> sown
    {'square': (Array([1., 4.], dtype=float32),)}
    """
    if not capturing():
        return value
    if mode not in ("append", "clobber", "strict"):
        raise CaptureError(f"unknown mode {mode!r} for the sown name {name!r}", fix="'append', 'clobber' or 'strict'")
    leaves, skeleton = take_arrays(value, _is_array_or_number)
    # Without weak types, because the branches of a `cond` must agree: one may sow 1.0, another an array of that dtype.
    bind_tag(Sown(_scoped(name), skeleton, kind, mode), [_strong(leaf) for leaf in leaves])
    return value


def perturb(name: str, value: T, /) -> T:
    """Adds a zero to a value; `capture(fun, perturb=...)` adds a perturbation in its place.

    Args:
        name: the key in the dict of perturbations, unique in the function; the names of open scopes are put before it.
        value: any tree of inexact arrays.

    Returns:
        The value, plus the perturbation if there is one.

    Raises:
        DifferentiationError: under `capture`, if the value holds arrays that are not inexact.

    >>> def loss(x):
    ...     return jnp.sum(perturb("square", x * x) ** 2)
    >>> x = jnp.array([1.0, 2.0])
    >>> jax.grad(lambda p: capture(loss, perturb=p)(x)[0])(perturbations(loss)(x))
    {'square': Array([2., 8.], dtype=float32)}
    """
    if not capturing():
        return value
    leaves, skeleton = take_arrays(value, _is_array_or_number)
    arrays = [_jax.asarray(leaf) for leaf in leaves]
    for array in arrays:
        if not jnp.issubdtype(array.dtype, jnp.inexact):
            raise DifferentiationError(
                f"the perturbed value {_scoped(name)!r} holds {jax.typeof(array).str_short()}",
                fix="perturb only the inexact arrays of the value",
            )
    return cast(T, skeleton.fill(bind_tag(Perturbed(_scoped(name), skeleton), arrays)))


def name_scope(name: str) -> AbstractContextManager[None]:
    """Opens a `with` block in which `name/` is put before the names of `sow` and `perturb`.

    >>> def block(x):
    ...     return sow("out", x + 1)
    >>> def model(x):
    ...     for i in range(2):
    ...         with name_scope(f"block{i}"):
    ...             x = block(x)
    ...     return x
    >>> list(capture(model)(0.0)[1])
    ['block0/out', 'block1/out']
    """
    return tracing_tags((*current_scope(), name) if capturing() else None)


def capture(
    fun: Callable[P, R],
    /,
    *,
    only: Selector | Iterable[Selector] | None = None,
    perturb: Mapping[str, PyTree] | None = None,
) -> Callable[P, tuple[R, dict[str, PyTree]]]:
    """Makes a function return its output and the values sown in it.

    Args:
        fun: any function of trees. It is traced: its control flow cannot depend on the values of arrays.
        only: selects values: by names, kinds (with their subclasses), predicates of (name, kind), or several of these;
            by default all. Other values stay sown for an outer capture.
        perturb: the values to add at each `perturb` in `fun`, as `perturbations` returns them. By default an outer
            capture decides.

    Returns:
        A function of the same arguments that returns `(output, sown)`, with `sown` a dict from name to values.

    Raises:
        CaptureError: a value is sown or perturbed inside of an unknown primitive, a name is used with two modes, a
            `strict` name is sown twice, a name is perturbed twice.
        StructureError: the names or shapes in `perturb` are not those of `perturbations(fun)`.

    >>> def cumulative(xs):
    ...     return jax.lax.scan(lambda total, x: (sow("total", total + x), None), 0.0, xs)[0]
    >>> capture(cumulative)(jnp.array([1.0, 2.0, 3.0]))
    (Array(6., dtype=float32), {'total': (Array([1., 3., 6.], dtype=float32),)})
    """
    is_taken = _selection(only)

    @functools.wraps(fun)
    def captured(*args: P.args, **kwargs: P.kwargs) -> tuple[R, dict[str, PyTree]]:
        sown: list[tuple[Sown, PyTree]] = []
        planted: list[str] = []

        def handler(tag: Tag, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
            if isinstance(tag, Sown) and is_taken(tag.name, tag.kind):
                sown.append((tag, tag.skeleton.fill(_arrays(values))))
                return values
            if isinstance(tag, Perturbed) and perturb is not None:
                _check_planted_once(tag.name, planted)
                planted.append(tag.name)
                return _perturbed(tag, values, perturb)
            # For the capture around this one, with the names of the scopes that are open around this one.
            return bind_tag(replace(tag, name=_scoped(tag.name)), values) if capturing() else values

        program = _trace(fun, args, kwargs)
        outputs = evaluate(program.closed.jaxpr, program.closed.consts, program.arrays, handler)
        out = cast(R, program.rebuild(_arrays(outputs)))
        # Known only after the run: a name that `fun` never perturbs would have no effect, and nobody would notice.
        if extra := [name for name in perturb or () if name not in planted]:
            raise StructureError(
                f"the function plants no perturbation named {extra[0]!r}",
                at=[f"planted: {name!r}" for name in planted],
                fix="pass what `perturbations(fun)` returns for the same arguments",
            )
        return out, _gather(sown)

    return captured


def perturbations(fun: Callable[P, object], /) -> Callable[P, dict[str, PyTree]]:
    """The zeros that `capture(fun, perturb=...)` takes: a dict from name to a tree like the perturbed value.

    The function is traced and not run; its arguments may be `jax.ShapeDtypeStruct`s. Values perturbed inside a `scan`
    have its length as their leading axis.

    Raises:
        CaptureError: when called, if two values are perturbed under one name.

    >>> def doubled(xs):
    ...     return jax.lax.map(lambda x: perturb("double", 2 * x), xs)
    >>> perturbations(doubled)(jax.ShapeDtypeStruct((3,), jnp.float32))
    {'double': Array([0., 0., 0.], dtype=float32)}
    """

    @functools.wraps(fun)
    def planted(*args: P.args, **kwargs: P.kwargs) -> dict[str, PyTree]:
        tags: dict[str, Perturbed] = {}
        types: dict[str, list[ShapedArray]] = {}

        def handler(tag: Tag, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
            if isinstance(tag, Perturbed):
                _check_planted_once(tag.name, tags)
                tags[tag.name], types[tag.name] = tag, list(map(_jax.strong_type_of, values))
            return values

        # The jaxpr is evaluated in another trace, because the handler must see the values outside of their loops, where
        # they are stacked.
        closed = _trace(fun, args, kwargs).closed
        _jax.trace(lambda *inputs: evaluate(closed.jaxpr, closed.consts, inputs, handler), closed.in_avals, like=closed)
        return {name: tag.skeleton.fill(list(map(_jax.zeros, types[name]))) for name, tag in tags.items()}

    return planted


def _is_array_or_number(leaf: object) -> bool:
    return is_array(leaf) or isinstance(leaf, NUMBERS)


def _scoped(name: str) -> str:
    return "/".join((*current_scope(), name))


def _strong(leaf: object) -> jax.Array:
    array = _jax.asarray(leaf)
    return jax.lax.convert_element_type(array, array.dtype) if array.weak_type else array


def _trace(fun: Callable[..., PyTree], args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> Program:
    # `sow` and `perturb` bind tags only in here, so that they leave no equations in other traces.
    with tracing_tags():
        return traced(fun, args, kwargs)


def _arrays(values: Sequence[ArrayLike]) -> list[jax.Array]:
    # A literal of a jaxpr is a NumPy scalar, but users expect a `jax.Array`.
    return [value if isinstance(value, jax.Array) else _jax.asarray(value) for value in values]


def _selection(only: Selector | Iterable[Selector] | None) -> Callable[[str, type[Kind]], bool]:
    """A predicate of (name, kind) for `only` in its several forms."""
    if only is None:
        return lambda name, kind: True
    if isinstance(only, str):
        return lambda name, kind: name == only
    if isinstance(only, type):
        return lambda name, kind: issubclass(kind, only)
    if callable(only):
        return only
    choices = [_selection(choice) for choice in only]
    return lambda name, kind: any(choice(name, kind) for choice in choices)


def _gather(sown: Sequence[tuple[Sown, PyTree]]) -> dict[str, PyTree]:
    names = dict.fromkeys(tag.name for tag, _ in sown)
    return {name: _values_of(name, [(tag.mode, value) for tag, value in sown if tag.name == name]) for name in names}


def _values_of(name: str, sown: Sequence[tuple[str, PyTree]]) -> PyTree:
    """The entry of a name, from the values that were sown under it, each with its mode."""
    modes, values = {mode for mode, _ in sown}, [value for _, value in sown]
    if len(modes) > 1:
        raise CaptureError(
            f"the name {name!r} is sown with several modes: {', '.join(sorted(modes))}", fix="use one mode for a name"
        )
    if "append" in modes:
        return tuple(values)
    if "strict" in modes and len(values) > 1:
        raise CaptureError(
            f"the name {name!r} is sown {len(values)} times, with mode 'strict'",
            fix="give each value a name of its own, open a `name_scope`, or use mode 'append'",
        )
    return values[-1]


def _check_planted_once(name: str, planted: Iterable[str]) -> None:
    if name in planted:
        raise CaptureError(
            f"two values are perturbed under the name {name!r}",
            fix="give each value a name of its own, or open a `name_scope` around each",
        )


def _perturbed(tag: Perturbed, values: Sequence[jax.Array], perturbations: Mapping[str, PyTree]) -> list[jax.Array]:
    """The values of a `perturb`, plus the perturbation of its name, which must be a tree like them."""
    how = "pass what `perturbations(fun)` returns for the same arguments"
    if tag.name not in perturbations:
        raise StructureError(f"no perturbation is given for the name {tag.name!r}", fix=how)
    offsets, skeleton = take_arrays(perturbations[tag.name], _is_array_or_number)
    if skeleton.treedef != tag.skeleton.treedef:
        raise StructureError(
            f"the perturbation {tag.name!r} is not a tree like the perturbed value",
            at=[f"perturbation: {skeleton.treedef}", f"value: {tag.skeleton.treedef}"],
            fix=how,
        )
    expected = [f"{value.dtype}{list(value.shape)}" for value in values]
    actual = [f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}" for leaf in offsets]
    if expected != actual:
        raise StructureError(
            f"the perturbation {tag.name!r} does not fit the perturbed value",
            at=[f"perturbation: {', '.join(actual)}", f"value: {', '.join(expected)}"],
            fix=how,
        )
    return [_jax.add(value, _jax.asarray(leaf)) for value, leaf in zip(values, offsets, strict=True)]
