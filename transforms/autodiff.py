"""grad, value_and_grad, vjp, jvp, linearize, jacfwd, jacrev, hessian.

All of these differentiate some leaves of some arguments, and close over the rest; that is the one thing their rule
says (`arrive`). A filter chooses the leaves: `wrt=Param`, unless you say otherwise. What is returned for an argument (a
gradient, a tangent) is sparse: of the argument's own structure, with `None` where a leaf was not differentiated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, overload

import jax
from weft.core.errors import DifferentiationError, StructureError
from weft.core.filters import All, Filter, format_filter
from weft.core.frames import open_frame
from weft.core.interpret import Boundary, Call, Crossing, Finish, Groups, Lift, Lifted, Rule, interpret
from weft.core.kinds import Buffer, Param
from weft.core.leaves import Leaf
from weft.core.paths import format_path
from weft.core.rides import Autodiff, Ride, RidesByKind
from weft.core.statics import Static
from weft.core.untyped import jax as untyped_jax
from weft.core.untyped import jnp
from weft.core.values import VALUES
from weft.transforms._wrap import decorate, over_values

P = ParamSpec("P")
R = TypeVar("R")

DIFFERENTIATED, CLOSED, PRIMAL = Autodiff.DIFFERENTIATED, Autodiff.CLOSED, Autodiff.PRIMAL
# The rules below depart on PRIMAL, or on (PRIMAL, CLOSED): either way it is the first lane.
PRIMAL_LANE = 0


@dataclass(frozen=True)
class DiffOptions:
    """The options of one differentiation."""

    name: str
    argnums: int | tuple[int, ...]
    wrt: Any
    has_aux: bool = False
    holomorphic: bool = False
    allow_int: bool = False
    with_value: bool = False
    filters: tuple[tuple[int, Any], ...] = ()

    @property
    def positions(self) -> tuple[int, ...]:
        """The differentiated arguments."""
        return (self.argnums,) if isinstance(self.argnums, int) else self.argnums


class _ByFilter(RidesByKind):
    """`RidesByKind` whose filters may match nothing: one argument of several may have nothing to differentiate."""

    optional = True

    def of_array(self, value: Any) -> Any:
        return DIFFERENTIATED


def _arrive(options: DiffOptions, call: Call) -> Any:
    _, args, _ = call
    positions = {n + len(args) if n < 0 else n for n in options.positions}
    if any(not 0 <= n < len(args) for n in positions):
        raise DifferentiationError(
            f"{options.name} is asked for argument {options.argnums}, but was called with {len(args)} positional ones",
            fix="pass the argument by position, or correct argnums",
        )
    rides = tuple(
        _ByFilter(((_wanted(options, i), DIFFERENTIATED), (..., CLOSED))) if i in positions else CLOSED
        for i in range(len(args))
    )
    return CLOSED, rides, CLOSED


def _wanted(options: DiffOptions, position: int) -> Filter:
    for argnum, filter in options.filters:
        if argnum == position:
            return filter
    if options.wrt is None:
        return (Param, All(Buffer, _is_integer)) if options.allow_int else Param
    return options.wrt


def _is_integer(path: Any, kind: Any, value: Any) -> bool:
    return not jnp.issubdtype(jnp.result_type(value), jnp.bool_)


def _check(options: DiffOptions, call: Call, leaves: Sequence[Leaf], rides: Sequence[Ride]) -> None:
    chosen = [leaf for leaf, ride in zip(leaves, rides, strict=True) if ride is DIFFERENTIATED]
    if not chosen:
        wanted = "Param" if options.wrt is None else format_filter(options.wrt)
        raise DifferentiationError(
            f"{options.name} has nothing to differentiate: no leaf of argument {options.argnums} is {wanted}",
            at=[f"{format_path(leaf.path)}: {leaf.kind.__name__}, {_type_of(leaf.value)}" for leaf in leaves[:20]],
            fix="choose the leaves with wrt=, or the argument with argnums=; integers have no gradient",
        )
    for leaf in chosen:
        dtype = jnp.result_type(leaf.value)
        complex_, inexact = jnp.issubdtype(dtype, jnp.complexfloating), jnp.issubdtype(dtype, jnp.inexact)
        if not (inexact or options.allow_int):
            _refuse(options, leaf, "is not inexact", "leave it out with wrt=, or pass allow_int=True")
        if options.holomorphic and not complex_:
            _refuse(options, leaf, "is not complex, but holomorphic=True", "make it complex, or drop holomorphic")
        if options.name == "jacfwd" and complex_ and not options.holomorphic:
            _refuse(options, leaf, "is complex", "pass holomorphic=True, or use jacrev or jvp")


def _refuse(options: DiffOptions, leaf: Leaf, what: str, fix: str) -> None:
    raise DifferentiationError(
        f"{options.name} cannot differentiate a leaf that {what}",
        at=f"{format_path(leaf.path)}: {_type_of(leaf.value)}",
        fix=fix,
    )


def _type_of(value: Any) -> str:
    return str(jax.typeof(value)) if not isinstance(value, jax.ShapeDtypeStruct) else str(value)


def _depart(options: DiffOptions, index: int) -> Any:
    # The auxiliary output rides with what was closed over, so that it may be forwarded from there.
    return (PRIMAL, CLOSED) if options.has_aux else PRIMAL


def _is_role(node: Any) -> bool:
    return isinstance(node, Autodiff)


def _forwards(arrived: Ride, departs: Ride) -> bool:
    return arrived is CLOSED and departs is CLOSED


Primal = Callable[[Any, Any], tuple[tuple[Any, ...], tuple[Groups, Static]]]


def _primal(lift: Lift[DiffOptions]) -> Primal:
    """The body as a function (differentiated, closed over) -> (primal outputs, everything)."""
    (body,) = lift.bodies

    def primal(differentiated: Any, closed: Any) -> tuple[tuple[Any, ...], tuple[Groups, Static]]:
        out = body((differentiated, closed))
        return out[0][PRIMAL_LANE], out

    return primal


def _framed(name: str, lifted: Lifted) -> Lifted:
    def framed(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        with open_frame(name):
            return lifted(extra, *groups)

    return framed


def _lift_grad(lift: Lift[DiffOptions]) -> Lifted:
    primal, options = _primal(lift), lift.options

    def scalar(differentiated: Any, closed: Any) -> tuple[Any, Any]:
        outputs, everything = primal(differentiated, closed)
        if len(outputs) != 1 or jnp.shape(outputs[0]) != ():
            raise DifferentiationError(
                f"{options.name} needs a function that returns one scalar, but this one returned "
                f"{', '.join(map(_type_of, outputs)) or 'no array'}",
                fix="reduce it (jnp.mean, jnp.sum)"
                + ("" if options.has_aux else ", or return (loss, aux) with has_aux=True")
                + "; for a whole Jacobian use jacrev",
            )
        return outputs[0], everything

    differentiate = untyped_jax.value_and_grad(
        scalar, has_aux=True, holomorphic=options.holomorphic, allow_int=options.allow_int
    )

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        (_, (out, outcome)), gradient = differentiate(*groups)
        return out, outcome, gradient

    return _framed(options.name, lifted)


def _finish_grad(out: Any, finish: Finish[DiffOptions]) -> Any:
    gradient = like_arguments(finish, finish.more[0])
    options = finish.options
    if options.with_value:
        return out, gradient
    return (gradient, out[1]) if options.has_aux else gradient


def like_arguments(finish: Finish[DiffOptions], values: Sequence[Any]) -> Any:
    """Values of the differentiated leaves as the arguments that they belong to: one, or a tuple as in `argnums`."""
    positions = [i for i, ride in enumerate(finish.crossing.rides) if ride is DIFFERENTIATED]
    _, args, _ = finish.boundary.sparse_call(finish.crossing, dict(zip(positions, values, strict=True)))
    argnums = finish.options.argnums
    return args[argnums] if isinstance(argnums, int) else tuple(args[n] for n in argnums)


def _differentiation(name: str, lift: Callable[[Lift[DiffOptions]], Lifted], finish: Any) -> Rule[DiffOptions]:
    return Rule(
        name,
        lift,
        arrive=_arrive,
        depart=_depart,
        is_ride=_is_role,
        lanes=(DIFFERENTIATED, CLOSED),
        forwards=_forwards,
        updates=lambda ride: CLOSED,
        check=_check,
        finish=finish,
        options=("argnums", "has_aux"),
    )


GRAD = _differentiation("grad", _lift_grad, _finish_grad)


def _lift_jacobian(transform: Callable[..., Any]) -> Callable[[Lift[DiffOptions]], Lifted]:
    def lift_jacobian(lift: Lift[DiffOptions]) -> Lifted:
        primal = _primal(lift)
        keywords: dict[str, Any] = {"has_aux": True, "holomorphic": lift.options.holomorphic}
        if transform is untyped_jax.jacrev:
            keywords["allow_int"] = lift.options.allow_int
        differentiate = transform(primal, **keywords)

        def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
            jacobian, (out, outcome) = differentiate(*groups)
            return out, outcome, jacobian

        return _framed(lift.options.name, lifted)

    return lift_jacobian


def _finish_jacobian(out: Any, finish: Finish[DiffOptions]) -> Any:
    jacobian = like_output(finish, [like_arguments(finish, row) for row in finish.more[0]])
    return (jacobian, out[1]) if finish.options.has_aux else jacobian


def like_output(finish: Finish[DiffOptions], values: Sequence[Any]) -> Any:
    """Values of the primal output's leaves as a tree like it, `None` at its static leaves."""
    tree = finish.boundary.sparse_output(finish.outcome, PRIMAL_LANE, values)
    return tree[0] if finish.options.has_aux else tree


JACFWD = _differentiation("jacfwd", _lift_jacobian(untyped_jax.jacfwd), _finish_jacobian)
JACREV = _differentiation("jacrev", _lift_jacobian(untyped_jax.jacrev), _finish_jacobian)


def closed_over(primal: Callable[[Any, Any], Any], closed: Any) -> Callable[[Any], Any]:
    """The primal as a function of what is differentiated."""
    return lambda differentiated: primal(differentiated, closed)


def _lift_vjp(lift: Lift[DiffOptions]) -> Lifted:
    primal = _primal(lift)

    def lifted(extra: Any, differentiated: Any, closed: Any) -> tuple[Any, ...]:
        primals, pullback, (out, outcome) = untyped_jax.vjp(closed_over(primal, closed), differentiated, has_aux=True)
        return out, outcome, pullback, tuple(map(jax.typeof, primals))

    return _framed("vjp", lifted)


def _lift_jvp(lift: Lift[DiffOptions]) -> Lifted:
    primal = _primal(lift)

    def lifted(tangents: Any, differentiated: Any, closed: Any) -> tuple[Any, ...]:
        _, out_tangents, (out, outcome) = untyped_jax.jvp(
            closed_over(primal, closed), (differentiated,), (tangents,), has_aux=True
        )
        return out, outcome, out_tangents

    return _framed("jvp", lifted)


def _lift_linearize(lift: Lift[DiffOptions]) -> Lifted:
    primal = _primal(lift)

    def lifted(extra: Any, differentiated: Any, closed: Any) -> tuple[Any, ...]:
        _, pushforward, (out, outcome) = untyped_jax.linearize(
            closed_over(primal, closed), differentiated, has_aux=True
        )
        return out, outcome, pushforward

    return _framed("linearize", lifted)


def _finish_linear(out: Any, finish: Finish[DiffOptions]) -> Any:
    return out, finish


VJP = _differentiation("vjp", _lift_vjp, _finish_linear)
JVP = _differentiation("jvp", _lift_jvp, _finish_linear)
LINEARIZE = _differentiation("linearize", _lift_linearize, _finish_linear)


def _tangents(tangents: Any) -> Callable[[Boundary, Crossing, Call, Sequence[Any]], tuple[Any, ...]]:
    """Reads tangents given for all arguments: those of the differentiated leaves, zeros where there is none."""

    def read(boundary: Boundary, crossing: Crossing, call: Call, values: Sequence[Any]) -> tuple[Any, ...]:
        given = boundary.read_sparse(crossing, (call[0], tuple(tangents), {}))
        return tuple(
            jnp.zeros_like(value) if tangent is None else tangent
            for tangent, value, ride in zip(given, values, crossing.rides, strict=True)
            if ride is DIFFERENTIATED
        )

    return read


def _main_and_rest(out: Any, options: DiffOptions) -> tuple[Any, tuple[Any, ...]]:
    return (out[0], (out[1],)) if options.has_aux else (out, ())


def vjp_with(run: Callable[..., Any], primals: tuple[Any, ...]) -> Any:
    """`vjp`, given the interpreted rule: `(out, pullback)` or `(out, pullback, aux)`."""
    out, finish = run(primals, {})
    main, aux = _main_and_rest(out, finish.options)
    pull, types = finish.more

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        given = (cotangent, None) if finish.options.has_aux else cotangent
        leaves = finish.boundary.read_sparse_output(finish.outcome, PRIMAL_LANE, given)
        (gradient,) = pull(
            tuple(jnp.zeros(t.shape, t.dtype) if leaf is None else leaf for leaf, t in zip(leaves, types, strict=True))
        )
        return like_arguments(finish, gradient)

    return main, pullback, *aux


def jvp_with(run: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
    """`jvp`, given the interpreted rule: `(out, out_tangent)` or `(out, out_tangent, aux)`."""
    if len(primals) != len(tangents):
        raise StructureError(
            f"jvp got {len(primals)} primals but {len(tangents)} tangents",
            fix="pass one tangent for each primal, None where it is zero",
        )
    out, finish = run(primals, {}, prepare=_tangents(tangents))
    main, aux = _main_and_rest(out, finish.options)
    return main, like_output(finish, finish.more[0]), *aux


def linearize_with(run: Callable[..., Any], primals: tuple[Any, ...]) -> Any:
    """`linearize`, given the interpreted rule: `(out, pushforward)` or `(out, pushforward, aux)`."""
    out, finish = run(primals, {})
    main, aux = _main_and_rest(out, finish.options)

    def pushforward(*tangents: Any) -> Any:
        shapes = [jax.ShapeDtypeStruct(jnp.shape(v), jnp.result_type(v)) for v in finish.values]
        given = _tangents(tangents)(finish.boundary, finish.crossing, finish.call, shapes)
        return like_output(finish, finish.more[0](given))

    return main, pushforward, *aux


def _options(name: str, argnums: Any, wrt: Any, has_aux: bool, holomorphic: bool, allow_int: bool) -> DiffOptions:
    argnums = argnums if isinstance(argnums, int) else tuple(argnums)
    return DiffOptions(name, argnums, wrt, has_aux, holomorphic, allow_int, name == "value_and_grad")


@overload
def grad(
    function: Callable[P, Any],
    /,
    *,
    wrt: Any = None,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, Any]: ...
@overload
def grad(
    *,
    wrt: Any = None,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
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
        wrt: a filter for the leaves to differentiate; `Param` by default (un-kinded inexact arrays are Params).
        argnums: the argument, or arguments, whose leaves these are.
        has_aux: whether the function returns auxiliary output, such as a successor.
        holomorphic: whether it is holomorphic; inputs and outputs are complex then.
        allow_int: whether integer leaves may be differentiated (to `float0` zeros).

    Returns:
        A function to the gradient, or `(gradient, aux)`. The gradient of an argument is of the argument's structure,
        with `None` where a leaf was not differentiated; for several argnums it is a tuple.

    Raises:
        DifferentiationError: if nothing is differentiable, or the output is not a scalar.

    Source: `jax.grad`.

    >>> import jax.numpy as jnp
    >>> gradient = grad(lambda model, x: (model["w"] * x) ** 2)({"w": jnp.array(3.0), "name": "scale"}, 2.0)
    >>> float(gradient["w"]), gradient["name"]
    (24.0, None)
    """
    return decorate(function, over_values(GRAD, _options("grad", argnums, wrt, has_aux, holomorphic, allow_int)))


@overload
def value_and_grad(
    function: Callable[P, R],
    /,
    *,
    wrt: Any = None,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[P, tuple[R, Any]]: ...
@overload
def value_and_grad(
    *,
    wrt: Any = None,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[[Callable[P, R]], Callable[P, tuple[R, Any]]]: ...
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

    Source: `jax.value_and_grad`.

    >>> import jax.numpy as jnp
    >>> value, gradient = value_and_grad(lambda w: w**2)(jnp.array(3.0))
    >>> float(value), float(gradient)
    (9.0, 6.0)
    """
    options = _options("value_and_grad", argnums, wrt, has_aux, holomorphic, allow_int)
    return decorate(function, over_values(GRAD, options))


def vjp(function: Callable[..., Any], *primals: Any, has_aux: bool = False, wrt: Any = None) -> Any:
    """The output of a function and its pullback.

    Args:
        function: of the primals.
        primals: arrays, records, containers of them.
        has_aux: whether the function returns `(output, aux)`.
        wrt: a filter for the leaves to differentiate; `Param` by default.

    Returns:
        `(output, pullback)`, or `(output, pullback, aux)`. The pullback takes a cotangent of the output's structure
        (`None` for zero) and returns a tuple with one sparse tree for each primal.

    Source: `jax.vjp`.

    >>> import jax.numpy as jnp
    >>> y, pullback = vjp(lambda m, x: m["w"] * x, {"w": jnp.array(3.0)}, jnp.array(2.0))
    >>> [float(g) for g in jax.tree.leaves(pullback(jnp.array(1.0)))]
    [2.0, 3.0]
    """
    options = DiffOptions("vjp", tuple(range(len(primals))), wrt, has_aux)
    return vjp_with(interpret(VJP, VALUES)((function,), options), primals)


def jvp(
    function: Callable[..., Any],
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    has_aux: bool = False,
    wrt: Any = None,
) -> Any:
    """The output of a function and its tangent, in forward mode.

    Args:
        function: of the primals.
        primals: a sequence of arguments.
        tangents: one tree for each primal, of its structure; `None` for zero, of a leaf or of a whole primal.
        has_aux: whether the function returns `(output, aux)`.
        wrt: a filter for the leaves that have tangents; `Param` by default.

    Returns:
        `(output, tangent)`, or `(output, tangent, aux)`.

    Source: `jax.jvp`.

    >>> import jax.numpy as jnp
    >>> y, dy = jvp(lambda x: x**2, [jnp.array(3.0)], [jnp.array(1.0)])
    >>> float(y), float(dy)
    (9.0, 6.0)
    """
    options = DiffOptions("jvp", tuple(range(len(primals))), wrt, has_aux)
    return jvp_with(interpret(JVP, VALUES)((function,), options), tuple(primals), tuple(tangents))


def linearize(function: Callable[..., Any], *primals: Any, has_aux: bool = False, wrt: Any = None) -> Any:
    """The output of a function and its derivative there, as a linear function of tangents.

    Arguments are those of `vjp`; the linear function takes tangents as `jvp` does.

    Source: `jax.linearize`.

    >>> import jax.numpy as jnp
    >>> y, pushforward = linearize(lambda x: x**2, jnp.array(3.0))
    >>> float(pushforward(jnp.array(0.5)))
    3.0
    """
    options = DiffOptions("linearize", tuple(range(len(primals))), wrt, has_aux)
    return linearize_with(interpret(LINEARIZE, VALUES)((function,), options), primals)


def jacfwd(
    function: Callable[..., Any] | None = None,
    /,
    *,
    wrt: Any = None,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
) -> Any:
    """The Jacobian of a function, by forward mode: best where there are few inputs.

    Returns:
        A function to the Jacobian (or `(jacobian, aux)`): of the output's structure, each leaf replaced by a sparse
        tree of the argument's structure whose leaves have the shape of the output leaf, then that of the input leaf.

    Source: `jax.jacfwd`.

    >>> import jax.numpy as jnp
    >>> jacfwd(lambda x: x**2)(jnp.array([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    return decorate(function, over_values(JACFWD, _options("jacfwd", argnums, wrt, has_aux, holomorphic, False)))


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
    """The Jacobian of a function, by reverse mode: best where there are few outputs. See `jacfwd`.

    Source: `jax.jacrev`.

    >>> import jax.numpy as jnp
    >>> jacrev(lambda x: jnp.sum(x**2))(jnp.array([1.0, 2.0])).tolist()
    [2.0, 4.0]
    """
    options = _options("jacrev", argnums, wrt, has_aux, holomorphic, allow_int)
    return decorate(function, over_values(JACREV, options))


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

    Source: `jax.hessian`.

    >>> import jax.numpy as jnp
    >>> hessian(lambda x: jnp.sum(x**3))(jnp.array([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        options: dict[str, Any] = {"wrt": wrt, "argnums": argnums, "has_aux": has_aux, "holomorphic": holomorphic}
        return jacfwd(jacrev(function, **options), **options)

    return decorate(function, wrap)
