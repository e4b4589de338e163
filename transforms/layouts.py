"""The shardings of a traced function's outputs, as far as its jaxpr shows them.

On a mesh of explicit axes a value's aval has its sharding. With automatic axes the compiler chooses, so that
`jax.eval_shape` returns shapes without one. But some are known: an output that is an argument has the argument's
sharding, a sharding constraint names that of its result, and so does a `jit` with `out_shardings`. A checkpoint that is
restored into an abstract model places its arrays by these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Jaxpr, Literal
from jax.sharding import NamedSharding
from weft.core.edge.layouts import format_of
from weft.core.edge.untyped import jax as untyped_jax


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
