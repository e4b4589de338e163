"""nnx.cond, switch, eval_shape, checkify and make_jaxpr: the rules of `weft.transforms` over graphs."""

# flax has private names in this module, which other libraries import; nothing in this package uses them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar, Unpack, overload

import jax
from jax.experimental import checkify as jax_checkify
from weft.core.errors import StructureError
from weft.nnx.errors import MISSING
from weft.nnx.graphs.nodes import is_graph_node
from weft.nnx.graphs.walk import iter_graph
from weft.nnx.transforms._wrap import boundary_of, decorate, over, refuse_bound_method
from weft.nnx.transforms.keywords import JaxprKeywords
from weft.nnx.transforms.names import _SIMPLE_COND_FN_CACHE as _SIMPLE_COND_FN_CACHE
from weft.nnx.transforms.names import SimpleCondFn as SimpleCondFn
from weft.nnx.transforms.names import _get_cached_wrapper as _get_cached_wrapper
from weft.nnx.transforms.names import _get_simple_cond_fn as _get_simple_cond_fn
from weft.nnx.transforms.names import _raise_bound_method_error as _raise_bound_method_error
from weft.nnx.transforms.names import _resolve_bound_callable as _resolve_bound_callable
from weft.nnx.variable.sharding import lay_out_abstractly
from weft.nnx.variable.variable import Variable
from weft.transforms.arguments import by_position
from weft.transforms.branches import COND, COND_OPTIONS, SWITCH, check_index, check_predicate, switch_options
from weft.transforms.checks import CHECKIFY, CheckifyOptions
from weft.transforms.tracing import EVAL_SHAPE, MAKE_JAXPR, JaxprOptions, NoOptions, static_arguments
from weft.transforms.transformed import interpreted_at_once

P = ParamSpec("P")
R = TypeVar("R")

__all__ = ["checkify", "cond", "eval_shape", "make_jaxpr", "switch"]


def cond(
    pred: Any,
    true_fun: Callable[..., R],
    false_fun: Callable[..., R],
    *operands: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
    **kwargs: Any,
) -> R:
    """Calls one of two functions of objects and arrays, chosen by a boolean.

    Raises:
        TypeError: if the predicate is no scalar, or the branches differ in structure (naming each path).

    Source: `jax.lax.cond`, with the semantics of `flax.nnx.cond`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> def double(w):
    ...     w[...] *= 2
    >>> w = nnx.Param(jnp.array(3.0))
    >>> nnx.cond(jnp.array(True), double, lambda w: None, w)
    >>> w[...].item()
    6.0
    """
    boundary = boundary_of("cond", graph, graph_updates)
    check_predicate(pred)
    # A lambda written in the call is a new function each time, so `interpreted_at_once` looks the plan up by code and
    # constants: otherwise each eager call would compile.
    interpreted = interpreted_at_once(COND, boundary, (true_fun, false_fun), COND_OPTIONS)
    return interpreted(operands, kwargs, extra=pred)


def switch(
    index: Any,
    branches: Sequence[Callable[..., R]],
    *operands: Any,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> R:
    """Calls one of several functions of objects and arrays, chosen by an index.

    Raises:
        TypeError: if the index is no integer scalar, or two branches differ in structure (naming each path).
        ValueError: without branches.

    Source: `jax.lax.switch`, with the semantics of `flax.nnx.switch`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> w = nnx.Param(jnp.array(3.0))
    >>> nnx.switch(1, [lambda w: w[...], lambda w: 2 * w[...], lambda w: 3 * w[...]], w).item()
    6.0
    """
    boundary = boundary_of("switch", graph, graph_updates)
    if not branches:
        raise StructureError("switch has no branches", fix="pass at least one function")
    check_index(index)
    interpreted = interpreted_at_once(SWITCH, boundary, tuple(branches), switch_options(branches))
    return interpreted(operands, {}, extra=index)


def eval_shape(
    f: Callable[..., R], *args: Any, graph: bool | None = None, graph_updates: bool | None = None, **kwargs: Any
) -> R:
    """Returns the output of a function of objects and arrays as `ShapeDtypeStruct`s, without computing it.

    With graph updates and a mesh, those of Variables have the sharding that `out_sharding` would give their arrays.

    Raises:
        ValueError: for a bound method of an object.

    Source: `jax.eval_shape`, with the semantics of `flax.nnx.eval_shape`.

    >>> from weft import nnx
    >>> nnx.eval_shape(lambda: nnx.Linear(2, 3, rngs=nnx.Rngs(0))).kernel.get_value()
    ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """
    refuse_bound_method(f, "eval_shape")
    updates = boundary_of("eval_shape", graph, graph_updates).updates
    # `copies`: an argument that is returned must be a new object, because the caller's own must not become abstract.
    boundary = boundary_of("eval_shape", graph, graph_updates, copies=updates)
    abstract = interpreted_at_once(EVAL_SHAPE, boundary, (f,), NoOptions())(args, kwargs)
    # As in flax, only the mode with graph updates computes shardings from `out_sharding`.
    for variable in _variables_of(abstract) if updates else ():
        value, metadata = variable.get_raw_value(), variable.get_metadata()
        options = (metadata.get(name) for name in ("out_sharding", "sharding_rules", "mesh"))
        variable.set_raw_value(lay_out_abstractly(value, *options))
    return abstract


def _variables_of(tree: Any) -> Iterator[Variable[Any]]:
    for leaf in jax.tree.leaves(tree, is_leaf=is_graph_node):
        if is_graph_node(leaf):
            yield from (value for _, value in iter_graph(leaf, graph=True) if isinstance(value, Variable))


@overload
def make_jaxpr(f: Callable[P, Any], **options: Unpack[JaxprKeywords]) -> Callable[P, Any]: ...
@overload
def make_jaxpr(**options: Unpack[JaxprKeywords]) -> Callable[[Callable[P, Any]], Callable[P, Any]]: ...
def make_jaxpr(
    f: Any = MISSING,
    *,
    graph: bool | None = None,
    graph_updates: bool | None = None,
    static_argnums: int | Sequence[int] = (),
) -> Callable[..., Any]:
    """Makes a function that returns the jaxpr of `f` for its arguments.

    Raises:
        ValueError: for a bound method of an object.

    Source: `jax.make_jaxpr`, with the semantics of `flax.nnx.make_jaxpr`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> jaxpr = nnx.make_jaxpr(lambda w: w[...] + 1)(nnx.Param(jnp.array(3.0)))
    >>> [equation.primitive.name for equation in jaxpr.eqns]
    ['add']
    """
    # `copies`: nothing is written to the caller's objects, of which the jaxpr is only an abstract picture.
    boundary = boundary_of("make_jaxpr", graph, graph_updates, copies=True)
    made = over(MAKE_JAXPR, boundary, JaxprOptions(return_shape=False))
    return decorate(f, lambda function: static_arguments(function, static_argnums, made(function)))


def checkify(
    f: Callable[P, R],
    errors: Any = jax_checkify.user_checks,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Callable[P, tuple[jax_checkify.Error, R]]:
    """Makes a function return a pair: the error of its `checkify.check`s, and its output.

    Raises:
        ValueError: for a bound method of an object.

    Source: `jax.experimental.checkify.checkify`, with the semantics of `flax.nnx.checkify`.

    >>> import jax.numpy as jnp
    >>> from jax.experimental import checkify
    >>> from weft import nnx
    >>> def root(w):
    ...     checkify.check(jnp.all(w[...] >= 0), "a root of what is negative")
    ...     return jnp.sqrt(w[...])
    >>> error, out = nnx.checkify(root)(nnx.Param(jnp.array(-1.0)))
    >>> error.get().startswith("a root of what is negative")
    True
    """
    boundary = boundary_of("checkify", graph, graph_updates)
    return over(CHECKIFY, boundary, CheckifyOptions(frozenset(errors)))(f)


def resolve_kwargs(fun: Any = MISSING, args: Any = MISSING, kwargs: Any = MISSING) -> Any:
    """Moves keyword arguments to their positions, with defaults; without arguments, returns a decorator that does so.

    Raises:
        TypeError: if an argument has no position.
        ValueError: for a function without its `args` and `kwargs`.

    >>> resolve_kwargs(lambda x, y=2: x, (), {"x": 1})
    (1, 2)
    """
    if fun is MISSING:

        def resolving(f: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(f)
            def resolved(*args: Any, **kwargs: Any) -> Any:
                return f(*resolve_kwargs(f, args, kwargs))

            return resolved

        return resolving
    for name, value in (("args", args), ("kwargs", kwargs)):
        if value is MISSING:
            raise ValueError(f"{name} must be provided")
    if isinstance(fun, functools.partial) and kwargs:
        raise TypeError(
            "keyword arguments could not be resolved to positions: functools.partial hides their parameters"
        )
    # `sys.maxsize`: all defaults are filled in, as flax does here; transforms fill in only those that their options
    # name.
    args, kwargs = (args, kwargs) if isinstance(fun, functools.partial) else by_position(fun, args, kwargs, sys.maxsize)
    if kwargs:
        raise TypeError(f"keyword arguments could not be resolved to positions: {sorted(kwargs)}")
    return args
