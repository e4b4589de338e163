"""Symbolic sizes: the dims of a proof as JAX's symbolic dimensions, so that one trace speaks for all sizes.

JAX takes a symbolic dimension to be at least 1 and, where it must decide, different from every other: what a trace
shows holds for all sizes that do not coincide, and sizes that coincide forbid nothing that different ones allow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from jax import export

_SYMBOLIC: type = type(export.symbolic_shape("n")[0])


def is_symbolic(value: Any) -> bool:
    """Whether a size is one of JAX's symbolic dimensions."""
    return isinstance(value, _SYMBOLIC)


def symbolic_sizes(
    keys: Iterable[str], multiples: Mapping[str, Iterable[str | int]], at_least: Iterable[tuple[str, str, int]] = ()
) -> dict[str, Any]:
    """A symbolic dimension for each key, in one scope.

    Args:
        keys: the size variables.
        multiples: for a key, the keys and numbers that divide it; it becomes their product times a free factor.
        at_least: (small, big, factor), of which the second is at least the factor times the first.

    >>> sizes = symbolic_sizes(["m", "heads"], {"m": ["heads"]})
    >>> str(sizes["m"] // sizes["heads"])
    'm_'
    """
    keys = list(keys)
    names = {key: _identifier(key, number) for number, key in enumerate(keys)}
    free = {key: names[key] + "_" if multiples.get(key) else names[key] for key in keys}
    constraints = [
        f"{free[big]} >= {factor}*{free[small]}"
        for small, big, factor in at_least
        if small in free and big in free and not multiples.get(small) and not multiples.get(big)
    ]
    symbols = dict(zip(keys, export.symbolic_shape(", ".join(free.values()), constraints=constraints), strict=True))
    sizes: dict[str, Any] = {}

    def size(key: str) -> Any:
        if key not in sizes:
            sizes[key] = symbols[key]
            for factor in multiples.get(key, ()):
                sizes[key] = sizes[key] * (factor if isinstance(factor, int) else size(factor))
        return sizes[key]

    return {key: size(key) for key in keys}


def _identifier(key: str, number: int) -> str:
    plain = re.sub(r"\W", "_", key)
    # `floordiv` and its like mean something to JAX, and two keys may differ in punctuation only.
    return (
        plain
        if plain == key and plain not in ("floordiv", "mod", "max", "min", "non_negative")
        else f"v{number}_{plain}"
    )
