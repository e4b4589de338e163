"""Whether JAX's functions are still what they were when weft was imported.

Other code puts functions of its own in the place of JAX's while a model runs: quantisation (`jax.numpy.take`), exports
to other formats, interception of any kind. Some assign to a module (`mock.patch.object(jnp, "take", ...)`), some change
a function itself (`jax.lax.dot_general.__code__ = ...`). A trace that was kept knows nothing of either, so an op asks,
at each call, whether what it *reaches* is untouched: the functions of JAX's public modules that its text names, or that
the texts of those name in turn.

What there was is noted at import, since the first call may come when something is in its place already.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter, itemgetter
from types import CodeType, FunctionType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from weft.core.makeup import closure_and_defaults, globals_read, names_read

_MODULES = (jnp, lax, jax.nn, jax.nn.initializers, jax.random, jax)
# How far down texts of JAX's own are followed: far enough for `lax.dot_general` under `jnp.einsum` and its like. All
# the way down would take a tenth of a second for an op, and find what nobody replaces.
_DEPTH = 3
_code = attrgetter("__code__")


def _text(function: Any) -> FunctionType | None:
    """The Python function under JAX's wrappers."""
    unwrapped = inspect.unwrap(function) if callable(function) and not isinstance(function, type) else None
    return unwrapped if isinstance(unwrapped, FunctionType) else None


# What each module had; and the code that each of those functions had.
_before = {module: dict(vars(module)) for module in _MODULES}
_codes: dict[FunctionType, CodeType] = {
    text: text.__code__ for had in _before.values() for value in had.values() if (text := _text(value)) is not None
}


def watch(function: Callable[..., Any]) -> Callable[[], bool]:
    """A quick look whether everything of JAX that a function reaches is as it was at import.

    Args:
        function: a function of weft's.

    >>> from unittest import mock
    >>> from weft.modules.ops import embed
    >>> untouched = watch(embed)
    >>> with mock.patch.object(jnp, "take", lambda table, ids, axis: table[ids]):
    ...     patched = untouched()
    >>> patched, untouched()
    (False, True)
    """
    reached = _Reached()
    reached.meet(function, _DEPTH)
    functions = tuple(reached.functions)
    codes = [_codes[function] for function in functions]
    # A look is a few calls into C, and what is the same object is equal at once. `__name__` makes each item a tuple.
    looks = [(vars(module), itemgetter("__name__", *sorted(names))) for module, names in reached.names.items()]
    then = [look(_before[module]) for module, (_, look) in zip(reached.names, looks, strict=True)]

    def untouched() -> bool:
        return [look(module) for module, look in looks] == then and list(map(_code, functions)) == codes

    return untouched


class _Reached:
    """What one walk over texts has found: names that weft's read in JAX's modules, and public functions of JAX's."""

    def __init__(self) -> None:
        self.names: dict[ModuleType, set[str]] = {}
        self.functions: set[FunctionType] = set()
        self._met: set[FunctionType] = set()

    def meet(self, function: Any, depth: int) -> None:
        text = _text(function)
        if text is None or text in self._met:
            return
        self._met.add(text)
        if text in _codes:
            self.functions.add(text)
        ours = text.__module__.startswith("weft.")
        if not ours and (depth == 0 or not text.__module__.startswith("jax.")):
            return
        for value in self._read(text, ours):
            self.meet(value, depth if ours else depth - 1)

    def _read(self, text: FunctionType, ours: bool) -> list[Any]:
        """What a text reads: globals, what it was given, and attributes of the modules among these."""
        names = set(names_read(_codes.get(text, text.__code__)))
        read = [*globals_read(text).values(), *closure_and_defaults(text)]
        # A name of any module among them counts for each: too much is watched rather than too little.
        for module in read:
            if isinstance(module, ModuleType) and module.__name__.partition(".")[0] == "jax":
                had = _before.get(module, vars(module))
                replaced = {name for name in names if name in had and had[name] not in read}
                read += [had[name] for name in replaced]
                if ours and module in _before:
                    self.names.setdefault(module, set()).update(replaced)
        return read
