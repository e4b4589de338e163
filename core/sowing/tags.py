"""Tags: the primitive behind `sow` and `perturb`.

A **tag** is an equation `tag` in a jaxpr: the identity on its operands, with a `Sown` or a `Perturbed` label as its
parameter. Tags exist only while a `capture` traces (`capturing()`): elsewhere `sow` and `perturb` return their value
and bind nothing. The switch is a `jax.make_user_context`, and so part of the key of JAX's trace caches: a jitted
function that was traced without tags is traced again inside a capture, and the other way round.

`hoisting` carries tagged values out of control flow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import jax
from weft.core.edge import _jax, equations, trees
from weft.core.edge._jax import AnyJaxpr, ClosedJaxpr, Params
from weft.core.edge.contexts import capture_context
from weft.core.edge.trees import PyTree, TreeDef
from weft.core.errors import WeftError
from weft.core.records.kinds import Kind
from weft.core.records.leaves import is_array

# Called at a tag with its values; returns the values with which the program continues.
Handler = Callable[["Tag", Sequence[jax.Array]], Sequence[jax.Array]]


class CaptureError(WeftError, ValueError):
    """A value cannot be sown, perturbed or captured where it is."""


def capturing() -> bool:
    """Whether the running code is being traced by a capture."""
    return capture_context.value is not None


def current_scope() -> tuple[str, ...]:
    """The names of the open scopes, outermost first; empty outside captures."""
    return capture_context.value or ()


@dataclass(frozen=True, slots=True)
class Skeleton:
    """A tree without its arrays: the treedef, and the static leaves by position."""

    treedef: TreeDef
    statics: tuple[tuple[int, object], ...]

    @property
    def count(self) -> int:
        """The number of arrays."""
        return self.treedef.num_leaves - len(self.statics)

    def fill(self, arrays: Sequence[jax.Array]) -> PyTree:
        """Builds the tree with these arrays."""
        statics, rest = dict(self.statics), iter(arrays)
        leaves = [statics[i] if i in statics else next(rest) for i in range(self.treedef.num_leaves)]
        return self.treedef.unflatten(leaves)


def take_arrays(
    tree: PyTree, is_dynamic: Callable[[object], bool] = is_array, is_leaf: Callable[[Any], bool] | None = None
) -> tuple[list[jax.Array], Skeleton]:
    """The arrays of a tree, and its skeleton."""
    leaves, treedef = trees.flatten(tree, is_leaf)
    statics = tuple((i, leaf) for i, leaf in enumerate(leaves) if not is_dynamic(leaf))
    at = {i for i, _ in statics}
    return [leaf for i, leaf in enumerate(leaves) if i not in at], Skeleton(treedef, statics)


class Program(NamedTuple):
    """A function of trees, traced for some arguments.

    Attributes:
        closed: its jaxpr, from the arrays of its arguments to those of its output.
        arrays: the arrays of the arguments.
        rebuild: gives the function's output, from the outputs of the jaxpr.
    """

    closed: ClosedJaxpr
    arrays: list[jax.Array]
    rebuild: Callable[[Sequence[jax.Array]], PyTree]


def traced(fun: Callable[..., PyTree], args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree]) -> Program:
    """Traces a function for its arguments; what is no array in them is static."""
    arrays, arguments = take_arrays((args, kwargs))
    outputs: list[Skeleton] = []

    def flat(*arrays: jax.Array) -> list[jax.Array]:
        args, kwargs = arguments.fill(arrays)
        leaves, skeleton = take_arrays(fun(*args, **kwargs))
        outputs.append(skeleton)
        return leaves

    closed: ClosedJaxpr = _jax.make_jaxpr(flat)(*arrays)
    return Program(closed, arrays, outputs[-1].fill)


@dataclass(frozen=True, slots=True)
class Tag:
    """The label of a tagged value: its name, and the skeleton of its tree."""

    name: str
    skeleton: Skeleton


@dataclass(frozen=True, slots=True)
class Sown(Tag):
    """The label of a value to observe."""

    kind: type[Kind]
    mode: str
    # Whether the value is of all examples of a `vmap`: where it has no mapped axis, it gets none.
    of_all: bool = False


@dataclass(frozen=True, slots=True)
class Perturbed(Tag):
    """The label of a value to which a perturbation can be added."""


tag_p = _jax.new_primitive("tag", multiple_results=True)


def bind_tag(tag: Tag, values: Sequence[jax.Array]) -> list[jax.Array]:
    """Tags values. As a handler it binds a tag again, for an outer capture."""
    return tag_p.bind(*values, tag=tag)


def _batch_tag(
    axis: _jax.Axis, values: Sequence[jax.Array], dims: Sequence[int | None], *, tag: Tag
) -> tuple[list[jax.Array], Sequence[int | None]]:
    # Also called if no value is batched: a user of `vmap` expects the mapped axis in front of every sown value.
    if isinstance(tag, Sown) and tag.of_all and all(dim is None for dim in dims):
        return bind_tag(tag, values), [None] * len(values)
    at_front = [_jax.batched_at_front(axis, value, dim) for value, dim in zip(values, dims, strict=True)]
    return bind_tag(tag, at_front), [0] * len(at_front)


_jax.define_identity(tag_p, batch=_batch_tag)


def tag_names(params: Params) -> tuple[str, ...]:
    """The names of all tags in the jaxprs among an equation's parameters, at any depth."""
    return tuple(chain.from_iterable(map(_tag_names_in, equations.inner_jaxprs(params))))


@_jax.remember_per_jaxpr
def _tag_names_in(jaxpr: AnyJaxpr) -> tuple[str, ...]:
    return tuple(
        chain.from_iterable(
            (eqn.params["tag"].name,) if eqn.primitive is tag_p else tag_names(eqn.params)
            for eqn in equations.opened(jaxpr).eqns
        )
    )
