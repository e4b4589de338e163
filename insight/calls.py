"""Intercepts the method calls of modules, records and NNX objects alike, while a program is traced.

`weft.debug` and `weft.plan` name modules in a jaxpr this way: a call runs in a named scope with the module's path.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import jax
from weft.core.edge.contexts import insight_context
from weft.core.records.module import watching_methods
from weft.core.records.successors import records_in
from weft.core.threads.calls import Parts, calling
from weft.insight.equations import MODULE


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
def around_calls(around: Around, name: str, roots: Iterable[Any] = ()) -> Generator[None]:
    """A `with` block in which `around` runs each call of a module's public method.

    Args:
        around: runs a call.
        name: names the purpose, which is part of JAX's cache keys. A block within another block has the outer
            purpose, and both of them see the calls.
        roots: trees of modules. The path of a module inside of a root begins at the root, and has no name in front; any
            other path begins with the type of the outermost module whose method runs.
    """
    outer, nnx = _around.get(), nnx_if_loaded()

    def with_outer(path: str, module: Any, method: str, proceed: Callable[[], Any]) -> Any:
        __tracebackhide__ = True
        within = functools.partial(around, path, module, method, proceed)
        return within() if outer is None else outer(path, module, method, within)

    objects: Any = contextlib.nullcontext()
    # An outer block has wrapped the methods already; wrapped twice, each call would be seen twice.
    if nnx is not None and outer is None:
        objects = nnx.modules.methods.wrapped_methods(_subclasses(nnx.Module), _see_objects)
    purpose = insight_context(insight_context.value or name)
    with contextlib.ExitStack() as stack:
        for root in roots:
            stack.enter_context(calling(root, _parts_of(root), ""))
        with watching_methods(see_calls, _around, with_outer), objects, purpose:
            yield


def name_module(path: str, module: Any, method: str, proceed: Callable[[], Any]) -> Any:
    """Runs a method call in a scope with the module's path, which `equations.scopes` reads; for `around_calls`."""
    __tracebackhide__ = True
    with jax.named_scope(f"{MODULE}{path} ({type(module).__qualname__}.{method})"):
        return proceed()


def nnx_if_loaded() -> Any:
    """The module `weft.nnx`, or None. A program with NNX objects has imported it; no other program pays for it."""
    return sys.modules.get("weft.nnx")


def is_object(value: Any) -> bool:
    """Whether a value is an NNX object."""
    nnx = nnx_if_loaded()
    return nnx is not None and isinstance(value, nnx.Pytree)


def _parts_of(module: Any) -> Parts:
    return functools.partial(nnx_if_loaded().iter_graph, graph=True) if is_object(module) else records_in


def see_calls(module: Any, method: Any, arguments: Any, proceed: Callable[[], Any]) -> Any:
    """Hook for the methods of modules: runs them by the current `around`; does nothing outside of `around_calls`."""
    __tracebackhide__ = True
    around = _around.get()
    if around is None:
        return proceed()
    with calling(module, _parts_of(module)) as path:
        return around(path, module, method.__name__, proceed)


def _see_objects(name: str, method: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    __tracebackhide__ = True
    return see_calls(self, getattr(type(self), name), (args, kwargs), lambda: method(self, *args, **kwargs))


def _subclasses(kind: type) -> Iterator[type]:
    for derived in kind.__subclasses__():
        yield derived
        yield from _subclasses(derived)
