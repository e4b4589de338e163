"""grad, value_and_grad, vjp, jvp, linearize: derivatives of functions of records. See `differentiation`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, Unpack, overload

import jax
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.edge.untyped import jnp
from weft.core.errors import DifferentiationError, StructureError
from weft.core.interpreter.boundary import AnyBoundary, AnyCrossing, Call
from weft.core.interpreter.interpret import interpret
from weft.core.interpreter.rules import Finish, Lift, Lifted
from weft.core.interpreter.values import VALUES
from weft.core.records.successors import GRADIENTS
from weft.core.tracebacks import cutting
from weft.transforms.differentiation import (
    DIFFERENTIATED,
    DiffOptions,
    closed_over,
    diff_options,
    differentiation,
    like_arguments,
    like_output,
    note_rivals_of,
    primal_of,
    read_arguments,
    read_output,
    types_of,
)
from weft.transforms.keywords import ReverseKeywords
from weft.transforms.transformed import decorate, over_values, transform

P = ParamSpec("P")
R = TypeVar("R")


def _lift_grad(lift: Lift[DiffOptions]) -> Lifted:
    primal, options = primal_of(lift), lift.options

    def scalar(differentiated: Any, closed: Any) -> tuple[Any, Any]:
        outputs, everything = primal(differentiated, closed)
        if len(outputs) != 1 or jnp.shape(outputs[0]) != ():
            raise DifferentiationError(
                f"{options.name} needs a function that returns one scalar, but this one returned "
                f"{', '.join(map(types_of, outputs)) or 'no array'}",
                fix="reduce it (jnp.mean, jnp.sum)"
                + ("" if options.has_aux else ", or return (loss, aux) with has_aux=True")
                + "; for a whole Jacobian use jacrev",
            )
        wanted, dtypes = ("complex", jnp.complexfloating) if options.holomorphic else ("real", jnp.floating)
        if not jnp.issubdtype(jnp.result_type(outputs[0]), dtypes):
            raise DifferentiationError(
                f"{options.name} needs a function that returns a {wanted} number, but this one returned "
                f"{types_of(outputs[0])}",
                fix="return a complex number, or leave out holomorphic=True"
                if options.holomorphic
                else "integers and booleans (argmax, ==, counts) have no gradient: return a float; of a complex number "
                "take jnp.real or jnp.abs, or pass holomorphic=True",
            )
        return outputs[0], everything

    # By the first lane. `has_aux` for the other lanes of the output and for updates, which are not differentiated.
    differentiate = untyped_jax.value_and_grad(
        scalar, has_aux=True, holomorphic=options.holomorphic, allow_int=options.allow_int
    )

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        # The whole exit of the body is auxiliary output to JAX; the value is in it too.
        (_, everything), gradient = differentiate(*groups)
        return *everything, gradient

    return lifted


def _finish_grad(out: Any, finish: Finish[DiffOptions]) -> Any:
    note_rivals_of(finish.options, finish.call)
    # `more` is what the lift returned after the exit of its body: here the gradient of the differentiated lane.
    gradient = like_arguments(finish, finish.more[0])
    GRADIENTS.note(finish.more[0])
    options = finish.options
    if options.with_value:
        return out, gradient
    return (gradient, out[1]) if options.has_aux else gradient


GRAD = differentiation("grad", _lift_grad, _finish_grad, for_updates=True)


def _lift_linear(transform: Callable[..., Any]) -> Callable[[Lift[DiffOptions]], Lifted]:
    """Lifts `jax.vjp` or `jax.linearize`; the result has the derivative as a function, and the shape of each output."""

    def lift_linear(lift: Lift[DiffOptions]) -> Lifted:
        primal = primal_of(lift)

        def lifted(extra: Any, differentiated: Any, closed: Any) -> tuple[Any, ...]:
            primals, linear, everything = transform(closed_over(primal, closed), differentiated, has_aux=True)
            return *everything, linear, jax.tree.map(_shape_of, primals)

        return lifted

    return lift_linear


def _lift_jvp(lift: Lift[DiffOptions]) -> Lifted:
    primal = primal_of(lift)

    def lifted(tangents: Any, differentiated: Any, closed: Any) -> tuple[Any, ...]:
        _, out_tangents, everything = untyped_jax.jvp(
            closed_over(primal, closed), (differentiated,), (tangents,), has_aux=True
        )
        return *everything, out_tangents

    return lifted


# What `vjp`, `jvp` and `linearize` return differs, so that each builds its result from these in a function below.
def _finish_linear(out: Any, finish: Finish[DiffOptions]) -> tuple[Any, tuple[Any, ...], Finish[DiffOptions]]:
    """The output, a tuple with the auxiliary output if there is one, and all that the transform returned."""
    note_rivals_of(finish.options, finish.call)
    return (out[0], (out[1],), finish) if finish.options.has_aux else (out, (), finish)


VJP = differentiation("vjp", _lift_linear(untyped_jax.vjp), _finish_linear)
JVP = differentiation("jvp", _lift_jvp, _finish_linear)
LINEARIZE = differentiation("linearize", _lift_linear(untyped_jax.linearize), _finish_linear)


def _tangents(tangents: Any) -> Callable[[AnyBoundary, AnyCrossing, Call, Sequence[Any]], tuple[Any, ...]]:
    """Reads the user's tangents of all arguments: returns those of the differentiated leaves, with zeros for None."""

    def read(boundary: AnyBoundary, crossing: AnyCrossing, call: Call, values: Sequence[Any]) -> tuple[Any, ...]:
        primals = [value for value, ride in zip(values, crossing.rides, strict=True) if ride == DIFFERENTIATED]
        return read_arguments(crossing, (call[0], tuple(tangents), {}), primals)

    return read


def _shape_of(value: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(value), jnp.result_type(value))


def _zeros(like: Any) -> Any:
    return untyped_jax.tree.map(jnp.zeros_like, like)


def vjp_with(run: Callable[..., Any], primals: tuple[Any, ...]) -> Any:
    """`vjp` by an interpreted rule: `(out, pullback)` or `(out, pullback, aux)`."""
    out, aux, finish = run(primals, {})
    pull, shapes = finish.more

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        # As a tree like the whole output, whose auxiliary part has no cotangent.
        of_output = (cotangent, None) if finish.options.has_aux else cotangent
        leaves = read_output(finish.outcome, of_output, shapes, "cotangent")
        # JAX's pullback needs a cotangent for every output of the lane, also for those that the user left out.
        zeros_for_none = (_zeros(shape) if leaf is None else leaf for leaf, shape in zip(leaves, shapes, strict=True))
        (gradient,) = pull(tuple(zeros_for_none))
        return like_arguments(finish, gradient)

    return out, cutting(pullback), *aux


def jvp_with(run: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
    """`jvp` by an interpreted rule: `(out, out_tangent)` or `(out, out_tangent, aux)`."""
    # Checked here, because JAX would count leaves and not arguments in its error.
    if len(primals) != len(tangents):
        raise StructureError(
            f"jvp got {len(primals)} primals but {len(tangents)} tangents",
            fix="pass one tangent for each primal, None where it is zero",
        )
    out, aux, finish = run(primals, {}, prepare=_tangents(tangents))
    return out, like_output(finish, finish.more[0]), *aux


def linearize_with(run: Callable[..., Any], primals: tuple[Any, ...]) -> Any:
    """`linearize` by an interpreted rule: `(out, pushforward)` or `(out, pushforward, aux)`."""
    out, aux, finish = run(primals, {})

    def pushforward(*tangents: Any) -> Any:
        # Shapes in place of the primals: only their zeros are needed, and the function must not keep the primals alive.
        shapes = list(map(_shape_of, finish.values))
        leaf_tangents = _tangents(tangents)(finish.boundary, finish.crossing, finish.call, shapes)
        return like_output(finish, finish.more[0](leaf_tangents))

    return out, cutting(pushforward), *aux


@overload
def grad(function: Callable[P, Any], /, **options: Unpack[ReverseKeywords]) -> Callable[P, Any]: ...
@overload
def grad(**options: Unpack[ReverseKeywords]) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
@transform("argnums", "has_aux")
def grad(
    function: Callable[..., Any] | None = None,
    /,
    *,
    wrt: Any = None,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Any:
    """The gradient of a scalar function, with respect to some leaves of some arguments.

    Args:
        function: returns a scalar, or `(scalar, aux)` with `has_aux`.
        wrt: a filter for the leaves to differentiate; `Param` by default (inexact arrays without a kind are Params).
        argnums: the positions of the arguments with these leaves.
        has_aux: whether the function returns auxiliary output, such as a successor.
        holomorphic: whether it is holomorphic; inputs and outputs are complex then.
        allow_int: whether integer leaves may be differentiated (to `float0` zeros).

    Returns:
        A function that returns the gradient, or `(gradient, aux)`. The gradient of an argument has the argument's
        structure, with `None` at leaves that were not differentiated; for several argnums it is a tuple.

    Raises:
        DifferentiationError: if nothing is differentiable, or the output is not a scalar.

    Source: `jax.grad`.

    >>> import jax.numpy as jnp
    >>> gradient = grad(lambda model, x: (model["w"] * x) ** 2)({"w": jnp.array(3.0), "name": "scale"}, 2.0)
    >>> float(gradient["w"]), gradient["name"]
    (24.0, None)
    """
    options = diff_options("grad", argnums, wrt, has_aux=has_aux, holomorphic=holomorphic, allow_int=allow_int)
    return decorate(function, over_values(GRAD, options), GRAD, options)


@overload
def value_and_grad(function: Callable[P, R], /, **options: Unpack[ReverseKeywords]) -> Callable[P, tuple[R, Any]]: ...
@overload
def value_and_grad(**options: Unpack[ReverseKeywords]) -> Callable[[Callable[P, R]], Callable[P, tuple[R, Any]]]: ...
@transform("argnums", "has_aux")
def value_and_grad(
    function: Callable[..., Any] | None = None,
    /,
    *,
    wrt: Any = None,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Any:
    """The value of a scalar function and its gradient: `(value, gradient)`, or `((value, aux), gradient)`.

    Arguments and errors are those of `grad`.

    Raises:
        DifferentiationError: if nothing is differentiable, or the output is not a scalar.

    Source: `jax.value_and_grad`.

    >>> import jax.numpy as jnp
    >>> value, gradient = value_and_grad(lambda w: w**2)(jnp.array(3.0))
    >>> float(value), float(gradient)
    (9.0, 6.0)
    """
    options = diff_options(
        "value_and_grad", argnums, wrt, has_aux=has_aux, holomorphic=holomorphic, allow_int=allow_int, with_value=True
    )
    return decorate(function, over_values(GRAD, options), GRAD, options)


@cutting
def vjp(function: Callable[..., Any], /, *primals: Any, has_aux: bool = False, wrt: Any = None) -> Any:
    """The output of a function and its pullback.

    Args:
        function: a function of the primals.
        primals: arrays, records, containers of them.
        has_aux: whether the function returns `(output, aux)`.
        wrt: a filter for the leaves to differentiate; `Param` by default.

    Returns:
        `(output, pullback)`, or `(output, pullback, aux)`. The pullback takes a cotangent of the output's structure
        (`None` for zero) and returns a tuple with one sparse tree for each primal.

    Raises:
        DifferentiationError: if nothing is differentiable.

    Source: `jax.vjp`.

    >>> import jax.numpy as jnp
    >>> y, pullback = vjp(lambda m, x: m["w"] * x, {"w": jnp.array(3.0)}, jnp.array(2.0))
    >>> [float(g) for g in jax.tree.leaves(pullback(jnp.array(1.0)))]
    [2.0, 3.0]
    """
    options = DiffOptions("vjp", tuple(range(len(primals))), wrt, has_aux)
    return vjp_with(interpret(VJP, VALUES)((function,), options), primals)


@cutting
def jvp(
    function: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    /,
    *,
    has_aux: bool = False,
    wrt: Any = None,
) -> Any:
    """The output of a function and its tangent, in forward mode.

    Args:
        function: a function of the primals.
        primals: a sequence of arguments.
        tangents: for each primal a tree of its structure; `None` is zero, for a leaf or for a whole primal.
        has_aux: whether the function returns `(output, aux)`.
        wrt: a filter for the leaves that have tangents; `Param` by default.

    Returns:
        `(output, tangent)`, or `(output, tangent, aux)`.

    Raises:
        StructureError: if there are more or fewer tangents than primals.

    Source: `jax.jvp`.

    >>> import jax.numpy as jnp
    >>> y, dy = jvp(lambda x: x**2, [jnp.array(3.0)], [jnp.array(1.0)])
    >>> float(y), float(dy)
    (9.0, 6.0)
    """
    options = DiffOptions("jvp", tuple(range(len(primals))), wrt, has_aux)
    return jvp_with(interpret(JVP, VALUES)((function,), options), tuple(primals), tuple(tangents))


@cutting
def linearize(function: Callable[..., Any], /, *primals: Any, has_aux: bool = False, wrt: Any = None) -> Any:
    """The output of a function and its derivative there, as a linear function of tangents.

    Arguments are those of `vjp`; the linear function takes tangents as `jvp` does.

    Raises:
        DifferentiationError: if nothing is differentiable.

    Source: `jax.linearize`.

    >>> import jax.numpy as jnp
    >>> y, pushforward = linearize(lambda x: x**2, jnp.array(3.0))
    >>> float(pushforward(jnp.array(0.5)))
    3.0
    """
    options = DiffOptions("linearize", tuple(range(len(primals))), wrt, has_aux)
    return linearize_with(interpret(LINEARIZE, VALUES)((function,), options), primals)
