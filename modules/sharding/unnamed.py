"""Detects arrays without names of axes, and rules whose name no array has: both silently leave arrays replicated.

No rule divides the `Linear`s in a layer of the user's own unless the user names their axes, and a misspelt rule divides
nothing. In both cases each device holds the whole array, which only a look at the memory would show.
"""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Collection, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from weft.core.errors import FilterError
from weft.core.logical_axes import axes_of
from weft.core.paths import format_path
from weft.core.records.kinds import RngState
from weft.core.records.leaves import Leaf
from weft.modules.sharding.conventions import CONVENTIONAL
from weft.modules.sharding.rules import MeshAxes, Table

# Replicated arrays of at least so many bytes are reported. Right programs replicate small ones, such as biases, too.
LARGE = 2**20

# Names that a rule may have though no array of the model has such an axis: those of weft's layers, which another model
# may hold, and that of activations, since one table serves `axis_rules` and the placing of a model.
_ELSEWHERE = (*CONVENTIONAL, "batch")


class ReplicatedWarning(UserWarning):
    """Large arrays without names of axes are replicated on every device, although rules divide other arrays."""


def check_used(table: Table, names: Collection[str], divides: bool) -> None:
    """Refuses rules for names that no axis has.

    A table may serve several models and their activations. So an unused rule for a name of weft's own layers or for
    `batch` is accepted if other rules divide an array of this model. An unused rule for another name needs
    `Maybe(name)`.

    Args:
        table: the rules.
        names: the names of the tree's axes.
        divides: whether any axis is divided.

    Raises:
        FilterError: naming the rules, with similar names that were perhaps meant.
    """
    unused = [name for name in table if name is not ... and name not in names]
    wants = any(axes_of(entry) for entry in table.values())
    wrong = [name for name in unused if name not in _ELSEWHERE or (wants and not divides and axes_of(table[name]))]
    if wrong:
        known = sorted(names)
        others = [*known, *_ELSEWHERE]
        # A rule for a name that no array has is mostly a spelling mistake, so the error names the closest names.
        close = {name: difflib.get_close_matches(str(name), [o for o in others if o != name], n=1) for name in wrong}
        raise FilterError(
            "a rule names a logical axis that no array has"
            + ("" if divides or not wants else ", so every array would be replicated on every device"),
            at=[f"{name!r}: {table[name]!r}{f' (is it {close[name][0]!r}?)' if close[name] else ''}" for name in wrong],
            fix=f"correct or leave out the rule; the axes are called {', '.join(map(repr, known)) or 'nothing'}: name "
            'them by Sharded(...) on fields or by names=, or divide what has no names by unnamed="axis of the mesh"; '
            "in a table for several models, weft.filters.Maybe(name) may be for none",
        )


def is_near(name: str, names: Collection[str]) -> bool:
    """Whether a name is none of some names, and perhaps one of them misspelt."""
    return name not in names and bool(difflib.get_close_matches(name, names, n=1, cutoff=0.75))


def divided(leaf: Leaf, names: Sequence[str | None], spec: PartitionSpec, axes: MeshAxes, mesh: Any) -> PartitionSpec:
    """Returns the spec of an array without names, with its largest divisible axis divided over `axes`.

    Args:
        leaf: the array. Random keys stay replicated.
        names: the names that containers gave the leading axes, None for the other axes.
        spec: the entries that the rules give these axes.
        axes: the axes of the mesh to divide over.
        mesh: the mesh.
    """
    shape, used = np.shape(leaf.value), {axis for entry in spec for axis in axes_of(entry)}
    parts = math.prod(mesh.shape[axis] for axis in axes_of(axes))
    fitting = [i for i, name in enumerate(names) if name is None and shape[i] and shape[i] % parts == 0]
    # A mesh axis divides an array once at most, and each device needs the whole state of a random stream.
    if not fitting or used & set(axes_of(axes)) or issubclass(leaf.kind, RngState):
        return spec
    largest = max(fitting, key=lambda i: shape[i])
    return PartitionSpec(*(axes if i == largest else entry for i, entry in enumerate(spec)))


def warn_of_replicated(leaves: Sequence[Leaf], divides: bool, mesh: Any) -> None:
    """Warns of large arrays without names of axes that stay replicated although other arrays are divided."""
    large = [(leaf, size) for leaf in leaves if (size := bytes_of(leaf.value)) >= LARGE]
    if not large or not divides or math.prod(mesh.shape.values()) == 1:
        return
    listed = [f"  {format_path(leaf.path)}: {np.shape(leaf.value)}, {size:,} bytes" for leaf, size in large[:10]]
    more = [f"  and {len(large) - 10} more"] if len(large) > 10 else []
    total = sum(size for _, size in large)
    warnings.warn(
        "\n".join(
            [
                f"{total:,} bytes in {len(large)} arrays without names of axes are replicated on every device:",
                *listed,
                *more,
                "name their axes (Sharded on fields, names=), divide them by unnamed=, or say that they are to be "
                "replicated: names={filter: (None, None)}",
            ]
        ),
        ReplicatedWarning,
        stacklevel=4,
    )


def bytes_of(value: Any) -> int:
    """Returns the bytes of a whole array; a typed key has those of its data."""
    dtype = jnp.result_type(value) if not hasattr(value, "dtype") else value.dtype
    return math.prod(np.shape(value)) * dtype.itemsize
