"""Partition specs, shardings and abstract models, computed from the `out_sharding` of Variables.

A Variable's `out_sharding` names a mesh axis (or a logical one, see `logical_axis_rules`) for each axis of its value.
`with_partitioning` sets it; the other functions read it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.sharding import NamedSharding, PartitionSpec
from weft.nnx.graphs.splitting import map as map_graph
from weft.nnx.graphs.splitting import split
from weft.nnx.transforms.transforms import eval_shape
from weft.nnx.variable.metadata import with_metadata
from weft.nnx.variable.sharding import apply_rules
from weft.nnx.variable.variable import Variable

T = TypeVar("T")
Init = TypeVar("Init", bound=Callable[..., Any])


def with_partitioning(initializer: Init, sharding: Any, mesh: Any = None, **metadata: Any) -> Init:
    """Wraps an initializer, so that Variables made from its values have an `out_sharding`.

    Args:
        initializer: the initializer of a parameter.
        sharding: the name of a mesh axis, or None, for each axis of the value.
        mesh: the mesh, if not that of `jax.set_mesh`.
        metadata: further metadata.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> init = with_partitioning(nnx.initializers.lecun_normal(), (None, "model"), eager_sharding=False)
    >>> nnx.Linear(2, 4, kernel_init=init, rngs=nnx.Rngs(0)).kernel.out_sharding
    (None, 'model')
    """
    return with_metadata(initializer, out_sharding=sharding, mesh=mesh, **metadata)


def get_var_pspec(v: Variable[Any]) -> PartitionSpec | None:
    """Returns a Variable's `PartitionSpec`, with logical axes replaced; an empty one without `out_sharding`.

    Args:
        v: the Variable. If its value is no array, the result is None.
    """
    metadata = v.get_metadata()
    names = metadata.get("out_sharding")
    if names:
        spec = apply_rules(names, metadata.get("sharding_rules"))
        return spec if isinstance(spec, PartitionSpec) else PartitionSpec(*names)
    # An array without names is replicated; a value without a shape has no layout.
    return PartitionSpec() if hasattr(v, "shape") else None


def get_partition_spec(tree: T) -> T:
    """Replaces the value of each Variable in a tree by its `PartitionSpec`.

    Args:
        tree: a State, a Module, or any pytree. A plain array becomes an empty spec, any other leaf None.

    >>> from weft import nnx
    >>> metadata = {"out_sharding": (None, "model"), "eager_sharding": False}
    >>> model = nnx.Linear(2, 4, kernel_metadata=metadata, rngs=nnx.Rngs(0))
    >>> get_partition_spec(nnx.state(model))["kernel"].get_value() == PartitionSpec(None, "model")
    True
    """

    def spec(leaf: Any) -> Any:
        if _is_variable(leaf):
            # Inside of a Variable, so that the result has the structure of the tree and can be passed for its
            # shardings.
            return leaf.replace(get_var_pspec(leaf))
        return PartitionSpec() if hasattr(leaf, "shape") else None

    return jax.tree.map(spec, tree, is_leaf=_is_variable)


def get_named_sharding(tree: T, mesh: jax.sharding.Mesh) -> T:
    """Replaces the value of each Variable in a tree by its `NamedSharding` on a mesh; see `get_partition_spec`.

    >>> from weft import nnx
    >>> mesh = jax.make_mesh((1,), ("model",))
    >>> metadata = {"out_sharding": (None, "model"), "eager_sharding": False}
    >>> model = nnx.Linear(2, 4, kernel_metadata=metadata, rngs=nnx.Rngs(0))
    >>> get_named_sharding(nnx.state(model), mesh)["kernel"].get_value().spec == PartitionSpec(None, "model")
    True
    """

    def on_mesh(spec: Any) -> NamedSharding:
        return NamedSharding(mesh, spec)

    return jax.tree.map(on_mesh, get_partition_spec(tree))


def get_abstract_model(
    init_fn: Callable[[], Any], mesh: jax.sharding.Mesh, *, graph: bool | None = None
) -> tuple[Any, Any]:
    """Returns a model's structure, and its State as `ShapeDtypeStruct`s with shardings, without allocating arrays.

    Args:
        init_fn: a function that creates the model.
        mesh: the mesh of the shardings.
        graph: whether the model is a graph or a tree.

    Raises:
        ValueError: in tree mode, for a shared node.

    >>> from weft import nnx
    >>> mesh = jax.make_mesh((1,), ("model",))
    >>> metadata = {"out_sharding": (None, "model")}
    >>> graphdef, state = get_abstract_model(
    ...     lambda: nnx.Linear(2, 4, kernel_metadata=metadata, rngs=nnx.Rngs(0)), mesh
    ... )
    >>> state["kernel"].get_value().shape, state["kernel"].get_value().sharding.spec == PartitionSpec(None, "model")
    ((2, 4), True)
    """

    def sharded(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    # The mesh is set during the abstract evaluation, too: eager sharding of new Variables raises without one.
    with jax.set_mesh(mesh):
        graphdef, abstract = split(eval_shape(init_fn, graph=graph), graph=graph)
        return graphdef, jax.tree.map(sharded, abstract, get_named_sharding(abstract, mesh))


def as_abstract(tree: T, graph: bool | None = None) -> T:
    """Gives the `ShapeDtypeStruct`s of an abstract model the shardings of their Variables' `out_sharding`.

    Args:
        tree: a result of `eval_shape`. Variables with a sharding, or without `out_sharding`, stay as they are.
        graph: whether it is a graph or a tree.

    >>> from weft import nnx
    >>> metadata = {"out_sharding": (None, "model"), "eager_sharding": False}
    >>> model = nnx.eval_shape(lambda: nnx.Linear(2, 4, kernel_metadata=metadata, rngs=nnx.Rngs(0)))
    >>> with jax.set_mesh(jax.make_mesh((1,), ("model",))):
    ...     as_abstract(model).kernel.get_value().sharding.spec == PartitionSpec(None, "model")
    True
    """

    def sharded(path: Any, leaf: Any) -> Any:
        if not _is_variable(leaf) or not leaf.has_metadata("out_sharding"):
            return leaf
        value = leaf.get_value()
        # A sharding that the value has already counts: `out_sharding` says where a value without one should be.
        if not (hasattr(value, "shape") and hasattr(value, "dtype")) or getattr(value, "sharding", None) is not None:
            return leaf
        has_mesh = leaf.has_metadata("mesh")
        mesh = leaf.get_metadata("mesh") if has_mesh else jax.sharding.get_abstract_mesh()
        sharding = NamedSharding(mesh, get_var_pspec(leaf) or PartitionSpec())
        return leaf.replace(jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding))

    return map_graph(sharded, tree, graph=graph)


def abstract_with_sharding(tree: T, graph: bool | None = None) -> T:
    """Deprecated name of `as_abstract`."""
    warnings.warn("This function is deprecated. Use as_abstract instead.", DeprecationWarning, stacklevel=2)
    return as_abstract(tree, graph=graph)


def _is_variable(leaf: Any) -> bool:
    return isinstance(leaf, Variable)
