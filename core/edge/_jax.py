"""The edge to JAX: what weft needs of it that has no stable public way, each use with its reason.

Nothing else in weft imports `jax._src`. Functions and names here are typed with `Any`: this is the boundary, where
JAX's own types stop. The tests of the modules that use a name fail loudly when JAX changes under it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.extend.core
import jax.extend.core.primitives
import jax.extend.linear_util
import jax.extend.source_info_util
import jax.interpreters.ad
import jax.interpreters.batching
import jax.interpreters.mlir
import jax.interpreters.partial_eval
import jax.numpy as jnp

# How `jit` takes calls apart that it has compiled before; JAX registers its own keys there, apart from everywhere else.
from jax._src import tree_util as _untyped_trees

# Sets how tracebacks are filtered in one thread; JAX exports the setting of the whole process only.
from jax._src.config import traceback_filtering as _untyped_traceback_filtering

# The innermost running trace; JAX exports nothing that tells whether a tracer is still alive.
from jax._src.core import trace_ctx as _untyped_trace_context

# jit's parameters say "no sharding asked for" with this value, and JAX exports it nowhere.
from jax._src.named_sharding import UNSPECIFIED as _UNSPECIFIED

# Everything below goes through these names, typed once as the boundary.
_traceback_filtering: Any = _untyped_traceback_filtering
_trace_context: Any = _untyped_trace_context
_trees: Any = _untyped_trees
_api: Any = jax
_jnp: Any = jnp
_core: Any = jax.extend.core
_primitives: Any = jax.extend.core.primitives
_lu: Any = jax.extend.linear_util
_source: Any = jax.extend.source_info_util
_ad: Any = jax.interpreters.ad
_batching: Any = jax.interpreters.batching
_mlir: Any = jax.interpreters.mlir
_pe: Any = jax.interpreters.partial_eval
_tree_util: Any = jax.tree_util

# Public, but partly untyped.
make_jaxpr: Any = _api.make_jaxpr
tree: Any = _api.tree
asarray: Callable[[Any], jax.Array] = _jnp.asarray
make_user_context: Any = _api.make_user_context
Primitive: Any = _core.Primitive
jaxprs_in_params: Any = _core.jaxprs_in_params
add: Any = _ad.add_jaxvals

jit_p: Any = _primitives.jit_p
remat_p: Any = _primitives.remat_p
scan_p: Any = _primitives.scan_p
cond_p: Any = _primitives.cond_p
while_p: Any = _primitives.while_p
call_p: Any = _primitives.call_p
closed_call_p: Any = _primitives.closed_call_p
custom_jvp_call_p: Any = _primitives.custom_jvp_call_p
custom_vjp_call_p: Any = _primitives.custom_vjp_call_p


# ---- jaxprs ---------------------------------------------------------------------------------------------------------


def trace(fun: Callable[..., Sequence[Any]], avals: Sequence[Any], *, like: Any) -> Any:
    """The closed jaxpr of a function of flat arguments, called in errors what the closed jaxpr `like` is called.

    Unlike `jax.make_jaxpr` it takes types as they are, with their weakness and mesh axes.
    """
    debug_info = like.jaxpr.debug_info.with_unknown_names()
    jaxpr, _, consts = _pe.trace_to_jaxpr_dynamic(_lu.wrap_init(fun, debug_info=debug_info), avals)
    return _core.ClosedJaxpr(jaxpr, consts)


def close(jaxpr: Any) -> Any:
    """A closed jaxpr, from one that is or from one without constants."""
    return jaxpr if isinstance(jaxpr, _core.ClosedJaxpr) else _core.ClosedJaxpr(jaxpr, ())


def consts_as_inputs(closed: Any) -> tuple[Any, list[Any]]:
    """An open jaxpr whose leading inputs are the constants, and the constants."""
    jaxpr = closed.jaxpr
    return jaxpr.replace(constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars]), list(closed.consts)


def run(closed: Any, args: Sequence[Any]) -> list[Any]:
    """Evaluates a closed jaxpr."""
    return list(_core.jaxpr_as_fun(closed)(*args))


def split_outputs(closed: Any, at: int) -> tuple[Callable[..., list[Any]], Callable[..., list[Any]]]:
    """Two functions of one list of arguments, for the outputs before and after a position, without dead code."""

    def keeping(used: Sequence[bool]) -> Callable[..., list[Any]]:
        jaxpr, _ = _pe.dce_jaxpr(closed.jaxpr, list(used), True)
        return functools.partial(run, _core.ClosedJaxpr(jaxpr, closed.consts))

    before = [i < at for i in range(len(closed.out_avals))]
    return keeping(before), keeping([not used for used in before])


def evaluate(
    jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], evaluate_equation: Callable[[Any, list[Any]], Sequence[Any]]
) -> list[Any]:
    """Runs a jaxpr, each equation by the given function; `jax.core.eval_jaxpr` can only bind them."""
    env: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    last_reader = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if not is_literal(v)}
    kept = {v for v in jaxpr.outvars if not is_literal(v)}

    def read(atom: Any) -> Any:
        return atom.val if is_literal(atom) else env[atom]

    for i, eqn in enumerate(jaxpr.eqns):
        with _equation_context(eqn):
            outs = evaluate_equation(eqn, [read(atom) for atom in eqn.invars])
        env.update(zip(eqn.outvars, outs, strict=True))
        # Free what is not read again: outside jit, the values are real buffers.
        for var in {v for v in eqn.invars if not is_literal(v)} - kept:
            if last_reader[var] == i:
                del env[var]
    return [read(atom) for atom in jaxpr.outvars]


def bind_equation(eqn: Any, values: Sequence[Any]) -> Sequence[Any]:
    """Runs an equation as JAX does."""
    outs = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return outs if eqn.primitive.multiple_results else [outs]


def is_literal(atom: Any) -> bool:
    """Whether what an equation reads is a constant written into it, and no variable."""
    return isinstance(atom, _core.Literal)


@contextlib.contextmanager
def _equation_context(eqn: Any) -> Generator[None]:
    # The name scopes, source location and settings that the equation was traced under.
    names = _source.current_name_stack() + eqn.source_info.name_stack
    with _source.user_context(eqn.source_info.traceback, name_stack=names), eqn.ctx.manager:
        yield


def strong_type_of(value: Any) -> Any:
    """The type of a value, without weakness."""
    return jax.typeof(value).update(weak_type=False)


def zeros(aval: Any, length: int | None = None) -> Any:
    """Zeros of a type, with a leading axis if there is a length; unlike `jnp.zeros`, varying over its mesh axes."""
    # The zero of a key's type is, to JAX, its tangent's.
    extended = _api.dtypes.issubdtype(aval.dtype, jax.dtypes.extended)
    value = _api.lax.full(aval.shape, 0, aval.dtype) if extended else _ad.zeros_like_aval(aval)
    return value if length is None else _batching.broadcast(value, length, 0, None)


def remember_per_jaxpr(compute: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Caches a function of a jaxpr, open or closed, for as long as the jaxpr lives: JAX never mutates one."""
    known: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
    lock = threading.Lock()

    def remembered(jaxpr: Any) -> Any:
        # An open jaxpr, such as remat's, is closed anew each time; constants belong to one closed jaxpr.
        key = jaxpr.jaxpr if isinstance(jaxpr, _core.ClosedJaxpr) and not jaxpr.consts else jaxpr
        with lock:
            answer = known.get(key)
        if answer is None:
            answer = compute(jaxpr)
            with lock:
                known[key] = answer
        return answer

    return remembered


# ---- primitives -----------------------------------------------------------------------------------------------------


def define_identity(
    primitive: Any, *, batch: Callable[..., tuple[Any, Any]], on_tangents: Callable[..., Sequence[Any]] | None = None
) -> None:
    """Gives a primitive of several operands the rules of the identity.

    Tangents and cotangents pass it by, unless `on_tangents(tangents, **params)` has something to do with them; tangents
    that are zero are `None` there.
    """

    def identity(*values: Any, **_: Any) -> list[Any]:
        return list(values)

    def jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        outs = primitive.bind(*primals, **params)
        if on_tangents is None:
            return outs, tangents
        known = [None if type(tangent) is _ad.Zero else tangent for tangent in tangents]
        changed = on_tangents(known, **params)
        return outs, [old if new is None else new for old, new in zip(tangents, changed, strict=True)]

    def transpose(cotangents: Any, *_: Any, **__: Any) -> Any:
        return cotangents

    def lower(_: Any, *values: Any, **__: Any) -> Any:
        return values

    primitive.def_impl(identity)
    primitive.def_abstract_eval(identity)
    _ad.primitive_jvps[primitive] = jvp
    _ad.primitive_transposes[primitive] = transpose
    _mlir.register_lowering(primitive, lower)
    # The "fancy" table, because its rules are also called when nothing is mapped, and learn the size of the axis.
    _batching.fancy_primitive_batchers[primitive] = batch


def define_linear_identity(primitive: Any) -> None:
    """Gives a primitive of one operand the rules of the identity, by which tangents and cotangents do not pass."""

    def identity(value: Any, **_: Any) -> Any:
        return value

    def lower(_: Any, value: Any, **__: Any) -> Any:
        return [value]

    def transpose(cotangent: Any, _: Any, **params: Any) -> list[Any]:
        return [primitive.bind(cotangent, **params)]

    primitive.def_impl(identity)
    primitive.def_abstract_eval(identity)
    _ad.deflinear2(primitive, transpose)
    _mlir.register_lowering(primitive, lower)
    _batching.defvectorized(primitive)


def batched_at_front(axis: Any, value: Any, dim: int | None) -> Any:
    """A value with its mapped axis in front, broadcast if it had none."""
    return _batching.bdim_at_front(value, dim, axis.size, axis.explicit_mesh_axis)


def rewrite_binds(primitive: Any, bind: Callable[..., Any]) -> None:
    """Puts `bind(original, *args, **params)` before a primitive's `bind`.

    JAX has no hook at which an equation can be seen before `grad` and `vmap` take it apart. It assigns to `bind` in the
    same way itself, for remat.
    """
    original = primitive.bind

    def rewritten(*args: Any, **params: Any) -> Any:
        return bind(original, *args, **params)

    primitive.bind = rewritten


def watch_jitted_calls(look: Callable[[Any, str], None]) -> None:
    """Calls `look(program, name)` before a jitted function is called from Python, if JAX has not compiled the call yet.

    JAX has no hook there: outside of traces such a call goes to the compiler without being bound. Compiled calls do not
    come here, and neither do those that JAX makes for a jitted function that it differentiates, which hold parts of its
    program. If the name goes, those who debug get an `AttributeError`, and nobody else.
    """
    from jax._src import pjit

    inner: Any = pjit
    original = inner._run_python_pjit

    def watched(parameters: Any, *args: Any) -> Any:
        look(parameters.params["jaxpr"], parameters.params["name"])
        return original(parameters, *args)

    inner._run_python_pjit = watched


def extend_jit(params: dict[str, Any], closed: Any, num_inputs: int, num_outputs: int) -> dict[str, Any]:
    """jit's parameters for a jaxpr with more inputs and outputs, which are neither donated nor sharded on request."""
    return {
        **params,
        "jaxpr": closed,
        "donated_invars": (*params["donated_invars"], *[False] * num_inputs),
        "in_shardings": (*params["in_shardings"], *[_UNSPECIFIED] * num_inputs),
        "out_shardings": (*params["out_shardings"], *[_UNSPECIFIED] * num_outputs),
        "in_layouts": (*params["in_layouts"], *[None] * num_inputs),
        "out_layouts": (*params["out_layouts"], *[None] * num_outputs),
    }


def extend_remat(params: dict[str, Any], jaxpr: Any, num_before: int, num_after: int) -> dict[str, Any]:
    """remat's parameters for a jaxpr with more inputs."""
    prevent_cse: Any = params["prevent_cse"]
    if not isinstance(prevent_cse, bool):
        prevent_cse = (*[True] * num_before, *prevent_cse, *[True] * num_after)
    return {**params, "jaxpr": jaxpr, "prevent_cse": prevent_cse}


# ---- custom derivatives ---------------------------------------------------------------------------------------------


def without_context(bind_params: dict[str, Any], context: Callable[[], AbstractContextManager[Any]]) -> dict[str, Any]:
    """Bind parameters of a function with a custom derivative, whose forward rule runs inside a context."""

    def enter(fun: Callable[..., Any], *args: Any) -> Any:
        with context():
            return fun(*args)

    fun, forward, *backward = bind_params["subfuns"]
    return {**bind_params, "subfuns": (fun, _lu.transformation2(enter)(forward), *backward)}


def differentiated_on_demand(fun: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
    """A function whose derivative is taken only if a cotangent asks for it: a callback or a kernel in it has none."""
    call: Any = _api.custom_vjp(fun)

    def forward(args: list[Any]) -> tuple[list[Any], list[Any]]:
        return fun(args), args

    def backward(args: list[Any], cotangents: list[Any]) -> Any:
        return _api.vjp(fun, args)[1](cotangents)

    call.defvjp(forward, backward)
    return call


def graft(
    custom: Callable[..., list[Any]], body: Callable[..., list[Any]], args: list[Any], offsets: list[Any]
) -> list[Any]:
    """The body's value; its derivative in the arguments is that of `custom`, in the offsets that of `body`."""

    @jax.custom_jvp
    def of_offsets(args: list[Any], offsets: list[Any]) -> list[Any]:
        return body([*args, *offsets])

    def of_offsets_jvp(primals: Any, tangents: Any) -> tuple[list[Any], list[Any]]:
        # The arguments are not stopped: the derivative in the offsets has itself a derivative in the arguments.
        (args, offsets), (_, offsets_dot) = primals, tangents

        def given(offsets: list[Any]) -> list[Any]:
            return body([*args, *offsets])

        return _api.jvp(given, (offsets,), (offsets_dot,))

    of_offsets.defjvp(of_offsets_jvp)
    return list(map(_second_with_both_tangents, custom(*args), of_offsets(args, offsets)))


@jax.custom_jvp
def _second_with_both_tangents(one: Any, other: Any) -> Any:
    del one
    return other


@_second_with_both_tangents.defjvp
def _second_with_both_tangents_jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    one, other = tangents
    return primals[1], one if one.dtype == jax.dtypes.float0 else jnp.add(one, other)


def is_mapped(value: Any) -> bool:
    """Whether an array differs along the axis of the `vmap` that is being traced; False inside other transforms.

    JAX's own error about a mapped output under None says where that is in the output as JAX sees it.
    """
    batch_info = getattr(_trace_context.trace, "to_batch_info", None)
    return batch_info is not None and batch_info(value)[1] is not None


def is_dead_tracer(tracer: Any) -> bool:
    """Whether a tracer belongs to no trace that the running code is inside of.

    JAX has no public way to ask; it only raises, often, once the tracer is used. Traces know the one around them.
    """
    trace = _trace_context.trace
    while trace is not None:
        if trace is tracer._trace:
            return False
        trace = getattr(trace, "parent_trace", None)
    return True


def running_trace() -> object:
    """A token of the innermost running trace: the same object as long as that runs.

    What JAX exports, `get_opaque_trace_state`, wraps it anew each time, which takes three times as long to make and to
    compare; every Variable that is made asks.
    """
    return _trace_context.trace._weakref


def node_of(cls: type, data: Any, children: Sequence[Any]) -> Any:
    """A node of a pytree class, from its own data and its children; JAX offers it for a whole definition alone."""
    definitions = [tree.structure(child) for child in children]
    definition = _tree_util.PyTreeDef.from_node_data_and_children(_tree_util.default_registry, (cls, data), definitions)
    return definition.unflatten([leaf for child in children for leaf in tree.leaves(child)])


def register_dispatched_node(
    cls: type,
    flatten: Callable[[Any], Any],
    unflatten: Callable[[Any, Any], Any],
    flatten_with_keys: Callable[[Any], Any],
    pack: Callable[[Any], Any],
    unpack: Callable[[Any, Any], Any],
) -> None:
    """`jax.tree_util.register_pytree_with_keys` with another pair of functions for calls that `jit` has compiled.

    Such a call asks only for the leaves in order, for something to compare, and for its output made of the leaves that
    come back. So `pack` may give the leaves of a whole tree at once, where `flatten` gives a level.
    """
    if not has_dispatch_registry():
        _tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
        return
    for registry in _trees._all_registries:
        if registry is _trees.dispatch_registry:
            registry.register_node(cls, pack, unpack)
        else:
            registry.register_node(cls, flatten, unflatten, flatten_with_keys)
    _trees._registry[cls] = _trees._RegistryEntry(flatten, unflatten)


def has_dispatch_registry() -> bool:
    """Whether this JAX takes calls that are compiled apart by a registry of its own; without it they are slower."""
    return all(
        hasattr(_trees, name) for name in ("_all_registries", "dispatch_registry", "_registry", "_RegistryEntry")
    )


def traced_from(tracer: Any, values: Sequence[Any]) -> list[int]:
    """The positions of the values that a tracer was computed from, among arguments of the trace that it belongs to.

    JAX tells it in the text of its errors alone, by the names that its own caller's arguments have.
    """
    found = [i for i, value in enumerate(values) if value is tracer]
    if found:
        return found
    tracer, inner = _innermost(tracer), [_innermost(value) for value in values]
    frame = getattr(getattr(tracer, "_trace", None), "frame", None)
    if frame is None:
        return []
    positions, _ = frame.find_progenitors(tracer)
    variables = [frame.invars[position] for position in positions or ()]
    of_trace = {i: v.val for i, v in enumerate(inner) if getattr(v, "_trace", None) is tracer._trace}
    return [i for i, variable in of_trace.items() if any(variable is other for other in variables)]


def _innermost(value: Any) -> Any:
    """What a tracer of `vmap` or of a derivative stands for in the trace that is being staged, if there is one."""
    while getattr(value, "_trace", None) is not None and not hasattr(value._trace, "frame"):
        value = getattr(value, "val", getattr(value, "primal", None))
    return value


def whole_tracebacks() -> AbstractContextManager[None]:
    """JAX's errors keep their tracebacks as they are, in this thread.

    JAX takes its own frames out, with a look at the file system for each one. Who raises thousands of errors and shows
    none of them spends half of the time there.
    """
    return _traceback_filtering("off")
