"""Checks `PyTree[leaf, "S T"]`: every leaf, and the names of structures.

The annotation decides what a leaf is: `PyTree[tuple[int, int]]` has tuples as leaves. Structure names bind treedefs as
dims bind sizes: `"S T"` is S with a T in place of each leaf, `"... T"` ends in T, and `"S ..."` begins
with S.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from weft.core.edge.trees import key_part
from weft.typecheck.language.annotations import (
    Annotation,
    BoxOf,
    Instance,
    LiteralOf,
    MappingOf,
    OneOf,
    RecordOf,
    SequenceOf,
    TreeOf,
    TupleOf,
)
from weft.typecheck.language.forms import TYPEDDICT
from weft.typecheck.matching.bindings import Bindings, Mismatch, Origin, PendingStructure
from weft.typecheck.matching.compiling import CASES, Check, check_of
from weft.typecheck.matching.policies import Policy

IsLeaf = Callable[[Any], bool]


def tree_check(spec: TreeOf, policy: Policy) -> Check | None:
    """The check of a pytree; None if the annotation says nothing of leaves and structure."""
    leaf_check = check_of(spec.leaf, policy.several)
    if leaf_check is None and not spec.structure:
        return None
    is_leaf = _leaf_test(spec.leaf)

    def check(value: Any, bindings: Bindings) -> None:
        leaves, structure = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_leaf)
        if spec.structure:
            _check_structure(spec, structure, value, bindings)
        if leaf_check is None:
            return
        outer = bindings.path, bindings.leaf
        try:
            for number, (path, leaf) in enumerate(leaves):
                bindings.path = (*outer[0], *map(key_part, path))
                if spec.structure:  # `"?n"` means the leaf of the tree whose structure has a name
                    bindings.leaf = f"{outer[1]}({number}){' '.join(spec.structure)}:"
                leaf_check(leaf, bindings)
        finally:
            bindings.path, bindings.leaf = outer

    return check


def _leaf_test(annotation: Annotation) -> IsLeaf | None:
    """The test of which nodes are leaves by the annotation; None if only arrays and numbers are leaves."""
    match annotation:
        case OneOf(members):
            tests = [test for test in map(_leaf_test, members) if test is not None]
            return (lambda node: any(test(node) for test in tests)) if tests else None
        case TupleOf(items):
            tests = [_leaf_test(item) or (lambda node: jax.tree_util.all_leaves([node])) for item in items]
            return lambda node: (
                isinstance(node, tuple)
                and len(node) == len(tests)
                and all(test(part) for test, part in zip(tests, node, strict=True))
            )
        case SequenceOf(cls=cls) | MappingOf(cls=cls) | BoxOf(cls=cls):
            return lambda node: isinstance(node, cls)
        case RecordOf(cls=cls) if annotation.form is TYPEDDICT:
            # A leaf must have the keys of the TypedDict: if any dict were a leaf, no dict could contain TypedDicts.
            keys, required = frozenset(cls.__annotations__), cls.__required_keys__  # pyright: ignore
            return lambda node: isinstance(node, dict) and required <= node.keys() <= keys
        case RecordOf(cls=cls):
            return lambda node: isinstance(node, cls)
        case Instance(cls=cls) if cls not in (int, float, bool, complex):
            return lambda node: isinstance(node, cls)
        case TreeOf(leaf):
            # The leaves of a tree of trees are those of the inner annotation.
            return _leaf_test(leaf)
        case LiteralOf(values) if None in values:
            return lambda node: node is None
        case _:
            return None


def _check_structure(spec: TreeOf, actual: Any, value: Any, bindings: Bindings) -> None:
    """Compares a treedef with the names of its structure, and binds a name that stands alone and is free."""
    if spec.structure == ("...",):
        return  # any structure
    if len(spec.structure) == 1:
        (name,) = spec.structure
        known = bindings.structures.get(name)
        if known is None:
            bindings.structures[name] = actual
            bindings.origins[f"structure {name}"] = Origin(bindings.slot, bindings.path, None, value)
        elif known != actual:
            raise Mismatch("structure", spec, value, bindings, expected=known, detail=name)
        return
    names = [piece for piece in spec.structure if piece != "..."]
    unbound = next((name for name in names if name not in bindings.structures), None)
    if unbound is not None:
        # A later argument may bind the structure, so the check waits, as it does for dims.
        slot, path = bindings.slot, bindings.path

        # The check runs again when more names are bound. If one is still missing, `_check_structure` appends a further
        # pending entry, which is removed here.
        def check() -> bool:
            place, count = (bindings.slot, bindings.path), len(bindings.pending)
            bindings.slot, bindings.path = slot, path
            _check_structure(spec, actual, value, bindings)
            bindings.slot, bindings.path = place
            waits = len(bindings.pending) > count
            del bindings.pending[count:]
            return not waits

        unbound_error = f"cannot check {spec}: nothing binds the structure {unbound!r}"
        bindings.pending.append(PendingStructure(unbound_error, check, Origin(slot, path, None, value)))
        return
    tree: Any = 0
    for name in names:
        part = _filled(bindings.structures[name])
        tree = jax.tree.map(lambda _, part=part: part, tree)
    expected = jax.tree.structure(tree)
    if spec.structure[-1] == "...":
        fits = _begins_with(actual, expected)
    elif spec.structure[0] == "...":
        fits = _ends_with(actual, expected)
    else:
        fits = actual == expected
    if not fits:
        raise Mismatch("structure", spec, value, bindings, expected=expected, detail=" ".join(spec.structure))


# A treedef has no operations of its own, so structures are compared as trees with zeros for leaves.
def _filled(structure: Any) -> Any:
    return structure.unflatten([0] * structure.num_leaves)


def _begins_with(actual: Any, expected: Any) -> bool:
    # `flatten_up_to` raises ValueError where a tree does not begin with the structure.
    try:
        expected.flatten_up_to(_filled(actual))
    except ValueError:
        return False
    return True


def _ends_with(actual: Any, expected: Any) -> bool:
    def is_end(node: Any) -> bool:
        return jax.tree.structure(node) == expected

    return all(map(is_end, jax.tree.leaves(_filled(actual), is_leaf=is_end)))


CASES[TreeOf] = tree_check
