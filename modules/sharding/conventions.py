"""The logical names of the axes of weft's own layers, as common in the field.

A `Linear` cannot name its axes: only the record around it knows whether its output is an MLP's hidden axis or a model's
features. So one table here has the names, by the record that holds a layer and the place in it. They are those of T5X
and MaxText, and every array that the table does not know has none: its axes are divided only if a field, or `names=`,
names them.

| name | axis |
| --- | --- |
| `embed` | a model's features |
| `mlp` | the hidden features of an `MLP` or a `GatedMLP` |
| `heads` | the heads of an attention, each with its features |
| `vocab` | the rows of an embedding |
| `norm` | the features that a norm scales |
| `layers` | the copies in a `Stack`, whose field says so |
| `experts` | those of an `MoE`, likewise |
"""

from __future__ import annotations

from collections.abc import Callable

from weft.core.paths import Path
from weft.core.records.axis_names import Name
from weft.core.records.leaves import Leaf
from weft.modules.attention.multi_head import MultiHeadAttention
from weft.modules.attention.positions import LearnedPositions
from weft.modules.dense.linear import Embed, Linear
from weft.modules.dense.low_rank import LoRA
from weft.modules.dense.mlp import MLP, GatedMLP
from weft.modules.norms.group_norm import GroupNorm
from weft.modules.norms.norm import BatchNorm, LayerNorm, RMSNorm

Names = tuple[Name, ...]

# The names of the table above.
CONVENTIONAL = ("embed", "mlp", "heads", "vocab", "norm", "layers", "experts")

_UP, _DOWN = ("embed", "mlp"), ("mlp", "embed")

# The classes around the array, innermost last, and the names by the part of the path between them. Names are aligned
# at the last axis: a bias has the last of them.
_TABLE: tuple[tuple[tuple[type | tuple[type, ...], ...], int, Callable[[Path], Names]], ...] = (
    ((Embed,), 0, lambda part: ("vocab", "embed")),
    ((LearnedPositions,), 0, lambda part: (None, "embed")),
    (((LayerNorm, RMSNorm, BatchNorm, GroupNorm),), 0, lambda part: ("norm",)),
    ((MultiHeadAttention, Linear), 1, lambda part: ("heads", "embed") if part == ("out",) else ("embed", "heads")),
    # Layers and activations alternate, and so do layers that widen and layers that narrow: layers 0, 4, 8 widen. Tensor
    # parallelism then needs one collective for each pair.
    ((MLP, Linear), 2, lambda part: _UP if isinstance(part[-1], int) and part[-1] % 4 == 0 else _DOWN),
    ((GatedMLP, Linear), 1, lambda part: _DOWN if part == ("down",) else _UP),
)


def conventional_names(leaf: Leaf) -> Names | None:  # weft: skip(of any leaf)
    """The names of an array of weft's own layers, for its last axes; None if there is no convention for it.

    A layer has the names that it would have without what was put around it, or in its place.
    """
    *outer, own = leaf.owners or (object,)
    instead = Linear if issubclass(own, LoRA) else getattr(own, "__stands_for__", None)
    owners, path = (*outer, instead if isinstance(instead, type) else own), leaf.path
    # Wrappers such as `Frozen` are skipped, from the inside out: with its class and its field gone, the layer has the
    # names that it would have without the wrapper.
    while len(owners) > 1 and len(path) > 1 and getattr(owners[-2], "__stands_for__", None) == path[-2]:
        owners, path = (*owners[:-2], owners[-1]), (*path[:-2], path[-1])
    for classes, length, names in _TABLE:
        around = owners[-len(classes) :]
        if len(around) == len(classes) and all(map(issubclass, around, classes)):
            return names(path[-1 - length : -1])
    return None


def names_of_adapter(leaf: Leaf, names: Names) -> Names:  # weft: skip(of any leaf)
    """Returns the names of an adapter's axes, from those of its layer's kernel; the axis of the rank has none.

    Names of other arrays are returned unchanged.
    """
    if len(names) != 2 or not (leaf.owners and issubclass(leaf.owners[-1], LoRA)):
        return names
    return (names[0], None) if leaf.path[-1] == "down" else (None, names[1])
