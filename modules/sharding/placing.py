"""shard: divides a model over the devices of a mesh, by names of its axes and rules for these names.

    mesh = jax.make_mesh((2, 4), ("data", "model"))
    rules = {"embed": "data", "mlp": "model", "heads": "model", "vocab": "model", ...: None}
    model = weft.shard(model, mesh, rules)

The model names its axes (`Sharded` on a field), and the rules map names to axes of a mesh, so another way to train is
another table. The arrays of an optimizer are divided as their parameters are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from weft.core.errors import AxisError
from weft.core.logical_axes import AnyMesh, AxisRules, axes_of, show_mesh
from weft.core.paths import Path, format_path
from weft.core.records.axis_names import AxisNames, Name, Sharded
from weft.core.records.filters import Filter
from weft.core.records.kinds import names_its_axes
from weft.core.records.leaves import NUMBERS, Leaf, iter_leaves
from weft.core.records.partition import with_leaves
from weft.core.records.sorting import sort_leaves
from weft.core.records.surgery import part_at
from weft.modules.learning.optimizer import Optimizer
from weft.modules.sharding.conventions import conventional_names, names_of_adapter
from weft.modules.sharding.rules import MeshAxes, Rules, Table, check_axes, optional_names, read_rules, rules_of_block
from weft.modules.sharding.unnamed import check_used, divided, is_near, warn_of_replicated

T = TypeVar("T")
NamesByFilter = Mapping[Any, Any]


def shard(
    tree: T,
    mesh: AnyMesh | None = None,
    rules: Rules | None = None,
    *,
    names: NamesByFilter | None = None,
    unnamed: MeshAxes = None,
) -> T:
    """Places the arrays of a tree on a mesh, each axis by the rule for its logical name.

    Inside of a compiled function it constrains the shardings of values, as `jax.lax.with_sharding_constraint` does (on
    an explicit mesh `jax.sharding.reshard`); `jax.ShapeDtypeStruct`s get the sharding.

    Args:
        tree: a model, an `Optimizer`, a tuple of both, or any tree. Axes without a logical name are replicated: all
            axes of an array without names (unless `unnamed` divides it), and leading axes that a stack or a mapped
            constructor has added. A field without `Sharded` has the names of its dims that a rule is for.
        mesh: a mesh of `jax.make_mesh`; its axes may be automatic or explicit.
        rules: maps logical names to axes of the mesh (a name, a tuple of names, or None), as a mapping or as pairs. The
            rule for `...` holds for all names without a rule. A logical name that is also the name of a mesh axis needs
            no rule. An axis of the mesh divides an array once: names take theirs in the order of the table. In a table
            for several models, `Maybe(name)` is a rule for a name that this model may not have. Without `mesh` and
            `rules`, those of the block (`weft.axis_rules`) hold.
        names: maps filters to logical names (`Sharded(...)` or tuples), aligned at the last axis, which replace the
            declared ones; the names of `Sharded("members", ...)` are put in front of the declared ones.
        unnamed: axes of the mesh that divide each array without names, along the largest axis whose size they divide.
            `shard(model, mesh, {}, unnamed="data")` is "fully sharded" for any model.

    Returns:
        The tree, with its arrays on the mesh. `tabulate(tree, sharding=True)` shows their shardings.

    Raises:
        AxisError: naming all paths with the names and sizes of their axes: for a name without a rule, a rule for an
            axis that the mesh does not have, or an axis whose size the mesh does not divide.
        FilterError: if a filter of `names` matches nothing; if a rule names an axis that no array has, and either the
            name is not one of weft's own or no rule divides an array.

    Warns:
        ReplicatedWarning: naming arrays of a mebibyte or more that have no names of axes, and so are replicated,
            although rules divide other arrays.

    >>> from weft.modules import MLP
    >>> mesh = jax.make_mesh((1,), ("model",))
    >>> mlp = shard(MLP(4, 8, 2, key=jax.random.key(0)), mesh, {"mlp": "model", "embed": None})
    >>> mlp.layers[0].kernel.sharding.spec
    P(None, 'model')
    """
    places = _places(tree, mesh, rules, names, unnamed)
    placed: dict[Path, Any] = {}
    # By identity: an array in two places is transferred once and stays shared.
    shards: dict[tuple[int, NamedSharding], Any] = {}
    for leaf, sharding in places:
        key = id(leaf.value), sharding
        if key not in shards:
            shards[key] = _put(leaf.value, sharding)
        placed[leaf.path] = shards[key]
    return with_leaves(tree, placed)


def named_shardings(
    tree: T,
    mesh: AnyMesh | None = None,
    rules: Rules | None = None,
    *,
    names: NamesByFilter | None = None,
    unnamed: MeshAxes = None,
) -> T:
    """Returns the tree with the `jax.sharding.NamedSharding` that `shard` would use in the place of each array.

    Pass the result wherever JAX takes shardings, such as `out_shardings` of `weft.jit` or `shardings` of `weft.init`.

    Args:
        tree: as for `shard`; `jax.ShapeDtypeStruct`s will do.
        mesh, rules, names, unnamed: as for `shard`.

    Raises:
        AxisError, FilterError: as `shard`.

    Warns:
        ReplicatedWarning: as `shard`.

    >>> from weft.modules import MLP, init
    >>> mesh = jax.make_mesh((1,), ("model",))
    >>> rules = {"mlp": "model", "embed": None}
    >>> mlp = init(
    ...     MLP, 4, 8, 2, key=jax.random.key(0), shardings=lambda model: named_shardings(model, mesh, rules)
    ... )
    >>> mlp.layers[2].kernel.sharding.spec
    P('model', None)
    """
    places = _places(tree, mesh, rules, names, unnamed)
    return with_leaves(tree, {leaf.path: where for leaf, where in places})


def axis_rules_of(
    mesh: AnyMesh, table: Table, strict: bool = False, optional: frozenset[Any] = frozenset()
) -> AxisRules:
    """Returns a table as rules for a mesh."""
    return AxisRules(mesh, {name: axes_of(entry) for name, entry in table.items()}, strict, named_shardings, optional)


def _put(value: Any, sharding: NamedSharding) -> Any:
    if isinstance(value, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
    if not isinstance(value, Tracer):
        return jax.device_put(value, sharding)
    # A constraint is a hint to the compiler. On explicit axes the sharding is part of the type, which only `reshard`
    # changes.
    if AxisType.Explicit in sharding.mesh.axis_types:
        return jax.sharding.reshard(value, sharding)
    return jax.lax.with_sharding_constraint(value, sharding)


# ---- names of arrays -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Named:
    """An array with the names of its axes.

    Attributes:
        leaf: the array.
        axes: a name, or None, for each axis; None if there are more names than axes.
        declared: what names them: a declaration, a convention, or dims that have a rule; None if nothing does.
    """

    leaf: Leaf
    axes: tuple[Name, ...] | None
    declared: AxisNames | None

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.leaf.value)

    def __str__(self) -> str:
        path = format_path(self.leaf.path)
        if self.axes is None:
            assert self.declared is not None
            return f"{path}: {(*self.declared.before, *(self.declared.names or ()))} for the shape {self.shape}"
        written = ", ".join(f"{name or '_'}={size}" for name, size in zip(self.axes, self.shape, strict=True))
        return f"{path}: ({written})"


def _named_arrays(tree: Any, names: NamesByFilter | None, table: Table) -> Iterator[_Named]:
    leaves = [leaf for leaf in iter_leaves(tree) if leaf.dynamic and type(leaf.value) not in NUMBERS]
    models = list(_as_in_the_model(tree, leaves))
    sharded = [value if isinstance(value, Sharded) else Sharded(*value) for value in (names or {}).values()]
    axes_of_mapping = [replace(value.axes, inherited=True) for value in sharded]
    filters: list[Filter] = list(names or {})
    wanted = sort_leaves(models, filters, require_all=False) if filters else [None] * len(leaves)
    for leaf, model, place in zip(leaves, models, wanted, strict=True):
        axes = model.role.axes
        if axes.names is None and (usual := conventional_names(model)) is not None:
            # A name on a field comes first: the table only fills what nobody has named.
            axes = replace(axes, names=usual, inherited=True)
        if axes.names is not None and axes.inherited:
            axes = replace(axes, names=names_of_adapter(model, axes.names))
        if place is not None:
            outside = axes_of_mapping[place]
            before = outside.before + axes.before
            axes = replace(axes if outside.names is None else outside, before=before, rank=axes.rank)
        named = axes.of_rank(np.ndim(leaf.value))
        if axes.names is None and named is not None:
            # The names of dims are there for the checks, too, so only rules for them make them names of axes.
            dims = _names_of_dims(model, table)
            # Aligned at the last axis: a stack has axes in front of the dims, and dims such as `*batch` may be no axis.
            named = (*named[: max(0, len(named) - len(dims))], *dims[max(0, len(dims) - len(named)) :])
            yield _Named(leaf, named, axes if any(dims) else None)
            continue
        yield _Named(leaf, named, axes)


def _names_of_dims(leaf: Leaf, table: Table) -> tuple[Name, ...]:
    """The dims in the annotation of an array's field that have a rule; none in weft's own layers."""
    field = next((key for key in reversed(leaf.path) if isinstance(key, str)), "")
    if not leaf.owners or not names_its_axes(leaf.owners[-1], field):
        return ()
    return tuple(name if name in table else None for name in leaf.role.axes.dims)


def _as_in_the_model(tree: Any, leaves: list[Leaf]) -> Iterator[Leaf]:
    """Yields the leaves, with each moment of an optimizer replaced by its parameter's path, kind and names."""
    optimizers: dict[Path, Optimizer | None] = {}
    for leaf in leaves:
        if not any(issubclass(owner, Optimizer) for owner in leaf.owners):
            yield leaf
            continue
        for length in range(len(leaf.path)):
            start = leaf.path[:length]
            if start not in optimizers:
                part = part_at(tree, start)
                optimizers[start] = part if isinstance(part, Optimizer) else None
            if (optimizer := optimizers[start]) is not None:
                parameter = optimizer.layout.parameter_of(leaf.path[length:], np.shape(leaf.value))
                yield leaf if parameter is None else replace(parameter, value=leaf.value)
                break
        else:
            yield leaf


# ---- from names to places --------------------------------------------------------------------------------------------


def _places(
    tree: Any, mesh: AnyMesh | None, rules: Rules | None, names: NamesByFilter | None, unnamed: MeshAxes
) -> list[tuple[Leaf, NamedSharding]]:
    mesh, rules, block = rules_of_block(mesh, rules)
    table = read_rules(rules)
    arrays = list(_named_arrays(tree, names, table))
    check_axes(mesh, table | {"unnamed": unnamed})
    names_of_axes = {name for array in arrays for name in array.axes or () if name is not None}
    # A name that is that of an axis of the mesh needs no rule.
    whole = {**table, **{name: name for name in names_of_axes if name not in table and name in mesh.shape}}
    by_name = axis_rules_of(mesh, whole)
    specs = [by_name.spec(array.axes or ()) for array in arrays]
    # All problems are collected: one error for each run would cost a user as many runs as there are arrays.
    problems: dict[str, list[str]] = {}
    for array, spec in zip(arrays, specs, strict=True):
        if (problem := _problem(array, spec, mesh)) is not None:
            fix, line = problem
            problems.setdefault(fix, []).append(line)
    if problems:
        raise AxisError(
            f"the rules cannot place this tree on the mesh {show_mesh(mesh)}",
            at=[line for lines in problems.values() for line in lines],
            fix="; ".join(problems),
        )
    # `Maybe(name)` says that the name may belong to another model, which the same table serves.
    optional = optional_names(rules) if block is None else block.optional
    needed = {name: entry for name, entry in table.items() if name not in optional}
    # The table of a block names axes of activations, too, which this tree has not.
    others = (
        set() if block is None else {name for name in needed if name is not ... and not is_near(name, names_of_axes)}
    )
    check_used(needed, names_of_axes | others, any(any(spec) for spec in specs))
    nameless = [array.declared is None for array in arrays]
    if unnamed is not None:
        specs = [
            divided(array.leaf, array.axes or (), spec, unnamed, mesh) if without else spec
            for array, spec, without in zip(arrays, specs, nameless, strict=True)
        ]
    warn_of_replicated(
        [array.leaf for array, spec, without in zip(arrays, specs, nameless, strict=True) if without and not any(spec)],
        any(any(spec) for spec in specs),
        mesh,
    )
    shardings = {spec: NamedSharding(mesh, _spelled(spec, mesh)) for spec in specs}
    return [(array.leaf, shardings[spec]) for array, spec in zip(arrays, specs, strict=True)]


def _spelled(spec: PartitionSpec, mesh: AnyMesh) -> PartitionSpec:
    # Without Nones at the end, as compiled functions return specs: JAX's cache keys compare spellings, so a step would
    # be compiled again at its second call.
    if AxisType.Explicit in mesh.axis_types:
        return spec
    length = max((i for i, entry in enumerate(spec, 1) if axes_of(entry)), default=0)
    return PartitionSpec(*spec[:length])


def _problem(array: _Named, spec: Any, mesh: AnyMesh) -> tuple[str, str] | None:
    """Returns a fix and a line for the error if a spec does not fit an array, else None."""
    if array.axes is None:
        return "name as many axes as the array has", f"{array}: more names than axes"
    for name, size, entry in zip(array.axes, array.shape, spec, strict=True):
        if entry is PartitionSpec.UNCONSTRAINED:
            fix = f"add a rule for {name!r} (None: not divided), or one for the rest, `...: None`"
            return fix, f"{array}: no rule for {name!r}"
        parts = math.prod(mesh.shape[axis] for axis in axes_of(entry))
        if size % parts:
            fix = "make the size a multiple, or give the name another rule, None if it is not to be divided"
            return fix, f"{array}: {size} is no multiple of {parts}, the size of {entry!r}"
    return None
