"""Rules: which axis of a mesh each logical axis lies on.

Rules are a mapping from names to axes of the mesh, or the same as pairs. An axis of the mesh is a name, a tuple of
names (the array's axis is divided by all of them), or None, which divides nothing. `weft.nnx` reads the same form.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any

from jax.sharding import PartitionSpec

MeshAxes = str | tuple[str, ...] | None
Rules = Mapping[Any, Any] | Sequence[tuple[Any, Any]]
Table = dict[str | EllipsisType, Any]


def read_rules(rules: Rules | None) -> Table:
    """Rules as a table; of several for one name the last holds.

    >>> read_rules([("embed", "data"), ("mlp", None)])
    {'embed': 'data', 'mlp': None}
    """
    return dict(rules or ())


def on_mesh(names: Iterable[Any], table: Mapping[Any, Any]) -> PartitionSpec:
    """The spec of an array whose axes have these names. A name without a rule stands for itself.

    >>> on_mesh(("embed", None, "model"), {"embed": ("data", "model")})
    P(('data', 'model'), None, 'model')
    """
    return PartitionSpec(*(table.get(name, name) if isinstance(name, Hashable) else name for name in names))


def axes_of(entry: Any) -> tuple[Any, ...]:
    """The axes of the mesh that an entry of a spec names."""
    return () if entry is None else tuple(entry) if isinstance(entry, (tuple, list)) else (entry,)
