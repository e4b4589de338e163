"""op: a decorator that compiles a pure function as an op.

An op is a `jax.jit` of its own. A model calls the same few ops many times on the same shapes. Eagerly each is one
compiled call. Under a trace JAX traces each op *once* for a shape, and inlines its equations into the outer jaxpr, so
that tools that walk a jaxpr see products and sums, and not calls.

Some options are functions (a product, a promotion). A function of the user's may have state, as a quantiser's does, and
a cached trace would not call it again. So an op with such an option runs inline, without a cache. The same holds for an
op that uses a function of JAX that other code has replaced (`untouched`), and for every op within `op_by_op`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, cast, overload

import jax
from weft.core.caches import cached_by
from weft.core.edge.contexts import is_on
from weft.core.edge.untyped import INLINED
from weft.modules.untouched import watch

P = ParamSpec("P")
R = TypeVar("R")

_AT_FIRST = is_on("WEFT_OP_BY_OP")
_op_by_op = ContextVar("op_by_op", default=_AT_FIRST)


@contextlib.contextmanager
def op_by_op() -> Iterator[None]:
    """A `with` block in which eager layers run operation by operation, as if they were written in `jax.numpy`.

    XLA fuses the operations of a compiled op, which may round the last bits differently. The environment variable
    `WEFT_OP_BY_OP=1` does the same for a whole process.

    >>> import jax.numpy as jnp
    >>> from weft.modules.ops import linear
    >>> with op_by_op():
    ...     linear(jnp.ones(2), jnp.ones((2, 1))).tolist()
    [2.0]
    """
    token = _op_by_op.set(True)
    try:
        yield
    finally:
        _op_by_op.reset(token)


@overload
def op(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def op(*static: str) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def op(*static: Any) -> Any:
    """Makes a pure function an op: as `@op`, whose keyword-only arguments are its options, or with names of options.

    Args:
        static: names of the arguments that are options rather than arrays. Lists in them count as tuples.

    >>> import jax.numpy as jnp
    >>> @op
    ... def total(x, *, axes=(0,)):
    ...     return jnp.sum(x, axes)
    >>> total(jnp.ones((2, 3)), axes=[0, 1]).item()
    6.0
    """
    if static and callable(static[0]):
        parameters = inspect.signature(static[0]).parameters.values()
        return op(*(each.name for each in parameters if each.kind is each.KEYWORD_ONLY))(static[0])

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        traced = cast(Any, jax.jit(function, static_argnames=static, inline=INLINED))
        parameters = inspect.signature(function).parameters
        defaults = {name: parameters[name].default for name in static}
        # `callable` and not `inspect.isroutine`, which is false for jitted functions. A parameter without a default has
        # the class `Parameter.empty`, which is callable but no function.
        functions = {name for name, default in defaults.items() if callable(default) and not isinstance(default, type)}

        @functools.cache
        def untouched() -> Callable[[], bool]:
            # At the first call: while its module is being imported, the globals of the function do not exist yet.
            return watch(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            __tracebackhide__ = True
            for name, value in kwargs.items():
                # JAX hashes static arguments, and lists have no hash.
                if type(value) is list:
                    kwargs[name] = hashable(value)
                elif name in functions and value is not defaults[name]:
                    return function(*args, **kwargs)
            if _op_by_op.get() or not untouched()():
                return function(*args, **kwargs)
            return traced(*args, **kwargs)

        cast(Any, call).options = static
        return call

    return decorate


def kept_options(layer: Any, function: Callable[..., Any]) -> dict[str, Any]:
    """Returns the options of an op that a layer stores in fields of the same names, as keyword arguments.

    >>> import jax
    >>> from weft.modules import Linear
    >>> from weft.modules.ops import linear
    >>> kept_options(Linear(2, 3, dtype="bfloat16", key=jax.random.key(0)), linear)
    {'dtype': dtype(bfloat16), 'out_dtype': None, 'precision': None}
    """
    return {name: getattr(layer, name) for name in _names_kept(type(layer), function)}


@cached_by("class of layers and op")
def _names_kept(cls: Any, function: Any) -> list[str]:
    # Only fields of weft's own class count: a user's subclass may have a field `precision` with a meaning of its own.
    ours = next(base for base in cls.__mro__ if base.__module__.startswith("weft."))
    fields = {field.name for field in dataclasses.fields(ours)}
    return [name for name in function.options if name in fields]


def hashable(value: Any) -> Any:
    """Returns a value with all lists in it turned into tuples, so that JAX can hash it.

    >>> hashable([1, [2, 3]])
    (1, (2, 3))
    """
    return tuple(map(hashable, value)) if isinstance(value, (list, tuple)) else value
