"""Conversions between NNX's Variables and Linen's variables.

Linen has its variables in *collections*, nested dicts by name: `{"params": {"dense": {"kernel": array}}}`. An NNX
module has one tree of attributes, and a Variable's type corresponds to a collection. The registry of
`register_variable_name` has the pairs; for an unknown collection a type is created.

Linen stores data about a variable in a *box* around its value, an `AxisMetadata`; NNX stores it in metadata. The type
of a Linen box is stored in the metadata `linen_meta_type`, so it becomes a box of that type again. Metadata without it
is put into a box of this module, `NNXMeta`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import jax
from flax import struct
from flax.core import meta
from jax.sharding import PartitionSpec
from weft.core.paths import Path, format_path
from weft.nnx.errors import StructureError
from weft.nnx.objects.attributes import is_array_leaf
from weft.nnx.states.states import State
from weft.nnx.states.traversals import flatten_to_sequence, unflatten_mapping
from weft.nnx.transforms.metadata import add_axis, remove_axis
from weft.nnx.transforms.partitioning import get_var_pspec
from weft.nnx.variable.kinds import VariableType, variable_name_from_type, variable_type_from_name
from weft.nnx.variable.metadata import REQUIRED, with_metadata
from weft.nnx.variable.sharding import PARTITION_NAME
from weft.nnx.variable.variable import Variable

# The collection of arrays that are attributes without a Variable: flax's name for it, the class of a JAX array.
ARRAYS = "ArrayImpl"
_BOX_TYPE = "linen_meta_type"


class NNXMeta(struct.PyTreeNode, meta.AxisMetadata[Any]):  # type: ignore[misc]
    """A Linen box with the type and metadata of a Variable.

    Attributes:
        var_type: the Variable's type.
        value: its value, any pytree.
        metadata: its metadata.
    """

    var_type: VariableType = struct.field(pytree_node=False)
    value: Any = struct.field(pytree_node=True)
    metadata: dict[str, Any] = struct.field(pytree_node=False)

    def unbox(self) -> Any:
        """Returns the value."""
        return self.value

    def replace_boxed(self, val: Any) -> NNXMeta:
        """Returns the box around another value."""
        return self.replace(value=val)

    def add_axis(self, index: int, params: dict[Any, Any]) -> NNXMeta:
        """Returns the box after a Linen transform has added an axis, which its `metadata_params` may name."""
        return self._with_axes(add_axis, index, params)

    def remove_axis(self, index: int, params: dict[Any, Any]) -> NNXMeta:
        """Returns the box after a Linen transform has removed an axis; the inverse of `add_axis`."""
        return self._with_axes(remove_axis, index, params)

    def _with_axes(self, change: Callable[..., Any], index: int, params: dict[Any, Any]) -> NNXMeta:
        variable = self.to_nnx_variable()
        # An axis that the transform does not name is not partitioned.
        change(variable, index, {PARTITION_NAME: None, **params})
        return self.replace(metadata=variable.get_metadata())

    def get_partition_spec(self) -> PartitionSpec | None:
        """Returns the partition spec of the value."""
        return get_var_pspec(self.to_nnx_variable())

    def to_nnx_variable(self) -> Variable[Any]:
        """Makes a Variable of the box's type and metadata around its value."""
        return self.var_type.from_metadata(self.value, dict(self.metadata))


def is_vanilla_variable(vs: Variable[Any]) -> bool:
    """Whether a Variable has no metadata but the modes, so that Linen needs no box for it.

    >>> from weft import nnx
    >>> is_vanilla_variable(nnx.Param(1.0)), is_vanilla_variable(nnx.Param(1.0, note="first"))
    (True, False)
    """
    return not vs.get_metadata(exclude_required=True)


def to_linen_var(vs: Variable[Any]) -> Any:
    """Converts a Variable to a Linen variable: its value, in a box if there is metadata."""
    if is_vanilla_variable(vs):
        return vs.get_value()
    metadata = vs.get_metadata()
    # Removed, because it says which box to make and is no field of that box.
    kind = metadata.pop(_BOX_TYPE, None)
    if kind is None:
        return NNXMeta(type(vs), vs.get_value(), metadata)
    # The modes of a Variable are no fields of Linen's boxes, whose constructors would refuse them.
    fields = {name: value for name, value in metadata.items() if name not in REQUIRED}
    # Linen's own boxes rename some of their fields for NNX.
    if hasattr(kind, "from_nnx_metadata"):
        return kind.from_nnx_metadata({"value": vs.get_value(), **fields})
    return kind(**{**fields, "value": vs.get_value()})


def to_nnx_var(col: str, x: Any) -> Variable[Any]:
    """Converts a Linen variable to a Variable.

    Args:
        col: its collection; without a registered Variable type, one is created.
        x: its value, with or without a box.

    Raises:
        ValueError: if the value's box is for a Variable of another collection.

    >>> import jax.numpy as jnp
    >>> type(to_nnx_var("batch_stats", jnp.zeros(2))).__name__
    'BatchStat'
    """
    kind = variable_type_from_name(col, allow_register=True)
    if isinstance(x, NNXMeta):
        # Linen goes by the collection and NNX by the type. If the two disagree, the way back would lead to another
        # collection.
        if x.var_type is not kind:
            raise StructureError(
                f"found a {x.var_type.__name__} in the collection {col!r}, which is for {kind.__name__}",
                fix=f"put it into {variable_name_from_type(x.var_type, allow_register=True)!r}",
            )
        return x.to_nnx_variable()
    if not isinstance(x, meta.AxisMetadata):
        return kind(x)
    if hasattr(x, "to_nnx_metadata"):
        metadata = dict(cast(Any, copy.copy(x)).to_nnx_metadata())  # flax renames the fields of the box itself
    else:
        metadata = {field.name: getattr(x, field.name) for field in dataclasses.fields(x)}  # type: ignore[arg-type]
        metadata["value"] = x.unbox()
    if metadata.get("mesh") is None and jax.sharding.get_abstract_mesh().empty:
        metadata["eager_sharding"] = False  # a Linen box names mesh axes without a mesh; eager sharding would raise
    return kind(metadata.pop("value"), **metadata, **{_BOX_TYPE: type(x)})


def get_col_name(keypath: Sequence[Any]) -> str:
    """Returns the collection for a path whose first part is a Variable type.

    >>> from weft import nnx
    >>> get_col_name((nnx.Param, "kernel"))
    'params'
    """
    kind = getattr(keypath[0], "key", keypath[0])
    if not isinstance(kind, type):
        raise StructureError(
            f"a path must start with a Variable type, got {kind!r}", fix="put the type of the Variable first"
        )
    return variable_name_from_type(kind, allow_register=True) if issubclass(kind, Variable) else kind.__name__


def sort_variable_types(types: Iterable[type]) -> list[type]:
    """Sorts Variable types with subclasses before their base classes, the order for filters.

    >>> from weft import nnx
    >>> [kind.__name__ for kind in sort_variable_types([nnx.Variable, nnx.Param, nnx.LoRAParam])]
    ['LoRAParam', 'Param', 'Variable']
    """
    # A class has a longer MRO than its bases. The name decides between others, so that the order is the same in each
    # process.
    return sorted(types, key=lambda kind: (-len(kind.__mro__), kind.__name__))


def linen_vars_to_nnx_attrs(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Converts variables of a Linen module to attributes of an NNX module: nested dicts of Variables.

    Args:
        variables: collections by name.

    Raises:
        ValueError: naming a path that two collections have, because an attribute can have one value only.

    >>> import jax.numpy as jnp
    >>> attributes = linen_vars_to_nnx_attrs({"params": {"scale": jnp.ones(2)}, "batch_stats": {"mean": jnp.zeros(2)}})
    >>> {name: type(variable).__name__ for name, variable in attributes.items()}
    {'mean': 'BatchStat', 'scale': 'Param'}
    """
    by_path: dict[Path, Any] = {}
    origins: dict[Path, str] = {}
    inner: set[Path] = set()
    for collection, tree in variables.items():
        # In Linen, every value that is no mapping is a variable.
        for path, value in flatten_to_sequence(tree):
            # Every prefix is looked up, because a variable `a` and a variable `a/b` exclude each other, too.
            above = next((path[:i] for i in range(1, len(path) + 1) if path[:i] in origins), None)
            if above is not None or path in inner:
                earlier = "another collection" if above is None else repr(origins[above])
                raise StructureError(
                    f"{collection!r} and {earlier} both have this variable, but an NNX module has one attribute",
                    at=format_path(path),
                    fix="rename one of the two in the Linen module",
                )
            origins[path] = collection
            inner.update(path[:i] for i in range(1, len(path)))
            by_path[path] = value if collection == ARRAYS else to_nnx_var(collection, value)
    attributes = unflatten_mapping(by_path)
    return {name: attributes[name] for name in sorted(attributes, key=str)}


def nnx_attrs_to_linen_vars(nnx_attrs: Mapping[str, Any], metadata_fn: Any = to_linen_var) -> dict[str, Any]:
    """Converts attributes of an NNX module to variables of a Linen module: collections by name.

    Args:
        nnx_attrs: nested mappings of Variables and arrays.
        metadata_fn: converts a Variable to a Linen variable; None to use its value.

    Raises:
        ValueError: naming the path of any other value.

    >>> from weft import nnx
    >>> nnx_attrs_to_linen_vars({"scale": nnx.Param(2.0), "mean": nnx.BatchStat(0.0)})
    {'params': {'scale': 2.0}, 'batch_stats': {'mean': 0.0}}
    """
    by_path: dict[Path, Any] = {}
    for path, leaf in flatten_to_sequence(nnx_attrs):
        if isinstance(leaf, Variable):
            collection = variable_name_from_type(type(leaf), allow_register=True)
            value = leaf.get_value() if metadata_fn is None else metadata_fn(leaf)
        elif is_array_leaf(leaf) or isinstance(leaf, jax.ShapeDtypeStruct):
            collection, value = ARRAYS, leaf
        else:
            raise StructureError(
                f"Cannot infer collection name from value: {leaf!r}",
                at=format_path(path),
                fix="make it a Variable, whose type determines its collection",
            )
        by_path[collection, *path] = value
    return unflatten_mapping(by_path)


def as_state(attributes: Mapping[Any, Any], kind: type[State] = State) -> Any:
    """Converts nested mappings to a State, for `nnx.update`."""
    return kind(
        {name: as_state(value, kind) if isinstance(value, Mapping) else value for name, value in attributes.items()}
    )


def with_partitioning(
    fn: Callable[..., Any], names: tuple[str | None, ...], mesh: jax.sharding.Mesh | None = None
) -> Callable[..., Any]:
    """Wraps an initializer, so that its values are partitioned on a mesh: Linen's `with_partitioning`.

    Args:
        fn: the initializer.
        names: the mesh axis of each axis of the value, or None.
        mesh: the mesh, if not that of `jax.set_mesh`.

    >>> import jax, jax.numpy as jnp
    >>> with_partitioning(jax.nn.initializers.zeros, ("in", None))(jax.random.key(0), (2, 3), jnp.float32).metadata[
    ...     "out_sharding"
    ... ]
    ('in', None)
    """
    return with_metadata(fn, out_sharding=names, mesh=mesh, **{_BOX_TYPE: meta.Partitioned})
