"""Functions by which the contract checker reads, copies and rebuilds NNX objects.

`typecheck` does not depend on this package. It imports this file when an annotation names a class of the package
(`core.hooks.register_object_layer`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from weft.core.paths import Path
from weft.core.records.leaves import is_array
from weft.nnx.crossing.extract import from_tree, to_tree
from weft.nnx.graphs.nodes import child_items, get_node_impl
from weft.nnx.graphs.splitting import clone, flatten
from weft.nnx.graphs.walk import iter_graph
from weft.nnx.modules.pytree import Pytree
from weft.nnx.objects.attributes import is_data, static
from weft.nnx.objects.objects import attributes_of, new_object
from weft.nnx.streams.rngs import Rngs, RngStream
from weft.nnx.training.optimizer import Optimizer, OptState
from weft.nnx.variable.kinds import BatchStat, Param
from weft.nnx.variable.variable import Variable
from weft.typecheck.language import forms

_PLAIN = (bool, int, float, str)


def _children(node: Any) -> Mapping[Any, Any]:
    return dict(child_items(node)) if get_node_impl(node) is not None else {}


def structure(node: Any) -> tuple[Any, Any]:
    """Returns a key that is equal for graphs of equal structure, and the shape and dtype of each array.

    Functions among the attributes are left out, because each constructor call may create new ones.
    """
    _, leaves = flatten(node, graph=True)
    plain = tuple((path, value) for path, value in iter_graph(node, graph=True) if _is_plain(path, value))
    values = [leaf.get_value() if isinstance(leaf, Variable) else leaf for leaf in leaves.leaves]
    kinds = tuple((path, type(leaf)) for path, leaf in zip(leaves.paths, leaves.leaves, strict=True))
    shapes = [(value.shape, value.dtype) if is_array(value) else ((), type(value)) for value in jax.tree.leaves(values)]
    return (plain, kinds, jax.tree.structure(values)), shapes


def _is_plain(path: Path, value: Any) -> bool:
    return isinstance(value, _PLAIN) and forms.NOTED not in path


def _new(cls: type, attributes: Mapping[str, Any]) -> Any:
    # Without `__init__`, whose arguments the checker does not know.
    node = new_object(cls)
    for name, value in attributes.items():
        setattr(node, name, value)
    return node


# The shapes of layers' arrays, by their options: the annotations of the layers have no dims.
SHAPES = {
    "Linear": {"kernel": "in_features out_features", "bias": "out_features"},
    "Embed": {"embedding": "num_embeddings features"},
    "BatchNorm": dict.fromkeys(("mean", "var", "scale", "bias"), "num_features"),
    "LayerNorm": dict.fromkeys(("scale", "bias"), "num_features"),
    "RMSNorm": {"scale": "num_features"},
}

# The checker reads NNX's objects by these functions. It imports this file when an annotation first names an NNX class,
# so that proofs of records do not load NNX.
LAYER = forms.loaded(
    forms.ObjectLayer(
        is_record_class=lambda cls: issubclass(cls, Pytree) and not issubclass(cls, (Rngs, RngStream, Optimizer)),
        box=Variable,
        lasting=(Param, BatchStat, OptState),
        package="weft.nnx.",
        attributes=attributes_of,
        value=lambda box: box.get_value(),
        children=_children,
        new=_new,
        clone=lambda node: clone(node, graph=True),
        opened=lambda tree: to_tree(tree, check_aliasing=False),
        closed=from_tree,
        structure=structure,
        set_attribute=lambda node, name, value: setattr(node, name, value if is_data(value) else static(value)),
        set_value=lambda box, value: box.set_raw_value(value),
        shapes=SHAPES,
        values="weft.nnx.interop.contract_values",
    )
)
