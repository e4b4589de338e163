"""Settings that are part of the key of JAX's trace caches."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from weft.core.edge.moved import MissingNameError, Names

_context = Names("jax", "`Policy`, `capture`, `debug_successors`, `tabulate` or `verify`", "make_user_context")

T = TypeVar("T")
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
