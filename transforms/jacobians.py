"""jacfwd, jacrev, hessian: whole Jacobians of functions of records. See `differentiation`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Unpack, overload

from weft.core.edge.untyped import jax as untyped_jax
from weft.core.interpreter.rules import Finish, Lift, Lifted
from weft.transforms.differentiation import (
    DiffOptions,
    diff_options,
    differentiation,
    like_arguments,
    like_output,
    primal_of,
)
from weft.transforms.keywords import DiffKeywords, ReverseKeywords
from weft.transforms.transformed import decorate, over_values, transform

P = ParamSpec("P")


def _lift_jacobian(transform: Callable[..., Any]) -> Callable[[Lift[DiffOptions]], Lifted]:
    def lift_jacobian(lift: Lift[DiffOptions]) -> Lifted:
        primal = primal_of(lift)
        keywords: dict[str, Any] = {"has_aux": True, "holomorphic": lift.options.holomorphic}
        # `jax.jacfwd` has no `allow_int`: an integer has no tangent that forward mode could push.
        if transform is untyped_jax.jacrev:
            keywords["allow_int"] = lift.options.allow_int
        differentiate = transform(primal, **keywords)

        def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
            # The value and the changed state leave as aux, so that the function runs once, and not once more for them.
            jacobian, everything = differentiate(*groups)
            return *everything, jacobian

        return lifted

    return lift_jacobian


def _finish_jacobian(out: Any, finish: Finish[DiffOptions]) -> Any:
    jacobian = like_output(finish, [like_arguments(finish, row) for row in finish.more[0]])
    return (jacobian, out[1]) if finish.options.has_aux else jacobian


JACFWD = differentiation("jacfwd", _lift_jacobian(untyped_jax.jacfwd), _finish_jacobian, forward=True)
JACREV = differentiation("jacrev", _lift_jacobian(untyped_jax.jacrev), _finish_jacobian)


@overload
def jacfwd(function: Callable[P, Any], /, **options: Unpack[DiffKeywords]) -> Callable[P, Any]: ...
@overload
def jacfwd(**options: Unpack[DiffKeywords]) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
@transform("argnums", "has_aux")
def jacfwd(
    function: Callable[..., Any] | None = None,
    /,
    *,
    wrt: Any = None,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Any:
    """The Jacobian of a function, by forward mode: the faster way if there are fewer inputs than outputs.

    Returns:
        A function that returns the Jacobian (or `(jacobian, aux)`): a tree of the output's structure, in which each
        leaf is a sparse tree of the argument's structure. The shape of a leaf there is that of the output leaf,
        followed by that of the input leaf.

    Raises:
        DifferentiationError: if nothing is differentiable.

    Source: `jax.jacfwd`.

    >>> import jax.numpy as jnp
    >>> jacfwd(lambda x: x**2)(jnp.array([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    options = diff_options("jacfwd", argnums, wrt, has_aux=has_aux, holomorphic=holomorphic)
    return decorate(function, over_values(JACFWD, options), JACFWD, options)


@overload
def jacrev(function: Callable[P, Any], /, **options: Unpack[ReverseKeywords]) -> Callable[P, Any]: ...
@overload
def jacrev(**options: Unpack[ReverseKeywords]) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
@transform("argnums", "has_aux")
def jacrev(
    function: Callable[..., Any] | None = None,
    /,
    *,
    wrt: Any = None,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Any:
    """The Jacobian of a function, by reverse mode: the faster way if there are fewer outputs than inputs. See `jacfwd`.

    Raises:
        DifferentiationError: if nothing is differentiable.

    Source: `jax.jacrev`.

    >>> import jax.numpy as jnp
    >>> jacrev(lambda x: jnp.sum(x**2))(jnp.array([1.0, 2.0])).tolist()
    [2.0, 4.0]
    """
    options = diff_options("jacrev", argnums, wrt, has_aux=has_aux, holomorphic=holomorphic, allow_int=allow_int)
    return decorate(function, over_values(JACREV, options), JACREV, options)


@overload
def hessian(function: Callable[P, Any], /, **options: Unpack[DiffKeywords]) -> Callable[P, Any]: ...
@overload
def hessian(**options: Unpack[DiffKeywords]) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
@transform("argnums", "has_aux")
def hessian(
    function: Callable[..., Any] | None = None,
    /,
    *,
    wrt: Any = None,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Any:
    """The Hessian of a function: the Jacobian of its Jacobian, forward over reverse.

    Raises:
        DifferentiationError: if nothing is differentiable.

    Source: `jax.hessian`.

    >>> import jax.numpy as jnp
    >>> hessian(lambda x: jnp.sum(x**3))(jnp.array([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        options: dict[str, Any] = {"wrt": wrt, "argnums": argnums, "has_aux": has_aux, "holomorphic": holomorphic}
        # Reverse mode once, pushed forward for each input: reverse over reverse would keep the intermediates of both.
        return jacfwd(jacrev(function, **options), **options)

    return decorate(function, wrap, "hessian", wrt, argnums, has_aux, holomorphic)
