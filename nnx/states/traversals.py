"""Nested mappings, flattened to paths and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax.tree_util as jtu

IsLeaf = Callable[[tuple[Any, ...], Any], bool]


@jtu.register_static
@dataclasses.dataclass(frozen=True)
class _EmptyNode:
    """In place of an empty mapping, which has no path of its own."""


empty_node = _EmptyNode()


def _walk(
    node: Any, path: tuple[Any, ...], is_leaf: IsLeaf | None, keep_empty: bool
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if not isinstance(node, Mapping) or (is_leaf is not None and is_leaf(path, node)):
        yield path, node
    elif not node and keep_empty and path:
        yield path, empty_node
    else:
        for key, value in node.items():
            yield from _walk(value, (*path, key), is_leaf, keep_empty)


def flatten_to_sequence(xs: Mapping[Any, Any], /, *, is_leaf: IsLeaf | None = None) -> list[tuple[Any, Any]]:
    """A nested mapping as (path, value) pairs, in its own order; empty mappings are left out.

    >>> flatten_to_sequence({"foo": 1, "bar": {"a": 2, "b": {}}})
    [(('foo',), 1), (('bar', 'a'), 2)]
    """
    _check_mapping(xs)
    return list(_walk(xs, (), is_leaf, False))


def flatten_mapping(
    xs: Mapping[Any, Any],
    /,
    *,
    keep_empty_nodes: bool = False,
    is_leaf: IsLeaf | None = None,
    sep: str | None = None,
) -> dict[Any, Any]:
    """A nested mapping as a flat one from paths to values.

    Args:
        xs: the nested mapping.
        keep_empty_nodes: whether empty mappings become `empty_node` instead of being left out.
        is_leaf: says of a (path, mapping) that it stays as it is.
        sep: joins paths into strings; by default they are tuples.

    >>> flatten_mapping({"foo": 1, "bar": {"a": 2, "b": {}}}, sep="/")
    {'foo': 1, 'bar/a': 2}
    """
    _check_mapping(xs)
    pairs = _walk(xs, (), is_leaf, keep_empty_nodes)
    return {path if sep is None else sep.join(path): value for path, value in pairs}


def unflatten_mapping(xs: Any, /, *, sep: str | None = None) -> dict[Any, Any]:
    """A nested dict from paths, the inverse of `flatten_mapping`.

    >>> unflatten_mapping({("foo",): 1, ("bar", "a"): 2})
    {'foo': 1, 'bar': {'a': 2}}
    """
    if not isinstance(xs, Iterable):
        raise TypeError(f"expected a mapping or (path, value) pairs, got {type(xs).__qualname__}")
    nested: dict[Any, Any] = {}
    inner_at: dict[Any, dict[Any, Any]] = {(): nested}
    for path, value in xs.items() if isinstance(xs, Mapping) else xs:
        path = path if sep is None else tuple(path.split(sep))
        inner = inner_at.get(path[:-1])
        if inner is None:
            inner = nested
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner_at[path[:-1]] = inner
        inner[path[-1]] = {} if value is empty_node else value
    return nested


def _check_mapping(xs: Any) -> None:
    if not isinstance(xs, Mapping):
        raise TypeError(f"expected a mapping, got {type(xs).__qualname__}")
