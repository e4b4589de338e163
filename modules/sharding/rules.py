"""Rules: a table from logical names of axes to axes of a mesh.

Rules are a mapping from names to axes of the mesh, or the same as pairs. An axis of the mesh is a name, a tuple of
names (the array's axis is divided by all of them), or None, which divides nothing. `weft.nnx` reads the same form.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, cast

from jax.sharding import PartitionSpec
from weft.core.errors import AxisError
from weft.core.logical_axes import AnyMesh, AxisRules, axes_of, rules_in_force, show_mesh
from weft.core.records.filters import Maybe

MeshAxes = str | tuple[str, ...] | None
Rules = Mapping[Any, Any] | Sequence[tuple[Any, Any]]
Table = dict[str | EllipsisType, Any]


def read_rules(rules: Rules | None) -> Table:
    """Returns rules as a table. The last of several rules for a name holds; `Maybe(name)` is a rule for `name`.

    >>> read_rules([("embed", "data"), ("mlp", None)])
    {'embed': 'data', 'mlp': None}
    """
    pairs: Any = rules.items() if isinstance(rules, Mapping) else rules or ()
    return {cast(Any, key.filters[0]) if isinstance(key, Maybe) else key: axes for key, axes in pairs}


def optional_names(rules: Rules | None) -> frozenset[Any]:
    """The names of rules that may be for no axis at all, in a table for several models.

    >>> optional_names({Maybe("experts"): "model", "embed": "data"})
    frozenset({'experts'})
    """
    pairs: Any = rules.items() if isinstance(rules, Mapping) else rules or ()
    return frozenset(key.filters[0] for key, _ in pairs if isinstance(key, Maybe))


def on_mesh(names: Iterable[Any], table: Mapping[Any, Any]) -> PartitionSpec:
    """Returns the spec of an array whose axes have these names. A name without a rule stands for itself.

    >>> on_mesh(("embed", None, "model"), {"embed": ("data", "model")})
    P(('data', 'model'), None, 'model')
    """
    return PartitionSpec(*(table.get(name, name) if isinstance(name, Hashable) else name for name in names))


def rules_of_block(mesh: AnyMesh | None, rules: Rules | None) -> tuple[AnyMesh, Rules, AxisRules | None]:
    """Returns the mesh and the rules that were given, and None; or those of the block, and its `AxisRules`.

    The rules of a block may name axes that a tree does not have.

    Raises:
        AxisError: if one of them is missing.
    """
    block = rules_in_force()
    if mesh is not None and rules is not None:
        return mesh, rules, None
    if block is None or mesh is not None or rules is not None:
        raise AxisError(
            f"there {'is no mesh' if mesh is None else 'are no rules'} to place arrays by",
            fix="give a mesh and rules, or neither of them inside of `with weft.axis_rules(mesh, rules):`",
        )
    return block.mesh, block.table, block


def check_axes(mesh: AnyMesh, table: Table) -> None:
    """Refuses rules for axes that a mesh does not have."""
    unknown = [
        f"{name if name is ... else repr(name)}: {entry!r}"
        for name, entry in table.items()
        if any(axis not in mesh.shape for axis in axes_of(entry))
    ]
    if unknown:
        raise AxisError(
            f"the rules name axes that the mesh {show_mesh(mesh)} does not have",
            at=unknown,
            fix="correct the rule, give None for what is not divided, or make a mesh with this axis",
        )
