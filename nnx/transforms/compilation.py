"""nnx.jit, nnx.jit_partial and nnx.shard_map: the rules of `weft.transforms` over graphs."""

# flax has private names in this module, which other libraries import; nothing in this package uses them.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, overload

import jax
from weft.core.interpreter.interpret import interpret
from weft.nnx.config import graph_mode
from weft.nnx.crossing.flattening import named
from weft.nnx.crossing.references import References
from weft.nnx.crossing.rides import StateSharding
from weft.nnx.errors import MISSING
from weft.nnx.graphs.trees import refuse_sharing
from weft.nnx.transforms._wrap import boundary_of, checked_prefix, decorate, over, refuse_bound_method
from weft.nnx.transforms.keywords import JitKeywords, ShardMapKeywords
from weft.nnx.transforms.names import _raise_bound_method_error as _raise_bound_method_error
from weft.nnx.transforms.names import _resolve_bound_callable as _resolve_bound_callable
from weft.transforms.arguments import numbers_and_names
from weft.transforms.compilation import JitFunction, JitOptions
from weft.transforms.shards import SHARD_MAP, ShardMapOptions
from weft.transforms.stages import Stage
from weft.transforms.tracing import EVAL_SHAPE, NoOptions
from weft.transforms.transformed import named_like, transform

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

# flax has a class for each stage, and programs write `isinstance(x, nnx.Compiled)`; here all stages have one class.
Traced = Lowered = Compiled = Stage

__all__ = ["JitWrapped", "Stage", "StateSharding", "jit", "jit_partial", "shard_map"]


class JitWrapped(JitFunction[P, R]):
    """A compiled function of objects and arrays, made by `jit`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> double = nnx.jit(lambda w: 2 * w[...])
    >>> type(double).__name__, double.eval_shape(nnx.Param(jnp.ones(3))).shape
    ('JitWrapped', (3,))
    """

    def __init__(self, function: Callable[P, R], options: JitOptions, boundary: References):
        refuse_bound_method(function, boundary.function)
        super().__init__(function, options, boundary)
        self._boundary = boundary
        # flax's name for the inner compiled function, whose `_cache_size()` trainers read. Here it is this object
        # itself, so the reference is weak: a strong one would be a cycle.
        self.jitted_fn = weakref.proxy(self)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(
        self: JitWrapped[Concatenate[Any, Q], R], instance: object, owner: type | None = None
    ) -> Callable[Q, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        # Written for its types alone: by them a type checker removes the first parameter of a decorated method.
        return super().__get__(instance, owner)

    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Returns the output as `ShapeDtypeStruct`s, without computing it or updating the arguments."""
        # With copies instead of updates: an abstract evaluation must not write shapes into the caller's Variables.
        boundary = References(self._boundary.graph, self._boundary.updates, "eval_shape", self._boundary.updates)
        call = self._with_statics(args, kwargs)
        return interpret(EVAL_SHAPE, boundary)(self._interpreted.functions, NoOptions())(*call)


def _options(
    function: Callable[..., Any],
    in_shardings: Any,
    out_shardings: Any,
    static: tuple[Any, Any],
    donated: tuple[Any, Any],
    jax_options: dict[str, Any],
) -> JitOptions:
    numbers, names = numbers_and_names(function, *static)
    donated_numbers, donated_names = numbers_and_names(function, *donated)
    # Options at their defaults are left out: an option that some version of JAX lacks fails only where it is used.
    jax_options = {name: value for name, value in jax_options.items() if value not in (None, False)}
    return JitOptions(numbers, names, donated_numbers, donated_names, in_shardings, out_shardings, jax_options)


@overload
def jit(fun: Callable[P, R], **options: Unpack[JitKeywords]) -> JitWrapped[P, R]: ...
@overload
def jit(**options: Unpack[JitKeywords]) -> Callable[[Callable[P, R]], JitWrapped[P, R]]: ...
@transform()
def jit(
    fun: Any = MISSING,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    keep_unused: bool = False,
    device: Any = None,
    backend: str | None = None,
    inline: bool | jax.Inline = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> JitWrapped[P, R] | Callable[[Callable[P, R]], JitWrapped[P, R]]:
    """Compiles a function of objects and arrays; its mutations reach the caller's objects.

    Args:
        fun: the function to compile.
        in_shardings: as in `jax.jit`; a `StateSharding` has a sharding for each filter.
        out_shardings: the same for the output.
        static_argnums: the positions of static arguments.
        static_argnames: the names of static arguments.
        donate_argnums: the positions of arguments whose buffers are donated.
        donate_argnames: the names of arguments whose buffers are donated.
        keep_unused: as in `jax.jit`.
        device: as in `jax.jit`.
        backend: as in `jax.jit`.
        inline: as in `jax.jit`.
        graph: whether objects are graphs (the default) or trees.
        graph_updates: whether structural changes reach the caller's objects.

    Raises:
        ValueError: for a bound method, a Variable with two shardings, or (in tree mode) a shared Variable.

    Source: `jax.jit`, with the semantics of `flax.nnx.jit`.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> count = nnx.Variable(jnp.array(0))
    >>> @nnx.jit
    ... def step(count):
    ...     count[...] += 1
    >>> step(count)
    >>> int(count[...])
    1
    """
    boundary = boundary_of("jit", graph, graph_updates)
    in_shardings = checked_prefix(boundary, in_shardings, "in_shardings", "StateSharding")
    out_shardings = checked_prefix(boundary, out_shardings, "out_shardings", "StateSharding")
    jax_options = {"keep_unused": keep_unused, "device": device, "backend": backend, "inline": inline}

    def wrap(function: Callable[P, R]) -> JitWrapped[P, R]:
        static, donated = (static_argnums, static_argnames), (donate_argnums, donate_argnames)
        options = _options(function, in_shardings, out_shardings, static, donated, jax_options)
        return JitWrapped(function, options, boundary)

    return decorate(fun, wrap)


def jit_partial(fun: Callable[..., R], *partial_args: Any, **options: Unpack[JitKeywords]) -> JitPartial[R]:
    """Compiles a function and binds its first arguments, like `functools.partial(nnx.jit(fun), *args)`.

    Args:
        fun: the function to compile.
        partial_args: its first arguments.
        options: those of `jit`.

    Raises:
        TypeError: for an option that `jit` does not have.
        ValueError: for a bound method of an object; in tree mode, for a shared node.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> count = nnx.Variable(jnp.array(0))
    >>> def add(count, n):
    ...     count[...] += n
    >>> step = nnx.jit_partial(add, count, graph_updates=False)
    >>> step(2)
    >>> int(count[...])
    2
    """
    refuse_bound_method(fun, "jit_partial")
    jitted = jit(fun, **options)
    if not graph_mode(options.get("graph")):
        # Checked here, where the user passes these arguments, and not at the first call.
        names = boundary_of("jit_partial", graph=False, graph_updates=options.get("graph_updates")).mode.names((fun,))
        refuse_sharing((partial_args, {}), "jit_partial", lambda path: named(path, names))
    return JitPartial(jitted, partial_args)


class _PartialStage:
    """A stage of compiling a `JitPartial`: forwards to a `Stage`, whose calls it passes the bound arguments."""

    def __init__(self, stage: Any, args: tuple[Any, ...]):
        self._stage, self._args = stage, args

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        # Wrapped again, because the next stage is called without the bound arguments, too.
        return _PartialStage(self._stage.lower(*args, **kwargs), self._args)

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        return _PartialStage(self._stage.compile(*args, **kwargs), self._args)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._stage(*self._args, *args, **kwargs)


class JitPartial(Generic[R]):
    """A compiled function with its first arguments bound, made by `jit_partial`.

    The bound objects are not flattened beforehand: each call looks up their plan, which is as fast.
    """

    def __init__(self, jitted: JitWrapped[..., R], args: tuple[Any, ...]):
        self._jitted, self._args = jitted, args
        self.jitted_fn = jitted.jitted_fn
        named_like(jitted, self)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        return self._jitted(*self._args, *args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Traces the function: the first stage of compilation. The stages are called without the bound arguments."""
        return _PartialStage(self._jitted.trace(*self._args, *args, **kwargs), self._args)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Traces and lowers the function: the second stage of compilation."""
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the output as `ShapeDtypeStruct`s, without computing it."""
        return self._jitted.eval_shape(*self._args, *args, **kwargs)


@overload
def shard_map(f: F, *, mesh: Any, in_specs: Any, out_specs: Any, **options: Unpack[ShardMapKeywords]) -> F: ...
@overload
def shard_map(*, mesh: Any, in_specs: Any, out_specs: Any, **options: Unpack[ShardMapKeywords]) -> Callable[[F], F]: ...
def shard_map(
    f: Any = MISSING,
    *,
    mesh: Any,
    in_specs: Any,
    out_specs: Any,
    axis_names: Any = frozenset(),
    check_vma: bool = True,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> F | Callable[[F], F]:
    """Maps a function over the shards of objects and arrays; a `StateSharding` has a spec for each filter.

    Raises:
        ValueError: for a bound method of an object.

    Source: `jax.shard_map`, with the semantics of `flax.nnx.shard_map`.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> from jax.sharding import PartitionSpec as P
    >>> from weft import nnx
    >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> scaled = nnx.shard_map(lambda w, x: w * x, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    >>> scaled(nnx.Param(jnp.array(2.0)), jnp.arange(2.0)).tolist()
    [0.0, 2.0]
    """
    boundary = boundary_of("shard_map", graph, graph_updates)
    in_specs = checked_prefix(boundary, in_specs, "in_specs", "StateSharding")
    out_specs = checked_prefix(boundary, out_specs, "out_specs", "StateSharding")
    more: dict[str, Any] = {"check_vma": check_vma}
    # Without names, JAX's own default applies: all axes of the mesh.
    if axis_names:
        more["axis_names"] = axis_names
    return decorate(f, over(SHARD_MAP, boundary, ShardMapOptions(mesh, in_specs, out_specs, more)))
