"""Conversions between States and nested dicts of plain values, as in checkpoints."""

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
    """Converts a State to a nested dict with the values of its Variables.

    Args:
        state: the state.
        extract_fn: a function from a Variable or array to the plain value.

    Raises:
        TypeError: if `state` is no mapping.

    >>> from weft import nnx
    >>> to_pure_dict(nnx.state(nnx.Dict(w=nnx.Param(1.0), inner=nnx.Dict(n=nnx.BatchStat(2.0)))))
    {'inner': {'n': 2.0}, 'w': 1.0}
    """
    extract = extract_fn or (lambda value: value.get_value() if isinstance(value, Variable) else value)
    return unflatten_mapping([(path, extract(value)) for path, value in to_flat_state(state)])


# Checkpoints have strings for all keys, so the elements of a List come back as "0", "1", ...
def _int_or_key(part: Any) -> Any:
    try:
        return int(part)
    except ValueError:
        return part


def restore_int_paths(pure_dict: dict[Any, Any]) -> dict[Any, Any]:
    """Converts keys like "0" in a nested dict to ints; checkpoints turn ints into strings.

    >>> restore_int_paths({"layers": {"0": {"bias": 1}}})
    {'layers': {0: {'bias': 1}}}
    """
    flat = flatten_mapping(pure_dict)
    return unflatten_mapping([(tuple(map(_int_or_key, path)), value) for path, value in flat.items()])


def replace_by_pure_dict(
    state: Any, pure_dict: dict[Any, Any], replace_fn: Callable[[Any, Any], Any] | None = None
) -> None:
    """Replaces values of a State in place by those of a nested dict, in which int keys may be strings.

    Args:
        state: the state.
        pure_dict: plain values by path; paths that it lacks are unchanged.
        replace_fn: a function from the old Variable and the plain value to the new Variable.

    Raises:
        ValueError: naming the paths that the State does not have, before anything is replaced.

    >>> from weft import nnx
    >>> state = nnx.state(nnx.Dict(w=nnx.Param(1.0), n=nnx.BatchStat(2.0)))
    >>> replace_by_pure_dict(state, {"w": 3.0})
    >>> to_pure_dict(state)
    {'n': 2.0, 'w': 3.0}
    """
    replace = replace_fn or (lambda old, new: old.replace(new) if hasattr(old, "replace") else new)
    # All replacements are collected first, so that an unknown path leaves the State unchanged.
    flat = dict(to_flat_state(state))
    unknown: list[Path] = []
    for path, value in flatten_mapping(pure_dict).items():
        # The path as it is comes first: a dict of the user's may have strings of digits for keys.
        known = path if path in flat else tuple(map(_int_or_key, path))
        if known in flat:
            flat[known] = replace(flat[known], value)
        else:
            unknown.append(path)
    if unknown:
        raise StructureError(
            "key in pure_dict not available in state",
            at=[format_path(path) for path in unknown],
            fix="remove these keys, or pass the dict of a model with the same structure",
        )
    state.update(unflatten_mapping(flat))


def create_path_filters(state: Any) -> dict[Any, Any]:
    """Makes a mapping from `PathIn` filters to values: a filter for each distinct value of a State."""
    paths: dict[Any, set[Path]] = {}
    for path, value in to_flat_state(state):
        paths.setdefault(value.get_value() if isinstance(value, Variable) else value, set()).add(path)
    return {PathIn(*paths_of_value): value for value, paths_of_value in paths.items()}


# ---------------------------------------------------------------------- deprecated methods of State

# Defined here because this file imports `states`, which cannot import it in turn.


def _to_pure_dict(self: State, extract_fn: Callable[[Any], Any] | None = None) -> dict[Any, Any]:
    return instead(to_pure_dict)(self, extract_fn)


def _replace_by_pure_dict(
    self: State, pure_dict: dict[Any, Any], replace_fn: Callable[[Any, Any], Any] | None = None
) -> None:
    instead(replace_by_pure_dict)(self, pure_dict, replace_fn)


State.to_pure_dict = _to_pure_dict
State.replace_by_pure_dict = _replace_by_pure_dict
