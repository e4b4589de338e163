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


def _python_function(function: Any) -> FunctionType | None:
    """Returns the Python function inside of JAX's wrappers; None if there is none."""
    unwrapped = inspect.unwrap(function) if callable(function) and not isinstance(function, type) else None
    return unwrapped if isinstance(unwrapped, FunctionType) else None


# The attributes of each module at import, and the code object of each function among them.
_before = {module: dict(vars(module)) for module in _MODULES}
_codes: dict[FunctionType, CodeType] = {
    function: function.__code__
    for attributes in _before.values()
    for value in attributes.values()
    if (function := _python_function(value)) is not None
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
    reached.visit(function, _DEPTH)
    functions = tuple(reached.functions)
    codes = [_codes[function] for function in functions]
    # The check runs at each eager call of an op, so it is a few calls into C: one `itemgetter` for each module, and
    # tuples of identical objects compare at once. With `__name__` the getter has two names at least, and so returns a
    # tuple.
    looks = [(vars(module), itemgetter("__name__", *sorted(names))) for module, names in reached.names.items()]
    originals = [look(_before[module]) for module, (_, look) in zip(reached.names, looks, strict=True)]

    def untouched() -> bool:
        return [look(module) for module, look in looks] == originals and list(map(_code, functions)) == codes

    return untouched


class _Reached:
    """Collects the names that weft's functions read in JAX's modules, and the functions of JAX that they reach."""

    def __init__(self) -> None:
        self.names: dict[ModuleType, set[str]] = {}
        self.functions: set[FunctionType] = set()
        self._visited: set[FunctionType] = set()

    def visit(self, value: Any, depth: int) -> None:
        """Visits a value that a function reads; of JAX's own functions `depth` levels are followed, of weft's all."""
        function = _python_function(value)
        if function is None or function in self._visited:
            return
        self._visited.add(function)
        if function in _codes:
            self.functions.add(function)
        ours = function.__module__.startswith("weft.")
        if not ours and (depth == 0 or not function.__module__.startswith("jax.")):
            return
        for read in self._read(function, ours):
            self.visit(read, depth if ours else depth - 1)

    def _read(self, function: FunctionType, ours: bool) -> list[Any]:
        """Returns the values that a function reads: globals, closure, defaults, and attributes of modules."""
        # By the code of the import, if it was a function of JAX then: its code may be replaced by now.
        names = set(names_read(_codes.get(function, function.__code__)))
        read = [*globals_read(function).values(), *closure_and_defaults(function)]
        # Bytecode does not say to which module an attribute name belongs, so each name counts for each module: a check
        # of too many functions costs little, and a missed one would run a stale trace. The list grows while the loop
        # runs, so that `initializers` is found in `jax.nn`, and its functions after it.
        for module in read:
            if isinstance(module, ModuleType) and module.__name__.partition(".")[0] == "jax":
                attributes = _before.get(module, vars(module))
                added = {name for name in names if name in attributes and attributes[name] not in read}
                read += [attributes[name] for name in added]
                if ours and module in _before:
                    self.names.setdefault(module, set()).update(added)
        return read
