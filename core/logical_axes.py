"""Axis rules in force: where the arrays of a program lie on a mesh, by the names of their axes.

`weft.axis_rules` (in `modules/sharding`) opens a block; while a program is traced in it, the checker of contracts hands
each annotated array over with the names of its axes, and `AxisRules.place` constrains it.

The rules are part of the key of JAX's caches (see `core.edge.contexts`): a program that was traced under rules serves
these alone. Rules with equal mesh and table are one object: each step of a training loop may open the block anew.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
import threading
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, cast

import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from weft.core.edge import _tracers, contexts
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.edge.untyped import lax
from weft.core.errors import AxisError

AnyMesh = Mesh | AbstractMesh
MeshAxes = tuple[str, ...]
# The name of an axis that is left to the compiler whatever the rules say; None names one that lies whole.
FREE = "_"
_OPEN: Any = PartitionSpec.UNCONSTRAINED


@dataclass(frozen=True)
class Placed:
    """An annotated array that a trace met under rules.

    Attributes:
        where: what was annotated, and the line of the function or class.
        shape, dtype: of the array.
        names: the names of its axes.
        spec: the axes of the mesh that divide it; None if the rules say nothing about it.
    """

    where: str
    shape: tuple[Any, ...]
    dtype: Any
    names: tuple[str | None, ...]
    spec: PartitionSpec | None


@dataclass(frozen=True, eq=False)
class AxisRules:
    """A mesh, and the axes of it that divide axes of each name.

    Attributes:
        mesh: the mesh.
        table: axes of the mesh by name, in the order in which an array's axes take them; () leaves an axis whole. The
            entry of `...` is that of all other names.
        strict: whether an array that lies otherwise on an explicit mesh is an error, and not moved.
        shardings: gives a tree's shardings: `weft.named_shardings`.
        optional: the names of rules that may be for no axis at all.
        met: the names of axes that traces under these rules have met.
    """

    mesh: AnyMesh
    table: Mapping[str | EllipsisType, MeshAxes]
    strict: bool
    shardings: Callable[[Any], Any]
    optional: frozenset[Any] = frozenset()
    met: set[str] = field(default_factory=set[str])

    def axes(self, name: str | None) -> MeshAxes | None:
        """The axes of the mesh for a name; None if it has no rule."""
        if name is None:
            return ()
        # A variadic name stands for several axes, the first of which a rule for `...` hardly means.
        is_one = not name.startswith((FREE, "*"))
        return self.table.get(name, self.table.get(...) if is_one else None)

    def mapped(self, name: Any, size: int | None) -> MeshAxes:
        """The axes of the mesh that divide the axis over which a `vmap` of that name maps (`spmd_axis_name`).

        Raises:
            AxisError: if they do not divide it.
        """
        # On an explicit mesh the types of what is mapped say it, and eagerly nothing is moved.
        is_automatic = AxisType.Explicit not in self.mesh.axis_types
        own = (self.axes(name) or ()) if isinstance(name, str) and is_automatic and _tracers.is_staged() else ()
        axes = tuple(axis for axis in own if axis not in _tracers.mapped_mesh_axes())
        if axes:
            self.check_divisible((size,), (name,), PartitionSpec(axes), lambda: "the mapped axis of vmap")
        return axes

    def spec(self, names: Sequence[str | None], used: Sequence[str] = ()) -> PartitionSpec:
        """The spec of an array whose axes have these names.

        An axis of the mesh divides an array once: names take theirs in the order of the table.

        Args:
            names: a name for each axis.
            used: axes of the mesh that divide the array already, outside of a `vmap` or `shard_map`.
        """
        order = {name: i for i, name in enumerate(self.table)}
        last = order.get(..., len(order))
        entries: list[Any] = [_OPEN] * len(names)
        divided = set(used)
        for i in sorted(range(len(names)), key=lambda i: order.get(names[i] or ..., last)):
            axes = self.axes(names[i])
            if axes is not None:
                own = tuple(axis for axis in axes if axis not in divided)
                divided.update(own)
                entries[i] = _entry_of(own)
        return PartitionSpec(*entries)

    def place(
        self,
        value: Any,
        names: Sequence[str | None],
        where: Callable[[], str],
        otherwise: Callable[[PartitionSpec, PartitionSpec], Exception],
    ) -> Any:
        """An array of a running trace, constrained to lie as the names of its axes say.

        Args:
            value: the array.
            names: a name for each axis.
            where: names the array in errors.
            otherwise: makes the error of strict rules for an array that lies otherwise, from both specs.

        Raises:
            AxisError: if the mesh does not divide an axis.
        """
        if not names:
            return value
        self.met.update(name for name in names if name is not None)
        mesh: AnyMesh = jax.sharding.get_abstract_mesh()
        # In a `pmap`, or a `shard_map` over another mesh, each device computes on its own.
        if mesh.manual_axes and mesh.shape != self.mesh.shape:
            return value
        # In a `shard_map` some of its axes are manual, and in `jax.sharding.auto_axes` explicit ones are automatic.
        mesh = mesh if mesh.shape == self.mesh.shape else self.mesh
        manual = [axis for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Manual]
        spec = self.spec(names, (*manual, *_tracers.mapped_mesh_axes()))
        has_rules = any(entry is not _OPEN for entry in spec)
        if (notes := _notes.get()) is not None:
            notes.append(Placed(where(), value.shape, value.dtype, tuple(names), spec if has_rules else None))
        if not has_rules:
            return value
        self.check_divisible(value.shape, names, spec, where)
        kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
        if AxisType.Explicit in mesh.axis_types:
            value = self._resharded(value, mesh, _only(spec, kinds, AxisType.Explicit), otherwise)
        if AxisType.Auto in mesh.axis_types:
            value = lax.with_sharding_constraint(value, NamedSharding(mesh, _only(spec, kinds, AxisType.Auto)))
        return value

    def _resharded(
        self,
        value: Any,
        mesh: AnyMesh,
        spec: PartitionSpec,
        otherwise: Callable[[PartitionSpec, PartitionSpec], Exception],
    ) -> Any:
        lies: Any = jax.typeof(value).sharding
        before = (*lies.spec, *(None,) * (value.ndim - len(lies.spec)))
        fixed = {axis for entry in spec for axis in axes_of(entry)}
        # An axis that is left alone lies as it does, unless a named one takes its axis of the mesh.
        after = tuple(
            (None if fixed & set(axes_of(old)) else old) if entry is _OPEN else entry
            for old, entry in zip(before, spec, strict=True)
        )
        if after == before:
            return value
        if self.strict:
            raise otherwise(PartitionSpec(*before), PartitionSpec(*after))
        return untyped_jax.sharding.reshard(value, NamedSharding(mesh, PartitionSpec(*after)))

    def check_divisible(
        self, shape: Sequence[Any], names: Sequence[str | None], spec: PartitionSpec, where: Callable[[], str]
    ) -> None:
        """Refuses an axis whose size is no multiple of the number of its parts."""
        for size, entry in zip(shape, spec, strict=True):
            parts = 1 if entry is _OPEN else math.prod(self.mesh.shape[axis] for axis in axes_of(entry))
            if parts > 1 and isinstance(size, int) and size % parts:
                written = ", ".join(f"{name or FREE}={size}" for name, size in zip(names, shape, strict=True))
                raise AxisError(
                    f"the rules cannot place this array on the mesh {show_mesh(self.mesh)}",
                    at=f"{where()}: ({written}): {size} is no multiple of {parts}, the size of {entry!r}",
                    fix="make the size a multiple, or give the name another rule, None if it is not to be divided",
                )


def axes_of(entry: Any) -> tuple[Any, ...]:
    """Returns the mesh axes in an entry of a spec."""
    return () if entry is None else tuple(cast("list[Any]", entry)) if isinstance(entry, tuple | list) else (entry,)


def _entry_of(axes: MeshAxes) -> MeshAxes | str | None:
    """The inverse of `axes_of`, in the form in which JAX prints specs: one axis alone, and None for no axis."""
    return axes if len(axes) > 1 else axes[0] if axes else None


def show_mesh(mesh: AnyMesh) -> str:
    return ", ".join(f"{name}={size}" for name, size in mesh.shape.items())


def _only(spec: PartitionSpec, kinds: Mapping[str, AxisType], kind: AxisType) -> PartitionSpec:
    """The part of a spec over the axes of one kind."""

    def entry(whole: Any) -> Any:
        if whole is _OPEN:
            return whole
        return _entry_of(tuple(axis for axis in axes_of(whole) if kinds[axis] is kind))

    return PartitionSpec(*map(entry, spec))


# Where `debug.placements` collects what a trace places.
_notes = contextvars.ContextVar[list[Placed] | None]("weft_placed", default=None)
_known = weakref.WeakValueDictionary[Any, AxisRules]()
_lock = threading.Lock()


def _of_another_task() -> AxisError:
    return AxisError(
        "another task of this thread waits inside of a block of `weft.axis_rules`",
        fix="do not await inside of a block, or run the task in a thread of its own",
    )


# The rules of the innermost block of `weft.axis_rules`; None outside. It raises while another task of this thread is in
# a block, for whose rules JAX would keep what is traced now.
rules_in_force: Callable[[], AxisRules | None] = functools.partial(contexts.axis_rules.read, _of_another_task)


def placing(value: object) -> bool:
    """Whether a value is an array of a program that is being traced: eagerly nothing is moved."""
    return isinstance(value, Tracer) and _tracers.is_staged()


def interned(rules: AxisRules) -> AxisRules:
    """The one object for a mesh and a table."""
    key = rules.mesh, tuple(rules.table.items()), rules.strict, rules.optional
    with _lock:
        return _known.setdefault(key, rules)


# A `with` block in which rules are in force, in this thread or task.
in_force: Callable[[AxisRules | None], AbstractContextManager[None]] = contexts.axis_rules.scope


@contextlib.contextmanager
def noting() -> Generator[list[Placed]]:
    """Collects what traces in a `with` block place."""
    notes: list[Placed] = []
    token = _notes.set(notes)
    try:
        yield notes
    finally:
        _notes.reset(token)
