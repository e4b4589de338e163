"""Private functions of flax's transform modules that other libraries import.

The transforms of this package do not use them. Some code bases contain a copy of flax's own wrappers around a
transform, which imports these names.
"""

# They have flax's private names, and nothing in this package calls them.
# pyright: reportPrivateUsage=false, reportUnusedFunction=false

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any, NoReturn, cast

from weft.core.edge.untyped import jax as untyped_jax
from weft.nnx.errors import StructureError


def _resolve_bound_callable(f: Callable[..., Any]) -> tuple[Callable[..., Any], Any, bool]:
    """Unbinds a method of a Module, also inside `functools.partial`s.

    Returns:
        The function, in the same partial applications; the Module, or None; and whether there was one.

    >>> from weft import nnx
    >>> class Scale(nnx.Module):
    ...     def times(self, x, factor):
    ...         return x * factor
    >>> scale = Scale()
    >>> function, owner, was_bound = _resolve_bound_callable(functools.partial(scale.times, factor=2))
    >>> function(scale, 3), owner is scale, was_bound
    (6, True, True)
    """
    if isinstance(f, functools.partial):
        inner, owner, was_bound = _resolve_bound_callable(f.func)
        return functools.partial(inner, *f.args, **f.keywords), owner, was_bound
    # Methods of other classes stay bound: their objects are no graphs, so no update of them is lost.
    if inspect.ismethod(f) and hasattr(type(f.__self__), "_pytree__is_pytree"):
        return f.__func__, f.__self__, True
    return f, None, False


def _raise_bound_method_error(transform_name: str) -> NoReturn:
    """Refuses a bound method of a Module.

    Raises:
        ValueError: naming the unbound method to use.
    """
    raise StructureError(
        f"nnx.{transform_name} does not support bound methods",
        fix=f"decorate the method with @nnx.{transform_name} in its class, or call "
        f"nnx.{transform_name}(MyClass.method)(instance, ...)",
    )


class SimpleCondFn:
    """A branch as a function of pytrees, for `jax.lax.cond` and `switch`.

    Args:
        f: a function of pytrees with Variables in them, which it may update.
        graph: the mode, under which the wrapper is cached.

    Returns, when called, what `f` returns, and the arguments as `f` left them; the caller's own stay as they are.
    """

    def __init__(self, f: Callable[..., Any], graph: bool):
        self.f, self.graph = f, graph
        functools.update_wrapper(self, f, updated=())

    def __call__(self, *operands: Any) -> tuple[Any, Any]:
        # New objects and containers around the same leaves: the branch may mutate these, and the caller's stay as they
        # are.
        operands = cast("tuple[Any, ...]", untyped_jax.tree.map(_as_it_is, operands))
        return self.f(*operands), operands


def _as_it_is(leaf: Any) -> Any:
    return leaf


# By branch and by mode: JAX caches traces by the identity of the function, so a new wrapper would trace again.
_SIMPLE_COND_FN_CACHE: weakref.WeakKeyDictionary[Any, dict[bool, Any]] = weakref.WeakKeyDictionary()


def _get_cached_wrapper(
    cache: weakref.WeakKeyDictionary[Any, dict[bool, Any]], wrapper_type: Any, f: Callable[..., Any], graph: bool
) -> Any:
    """Returns `wrapper_type(f, graph=graph)`, and the same object for the same weakly referenceable function."""
    try:
        wrappers = cache.setdefault(f, {})
    except TypeError:
        return wrapper_type(f, graph=graph)
    return wrappers.get(graph) or wrappers.setdefault(graph, wrapper_type(f, graph=graph))


def _get_simple_cond_fn(f: Callable[..., Any], graph: bool) -> SimpleCondFn:
    """Returns the `SimpleCondFn` of a branch, the same object at each call."""
    return _get_cached_wrapper(_SIMPLE_COND_FN_CACHE, SimpleCondFn, f, graph)
