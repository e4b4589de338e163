"""Sharding of values as Variables are made: from the names in `out_sharding` to a layout on a mesh.

`out_sharding` names the axis of the mesh that each axis of the value lies on. A name may be *logical*; rules, in the
Variable's metadata (`sharding_rules`) or in the context (`logical_axis_rules`), say what it means on the mesh.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import jax
from jax.experimental.layout import Format
from jax.sharding import NamedSharding, PartitionSpec
from weft.modules.sharding.rules import Rules as LogicalRules
from weft.modules.sharding.rules import on_mesh, read_rules
from weft.nnx.errors import StructureError

PARTITION_NAME = "partition_name"

_rules: ContextVar[LogicalRules] = ContextVar("weft_logical_axis_rules", default=())


@contextlib.contextmanager
def logical_axis_rules(rules: LogicalRules) -> Iterator[None]:
    """Says, for the length of a `with` block, which axis of the mesh each logical axis lies on.

    >>> with logical_axis_rules([("embed", "model")]):
    ...     tuple(apply_rules(("embed", None)))
    ('model', None)
    """
    token = _rules.set(rules)
    try:
        yield
    finally:
        _rules.reset(token)


def get_logical_axis_rules() -> LogicalRules:
    """The rules in force."""
    return _rules.get()


def apply_rules(sharding: Any, own_rules: LogicalRules | None = None) -> Any:
    """A sharding with its logical axes replaced by axes of the mesh.

    Args:
        sharding: a tuple of names, a `PartitionSpec`, a `NamedSharding` or a `Format`.
        own_rules: the Variable's own rules; they may not contradict the context's.

    Raises:
        StructureError: if the two disagree about a name.
    """
    rules = read_rules(get_logical_axis_rules())
    for name, axis in read_rules(own_rules).items():
        if rules.get(name, axis) != axis:
            raise StructureError(
                f"the logical axis {name!r} lies on {rules[name]!r} by the context, on {axis!r} by the Variable",
                fix="drop one of the two rules",
            )
        rules[name] = axis
    return _rename(sharding, rules)


def _rename(sharding: Any, rules: Mapping[Any, Any]) -> Any:
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, _rename(sharding.spec, rules))
    if isinstance(sharding, Format):
        return Format(sharding.layout, _rename(sharding.sharding, rules))
    return on_mesh(sharding, rules)


def shard_value(value: Any, out_sharding: Any, rules: LogicalRules | None, mesh: Any) -> Any:
    """A value laid out on a mesh as `out_sharding` says; as it is where that is empty.

    Raises:
        StructureError: if there is no mesh, two meshes, or one with axes of both kinds.
    """
    if not out_sharding:
        return value
    spec = apply_rules(out_sharding, rules)
    inner = spec.sharding if isinstance(spec, Format) else spec
    meshes = [mesh or _mesh_in_context(), inner.mesh if isinstance(inner, NamedSharding) else None]
    meshes = [mesh for mesh in meshes if mesh is not None]
    if not meshes:
        raise StructureError(
            f"A mesh context is required: a value with out_sharding={out_sharding!r} needs one to be laid out on",
            fix="make it inside `jax.set_mesh(mesh)`, pass mesh=..., or turn this off: use_eager_sharding(False)",
        )
    if any(mesh != meshes[0] for mesh in meshes):
        raise StructureError("out_sharding names another mesh than the one in force", at=[str(mesh) for mesh in meshes])
    if isinstance(spec, PartitionSpec):
        spec = NamedSharding(meshes[-1], spec)
    if isinstance(spec, Format) or meshes[-1].are_all_axes_auto:
        return jax.lax.with_sharding_constraint(value, spec)
    if meshes[-1].are_all_axes_explicit:
        return jax.sharding.reshard(value, spec)
    raise StructureError(
        f"the mesh mixes explicit and automatic axes: {meshes[-1].axis_types}", fix="make all axes of one kind"
    )


def lay_out_abstractly(value: Any, out_sharding: Any, rules: LogicalRules | None, mesh: Any) -> Any:
    """A `ShapeDtypeStruct` with the layout that `shard_value` gives; as it is where it has one, or there is no mesh."""
    mesh = mesh or _mesh_in_context()
    if not isinstance(value, jax.ShapeDtypeStruct):
        return value
    # On automatic axes a value has moved away from its constraint or argument if its names say so, as in flax.
    by_name = out_sharding and mesh is not None and mesh.are_all_axes_auto
    if value.sharding is not None and not by_name:
        return value
    sharding = apply_rules(out_sharding or PartitionSpec(), rules)
    if isinstance(sharding, Format):
        sharding = sharding.sharding
    if isinstance(sharding, PartitionSpec):
        sharding = NamedSharding(mesh, sharding) if mesh is not None else None
    if isinstance(value.sharding, NamedSharding) and value.sharding.spec == getattr(sharding, "spec", None):
        return value  # which may name the devices, too
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)


def _mesh_in_context() -> Any:
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else mesh
