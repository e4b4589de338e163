"""The hook by which the core calls the checker of contracts, without importing it.

`typecheck` installs one object here. The core calls it wherever a contract can be checked: when a record is
constructed, around a record's public methods, and around the functions that transforms call. With nothing installed
each is a plain call.

Contracts are on by default, but `import weft` does not load the checker: the first hook (`Deferred`) loads it when the
first record is made or the first function is called. The top package names the checker's module (`defer_contracts`).
With `WEFT_TYPECHECK=off` no hook is installed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

from weft.core.edge.trees import PyTree

R = TypeVar("R")


class ContractHook(Protocol):
    """The methods of a checker of contracts that the core calls."""

    def constructed(self, record: object, arguments: PyTree) -> None:
        """Checks a record whose constructor has just run, with these arguments."""

    def replaced(self, record: object) -> None:
        """Checks a copy with other fields, which may be a stacked record, or a part with None in place of leaves."""

    def enter(
        self, function: Callable[..., R], args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree], typed: bool = True
    ) -> Running:
        """Begins a call of a public method (`args[0]` is the record) or of a function given to a transform.

        With `typed=False` (NNX programs, which were written for flax) a function whose annotations name no shape and no
        dtype has no contract: such annotations may never have been checked, and be wrong.

        A transform calls this inside its trace and inside its frame, with arguments as the function sees them: one
        example, a carry and a slice, the operands of a branch. Records among them have just been rebuilt.
        """
        ...


class Running(Protocol):
    """A call whose arguments were checked. The caller of `enter` calls its function, and then `end` in any case."""

    function: Callable[..., Any]
    args: tuple[PyTree, ...]
    kwargs: Mapping[str, PyTree]

    def leave(self, result: PyTree) -> PyTree:
        """Checks the result of the function, and returns it."""
        ...

    def fail(self, error: Exception) -> None:
        """Adds the call's names and places to an error."""

    def end(self) -> None:
        """Ends the call; it is called exactly once."""


class Deferred:
    """The hook until the first check, at which it loads the checker, which replaces it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(load_contracts(), name)


def load_contracts() -> ContractHook:
    """Imports the checker and installs it."""
    return importlib.import_module(_checker).install()


# Base classes of mutable objects (NNX Modules, Variables), with the name of the module that describes them to the
# checker. `typecheck` cannot import `nnx`, which lies above it; it looks the module up here and imports it when it
# meets such a class.
_object_layers: dict[type, str] = {}


def register_object_layer(bases: tuple[type, ...], module: str) -> None:
    """Registers the module that describes some classes to the checker, by its attribute `LAYER`.

    Args:
        bases: the base classes of the objects.
        module: the module's dotted name; the checker imports it when such a class occurs in an annotation.
    """
    _object_layers.update(dict.fromkeys(bases, module))


def object_layer(cls: type) -> str | None:
    """The registered module for a class or one of its bases; None if there is none."""
    return next((_object_layers[base] for base in cls.__mro__ if base in _object_layers), None)


_checker = ""
# The installed hook, which is read at each call of a record's method; `install_contracts` sets it.
installed: ContractHook | None = None


def defer_contracts(module: str) -> None:
    """Names the module whose `install()` installs the checker; unless contracts are off, the first check imports it."""
    global _checker
    _checker = module
    if os.environ.get("WEFT_TYPECHECK") != "off":
        install_contracts(cast(Any, Deferred()))


def install_contracts(hook: ContractHook | None) -> ContractHook | None:
    """Installs a hook (or none) and returns the one it replaces."""
    global installed
    previous, installed = installed, hook
    return previous


def call_checked(
    function: Callable[..., R], args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree], typed: bool = True
) -> R:
    """Calls a user's function, under contract if there is a hook; see `ContractHook.enter`."""
    __tracebackhide__ = True
    if installed is None:
        return function(*args, **kwargs)
    running = installed.enter(function, args, kwargs, typed)
    try:
        return cast("R", running.leave(running.function(*running.args, **running.kwargs)))
    except Exception as error:
        running.fail(error)
        raise
    finally:
        running.end()
