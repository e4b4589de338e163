"""Which trace the running code is in, and the settings of weft's that are part of the key of JAX's trace caches.

JAX traces one function inside another (`jit` of `vmap` of `grad`); each such trace is a *level*, and outside all of
them is the eager level. Two levels are equal if they are the same trace. An object of one level must not store tracers
of another: they are dead after their trace.

Code inside of a trace reads settings. A function that was compiled while contracts were off checks none: when it is
called again with contracts on, JAX must not find that program in its caches. `jax.make_user_context` adds a setting to
JAX's own keys, which costs a call nothing.

JAX drops all traces when a setting is *created*: a training step was compiled again because the program had used
`capture` for the first time. So the settings of modules that load on first use are created here, when weft is imported.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Hashable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Generic, Protocol, TypeVar

from weft.core.edge.moved import MissingNameError, Names

# --- levels -----------------------------------------------------------------------------------------------------------

_get_opaque_trace_state: Any = Names("jax.extend.core", "weft", "get_opaque_trace_state").get_opaque_trace_state


def current_level() -> object:
    """The level of the running code, to be compared with `==`.

    >>> import jax
    >>> outside = current_level()
    >>> jax.eval_shape(lambda: 0.0 if current_level() == outside else 1).dtype.name
    'int32'
    """
    return _get_opaque_trace_state()


EAGER = current_level()


# --- settings ---------------------------------------------------------------------------------------------------------

_context = Names("jax", "`Policy`, `capture`, `debug_successors`, `tabulate` or `verify`", "make_user_context")

T = TypeVar("T", bound=Hashable)
C = TypeVar("C", covariant=True)


class UserContext(Protocol[C]):
    """The type of `jax.make_user_context(...)`: a setting that is part of the key of JAX's trace caches."""

    @property
    def value(self) -> C: ...

    def set_global(self, value: object, /) -> None: ...

    def __call__(self, value: object, /) -> AbstractContextManager[None]: ...


class _NoContext(UserContext[T]):
    """Replaces a context in a JAX without `make_user_context`: it has its default, and raises when it is entered."""

    def __init__(self, default: T, error: MissingNameError):
        self._default = default
        self._error = error

    @property
    def value(self) -> T:
        return self._default

    def set_global(self, value: object, /) -> None:
        raise self._error

    def __call__(self, value: object, /) -> AbstractContextManager[None]:
        raise self._error


def make_user_context(default: T) -> UserContext[T]:
    """`jax.make_user_context`, typed; if this JAX lacks it, the context raises when it is entered."""
    try:
        return _context.make_user_context(default)
    except MissingNameError as error:
        return _NoContext(default, error)


def is_on(variable: str) -> bool:
    """Whether an environment variable is set, and neither empty nor 0."""
    return os.environ.get(variable, "0") not in ("", "0")


_UNSET: Any = object()


class Ambient(Generic[T]):
    """A setting of the running task, with a default for the process.

    A setting of JAX's belongs to a thread, but two tasks of one thread may have different ones. So the value is stored
    in a context variable, and JAX is told the same value for its keys.

    Args:
        name: the name of the context variable.
        default: its value for the process; all values must be hashable.

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
        """The value of the innermost `scope` of this task, or else that of the process."""
        local = self._local.get()
        return self._process if local is _UNSET else local

    def read(self, otherwise: Callable[[], Exception]) -> T:
        """The value, where it is also the one in JAX's keys: what is traced now is stored under that one.

        Args:
            otherwise: makes the error that is raised if the two differ.
        """
        value = self.value
        if self._key.value is not value:
            raise otherwise()
        return value

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
            if self._key.value is not self.value:  # two tasks have left their scopes in the order in which they came
                self._key(self.value).__enter__()


# --- weft's settings --------------------------------------------------------------------------------------------------

DEBUG_SUCCESSORS, DEBUG_KEYS = "WEFT_DEBUG_SUCCESSORS", "WEFT_DEBUG_KEYS"
DEBUG_NONFINITE = "WEFT_DEBUG_NONFINITE"

# Whether contracts are checked, and how strictly; see `typecheck.modes`.
contract_mode = Ambient[str]("weft_contract_mode", os.environ.get("WEFT_TYPECHECK") or "on")
# The rules of the innermost block of `weft.axis_rules`; see `logical_axes.py`.
axis_rules: Ambient[Any] = Ambient("weft_axis_rules", None)
# The names of the open scopes inside of a capture; None outside.
capture_context: UserContext[tuple[str, ...] | None] = make_user_context(None)
# LOOKING while `debug_successors` is on, MARKING while it traces a program to mark successors in it, else None.
LOOKING, MARKING = "looking", "marking"
successors_context: UserContext[str | None] = make_user_context(LOOKING if is_on(DEBUG_SUCCESSORS) else None)
# Whether `debug_keys` is on.
keys_context: UserContext[bool | None] = make_user_context(True if is_on(DEBUG_KEYS) else None)
# For which purpose `debug.nonfinite` or `debug.watch` traces: then calls of modules and marked values leave names in
# the jaxpr.
insight_context: UserContext[str | None] = make_user_context(None)
# A number for each call that `tabulate` records, so that the call is not a cache hit: a cached trace would run no
# layer, and the table would be empty.
tabulate_context: UserContext[int | None] = make_user_context(None)
# The name of the dtype in which a `Policy` computes; see `modules/dtypes.py`. A dtype itself may be equal to None.
compute_context: UserContext[str | None] = make_user_context(None)
# A number for each trial of a proof, so that no trial is a cache hit of another one, which had other sizes.
trial_context: UserContext[int | None] = make_user_context(None)


def marking() -> bool:
    """Whether the running code is traced by `debug_successors`, so that successors are marked."""
    return successors_context.value == MARKING
