"""States as nested dicts of plain values, as checkpoints hold them, and other functions over whole states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.core.paths import Path, format_path
from weft.nnx.errors import StructureError
from weft.nnx.states.filters import PathIn
from weft.nnx.states.states import State, instead, to_flat_state
from weft.nnx.states.traversals import flatten_mapping, unflatten_mapping
from weft.nnx.variable.variable import Variable


def to_pure_dict(state: Any, extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
    """A nested dict of plain values; Variables give theirs.

    Args:
        state: the state.
        extract_fn: how to take the plain value out of each value.

    Raises:
        TypeError: if it is no mapping.

    >>> from weft import nnx
    >>> to_pure_dict(nnx.state(nnx.Dict(w=nnx.Param(1.0), inner=nnx.Dict(n=nnx.BatchStat(2.0)))))
    {'inner': {'n': 2.0}, 'w': 1.0}
    """
    extract = extract_fn or (lambda value: value.get_value() if isinstance(value, Variable) else value)
    return unflatten_mapping([(path, extract(value)) for path, value in to_flat_state(state)])


def _int_if_it_is_one(part: Any) -> Any:
    try:
        return int(part)
    except ValueError:
        return part


def restore_int_paths(pure_dict: dict[Any, Any]) -> dict[Any, Any]:
    """A nested dict whose keys that look like integers are integers again, after a checkpoint made them strings.

    >>> restore_int_paths({"layers": {"0": {"bias": 1}}})
    {'layers': {0: {'bias': 1}}}
    """
    flat = flatten_mapping(pure_dict)
    return unflatten_mapping([(tuple(map(_int_if_it_is_one, path)), value) for path, value in flat.items()])


def replace_by_pure_dict(
    state: Any, pure_dict: dict[Any, Any], replace_fn: Callable[[Any, Any], Any] | None = None
) -> None:
    """Replaces the values of a state, in place, by those of a nested dict; its keys may be integers as strings.

    Args:
        state: the state.
        pure_dict: plain values; it may leave some out.
        replace_fn: makes the new value of the old one and the plain one.

    Raises:
        ValueError: naming the paths that the state does not have; then nothing was replaced.

    >>> from weft import nnx
    >>> state = nnx.state(nnx.Dict(w=nnx.Param(1.0), n=nnx.BatchStat(2.0)))
    >>> replace_by_pure_dict(state, {"w": 3.0})
    >>> to_pure_dict(state)
    {'n': 2.0, 'w': 3.0}
    """
    replace = replace_fn or (lambda old, new: old.replace(new) if hasattr(old, "replace") else new)
    flat = dict(to_flat_state(state))
    unknown: list[Path] = []
    for path, value in flatten_mapping(pure_dict).items():
        known = path if path in flat else tuple(map(_int_if_it_is_one, path))
        if known in flat:
            flat[known] = replace(flat[known], value)
        else:
            unknown.append(path)
    if unknown:
        raise StructureError("key in pure_dict not available in state", at=[format_path(path) for path in unknown])
    state.update(unflatten_mapping(flat))


def create_path_filters(state: Any) -> dict[Any, Any]:
    """Filters by path, as a mapping to the values that a state has there."""
    paths: dict[Any, set[Path]] = {}
    for path, value in to_flat_state(state):
        paths.setdefault(value.get_value() if isinstance(value, Variable) else value, set()).add(path)
    return {PathIn(*found): value for value, found in paths.items()}


# ---------------------------------------------------------------------- methods of State that are no more than these

# Here, since a State itself knows nothing of Variables, and these functions do.


def _to_pure_dict(self: State, extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
    return instead(to_pure_dict)(self, extract_fn)


def _replace_by_pure_dict(
    self: State, pure_dict: dict[Any, Any], replace_fn: Callable[[Any, Any], Any] | None = None
) -> None:
    instead(replace_by_pure_dict)(self, pure_dict, replace_fn)


State.to_pure_dict = _to_pure_dict
State.replace_by_pure_dict = _replace_by_pure_dict
