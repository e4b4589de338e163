"""Says which argument is to blame when JAX refuses a call because of one array.

JAX names the array's shape and the place of its birth; the user needs its path in the arguments. This runs only once
something has failed, so the good path pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
from jax.core import Tracer
from weft.core._jax import is_dead_tracer
from weft.core.errors import AliasError, DonatedError, TraceLevelError, WeftError
from weft.core.leaves import Leaf
from weft.core.paths import Path, format_path


def explain(error: Exception, find_leaves: Callable[[], Sequence[Leaf]]) -> None:
    """Raises a better error in place of one of JAX's, if an argument explains it; else returns.

    Raises:
        DonatedError: if arguments were donated to an earlier call.
        TraceLevelError: if arguments are tracers of a transform that has ended.
        AliasError: if one array was donated under two paths.
    """
    if isinstance(error, WeftError) or not isinstance(error, ValueError | RuntimeError | TypeError):
        return
    text = str(error)
    if isinstance(error, jax.errors.UnexpectedTracerError) or "leaked" in text or "tracer" in text.lower():
        escaped = [leaf for leaf in find_leaves() if isinstance(leaf.value, Tracer)]
        escaped = [leaf for leaf in escaped if is_dead_tracer(leaf.value)]
        if escaped:
            raise TraceLevelError(
                "a tracer escaped from a transform that has ended, into these arguments",
                at=[f"{format_path(leaf.path)}: {leaf.value.aval}" for leaf in escaped],
                fix="return the value from the transformed function instead of storing it outside",
            ) from error
    if "delete" in text or "donate" in text:
        leaves = find_leaves()
        gone = [leaf for leaf in leaves if isinstance(leaf.value, jax.Array) and _is_deleted(leaf.value)]
        if "same buffer twice" in text:
            _raise_aliased(leaves, error)
        if gone:
            raise DonatedError(
                "these arguments were donated to an earlier call, and are gone",
                at=[format_path(leaf.path) for leaf in gone],
                fix="use the successor that the call returned, or do not donate",
            ) from error


def _is_deleted(value: jax.Array) -> bool:
    return not isinstance(value, Tracer) and value.is_deleted()


def _raise_aliased(leaves: Sequence[Leaf], error: Exception) -> None:
    paths: dict[int, list[Path]] = {}
    for leaf in leaves:
        paths.setdefault(id(leaf.value), []).append(leaf.path)
    shared = [" and ".join(map(format_path, group)) for group in paths.values() if len(group) > 1]
    raise AliasError(
        "one array is reached under two paths, so it cannot be donated",
        at=shared,
        fix="copy it (jnp.copy) at one of them, or donate neither",
    ) from error
