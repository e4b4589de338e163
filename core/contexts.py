"""The settings of weft's that are part of the key of JAX's trace caches, as the code inside of a trace reads them.

What was compiled while contracts were off has none in it. Called again with contracts on, it must not be what JAX finds
in its caches. JAX has a place for such settings in its own keys (`jax.make_user_context`), which costs a call nothing.

JAX forgets every trace when a setting is made: a training step would be compiled again because somebody captures a
value elsewhere. So the settings of what loads on first use are made here, as weft is imported.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Hashable
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

from weft.core.edge.contexts import UserContext, make_user_context
from weft.core.switches import is_on

T = TypeVar("T", bound=Hashable)

_UNSET: Any = object()


class Ambient(Generic[T]):
    """One setting, with a default for the process.

    A context of JAX's is the thread's, and this one is the task's: its value stands in a context variable, and JAX is
    told.

    Args:
        name: of the context variable.
        default: its value where nobody has set another; hashable, as all of its values are.

    >>> import jax
    >>> loud = Ambient("loud", False)
    >>> @jax.jit
    ... def shout(x):
    ...     return 2 * x if loud.value else x
    >>> with loud.scope(True):
    ...     inside = shout(1.0)
    >>> float(shout(1.0)), float(inside)
    (1.0, 2.0)
    """

    def __init__(self, name: str, default: T):
        self._local: ContextVar[T] = ContextVar(name, default=_UNSET)
        self._process = default
        self._key = make_user_context(default)

    @property
    def value(self) -> T:
        """The value in force: of the innermost `scope` of this task, else that of the process."""
        local = self._local.get()
        return self._process if local is _UNSET else local

    def set(self, value: T) -> None:
        """Sets the value of the process."""
        self._process = value
        self._key.set_global(value)

    @contextlib.contextmanager
    def scope(self, value: T) -> Generator[None]:
        """Sets the value for the length of a `with` block, in this thread or task."""
        token = self._local.set(value)
        try:
            with self._key(value):
                yield
        finally:
            self._local.reset(token)


DEBUG_SUCCESSORS, DEBUG_KEYS = "WEFT_DEBUG_SUCCESSORS", "WEFT_DEBUG_KEYS"
DEBUG_NONFINITE = "WEFT_DEBUG_NONFINITE"

# Whether contracts are checked, and how strictly; see `typecheck.modes`.
contract_mode = Ambient[str]("weft_contract_mode", os.environ.get("WEFT_TYPECHECK") or "on")
# The names of the open scopes inside of a capture; None outside.
capture_context: UserContext[tuple[str, ...] | None] = make_user_context(None)
# Whether `debug_successors` is on; and, in a program that it looks at, that successors are marked.
LOOKING, MARKING = "looking", "marking"
successors_context: UserContext[str | None] = make_user_context(LOOKING if is_on(DEBUG_SUCCESSORS) else None)
# Whether draws are entered in a ledger, for `debug_keys`.
keys_context: UserContext[bool | None] = make_user_context(True if is_on(DEBUG_KEYS) else None)
# For which purpose `debug.nonfinite` or `debug.watch` traces: calls of modules and marked values leave names in the
# program.
insight_context: UserContext[str | None] = make_user_context(None)
# A number for each call that `tabulate` records: what was traced for another one would not run again.
tabulate_context: UserContext[int | None] = make_user_context(None)
# A number for each trial of a proof, so that none is answered from what JAX keeps of another.
trial_context: UserContext[int | None] = make_user_context(None)


def marking() -> bool:
    """Whether the running code is a part of a program that `debug_successors` looks at."""
    return successors_context.value == MARKING
