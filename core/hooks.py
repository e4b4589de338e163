"""The hook through which contracts reach the core without the core knowing of them.

`typecheck` installs one object here; the core calls it where a contract can be checked: when a record is constructed,
around a record's public methods, and around the functions given to transforms. With nothing installed each is a plain
call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class ContractHook(Protocol):
    """What a checker of contracts offers to the core."""

    def constructed(self, record: Any) -> None:
        """Called once a record's `__init__` has run."""

    def rebuilt(self, tree: Any) -> None:
        """Called for the live arguments of a transformed function, rebuilt inside the trace."""

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Calls a public method (`args[0]` is the record) or a transformed function, checking around it."""


_installed: ContractHook | None = None


def install_contracts(hook: ContractHook | None) -> ContractHook | None:
    """Installs a hook (or none) and returns the one it replaces."""
    global _installed
    previous, _installed = _installed, hook
    return previous


def installed_contracts() -> ContractHook | None:
    """The hook in force, if any."""
    return _installed


def call_checked(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls a user's function, under contract if there is a hook."""
    if _installed is None:
        return function(*args, **kwargs)
    return _installed.call(function, args, kwargs)
