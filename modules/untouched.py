"""Whether JAX's functions are still what they were when weft was imported.

Other code replaces JAX's functions while a model runs: quantisation (`jax.numpy.take`), exports to other formats, any
kind of interception. Some of it assigns to a module (`mock.patch.object(jnp, "take", ...)`), some changes a function
itself (`jax.lax.dot_general.__code__ = ...`). A cached trace would not call the replacement: qwix returned models that
were not quantised. So an op checks at each call whether the functions that it *reaches* are unchanged: the functions of
JAX's public modules that its code names, or that their code names in turn.

The originals are recorded at import, because a replacement may be in place already when an op is first called.
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
# How many levels of JAX's own functions are followed: enough to find `lax.dot_general` under `jnp.einsum`. To follow
# all levels would take a tenth of a second for each op, and would find internals that nobody replaces.
_DEPTH = 3
_code = attrgetter("__code__")


def _text(function: Any) -> FunctionType | None:
    """Returns the Python function inside of JAX's wrappers; None if there is none."""
    unwrapped = inspect.unwrap(function) if callable(function) and not isinstance(function, type) else None
    return unwrapped if isinstance(unwrapped, FunctionType) else None


# The attributes of each module at import, and the code object of each function among them.
_before = {module: dict(vars(module)) for module in _MODULES}
_codes: dict[FunctionType, CodeType] = {
    text: text.__code__ for had in _before.values() for value in had.values() if (text := _text(value)) is not None
}


def watch(function: Callable[..., Any]) -> Callable[[], bool]:
    """Returns a quick check whether the functions of JAX that a function reaches are unchanged since import.

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
    # The check runs at each eager call of an op, so it is a few calls into C: one `itemgetter` for each module, and
    # tuples of identical objects compare at once. With `__name__` the getter has two names at least, and so returns a
    # tuple.
    looks = [(vars(module), itemgetter("__name__", *sorted(names))) for module, names in reached.names.items()]
    then = [look(_before[module]) for module, (_, look) in zip(reached.names, looks, strict=True)]

    def untouched() -> bool:
        return [look(module) for module, look in looks] == then and list(map(_code, functions)) == codes

    return untouched


class _Reached:
    """Collects the names that weft's functions read in JAX's modules, and the functions of JAX that they reach."""

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
        """Returns the values that a function reads: globals, closure, defaults, and attributes of modules."""
        names = set(names_read(_codes.get(text, text.__code__)))
        read = [*globals_read(text).values(), *closure_and_defaults(text)]
        # Bytecode does not say to which module an attribute name belongs, so each name counts for each module: a check
        # of too many functions costs little, and a missed one would run a stale trace.
        for module in read:
            if isinstance(module, ModuleType) and module.__name__.partition(".")[0] == "jax":
                had = _before.get(module, vars(module))
                replaced = {name for name in names if name in had and had[name] not in read}
                read += [had[name] for name in replaced]
                if ours and module in _before:
                    self.names.setdefault(module, set()).update(replaced)
        return read
