"""nnx.grad, value_and_grad, vjp, jvp and remat: the rules of `weft.transforms` over graphs."""

# flax has private names in this module, which other libraries import; nothing in this package uses them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, Unpack, overload

from weft.core.interpreter.interpret import interpret
from weft.nnx.crossing.references import References
from weft.nnx.crossing.rides import DiffState
from weft.nnx.errors import MISSING, Missing, OptionError
from weft.nnx.transforms._wrap import (
    argnums_and_filters,
    boundary_of,
    checked_prefix,
    decorate,
    over,
    refuse_bound_method,
)
from weft.nnx.transforms.keywords import ModeKeywords, PullbackKeywords, RematKeywords, ReverseKeywords
from weft.nnx.transforms.names import _raise_bound_method_error as _raise_bound_method_error
from weft.nnx.transforms.names import _resolve_bound_callable as _resolve_bound_callable
from weft.nnx.variable.kinds import Param
from weft.transforms.arguments import as_tuple
from weft.transforms.autodiff import GRAD, JVP, VJP, DiffOptions, jvp_with, vjp_with
from weft.transforms.tracing import REMAT, RematOptions, static_arguments
from weft.transforms.transformed import named_like

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

__all__ = ["DiffState", "grad", "jvp", "remat", "value_and_grad", "vjp"]


def _grad(name: str, f: Any, argnums: Any, graph: bool | None, graph_updates: bool | None, **options: Any) -> Any:
    boundary = boundary_of(name, graph, graph_updates)
    # A dict names no positions, and JAX may not be able to sort its keys; `argnums_and_filters` refuses it.
    if not isinstance(argnums, dict):
        checked_prefix(boundary, argnums, "argnums", "DiffState")
    numbers, filters = argnums_and_filters(argnums)
    # As in flax: without a Param to differentiate, the gradient is an empty State with graph updates, else an error.
    more: dict[str, Any] = {"filters": filters, "chooses": "nnx.DiffState", "may_be_none": boundary.updates, **options}
    settings = DiffOptions(name, numbers, _default(boundary), **more)
    # As in flax, which binds a call to the signature in this mode: `nnx.grad(loss)(model=model)` works.
    reaches = max(as_tuple(numbers), default=-1) + 1
    return decorate(f, over(GRAD, boundary, settings, by_signature=boundary.updates, reaches=reaches))


def _refuse_reduce_axes(transform: str, reduce_axes: Sequence[Hashable]) -> None:
    # Ignored, it would give gradients that are not summed over the axes.
    if as_tuple(reduce_axes):
        raise OptionError(
            f"nnx.{transform} does not implement reduce_axes",
            at=f"reduce_axes={reduce_axes!r}",
            fix="reduce inside of the function, with jax.lax.psum",
        )


def _default(boundary: References) -> Any:
    """The filter for arguments without a `DiffState`: Params of graphs, everything of trees."""
    # Without graph updates an object is a pytree of arrays, and `jax.grad` differentiates all leaves of one.
    return Param if boundary.updates else ...


@overload
def grad(f: Callable[P, Any], **options: Unpack[ReverseKeywords]) -> Callable[P, Any]: ...
@overload
def grad(**options: Unpack[ReverseKeywords]) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
def grad(
    f: Any = MISSING,
    *,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Hashable] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Any]:
    """Makes a function that computes the gradient of a scalar function of objects and arrays.

    Args:
        f: returns a scalar, or `(scalar, aux)` with `has_aux`; its mutations reach the caller's objects.
        argnums: positions, whose Params are differentiated, or `DiffState`s that choose other Variables.
        has_aux: whether `f` also returns auxiliary output.
        holomorphic: as in `jax.grad`.
        allow_int: as in `jax.grad`.
        reduce_axes: must be empty, as in `jax.grad`.
        graph: whether objects are graphs (the default) or trees.
        graph_updates: whether structural changes reach the caller's objects.

    Returns:
        A function that returns the gradient. That of an object is a State of the differentiated Variables; without
        graph updates it is an object like the argument.

    Raises:
        NotImplementedError: for `reduce_axes`.
        TypeError: if an argument cannot be differentiated (an integer), or if the output is not a scalar.
        ValueError: for a bound method of an object.

    Source: `jax.grad`, with the semantics of `flax.nnx.grad`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> w = nnx.Param(jnp.array(3.0))
    >>> float(nnx.grad(lambda w: w[...] ** 2)(w)[...])
    6.0
    """
    _refuse_reduce_axes("grad", reduce_axes)
    options = {"has_aux": has_aux, "holomorphic": holomorphic, "allow_int": allow_int}
    return _grad("grad", f, argnums, graph, graph_updates, **options)


@overload
def value_and_grad(f: Callable[P, R], **options: Unpack[ReverseKeywords]) -> Callable[P, tuple[R, Any]]: ...
@overload
def value_and_grad(**options: Unpack[ReverseKeywords]) -> Callable[[Callable[P, R]], Callable[P, tuple[R, Any]]]: ...
def value_and_grad(
    f: Any = MISSING,
    *,
    argnums: int | DiffState | Sequence[int | DiffState] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Hashable] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[..., Any]:
    """Makes a function that returns a scalar function's value and its gradient. See `grad`.

    Raises:
        NotImplementedError: for `reduce_axes`.
        TypeError: if an argument cannot be differentiated (an integer), or if the output is not a scalar.
        ValueError: for a bound method of an object.

    Source: `jax.value_and_grad`, with the semantics of `flax.nnx.value_and_grad`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> value, gradient = nnx.value_and_grad(lambda w: w[...] ** 2)(nnx.Param(jnp.array(3.0)))
    >>> value.item(), gradient[...].item()
    (9.0, 6.0)
    """
    _refuse_reduce_axes("value_and_grad", reduce_axes)
    options = {"has_aux": has_aux, "holomorphic": holomorphic, "allow_int": allow_int, "with_value": True}
    return _grad("value_and_grad", f, argnums, graph, graph_updates, **options)


@overload
def vjp(
    f: Callable[..., R],
    *primals: *tuple[Any, *tuple[Any, ...]],
    has_aux: Literal[False] = False,
    **options: Unpack[PullbackKeywords],
) -> tuple[R, Callable[..., Any]]: ...
@overload
def vjp(
    f: Callable[..., tuple[R, S]],
    *primals: *tuple[Any, *tuple[Any, ...]],
    has_aux: Literal[True],
    **options: Unpack[PullbackKeywords],
) -> tuple[R, Callable[..., Any], S]: ...
@overload
def vjp(f: Callable[P, Any], *, has_aux: bool = False, **options: Unpack[PullbackKeywords]) -> Callable[P, Any]: ...
@overload
def vjp(
    *, has_aux: bool = False, **options: Unpack[PullbackKeywords]
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
def vjp(
    f: Any = MISSING,
    *primals: Any,
    has_aux: bool = False,
    reduce_axes: Sequence[Hashable] = (),
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> tuple[Any, ...] | Callable[..., Any]:
    """Returns the output of a function of objects and arrays, and its pullback.

    Without `f` it returns a decorator; with `f` alone, a function of the primals.

    Raises:
        NotImplementedError: for `reduce_axes`.
        ValueError: for a bound method of an object.

    Source: `jax.vjp`, with the semantics of `flax.nnx.vjp`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> out, pullback = nnx.vjp(lambda w, x: w * x, nnx.Param(jnp.array(3.0)), jnp.array(2.0))
    >>> of_w, of_x = pullback(jnp.array(1.0))
    >>> out.item(), of_w[...].item(), of_x.item()
    (6.0, 2.0, 3.0)
    """
    _refuse_reduce_axes("vjp", reduce_axes)
    boundary = boundary_of("vjp", graph, graph_updates)

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        refuse_bound_method(function, "vjp")

        def transformed(*primals: Any) -> Any:
            # `allow_int`, as in JAX: integers are refused by `grad` only; a pullback gives them float0 cotangents.
            # The options are made in the call, because only the call knows how many primals there are.
            options = DiffOptions("vjp", tuple(range(len(primals))), _default(boundary), has_aux, allow_int=True)
            return vjp_with(interpret(VJP, boundary)((function,), options), primals)

        return named_like(function, transformed)

    if isinstance(f, Missing):
        return wrap
    # As in flax: without primals the result is a function of them, so that `vjp` can decorate.
    return wrap(f)(*primals) if primals else wrap(f)


@overload
def jvp(
    f: Callable[..., R],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    has_aux: Literal[False] = False,
    **options: Unpack[ModeKeywords],
) -> tuple[R, Any]: ...
@overload
def jvp(
    f: Callable[..., tuple[R, S]],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    has_aux: Literal[True],
    **options: Unpack[ModeKeywords],
) -> tuple[R, Any, S]: ...
@overload
def jvp(
    f: Callable[..., Any], *, has_aux: bool = False, **options: Unpack[ModeKeywords]
) -> Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]]: ...
@overload
def jvp(
    *, has_aux: bool = False, **options: Unpack[ModeKeywords]
) -> Callable[[Callable[..., Any]], Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]]]: ...
def jvp(
    f: Any = MISSING,
    primals: Any = MISSING,
    tangents: Any = MISSING,
    *,
    has_aux: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> tuple[Any, ...] | Callable[..., Any]:
    """Returns the output of a function of objects and arrays, and its tangent.

    Without `f` it returns a decorator; with `f` alone, a function of primals and tangents.

    Raises:
        ValueError: for a bound method of an object, or if the numbers of primals and tangents differ.

    Source: `jax.jvp`, with the semantics of `flax.nnx.jvp`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> w, tangent = nnx.Param(jnp.array(3.0)), nnx.Param(jnp.array(1.0))
    >>> [float(number) for number in nnx.jvp(lambda w: w[...] ** 2, (w,), (tangent,))]
    [9.0, 6.0]
    """
    boundary = boundary_of("jvp", graph, graph_updates)

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        refuse_bound_method(function, "jvp")

        def transformed(primals: Any, tangents: Any) -> Any:
            options = DiffOptions("jvp", tuple(range(len(primals))), _default(boundary), has_aux, allow_int=True)
            return jvp_with(interpret(JVP, boundary)((function,), options), tuple(primals), tuple(tangents))

        return named_like(function, transformed)

    if isinstance(f, Missing):
        return wrap
    return wrap(f) if isinstance(primals, Missing) else wrap(f)(primals, tangents)


@overload
def remat(f: F, **options: Unpack[RematKeywords]) -> F: ...
@overload
def remat(**options: Unpack[RematKeywords]) -> Callable[[F], F]: ...
def remat(
    f: Any = MISSING,
    *,
    prevent_cse: bool = True,
    static_argnums: int | tuple[int, ...] = (),
    policy: Callable[..., bool] | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> F | Callable[[F], F]:
    """Makes the backward pass recompute a function's intermediate values, instead of storing them.

    Raises:
        ValueError: for a bound method of an object.

    Source: `jax.checkpoint`, with the semantics of `flax.nnx.remat`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> sine = nnx.remat(lambda w, x: jnp.sin(w * x))
    >>> nnx.grad(sine)(nnx.Param(jnp.array(0.0)), jnp.array(2.0))[...].item()
    2.0
    """
    boundary = boundary_of("remat", graph, graph_updates)
    # Static arguments are bound to the function before the rule sees the call, so `jax.checkpoint` has none.
    rematted = over(REMAT, boundary, RematOptions(policy, prevent_cse))
    return decorate(f, lambda function: static_arguments(function, static_argnums, rematted(function)))
