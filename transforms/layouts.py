"""Where the values of a traced function lie on a mesh, as far as its program says it.

On a mesh of explicit axes a value's type names its layout. With automatic axes the compiler chooses, so that shapes
come out of `jax.eval_shape` without one; but not everything is open. What is an argument lies where that lies, a
constraint says where its result lies, and so does a `jit` with `out_shardings`. An abstract model that is restored
from a checkpoint lands by these.
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
    """`jax.eval_shape`, with the shardings that the program says beside those that are in types.

    Args:
        function: of arrays, in containers.
        args: arrays or `ShapeDtypeStruct`s, in the same.

    >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> over_data = NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    >>> x = jax.ShapeDtypeStruct((4,), "float32", sharding=over_data)
    >>> kept, doubled = shapes_with_layouts(lambda x: (x, 2 * x), x)
    >>> kept.sharding.spec, doubled.sharding
    (P('data',), None)
    """
    program, shapes = untyped_jax.make_jaxpr(function, return_shape=True)(*args)
    leaves, structure = untyped_jax.tree.flatten(shapes)
    layouts = _layouts(program.jaxpr, [_layout_of(leaf) for leaf in jax.tree.leaves(args)])
    return structure.unflatten(map(_with_layout, leaves, layouts))


def _layout_of(given: Any) -> Any:
    """The sharding of an argument that lies on a mesh, with its format if that is out of the ordinary."""
    sharding = getattr(given, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return None
    layout = given.format.layout
    ordinary = layout is None or layout.major_to_minor == tuple(range(given.ndim))
    return sharding if ordinary else format_of(layout, sharding)


def _layouts(program: Jaxpr, given: Sequence[Any]) -> list[Any]:
    """Of each output of a program, what is known of where it lies, or None."""
    known: dict[Any, Any] = dict(zip(program.invars, given, strict=True))

    def of(atom: Any) -> Any:
        return None if isinstance(atom, Literal) else known.get(atom)

    for equation in program.eqns:
        options: Any = equation.params
        match equation.primitive.name:
            case "sharding_constraint":
                found = [options["sharding"]]
            case "jit":
                inner = _layouts(options["jaxpr"].jaxpr, [of(atom) for atom in equation.invars])
                declared = options["out_shardings"]
                found = [
                    one if isinstance(one, NamedSharding) else through
                    for one, through in zip(declared, inner, strict=True)
                ]
            case _:
                continue
        known.update(zip(equation.outvars, found, strict=True))
    return [of(atom) for atom in program.outvars]


def _with_layout(shape: Any, layout: Any) -> Any:
    # What the type says is as the compiler will have it.
    if layout is None or shape.sharding is not None:
        return shape
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=layout, weak_type=shape.weak_type)
