"""The constants that a function reads from outside of itself (closure, defaults, globals), as a cache key for its
trace.

JAX caches the trace of a loop's body by the body. Values that the body reads from outside are constants of that trace:
if an object is mutated later, the trace still has its old value. So a cached trace serves another function only if both
read the same *constants*, none of which can change; and it is stored beyond the function's life only if its constants
live as long anyway.
"""

from __future__ import annotations

import copyreg
import dataclasses
import enum
import functools
import itertools
import sys
from collections.abc import Collection, Hashable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.frames import owner_of
from weft.core.makeup import closure_and_defaults, globals_read, is_all_attributes, makeup_of, names_read

Key = tuple[Hashable, ...]

_JITTED = cast("type[Any]", type(untyped_jax.jit(lambda: None)))
# Declared as Any, because `isinstance` would narrow a value to types of which a strict checker knows only parts.
_PLAIN: Any = (str, bytes, bool, int, type(None), type(...), np.dtype, np.generic)
_GROUPS: Any = (tuple, frozenset)
# Values that are compared by identity: functions of libraries, and those whose traces JAX caches already. A builtin
# method of an object is none of them (`[].append` reads the list), only those of modules and classes are.
_BY_IDENTITY: Any = (enum.Enum, BuiltinFunctionType, np.ufunc, jnp.ufunc, jax.custom_jvp, jax.custom_vjp, _JITTED)
# A function that reads more values than this counts as one that may change: to search on costs more than a trace.
_MOST = 1_000
# The attributes in which descriptors and decorators store the function that they wrap.
_INNER = ("__func__", "fget", "func", "method", "__wrapped__")


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A value that is compared by identity; it is stored, so that no other object gets its id."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class _ChangesError(Exception):
    """The function reads a value that may change, or that must not be kept alive."""


def constants_of(function: Any, *, lasting: bool = False) -> Key | None:
    """A key of all values that a function reads from outside of itself; None if one of them may change.

    Arrays, objects, lists and the like may change: they can be mutated. Numbers, strings, functions, classes and frozen
    dataclasses of these cannot, and if a name is bound to another value, the key differs. Two functions with equal keys
    compute the same.

    Args:
        function: the function, or a partial application.
        lasting: whether to refuse values that may be freed while the program runs: functions and classes that are no
            attribute of their module, unless a function is identified by its code and constants.

    Returns:
        None if a value may change, or may be freed (if `lasting`).

    >>> import jax.numpy as jnp
    >>> table = jnp.ones(2)
    >>> constants_of(lambda x: x + table) is None, constants_of(lambda x: jnp.tanh(x) + 1) is None
    (True, False)
    >>> one, other, third = [lambda x, n=n: x + n for n in (1, 1, 2)]
    >>> constants_of(one) == constants_of(other), constants_of(one) == constants_of(third)
    (True, False)
    """
    search = _Constants(lasting)
    try:
        search.meet(function, frozenset())
    except _ChangesError:
        return None
    return tuple(search.key)


class _Constants:
    """A search through the values that functions read; `key` is the key so far."""

    def __init__(self, lasting: bool):
        self.lasting = lasting
        self.key: list[Hashable] = []
        self._met: dict[int, int] = {}

    def meet(self, value: Any, names: frozenset[str]) -> None:
        """Adds a value to the key; `names` are the names that the code which read it reads."""
        kind = cast("type[Any]", type(value))
        if isinstance(value, _PLAIN):
            self.key.append((kind, value.tobytes() if isinstance(value, np.generic) else value))
            return
        if isinstance(value, float | complex):
            self.key.append((kind, repr(value)))  # by repr, because 0.0 equals -0.0 and gives other results
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
        elif isinstance(value, _BY_IDENTITY) and isinstance(getattr(value, "__self__", None), ModuleType | type | None):
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
        # The values that its methods read live as long as the class.
        lasting, self.lasting = self.lasting, False
        for base in itertools.filterfalse(_is_of_library, cls.__mro__):
            for name, value in vars(base).items():
                for inner in _INNER:  # one after another: a decorator may wrap what another one wraps
                    value = getattr(value, inner, value)
                if isinstance(value, FunctionType):
                    # Methods that a decorator generated (`dataclass`) are no code of the program's.
                    if _is_own_file(value.__code__.co_filename) and value.__code__.co_filename != "<string>":
                        self.meet(value, names)
                elif not name.startswith("_") and not hasattr(cast("type[Any]", type(value)), "__get__"):
                    self.meet(value, names)
        self.lasting = lasting

    def _function(self, function: FunctionType) -> None:
        code = function.__code__
        own = _is_own_file(code.co_filename)
        module = sys.modules.get(function.__module__)
        if self.lasting and (module is None or vars(module) is not function.__globals__):
            raise _ChangesError  # its globals are not those of a module, and are freed with it
        self.key.append((code, function.__module__))
        names = frozenset(names_read(code))
        # The globals of a library's function hold no state of the program; its closure and its defaults may.
        read = globals_read(function).values() if own else ()
        for value in (*closure_and_defaults(function), *read):
            self.meet(value, names)
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
    """Whether a function or class is an attribute of its module under its own name, and so lives as long as the
    module."""
    if isinstance(value, np.ufunc):
        return getattr(np, value.__name__, None) is value
    first, *rest = _qualname(value).split(".")
    try:
        # Not by `getattr` of the module, whose `__getattr__` may import.
        names = vars(sys.modules[str(getattr(value, "__module__", None))])
        return functools.reduce(getattr, rest, names[first]) is value
    except (AttributeError, KeyError):
        return False


def _qualname(value: Any) -> str:
    return str(getattr(value, "__qualname__", None) or getattr(value, "__name__", ""))


def name_for_pickle(value: Any) -> str | None:
    """The name by which pickle finds a function in its module; None if there is none.

    Not in `__main__`, which is another program in another process.
    """
    return _qualname(value) if is_in_its_module(value) and value.__module__ != "__main__" else None


def _reduced(value: Any) -> Any:
    return name_for_pickle(value) or object.__reduce_ex__(value, 4)


# By themselves JAX's functions are pickled and copied by their parts. Pickle then refuses `jax.nn.relu`, because its
# name leads to the object around the function inside; and a deep copy is another function, and a cache miss.
for _kind in (_JITTED, jnp.ufunc, jax.custom_jvp, jax.custom_vjp):
    copyreg.pickle(cast("type[Any]", _kind), _reduced)


def _is_frozen(kind: type) -> bool:
    """Whether a class is a frozen dataclass whose objects are nothing but their attributes; records do not count."""
    parameters: Any = getattr(kind, "__dataclass_params__", None)
    is_frozen = parameters is not None and bool(parameters.frozen)
    return is_frozen and is_all_attributes(kind) and not issubclass(kind, eqx.Module)


def _is_of_library(value: Any) -> bool:
    """Whether a value is a library's module, or an attribute of such a module under its own name."""
    module = _module_of(value)
    if module is None or not (module is value or is_in_its_module(value)):
        return False
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ != "__main__"
    return not _is_own_file(file)


def _is_own_file(file: str) -> bool:
    """Whether a file belongs to the program, not to a library."""
    return owner_of(file) in ("user", "generated")
