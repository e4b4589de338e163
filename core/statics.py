"""Static: a value that rides through JAX transforms in the tree definition, where they neither trace nor copy it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from weft.core import trees
from weft.core.trees import TreeDef


class Static:
    """A pytree node without leaves. Two are equal if their values are of one type and equal.

    >>> import jax
    >>> jax.jit(lambda s: s)(Static("relu")).value
    'relu'
    """

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Static and same_static(self.value, other.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"Static({self.value!r})"


# The node itself is the auxiliary data, so that flattening and unflattening make no object.
trees.register_node(Static, lambda node: ((), node), lambda node, _: node)


def make_of_static(value: Any) -> Any:
    """The types in a static value, which `==` looks past: `1`, `1.0` and `True` are equal, `(1,)` and `(True,)` too."""
    if isinstance(value, tuple):
        parts = cast("tuple[Any, ...]", value)
        return (type(parts), *map(make_of_static, parts))
    return cast("type[Any]", type(value))


def same_static(a: Any, b: Any) -> bool:
    """Whether two static values are interchangeable: `1`, `1.0` and `True` are not."""
    if a is b:
        return True
    if type(a) is type(b) and bool(a == b):
        return not isinstance(a, tuple) or make_of_static(a) == make_of_static(b)
    return False


@dataclass(frozen=True)
class Make:
    """A tree's definition, with the makes of the static fields in it: JAX compares these by `==` alone."""

    treedef: TreeDef
    fields: tuple[Any, ...]

    def __str__(self) -> str:
        return str(self.treedef)


class Bound:
    """An argument that was taken apart beforehand: its structure, and its dynamic leaves ready to be passed on.

    A pytree of those leaves; the interpreter gives the function the tree that it stands for.
    """

    __slots__ = ("leaves", "structure")

    def __init__(self, structure: Any, leaves: tuple[Any, ...]):
        self.structure = structure
        self.leaves = leaves

    @property
    def value(self) -> Any:
        """The tree that this stands for."""
        return self.structure.build(self.leaves)


trees.register_node(
    Bound, lambda node: (node.leaves, node.structure), lambda structure, leaves: Bound(structure, tuple(leaves))
)


def given(argument: Any) -> Any:
    """What the user's function is given for an argument: the value of a `Static` or `Bound`, else itself."""
    return argument.value if type(argument) in (Static, Bound) else argument
