"""Calls of the methods of modules, records and NNX objects alike, seen while a program is traced."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Generator, Iterator
from contextvars import ContextVar
from typing import Any

from weft.core.contexts import insight_context
from weft.core.records.module import watch_methods
from weft.core.threads.calls import calling


class Replaced:
    """Something that is called in another way; the rest of it is as it was.

    Args:
        inner: what is called, such as a body, or what a rule has lifted.
        call: takes it and the arguments.
    """

    def __init__(self, inner: Any, call: Callable[..., Any]):
        self._inner, self._call = inner, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, *args: Any) -> Any:
        return self._call(self._inner, *args)


# Runs a call: of the path of a module, the module, the method's name, and what goes on.
Around = Callable[[str, Any, str, Callable[[], Any]], Any]
_around: ContextVar[Around | None] = ContextVar("weft_insight_calls", default=None)


@contextlib.contextmanager
def around_calls(around: Around, name: str) -> Generator[None]:
    """A `with` block in which what is traced has `around` around each call of a module's public method.

    Args:
        around: runs a call.
        name: of the purpose. JAX keeps what it traces for each purpose apart. A block within another one goes by the
            outer purpose, and both see the calls.
    """
    outer, nnx = _around.get(), sys.modules.get("weft.nnx")  # a program with objects has loaded it
    both = around if outer is None else lambda path, module, method, proceed: outer(
        path, module, method, lambda: around(path, module, method, proceed)
    )  # fmt: skip
    objects: Any = contextlib.nullcontext()
    if nnx is not None and outer is None:
        objects = nnx.modules.methods.wrapped_methods(set(_subclasses(nnx.Module)), _wrapped)
    token = _around.set(both)
    watch_methods(see_records, 1)
    try:
        with objects, insight_context(insight_context.value or name):
            yield
    finally:
        watch_methods(see_records, -1)
        _around.reset(token)


def see_records(record: Any, method: Any, given: Any, proceed: Callable[[], Any]) -> Any:
    """The watcher of records' methods; outside of `around_calls` it does nothing."""
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
        if around is None or type(self) is not kind:  # another class: a method that was called by `super()`
            return method(self, *args, **kwargs)
        with calling(self, functools.partial(sys.modules["weft.nnx"].iter_graph, graph=True)) as path:
            return around(path, self, name, lambda: method(self, *args, **kwargs))

    return call


def _subclasses(kind: type) -> Iterator[type]:
    for derived in kind.__subclasses__():
        yield derived
        yield from _subclasses(derived)
