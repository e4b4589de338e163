"""eval_shape, make_jaxpr, remat, transform_metadata: transforms that treat all leaves alike.

On a mesh of explicit axes a value's aval has its sharding. With automatic axes the compiler chooses, so that
`jax.eval_shape` returns shapes without one. But some are known, which `eval_shape` returns here: an output that is an
argument has the argument's sharding, a sharding constraint names that of its result, and so does a `jit` with
`out_shardings`. A checkpoint that is restored into an abstract model places its arrays by these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, cast, overload, runtime_checkable

import equinox as eqx
import jax
from jax.extend.core import Jaxpr, Literal
from jax.sharding import NamedSharding
from weft.core.edge import trees
from weft.core.edge.layouts import format_of
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.errors import TracedValueError
from weft.core.interpreter.building import as_array
from weft.core.interpreter.interpret import interpret
from weft.core.interpreter.prefixes import resolve_nodes
from weft.core.interpreter.rides import Role, axis_of, read_axis
from weft.core.interpreter.rules import Lift, Lifted, Rule, of_lanes
from weft.core.interpreter.values import VALUES
from weft.core.tracebacks import cutting
from weft.transforms.arguments import numbers_and_names, with_statics
from weft.transforms.keywords import RematKeywords
from weft.transforms.transformed import Transformed, decorate, over_values, transform

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class NoOptions:
    """The options of a rule without options."""


# Updates do not come back from a function that is only traced; from an abstract evaluation no leaf leaves at all.
ABSTRACT, STAGED = Role("abstract", returns=False, is_abstract=True), Role("staged", returns=False)

EVAL_SHAPE: Rule[NoOptions] = Rule(
    "eval_shape",
    lambda lift: of_lanes(functools.partial(shapes_with_layouts, lift.bodies[0])),
    read=lambda node: ABSTRACT if node is None else None,
    compiles=True,
)


@cutting
def eval_shape(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """The output of a function as `ShapeDtypeStruct`s, without computing anything.

    They have shardings if the function determines them: by explicit meshes, sharding constraints, `out_shardings`, or
    because they are arguments.

    Args:
        function: the function; it may construct records.
        args: arrays or `ShapeDtypeStruct`s, in records and containers.
        kwargs: the same by name. Numbers are traced like arrays; for a constructor that takes numbers as sizes use
            `weft.init(Model, ..., abstract=True)`.

    Source: `jax.eval_shape`.

    >>> import jax
    >>> eval_shape(lambda m: m["w"] @ m["w"], {"w": jax.ShapeDtypeStruct((2, 2), "float32"), "name": "m"}).shape
    (2, 2)
    """
    try:
        return interpret(EVAL_SHAPE, VALUES)((function,), NoOptions())(args, kwargs)
    except TracedValueError as error:
        # A constructor needs its sizes as numbers, which are traced here: the usual mistake has its own advice.
        if not isinstance(function, type):
            raise
        name = cast("type[Any]", function).__name__
        raise type(error)(
            error.what,
            at=error.at,
            fix=f"weft.init({name}, ..., abstract=True), where numbers are configuration; or a function of arrays",
        ) from error


@dataclass(frozen=True)
class JaxprOptions:
    """The options of one `make_jaxpr`."""

    return_shape: bool


def _lift_jaxpr(lift: Lift[JaxprOptions]) -> Lifted:
    (body,) = lift.bodies

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        # Of the body over lanes, so that the inputs of the jaxpr are the arguments' arrays, in order.
        jaxpr, exit_shapes = untyped_jax.make_jaxpr(body, return_shape=True)(groups)
        return *exit_shapes, jaxpr

    return lifted


MAKE_JAXPR: Rule[JaxprOptions] = Rule(
    "make_jaxpr",
    _lift_jaxpr,
    read=lambda node: STAGED if node is None else None,
    finish=lambda out, finish: (finish.more[0], out) if finish.options.return_shape else finish.more[0],
    compiles=True,
)


@overload
def make_jaxpr(
    function: Callable[P, Any], /, *, static_argnums: int | Sequence[int] | None = None, return_shape: bool = False
) -> Callable[P, Any]: ...
@overload
def make_jaxpr(
    *, static_argnums: int | Sequence[int] | None = None, return_shape: bool = False
) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
@transform("static_argnums")
def make_jaxpr(
    function: Callable[..., Any] | None = None,
    /,
    *,
    static_argnums: int | Sequence[int] | None = None,
    return_shape: bool = False,
) -> Any:
    """The jaxpr of a function for some arguments.

    Args:
        function: a function of records, whose static leaves do not appear in the jaxpr.
        static_argnums: arguments that are static as a whole.
        return_shape: whether to return the output's shapes too.

    Returns:
        A function that returns the `ClosedJaxpr`, or `(jaxpr, shapes)`.

    Source: `jax.make_jaxpr`.

    >>> print(make_jaxpr(lambda m: m["w"] * 2)({"w": 3.0, "name": "m"}))
    { lambda ; a:f32[]. let b:f32[] = mul a 2.0:f32[] in (b,) }
    """
    options = JaxprOptions(return_shape)

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        return static_arguments(function, static_argnums, over_values(MAKE_JAXPR, options)(function))

    return decorate(function, wrap, MAKE_JAXPR, options, static_argnums)


@dataclass(frozen=True)
class RematOptions:
    """The options of one `remat`."""

    policy: Any
    prevent_cse: bool


def _lift_remat(lift: Lift[RematOptions]) -> Lifted:
    (body,), options = lift.bodies, lift.options
    checkpointed = untyped_jax.checkpoint(body, policy=options.policy, prevent_cse=options.prevent_cse)

    def lifted(extra: Any, *groups: tuple[Any, ...]) -> tuple[Any, ...]:
        # An eager `jax.checkpoint` of JAX 0.12 returns constants as literals of its jaxpr, which are no arrays.
        return untyped_jax.tree.map(as_array, checkpointed(groups))

    return lifted


REMAT: Rule[RematOptions] = Rule("remat", _lift_remat)


@overload
def remat(function: Callable[P, R], /, **options: Unpack[RematKeywords]) -> Callable[P, R]: ...
@overload
def remat(**options: Unpack[RematKeywords]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@transform()
def remat(
    function: Callable[..., Any] | None = None,
    /,
    *,
    policy: Any = None,
    prevent_cse: bool = True,
    static_argnums: int | Sequence[int] | None = None,
) -> Any:
    """Computes a function's intermediate values again in the backward pass, instead of storing them.

    Args:
        function: a function of records.
        policy: the intermediate values to store; one of `jax.checkpoint_policies`.
        prevent_cse: whether to stop the compiler from merging the second computation with the first; not needed inside
            `scan`.
        static_argnums: arguments that are static as a whole, numbers in them too.

    Source: `jax.checkpoint`.

    >>> import jax.numpy as jnp
    >>> import jax
    >>> float(jax.grad(remat(lambda x: jnp.sin(jnp.sin(x))))(0.0))
    1.0
    """
    options = RematOptions(policy, prevent_cse)

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        return static_arguments(function, static_argnums, over_values(REMAT, options)(function))

    return decorate(function, wrap, REMAT, options, static_argnums)


def static_arguments(function: Callable[..., Any], argnums: Any, transformed: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a transformed function pass the arguments in `argnums` as static ones."""
    # Without static arguments no wrapper is needed, which would cost every call a frame.
    numbers, names = numbers_and_names(function, argnums, None)
    if not numbers:
        return transformed

    def run(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        args, kwargs = with_statics(function, args, kwargs, numbers, names)
        return transformed(*args, **kwargs)

    return Transformed(function, run)


@runtime_checkable
class HasAxisMetadata(Protocol):
    """A record whose static fields describe the axes of its arrays (names, partitions)."""

    def add_axis(self, axis: int, metadata: dict[str, Any], /) -> Any:
        """The record for arrays with one more axis, at `axis`."""
        ...

    def remove_axis(self, axis: int, metadata: dict[str, Any], /) -> Any:
        """The record for arrays without the axis at `axis`."""
        ...


@overload
def transform_metadata(
    function: Callable[P, R], /, *, in_axes: Any = 0, out_axes: Any = 0, **metadata: Any
) -> Callable[P, R]: ...
@overload
def transform_metadata(
    *, in_axes: Any = 0, out_axes: Any = 0, **metadata: Any
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@transform()
def transform_metadata(
    function: Callable[..., Any] | None = None,
    /,
    *,
    in_axes: Any = 0,
    out_axes: Any = 0,
    **metadata: Any,
) -> Any:
    """Adapts records that describe their axes to a vmap or scan around the function.

    It is applied inside the transform, with the same axes. Of an argument that is mapped over an int axis, records with
    a method `remove_axis(axis, metadata)` are replaced by its result; of an output, records with `add_axis(axis,
    metadata)`.

    Args:
        function: a function of one example.
        in_axes: the `in_axes` of the transform around it.
        out_axes: the `out_axes` of the transform around it.
        metadata: keywords that are passed to the methods, for instance `partition="layers"`.

    >>> import jax.numpy as jnp
    >>> from weft import Module, static, vmap
    >>> class Named(Module):
    ...     values: Any
    ...     names: tuple = static()
    ...     def add_axis(self, axis, metadata):
    ...         return self.replace(names=(metadata["partition"], *self.names))
    ...     def remove_axis(self, axis, metadata):
    ...         return self.replace(names=self.names[1:])
    >>> make = transform_metadata(lambda x: Named(x, ("features",)), partition="layers")
    >>> vmap(make)(jnp.ones((3, 2))).names
    ('layers', 'features')
    """

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            args = _with_axis("remove_axis", in_axes, args, metadata)
            return _with_axis("add_axis", out_axes, function(*args, **kwargs), metadata)

        return Transformed(function, run)

    return decorate(function, wrap)


def _with_axis(method: str, axes: Any, tree: Any, metadata: dict[str, Any]) -> Any:
    def stops(node: Any) -> bool:
        return isinstance(node, HasAxisMetadata) and isinstance(node, eqx.Module)

    # Such records are leaves here: their own method knows the axes of the arrays inside.
    nodes, definition = trees.flatten(tree, stops)
    rides = map(axis_of, resolve_nodes(axes, tree, stops, read_axis))
    return definition.unflatten(
        [
            getattr(node, method)(axis, metadata) if stops(node) and axis is not None else node
            for node, axis in zip(nodes, rides, strict=True)
        ]
    )


# --- the shardings of outputs, as far as a jaxpr shows them -----------------------------------------------------------


def shapes_with_layouts(function: Callable[..., Any], *args: Any) -> Any:
    """`jax.eval_shape`, with the shardings that the jaxpr shows in addition to those in avals.

    Args:
        function: a function of arrays, in containers.
        args: arrays or `ShapeDtypeStruct`s, in containers.

    >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> over_data = NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    >>> x = jax.ShapeDtypeStruct((4,), "float32", sharding=over_data)
    >>> same, doubled = shapes_with_layouts(lambda x: (x, 2 * x), x)
    >>> same.sharding.spec, doubled.sharding
    (P('data',), None)
    """
    program, shapes = untyped_jax.make_jaxpr(function, return_shape=True)(*args)
    leaves, structure = untyped_jax.tree.flatten(shapes)
    layouts = _layouts(program.jaxpr, [_layout_of(leaf) for leaf in jax.tree.leaves(args)])
    return structure.unflatten(map(_with_layout, leaves, layouts))


def _layout_of(argument: Any) -> Any:
    """The sharding of an argument on a mesh, or its format if its axes are not in the usual order in memory."""
    sharding = getattr(argument, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return None
    layout = argument.format.layout
    ordinary = layout is None or layout.major_to_minor == tuple(range(argument.ndim))
    return sharding if ordinary else format_of(layout, sharding)


def _layouts(program: Jaxpr, of_inputs: Sequence[Any]) -> list[Any]:
    """For each output of a jaxpr its sharding or format, or None if it is unknown."""
    layouts: dict[Any, Any] = dict(zip(program.invars, of_inputs, strict=True))

    def of(atom: Any) -> Any:
        return None if isinstance(atom, Literal) else layouts.get(atom)

    # The result of any other equation is unknown: XLA decides by its operands and by what follows.
    for equation in program.eqns:
        options: Any = equation.params
        match equation.primitive.name:
            case "sharding_constraint":
                results = [options["sharding"]]
            case "jit":
                inner = _layouts(options["jaxpr"].jaxpr, [of(atom) for atom in equation.invars])
                declared = options["out_shardings"]
                results = [
                    sharding if isinstance(sharding, NamedSharding) else layout
                    for sharding, layout in zip(declared, inner, strict=True)
                ]
            case _:
                continue
        layouts.update(zip(equation.outvars, results, strict=True))
    return [of(atom) for atom in program.outvars]


def _with_layout(shape: Any, layout: Any) -> Any:
    # The sharding of an aval is that of the compiled program, and counts first.
    if layout is None or shape.sharding is not None:
        return shape
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=layout, weak_type=shape.weak_type)
