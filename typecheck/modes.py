"""Modes: whether contracts are checked, and how strictly.

| mode | is |
|---|---|
| `off` | no checks |
| `on` | contracts are checked while tracing and in eager calls; the default |
| `strict` | also, the user's code may not promote ranks and dtypes implicitly; see `strictness` |

The mode in force is that of the innermost `with mode(...)` of this thread or task, else that of `set_mode`, else that
of `WEFT_TYPECHECK` in the environment, else `on`. A compiled function belongs to the mode in which it was traced: under
another mode it is traced again (see `core.edge.contexts`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal, cast

from weft.core import hooks
from weft.core.edge.contexts import contract_mode, is_on
from weft.core.tracebacks import VERBOSE
from weft.typecheck.errors import ModeError

Mode = Literal["off", "on", "strict"]
MODES: tuple[Mode, ...] = ("off", "on", "strict")


def read_mode(name: str, source: str = "mode") -> Mode:
    """The mode of a name.

    Raises:
        ModeError: in one line, if there is no mode of that name.
    """
    if name not in MODES:
        raise ModeError(f"unknown {source} {name!r}: it is one of {', '.join(MODES)}")
    return cast(Mode, name)


def current_mode() -> Mode:
    """The mode in force in this thread or task.

    Raises:
        ModeError: if `WEFT_TYPECHECK` names no mode.

    >>> with mode("strict"):
    ...     current_mode()
    'strict'
    """
    return read_mode(contract_mode.value, "WEFT_TYPECHECK")


def set_mode(name: str, source: str = "mode") -> Mode:
    """Sets the mode of the whole process.

    Args:
        name: `off`, `on` or `strict`.
        source: the option or variable that named the mode, for the error.

    Raises:
        ModeError: if there is no such mode.

    >>> before = current_mode()
    >>> set_mode("strict"), current_mode()
    ('strict', 'strict')
    >>> set_mode(before) == before
    True
    """
    chosen = read_mode(name, source)
    contract_mode.set(chosen)
    _ensure_installed(chosen)
    return chosen


def _ensure_installed(chosen: Mode) -> None:
    # Under `WEFT_TYPECHECK=off` the hook is not loaded at all, until a later mode needs it.
    if chosen != "off" and hooks.installed is None:
        hooks.load_contracts()


@contextlib.contextmanager
def mode(name: str) -> Iterator[Mode]:
    """A context manager for a mode, in this thread or task only.

    Args:
        name: `off`, `on` or `strict`.

    Raises:
        ModeError: if there is no such mode.

    >>> with mode("off"):
    ...     current_mode()
    'off'
    """
    chosen = read_mode(name)
    _ensure_installed(chosen)
    with contract_mode.scope(chosen):
        yield chosen


def verbose() -> bool:
    """Whether errors say everything (`WEFT_TYPECHECK_VERBOSE=1`)."""
    return is_on(VERBOSE)
