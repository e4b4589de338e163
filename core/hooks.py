"""The hook through which contracts reach the core without the core knowing of them.

`typecheck` installs one object here; the core calls it where a contract can be checked: when a record is constructed,
around a record's public methods, and around the functions given to transforms. With nothing installed each is a plain
call.

Contracts are on by default, and `import weft` does not pay for them: the hook that is there at first (`Deferred`) loads
the checker when the first record is made or the first function is called. Which module that is, is said by the package
that stands above both (`defer_contracts`). `WEFT_TYPECHECK=off` leaves it out.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

from weft.core.edge.trees import PyTree

R = TypeVar("R")


class ContractHook(Protocol):
    """What a checker of contracts offers to the core."""

    def constructed(self, record: object) -> None:
        """Called once a record's `__init__` has run."""

    def replaced(self, record: object) -> None:
        """Called for a copy with other fields: of a stacked record too, and of one that lacks some of its leaves."""

    def enter(
        self, function: Callable[..., R], args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree], typed: bool = True
    ) -> Running:
        """Begins a call of a public method (`args[0]` is the record) or of a function given to a transform.

        Where it is not `typed` code, as a program is that comes from elsewhere, a function that names no shape and no
        dtype has no contract: its annotations may be notes that nobody ever held it to.

        A transform calls this inside its trace and inside its frame, with arguments as the function sees them: one
        example, a carry and a slice, the operands of a branch. Records among them have just been rebuilt.
        """
        ...


class Running(Protocol):
    """A call whose arguments were checked. Who began it calls its function, and ends it, whatever happens."""

    function: Callable[..., Any]
    args: tuple[PyTree, ...]
    kwargs: Mapping[str, PyTree]

    def leave(self, result: PyTree) -> PyTree:
        """Checks what the function returned, and gives it back."""
        ...

    def fail(self, error: Exception) -> None:
        """Adds to an error what is known of the call."""

    def end(self) -> None:
        """Called once, at last."""


class Deferred:
    """Stands in for the checker until there is something to check; the checker puts itself in this one's place."""

    def constructed(self, record: object) -> None:
        load_contracts().constructed(record)

    def replaced(self, record: object) -> None:
        load_contracts().replaced(record)

    def enter(
        self, function: Callable[..., R], args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree], typed: bool = True
    ) -> Running:
        return load_contracts().enter(function, args, kwargs, typed)


def load_contracts() -> ContractHook:
    """Imports the checker and installs it."""
    return importlib.import_module(_checker).install()


# Base classes of mutable objects and their boxes, with the name of the module that tells the checker about them: the
# layer that they belong to is above `typecheck`, which finds it here and imports it when it meets such a class.
_object_layers: dict[type, str] = {}


def register_object_layer(bases: tuple[type, ...], module: str) -> None:
    """Says which module has what the checker must know of some classes, as its `LAYER`.

    Args:
        bases: the base classes of a layer's objects.
        module: its dotted name; it is imported once such a class turns up in an annotation.
    """
    _object_layers.update(dict.fromkeys(bases, module))


def object_layer(cls: type) -> str | None:
    """The module that knows of a class, if it is derived from a registered one."""
    return next((_object_layers[base] for base in cls.__mro__ if base in _object_layers), None)


_checker = ""
_installed: ContractHook | None = None


def defer_contracts(module: str) -> None:
    """Says which module installs the checker, by its `install()`; unless contracts are off, first use imports it."""
    global _checker
    _checker = module
    if os.environ.get("WEFT_TYPECHECK") != "off":
        install_contracts(Deferred())


def install_contracts(hook: ContractHook | None) -> ContractHook | None:
    """Installs a hook (or none) and returns the one it replaces."""
    global _installed
    previous, _installed = _installed, hook
    return previous


def installed_contracts() -> ContractHook | None:
    """The hook in force, if any."""
    return _installed


def call_checked(
    function: Callable[..., R], args: tuple[PyTree, ...], kwargs: Mapping[str, PyTree], typed: bool = True
) -> R:
    """Calls a user's function, under contract if there is a hook; see `ContractHook.enter`."""
    __tracebackhide__ = True
    if _installed is None:
        return function(*args, **kwargs)
    running = _installed.enter(function, args, kwargs, typed)
    try:
        return cast("R", running.leave(running.function(*running.args, **running.kwargs)))
    except Exception as error:
        running.fail(error)
        raise
    finally:
        running.end()
