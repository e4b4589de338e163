"""Intercepts the method calls of modules, records and NNX objects alike, while a program is traced."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Generator, Iterator
from contextvars import ContextVar
from typing import Any

from weft.core.contexts import insight_context
from weft.core.records.module import watching_methods
from weft.core.threads.calls import calling


class Replaced:
    """Wraps a callable object: `call` runs in the place of its `__call__`, and attributes are the object's own.

    Args:
        inner: the object, such as a body, or the function that a rule has lifted.
        call: takes the object and the arguments.
    """

    def __init__(self, inner: Any, call: Callable[..., Any]):
        self._inner, self._call = inner, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, *args: Any) -> Any:
        return self._call(self._inner, *args)


# Runs a method call: takes the module's path, the module, the method's name, and a function that proceeds with the
# call.
Around = Callable[[str, Any, str, Callable[[], Any]], Any]
_around: ContextVar[Around | None] = ContextVar("weft_insight_calls", default=None)


@contextlib.contextmanager
def around_calls(around: Around, name: str) -> Generator[None]:
    """A `with` block in which `around` runs each call of a module's public method.

    Args:
        around: runs a call.
        name: names the purpose, which is part of JAX's cache keys. A block within another block has the outer
            purpose, and both of them see the calls.
    """
    # A program with NNX objects has imported weft.nnx itself; other programs need not pay for the import.
    outer, nnx = _around.get(), sys.modules.get("weft.nnx")
    both = around if outer is None else lambda path, module, method, proceed: outer(
        path, module, method, lambda: around(path, module, method, proceed)
    )  # fmt: skip
    objects: Any = contextlib.nullcontext()
    # An outer block has wrapped the methods already; wrapped twice, each call would be seen twice.
    if nnx is not None and outer is None:
        objects = nnx.modules.methods.wrapped_methods(set(_subclasses(nnx.Module)), _wrapped)
    purpose = insight_context(insight_context.value or name)
    with watching_methods(see_records, _around, both), objects, purpose:
        yield


def see_records(record: Any, method: Any, given: Any, proceed: Callable[[], Any]) -> Any:
    """Hook for the methods of records: runs them by the current `around`; does nothing outside of `around_calls`."""
    __tracebackhide__ = True
    around = _around.get()
    if around is None:
        return proceed()
    with calling(record) as path:
        return around(path, record, method.__name__, proceed)


def _wrapped(kind: type, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        around = _around.get()
        # `super().method()` reaches the wrapper of a base class: the call was already seen at the derived class.
        if around is None or type(self) is not kind:
            return method(self, *args, **kwargs)
        with calling(self, functools.partial(sys.modules["weft.nnx"].iter_graph, graph=True)) as path:
            return around(path, self, name, lambda: method(self, *args, **kwargs))

    return call


def _subclasses(kind: type) -> Iterator[type]:
    for derived in kind.__subclasses__():
        yield derived
        yield from _subclasses(derived)
