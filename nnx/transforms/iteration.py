"""nnx.vmap, pmap, scan, while_loop, fori_loop and transform_metadata: the rules of `weft.transforms` over graphs."""

# flax has private names in this module, which other libraries import; nothing in this package uses them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, Unpack, cast, overload

import jax
from weft.core.constants import constants_of
from weft.core.edge.trees import is_tuple
from weft.core.interpreter.interpret import interpret
from weft.core.interpreter.rides import Along, Carry
from weft.core.interpreter.rules import Rule
from weft.nnx.crossing.rides import StateAxes
from weft.nnx.errors import MISSING, AxisError, PrefixError
from weft.nnx.transforms._wrap import boundary_of, checked_prefix, decorate, over, refuse_bound_method
from weft.nnx.transforms.keywords import PmapKeywords, ScanKeywords, VmapKeywords
from weft.nnx.transforms.metadata import transform_metadata, with_metadata_axes
from weft.nnx.transforms.names import _raise_bound_method_error as _raise_bound_method_error
from weft.nnx.transforms.names import _resolve_bound_callable as _resolve_bound_callable
from weft.transforms.arguments import by_axes
from weft.transforms.loops import FORI, WHILE, WhileOptions, fori_options
from weft.transforms.mapping import PMAP, VMAP, MapOptions
from weft.transforms.scanning import SCAN, SCAN_ALONG, ScanOptions
from weft.transforms.tracing import static_arguments
from weft.transforms.transformed import interpreted_at_once, named_like

__all__ = ["Carry", "StateAxes", "fori_loop", "pmap", "scan", "transform_metadata", "vmap", "while_loop"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_NONE: Mapping[str, Any] = {}


@overload
def vmap(f: F, **options: Unpack[VmapKeywords]) -> F: ...
@overload
def vmap(**options: Unpack[VmapKeywords]) -> Callable[[F], F]: ...
def vmap(
    f: Any = MISSING,
    *,
    in_axes: int | Sequence[Any] | None = 0,
    out_axes: Any = 0,
    axis_name: Any = None,
    axis_size: int | None = None,
    spmd_axis_name: Any = None,
    transform_metadata: Mapping[str, Any] = _NONE,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> F | Callable[[F], F]:
    """Maps a function of one example over a batch of objects and arrays.

    Args:
        f: a function of one example; its mutations reach the caller's objects, along their axis.
        in_axes: an axis or None for each argument; a `StateAxes` has an axis for each filter.
        out_axes: the same for the output.
        axis_name: as in `jax.vmap`.
        axis_size: as in `jax.vmap`.
        spmd_axis_name: as in `jax.vmap`.
        transform_metadata: the name of the mapped axis, for the Variables' `out_sharding` and their axis hooks.
        graph: whether objects are graphs (the default) or trees.
        graph_updates: whether structural changes reach the caller's objects.

    Raises:
        ValueError: if the sizes of the mapped axis differ, or a Variable has two axes; the error names every path.

    Source: `jax.vmap`, with the semantics of `flax.nnx.vmap`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    >>> nnx.vmap(lambda model, x: model(x), in_axes=(None, 0))(model, jnp.ones((4, 2))).shape
    (4, 3)
    """
    more = {} if spmd_axis_name is None else {"spmd_axis_name": spmd_axis_name}
    options = MapOptions(in_axes, out_axes, axis_name, axis_size, more)
    # flax resolves keyword arguments by the signature with graph updates only; `_mapped` checks that mode.
    return _mapped(VMAP, f, options, transform_metadata, graph, graph_updates, by_signature=True)


@overload
def pmap(f: F, **options: Unpack[PmapKeywords]) -> F: ...
@overload
def pmap(**options: Unpack[PmapKeywords]) -> Callable[[F], F]: ...
def pmap(
    f: Any = MISSING,
    *,
    axis_name: Any = None,
    in_axes: Any = 0,
    out_axes: Any = 0,
    static_broadcasted_argnums: int | Sequence[int] = (),
    devices: Any = None,
    backend: str | None = None,
    axis_size: int | None = None,
    donate_argnums: int | Sequence[int] = (),
    transform_metadata: Mapping[str, Any] = _NONE,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> F | Callable[[F], F]:
    """Maps a function over devices. See `vmap`.

    Args:
        f: a function of one device's part.
        axis_name: as in `jax.pmap`.
        in_axes: as in `vmap`.
        out_axes: as in `vmap`.
        static_broadcasted_argnums: positions of static arguments; their entries of `in_axes` are ignored.
        devices: as in `jax.pmap`.
        backend: as in `jax.pmap`.
        axis_size: as in `jax.pmap`.
        donate_argnums: accepted and ignored: buffers are not donated.
        transform_metadata: as in `vmap`.
        graph: whether objects are graphs (the default) or trees.
        graph_updates: whether structural changes reach the caller's objects.

    Raises:
        ValueError: for a bound method of an object, or if `in_axes` is a `StateAxes` instead of a tuple.

    Source: `jax.pmap`, with the semantics of `flax.nnx.pmap`.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> each = nnx.pmap(lambda w, x: w * x, in_axes=(None, 0), devices=jax.devices()[:1])
    >>> each(nnx.Param(jnp.array(2.0)), jnp.ones((1, 2))).tolist()
    [[2.0, 2.0]]
    """
    more = {"devices": devices} if devices is not None else {}
    more |= {"backend": backend} if backend is not None else {}
    options = MapOptions(in_axes, out_axes, axis_name, axis_size, more)
    return _mapped(PMAP, f, options, transform_metadata, graph, graph_updates, static=static_broadcasted_argnums)


def _mapped(
    rule: Rule[MapOptions],
    f: Any,
    options: MapOptions,
    metadata: Mapping[str, Any],
    graph: bool | None,
    graph_updates: bool | None,
    *,
    by_signature: bool = False,
    static: int | Sequence[int] = (),
) -> Any:
    boundary = boundary_of(rule.name, graph, graph_updates)
    in_axes = checked_prefix(boundary, options.in_axes, "in_axes", "StateAxes")
    out_axes = checked_prefix(boundary, options.out_axes, "out_axes", "StateAxes")
    # A StateAxes belongs to one argument: by itself it would be the prefix of all arguments together.
    if isinstance(in_axes, StateAxes):
        raise PrefixError(
            f"in_axes of {rule.name} is a StateAxes instead of a tuple",
            at=f"in_axes={in_axes!r}",
            fix="pass a tuple with an entry for each argument: (StateAxes(...),)",
        )
    # With a single entry for all arguments, positions do not matter, and keyword arguments stay keywords.
    by_signature = by_signature and boundary.updates and isinstance(in_axes, tuple | list)
    wrap = over(rule, boundary, replace(options, in_axes=in_axes, out_axes=out_axes), by_signature=by_signature)

    def mapped(function: Callable[..., Any]) -> Callable[..., Any]:
        transformed = wrap(with_metadata_axes(function, in_axes, out_axes, metadata, boundary))
        return static_arguments(function, static, transformed)

    return decorate(f, mapped)


@overload
def scan(f: F, **options: Unpack[ScanKeywords]) -> F: ...
@overload
def scan(**options: Unpack[ScanKeywords]) -> Callable[[F], F]: ...
def scan(
    f: Any = MISSING,
    *,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    # flax's private option. It changes how JAX transposes the loop and no result, so it is accepted and not used.
    _split_transpose: bool = False,
    in_axes: Any = (Carry, 0),
    out_axes: Any = (Carry, 0),
    transform_metadata: Mapping[str, Any] = _NONE,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> F | Callable[[F], F]:
    """Runs a step function over a sequence of objects and arrays, with a carry.

    Args:
        f: the step function.
        length: as in `jax.lax.scan`.
        reverse: as in `jax.lax.scan`.
        unroll: as in `jax.lax.scan`.
        in_axes: for each argument `Carry`, an axis, None, or `StateAxes`.
        out_axes: for each output `Carry` or an axis.
        transform_metadata: as in `vmap`.
        graph: whether objects are graphs (the default) or trees.
        graph_updates: whether structural changes reach the caller's objects.

    Raises:
        TypeError: if a step changes the carry's structure, shapes or dtypes.
        ValueError: if `in_axes` and `out_axes` do not fit each other or the arguments.

    Source: `jax.lax.scan`, with the semantics of `flax.nnx.scan`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> @nnx.scan(in_axes=(None, nnx.Carry, 0), out_axes=(nnx.Carry, 0))
    ... def step(w, carry, x):
    ...     return carry + w * x, carry
    >>> carry, before = step(nnx.Param(jnp.array(2.0)), jnp.array(0.0), jnp.arange(3.0))
    >>> carry.item(), before.tolist()
    (6.0, [0.0, 0.0, 2.0])
    """
    boundary = boundary_of("scan", graph, graph_updates)
    in_axes = checked_prefix(boundary, in_axes, "in_axes", "StateAxes")
    out_axes = checked_prefix(boundary, out_axes, "out_axes", "StateAxes")
    # Checked when it decorates, because no call can make these axes valid.
    _check_axes(in_axes, out_axes)
    options = ScanOptions(carried_in_place(in_axes), carried_in_place(out_axes), length, reverse, unroll)

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        refuse_bound_method(function, "scan")
        # Inside the loop, where Variables have lost the scanned axis.
        body = with_metadata_axes(function, in_axes, out_axes, transform_metadata, boundary)
        scanned = interpret(SCAN if boundary.updates else SCAN_ALONG, boundary)
        run = _traced_again(function, lambda: scanned((body,), options))

        def transformed(*args: Any, **kwargs: Any) -> Any:
            if in_axes is Carry and len(args) + len(kwargs) != 1:
                raise AxisError(
                    f"When in_axes=Carry, the function must take exactly one argument, not {len(args) + len(kwargs)}",
                    fix="pass the carry as one tuple, or write in_axes with an entry for each argument",
                )
            # `in_axes` has an entry for each position, so an argument that is passed by name needs its position.
            return run(*by_axes(function, args, kwargs, in_axes))

        return named_like(function, transformed)

    return decorate(f, wrap)


def _traced_again(function: Callable[..., Any], interpreted: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Wraps an interpreted rule, and makes it anew if a constant that its function closes over has changed.

    `jax.lax.scan` caches the trace of its body by identity, so without this a changed global would not be seen.
    """
    current = constants_of(function), interpreted(), True

    def run(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal current
        known, call, is_new = current
        constants = constants_of(function)
        # `constants` is None if some global cannot be compared, so any earlier trace may be stale.
        if constants is None or constants != known:
            known, call, is_new = current = constants, interpreted(), True
        out = call(args, kwargs)
        if is_new:
            # Read again after the first call: a trace may change a global itself (a counter of traces), which would
            # otherwise make every call trace again.
            current = constants_of(function), call, False
        return out

    return run


def _check_axes(in_axes: Any, out_axes: Any) -> None:
    """Refuses axes that are invalid for every call.

    Raises:
        ValueError: if only one of the two has a Carry, or if an output is neither carried nor stacked.
    """
    arguments, returned = (list(axes) if is_tuple(axes) else [axes] for axes in (in_axes, out_axes))
    for option, axes in (("in_axes", arguments), ("out_axes", returned)):
        if sum(axis is Carry for axis in axes) > 1:
            raise AxisError(
                f"Found multiple Carry definitions in {option}, but scan has a single carry",
                at=f"{option}={tuple(axes)!r}",
                fix="carry a tuple of them",
            )
    if (Carry in arguments) != (Carry in returned):
        raise AxisError(
            "If one of in_axes or out_axes has Carry, the other must also have Carry: a step returns the next carry",
            at=[f"in_axes={in_axes!r}", f"out_axes={out_axes!r}"],
            fix="write Carry in both, or in neither",
        )
    # None must be a leaf here: for `jax.tree` it is an empty container, and `out_axes=None` would pass unseen.
    for axis in jax.tree.leaves(out_axes, is_leaf=lambda node: node is None or _is_state_axes(node)):
        if axis is None or (_is_state_axes(axis) and None in axis.axes):
            raise AxisError(
                f"Cannot broadcast output state. Got {axis!r}, but every step of scan returns another output",
                at=f"out_axes={out_axes!r}",
                fix="carry the output (Carry), or stack it (an axis)",
            )
        if _is_state_axes(axis) and Carry in axis.axes:
            raise AxisError(
                "Cannot carry output state: a StateAxes in out_axes has Carry",
                at=f"out_axes={out_axes!r}",
                fix="write it in in_axes alone: Variables that a StateAxes there carries are updated by themselves",
            )


def _is_state_axes(node: Any) -> bool:
    return isinstance(node, StateAxes)


def carried_in_place(axes: Any) -> Any:
    """Replaces `Carry` inside a `StateAxes` by a ride whose Variables are updated, and need not be returned."""
    if isinstance(axes, StateAxes):
        return StateAxes([(filter, Along() if ride is Carry else ride) for filter, ride in axes.rides])
    if isinstance(axes, dict):
        return {key: carried_in_place(value) for key, value in cast("dict[Any, Any]", axes).items()}
    # By exact type, because the constructor of a named tuple takes its fields and not an iterable.
    return type(axes)(map(carried_in_place, axes)) if type(axes) in (tuple, list) else axes


def while_loop(
    cond_fun: Callable[[T], Any],
    body_fun: Callable[[T], T],
    init_val: T,
    *,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> T:
    """Applies a function to a carry of objects and arrays while a condition holds.

    Raises:
        TypeError: if a step changes the carry's structure (naming each path), or the condition is no boolean scalar.

    Source: `jax.lax.while_loop`, with the semantics of `flax.nnx.while_loop`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> def double(w):
    ...     w[...] *= 2
    ...     return w
    >>> nnx.while_loop(lambda w: w[...] < 10, double, nnx.Param(jnp.array(3.0)))[...].item()
    12.0
    """
    boundary = boundary_of("while_loop", graph, graph_updates)
    # The two functions are mostly written in the call and new each time, so the plan is looked up by their code and
    # constants.
    return interpreted_at_once(WHILE, boundary, (cond_fun, body_fun), WhileOptions())((init_val,), {})


def fori_loop(
    lower: Any,
    upper: Any,
    body_fun: Callable[[Any, T], T],
    init_val: T,
    *,
    unroll: int | bool | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> T:
    """Applies a function to a counter and a carry of objects and arrays, from `lower` to `upper`.

    Raises:
        TypeError: if a step changes the carry's structure (naming each path), or a bound is no scalar.

    Source: `jax.lax.fori_loop`, with the semantics of `flax.nnx.fori_loop`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> def add(i, w):
    ...     w[...] += i
    ...     return w
    >>> nnx.fori_loop(0, 4, add, nnx.Param(jnp.array(1)))[...].item()
    7
    """
    # `supplies`: `body_fun` has a parameter for the counter first, so errors name the user's argument by the second.
    boundary = boundary_of("fori_loop", graph, graph_updates, supplies=1)
    options, bounds = fori_options(lower, upper, unroll)
    return interpreted_at_once(FORI, boundary, (body_fun,), options)((init_val,), {}, extra=bounds)
