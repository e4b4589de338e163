"""What a function finds outside of itself and cannot change: whether a trace of it may be kept.

JAX keeps the trace of a loop's body with the body, and what the body finds outside of itself is a constant of that
trace: an object that is written to later would have its old value there. So a trace serves another call only for a
function that finds the very same *constants*, and it outlives the function only if these outlive it anyway.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import sys
from collections.abc import Collection, Hashable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from weft.core.callers import owner_of
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.makeup import globals_read, is_all_attributes, makeup_of, named, names_read, values_given

Key = tuple[Hashable, ...]

_JITTED = cast("type[Any]", type(untyped_jax.jit(lambda: None)))
# All as Any, since `isinstance` would narrow a value to types that are half unknown.
_PLAIN: Any = (str, bytes, bool, int, type(None), type(...), np.dtype, np.generic)
_GROUPS: Any = (tuple, frozenset)
# What is told apart by identity: functions that others wrote, or that JAX keeps traces of already.
_TEXTS: Any = (enum.Enum, BuiltinFunctionType, np.ufunc, jnp.ufunc, jax.custom_jvp, jax.custom_vjp, _JITTED)
# A text that leads to more than this is taken for one that may change: looking on costs more than tracing it again.
_MOST = 1_000
# Where descriptors and decorators keep the function that they were given.
_INNER = ("__func__", "fget", "func", "method", "__wrapped__")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """One thing by its identity, which it keeps from being given to another."""

    thing: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


class _ChangesError(Exception):
    """Something was found that may change, or that is not to be kept."""


def constants_of(function: Any, *, lasting: bool = False) -> Key | None:
    """All that a function finds outside of itself, as a key, if nothing of it may change.

    Arrays, objects, lists and the like may: they can be replaced or written to where the function finds them. Numbers,
    strings, functions, classes and frozen dataclasses of them cannot, and where another one takes the place of one of
    them, the key differs. Two functions with one key do the same.

    Args:
        function: the function; a partial application is one too.
        lasting: whether to refuse what may be freed while the program runs: functions and classes that no module has
            as its own, other than functions that are told apart by their text and constants.

    Returns:
        None if something may change, or does not last.

    >>> import jax.numpy as jnp
    >>> table = jnp.ones(2)
    >>> constants_of(lambda x: x + table) is None, constants_of(lambda x: jnp.tanh(x) + 1) is None
    (True, False)
    >>> one, other, third = [lambda x, n=n: x + n for n in (1, 1, 2)]
    >>> constants_of(one) == constants_of(other), constants_of(one) == constants_of(third)
    (True, False)
    """
    looking = _Constants(lasting)
    try:
        looking.meet(function, frozenset())
    except _ChangesError:
        return None
    return tuple(looking.key)


class _Constants:
    """One walk over what functions find."""

    def __init__(self, lasting: bool):
        self.lasting = lasting
        self.key: list[Hashable] = []
        self._met: dict[int, int] = {}

    def meet(self, value: Any, names: frozenset[str]) -> None:
        """Adds a value to the key; `names` are those that the text which found it reads."""
        kind = cast("type[Any]", type(value))
        if isinstance(value, _PLAIN):
            self.key.append((kind, value.tobytes() if isinstance(value, np.generic) else value))
            return
        if isinstance(value, float | complex):
            self.key.append((kind, repr(value)))  # 0.0 equals -0.0, and does not do the same
            return
        again = self._met.get(id(value))
        if again is not None:
            self.key.append(again)
            return
        if len(self._met) > _MOST:
            raise _ChangesError
        self._met[id(value)] = len(self._met)
        if isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, _GROUPS):
            self._all(_Same(kind), value, names)
        elif isinstance(value, functools.partial):
            self._all("partial", (value.func, *value.args, *value.keywords, *value.keywords.values()), names)
        elif isinstance(value, ModuleType):
            self._module(value, names)
        elif isinstance(value, type):
            self._class(value, names)
        elif isinstance(value, _TEXTS) and isinstance(getattr(value, "__self__", None), ModuleType | type | None):
            self._identity(value)
        elif _is_frozen(kind):
            self._class(kind, names)
            _, attributes, parts = makeup_of(value, compared=False)
            self._all(tuple(attributes), parts, names)
        else:
            raise _ChangesError

    def _all(self, kind: Hashable, values: Collection[Any], names: frozenset[str]) -> None:
        self.key.append((kind, len(values)))
        for value in values:
            self.meet(value, names)

    def _identity(self, value: Any) -> None:
        if self.lasting and not is_in_its_module(type(value) if isinstance(value, enum.Enum) else value):
            raise _ChangesError
        self.key.append(_Same(value))

    def _module(self, module: ModuleType, names: frozenset[str]) -> None:
        self.key.append(_Same(module))
        if not _is_of_library(module):
            self._all("names", [vars(module)[name] for name in sorted(names) if name in vars(module)], names)

    def _class(self, cls: type, names: frozenset[str]) -> None:
        self._identity(cls)
        if _is_of_library(cls):
            return
        # What its methods find lasts as long as the class does.
        lasting, self.lasting = self.lasting, False
        for base in cls.__mro__:
            for name, value in vars(base).items() if not _is_of_library(base) else ():
                for inner in _INNER:
                    value = getattr(value, inner, value)
                if isinstance(value, FunctionType):
                    # Those that a decorator of classes made are no text of the program's.
                    if _is_own_file(value.__code__.co_filename) and value.__code__.co_filename != "<string>":
                        self.meet(value, names)
                elif not name.startswith("_") and not hasattr(cast("type[Any]", type(value)), "__get__"):
                    self.meet(value, names)
        self.lasting = lasting

    def _function(self, function: FunctionType) -> None:
        code = function.__code__
        own = _is_own_file(code.co_filename)
        if self.lasting and vars(sys.modules.get(function.__module__, os)) is not function.__globals__:
            raise _ChangesError  # its globals end with it
        self.key.append((code, function.__module__))
        names = frozenset(names_read(code))
        # A library's functions keep no state of the program's, but for what it gave them to close over.
        read = globals_read(function).values() if own else ()
        for found in (*values_given(function), *read):
            self.meet(found, names)
        if own and not is_in_its_module(function):
            self._all("annotations", [*function.__annotations__, *function.__annotations__.values()], names)
            if any(not name.startswith("__weft_") for name in vars(function)):
                raise _ChangesError


def _module_of(value: Any) -> ModuleType | None:
    if isinstance(value, ModuleType):
        return value
    name = getattr(value, "__module__", None)
    return sys.modules.get(name) if isinstance(name, str) else None


def is_in_its_module(value: Any) -> bool:
    """Whether a module has a function or class under its own name: then it stays as long as the program."""
    if isinstance(value, np.ufunc):
        return getattr(np, value.__name__, None) is value
    return named(str(getattr(value, "__module__", None)), getattr(value, "__qualname__", "<locals>")) is value


def _is_frozen(kind: type) -> bool:
    """Whether objects of a class are frozen, and so what their attributes are; records are for others to change."""
    is_frozen = dataclasses.is_dataclass(kind) and cast(Any, kind).__dataclass_params__.frozen
    return is_frozen and is_all_attributes(kind) and not issubclass(kind, eqx.Module)


def _is_of_library(value: Any) -> bool:
    """Whether a module, or what a module has under its own name, is of a library."""
    module = _module_of(value)
    if module is None or not (module is value or is_in_its_module(value)):
        return False
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ != "__main__"
    return not _is_own_file(file)


def _is_own_file(file: str) -> bool:
    """Whether a file is the program's, not that of a library that is installed."""
    return owner_of(file) in ("user", "generated")
