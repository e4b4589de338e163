"""Eager sharding: a new Variable's value is put on a mesh as the names in its `out_sharding` say.

`out_sharding` names a mesh axis, or None, for each axis of the value. A name may be *logical* ("embed"): rules in the
Variable's metadata (`sharding_rules`) or of a `with logical_axis_rules(...)` block map it to a mesh axis.
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
    """Maps logical axes to mesh axes for the length of a `with` block.

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
    """Returns the rules of the innermost `logical_axis_rules` block."""
    return _rules.get()


def apply_rules(sharding: Any, own_rules: LogicalRules | None = None) -> Any:
    """Replaces the logical axes in a sharding by mesh axes.

    Args:
        sharding: a tuple of names, a `PartitionSpec`, a `NamedSharding` or a `Format`.
        own_rules: the Variable's own rules, which may not contradict those of the block around.

    Raises:
        StructureError: if both have a rule for a name, and they differ.
    """
    rules = read_rules(get_logical_axis_rules())
    for name, axis in read_rules(own_rules).items():
        if rules.get(name, axis) != axis:
            raise StructureError(
                f"logical_axis_rules maps {name!r} to {rules[name]!r}, the Variable's sharding_rules to {axis!r}",
                fix="remove one of the two rules",
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
    """Puts a value on a mesh as `out_sharding` says; returns it unchanged if `out_sharding` is empty.

    Raises:
        StructureError: without a mesh, with two different meshes, or if a mesh mixes explicit and automatic axes.
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
            fix="create it inside `jax.set_mesh(mesh)`, pass mesh=..., or turn this off: use_eager_sharding(False)",
        )
    if any(mesh != meshes[0] for mesh in meshes):
        raise StructureError(
            "out_sharding is on a different mesh than the one of the context or mesh=...",
            at=[str(mesh) for mesh in meshes],
        )
    if isinstance(spec, PartitionSpec):
        spec = NamedSharding(meshes[-1], spec)
    # On automatic axes XLA lays values out, so the sharding is a constraint. On explicit axes it is part of the type,
    # and must be changed by `reshard`.
    if isinstance(spec, Format) or meshes[-1].are_all_axes_auto:
        return jax.lax.with_sharding_constraint(value, spec)
    if meshes[-1].are_all_axes_explicit:
        return jax.sharding.reshard(value, spec)
    raise StructureError(
        f"the mesh mixes explicit and automatic axes: {meshes[-1].axis_types}", fix="make all axes of one kind"
    )


def lay_out_abstractly(value: Any, out_sharding: Any, rules: LogicalRules | None, mesh: Any) -> Any:
    """Gives a `ShapeDtypeStruct` the sharding that `shard_value` would; unchanged if it has one, or without a mesh."""
    mesh = mesh or _mesh_in_context()
    if not isinstance(value, jax.ShapeDtypeStruct):
        return value
    # As in flax: on automatic axes `out_sharding` overrides the sharding that the value was traced with.
    overrides = out_sharding and mesh is not None and mesh.are_all_axes_auto
    if value.sharding is not None and not overrides:
        return value
    sharding = apply_rules(out_sharding or PartitionSpec(), rules)
    if isinstance(sharding, Format):
        sharding = sharding.sharding
    if isinstance(sharding, PartitionSpec):
        sharding = NamedSharding(mesh, sharding) if mesh is not None else None
    if isinstance(value.sharding, NamedSharding) and value.sharding.spec == getattr(sharding, "spec", None):
        return value  # unchanged: its mesh may name devices, which the abstract mesh of a trace does not
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)


def _mesh_in_context() -> Any:
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else mesh
