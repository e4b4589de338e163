"""Settings that the code inside of a trace reads: JAX tells what it has traced apart by them.

What was compiled while contracts were off has none in it. Called again with contracts on, it must not be what JAX finds
in its caches. JAX has a place for such settings in its own keys (`jax.make_user_context`), which costs a call nothing.
It is the thread's, however, and a setting is the task's: so the value stands in a context variable, and JAX is told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from contextvars import ContextVar
from typing import Any, Generic, TypeVar, cast

import jax

T = TypeVar("T", bound=Hashable)

_UNSET: Any = object()


class Ambient(Generic[T]):
    """One setting, with a default for the process.

    Args:
        name: of the context variable.
        default: its value where nobody has set another; hashable, as all of its values are.

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
        self._key = cast(Any, jax).make_user_context(default)

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
    def scope(self, value: T) -> Iterator[None]:
        """Sets the value for the length of a `with` block, in this thread or task."""
        token = self._local.set(value)
        try:
            with self._key(value):
                yield
        finally:
            self._local.reset(token)
