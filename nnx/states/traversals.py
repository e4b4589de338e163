"""Functions that flatten nested mappings to paths, and rebuild them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax.tree_util as jtu
from weft.nnx.errors import ArgumentKindError

IsLeaf = Callable[[tuple[Any, ...], Any], bool]


# A node without leaves for JAX, so that a flat mapping with such marks can be passed to a transform.
@jtu.register_static
@dataclasses.dataclass(frozen=True)
class _EmptyNode:
    """Replaces an empty mapping in a flat mapping, where it would have no path."""


empty_node = _EmptyNode()


def _walk(
    node: Any, path: tuple[Any, ...], is_leaf: IsLeaf | None, *, keep_empty: bool
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if not isinstance(node, Mapping) or (is_leaf is not None and is_leaf(path, node)):
        yield path, node
    # An empty root is left out: it has no path under which the mark could be stored.
    elif not node and keep_empty and path:
        yield path, empty_node
    else:
        for key, value in node.items():
            yield from _walk(value, (*path, key), is_leaf, keep_empty=keep_empty)


def flatten_to_sequence(xs: Mapping[Any, Any], /, *, is_leaf: IsLeaf | None = None) -> list[tuple[Any, Any]]:
    """Flattens a nested mapping to (path, value) pairs, in its own order, without empty mappings.

    >>> flatten_to_sequence({"foo": 1, "bar": {"a": 2, "b": {}}})
    [(('foo',), 1), (('bar', 'a'), 2)]
    """
    _check_mapping(xs)
    return list(_walk(xs, (), is_leaf, keep_empty=False))


def flatten_mapping(
    xs: Mapping[Any, Any],
    /,
    *,
    keep_empty_nodes: bool = False,
    is_leaf: IsLeaf | None = None,
    sep: str | None = None,
) -> dict[Any, Any]:
    """Flattens a nested mapping to a dict from paths to values.

    Args:
        xs: the nested mapping.
        keep_empty_nodes: whether empty mappings become `empty_node`; otherwise they are dropped.
        is_leaf: a function of (path, mapping), whether not to flatten it.
        sep: joins paths into strings; by default they are tuples.

    >>> flatten_mapping({"foo": 1, "bar": {"a": 2, "b": {}}}, sep="/")
    {'foo': 1, 'bar/a': 2}
    """
    _check_mapping(xs)
    pairs = _walk(xs, (), is_leaf, keep_empty=keep_empty_nodes)
    return {path if sep is None else sep.join(path): value for path, value in pairs}


def unflatten_mapping(xs: Any, /, *, sep: str | None = None) -> dict[Any, Any]:
    """Rebuilds a nested dict from paths and values: the inverse of `flatten_mapping`.

    >>> unflatten_mapping({("foo",): 1, ("bar", "a"): 2})
    {'foo': 1, 'bar': {'a': 2}}
    """
    if not isinstance(xs, Iterable):
        raise ArgumentKindError(f"expected a mapping or (path, value) pairs, got {type(xs).__qualname__}")
    nested: dict[Any, Any] = {}
    # Sorted paths mostly share their parent with the path before, so parents are looked up by path and not walked to.
    inner_at: dict[Any, dict[Any, Any]] = {(): nested}
    for path, value in xs.items() if isinstance(xs, Mapping) else xs:
        path = path if sep is None else tuple(path.split(sep))
        inner = inner_at.get(path[:-1])
        if inner is None:
            inner = nested
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner_at[path[:-1]] = inner
        # By identity: the values may be arrays, whose `==` gives an array.
        inner[path[-1]] = {} if value is empty_node else value
    return nested


def _check_mapping(xs: Any) -> None:
    if not isinstance(xs, Mapping):
        raise ArgumentKindError(f"expected a mapping, got {type(xs).__qualname__}")
