"""The edge to JAX: what weft needs of it that has no stable public way, each use with its reason.

Nothing else in weft imports `jax._src`. What these functions take and give has JAX's own types (`ClosedJaxpr`,
`JaxprEqn`, `jax.Array`: a tracer is one too), though much of what JAX keeps inside has none. The tests of the modules
that use a name fail loudly when JAX changes under it.
"""

# JAX annotates in part, and what it leaves out is unknown to a strict checker; here, and nowhere else, that is taken.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType
from typing import Any, Protocol, TypeGuard, TypeVar, cast

import jax
import jax.extend.linear_util as lu
import jax.extend.source_info_util as source_info
import jax.numpy as jnp

# How `jit` takes calls apart that it has compiled before; JAX registers its own keys there, apart from everywhere else.
from jax._src import tree_util as private_trees

# Sets how tracebacks are filtered in one thread; JAX exports the setting of the whole process only.
from jax._src.config import traceback_filtering

# The innermost running trace; JAX exports nothing that tells whether a tracer is still alive.
from jax._src.core import trace_ctx

# What nodes of trees it writes, and how; JAX exports only how to add some.
from jax._src.export import _export as export_nodes

# jit's parameters say "no sharding asked for" with this value, and JAX exports it nowhere.
from jax._src.named_sharding import UNSPECIFIED as _UNSPECIFIED
from jax.core import ShapedArray, Tracer
from jax.extend import core
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, primitives
from jax.interpreters import ad, batching, mlir, partial_eval
from jax.typing import ArrayLike
from weft.core.edge import names
from weft.core.edge.trees import PyTree, TreeDef

N = TypeVar("N")
T = TypeVar("T")
V = TypeVar("V")
C = TypeVar("C", covariant=True)

Atom = Var | Literal
AnyJaxpr = Jaxpr | ClosedJaxpr
J = TypeVar("J", bound=AnyJaxpr)
# An equation's parameters: what they are, its primitive alone knows.
Params = dict[str, Any]
Tangent = jax.Array | ad.Zero
# How a primitive is batched: (axis, values, their mapped axes, **params) -> (values, their mapped axes).
Batch = Callable[..., tuple[Sequence[jax.Array], Sequence[int | None]]]


class Primitive(Protocol):
    """What weft uses of a `jax.extend.core.Primitive`, whose own methods have no types."""

    multiple_results: bool

    def bind(self, *values: object, **params: object) -> Any: ...

    def get_bind_params(self, params: Params, /) -> Params: ...


class Axis(Protocol):
    """What JAX tells a batching rule of the axis that is mapped."""

    @property
    def size(self) -> int: ...

    @property
    def explicit_mesh_axis(self) -> object: ...


class UserContext(Protocol[C]):
    """What `jax.make_user_context` makes: a setting that is part of the key of JAX's trace caches."""

    @property
    def value(self) -> C: ...

    def __call__(self, value: object, /) -> AbstractContextManager[None]: ...


def make_user_context(default: T) -> UserContext[T]:
    """`jax.make_user_context`, typed."""
    return jax.make_user_context(default)


def new_primitive(name: str, *, multiple_results: bool = False) -> Primitive:
    """A primitive without rules."""
    primitive = core.Primitive(name)
    primitive.multiple_results = multiple_results
    return primitive


# JAX's own, under the types that its documentation gives them.
make_jaxpr: Callable[[Callable[..., PyTree]], Callable[..., ClosedJaxpr]] = jax.make_jaxpr
asarray: Callable[[object], jax.Array] = jnp.asarray
add: Callable[[ArrayLike, ArrayLike], jax.Array] = ad.add_jaxvals
jaxprs_in_params: Callable[[Params], Iterable[Jaxpr]] = core.jaxprs_in_params

jit_p: Primitive = primitives.jit_p
remat_p: Primitive = primitives.remat_p
scan_p: Primitive = primitives.scan_p
cond_p: Primitive = primitives.cond_p
while_p: Primitive = primitives.while_p
call_p: Primitive = primitives.call_p
closed_call_p: Primitive = primitives.closed_call_p
custom_jvp_call_p: Primitive = primitives.custom_jvp_call_p
custom_vjp_call_p: Primitive = primitives.custom_vjp_call_p


# ---- jaxprs ---------------------------------------------------------------------------------------------------------


def trace(fun: Callable[..., Sequence[jax.Array]], avals: Sequence[ShapedArray], *, like: ClosedJaxpr) -> ClosedJaxpr:
    """The closed jaxpr of a function of flat arguments, called in errors what the closed jaxpr `like` is called.

    Unlike `jax.make_jaxpr` it takes types as they are, with their weakness and mesh axes.
    """
    debug_info = like.jaxpr.debug_info.with_unknown_names()
    jaxpr, _, consts = partial_eval.trace_to_jaxpr_dynamic(lu.wrap_init(fun, debug_info=debug_info), avals)
    return core.ClosedJaxpr(jaxpr, consts)


def close(jaxpr: AnyJaxpr) -> ClosedJaxpr:
    """A closed jaxpr, from one that is or from one without constants."""
    return jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else core.ClosedJaxpr(jaxpr, ())


def replaced(jaxpr: Jaxpr, **parts: Sequence[object]) -> Jaxpr:
    """A jaxpr with other equations, inputs or outputs."""
    return jaxpr.replace(**parts)


def consts_as_inputs(closed: ClosedJaxpr) -> tuple[Jaxpr, list[jax.Array]]:
    """An open jaxpr whose leading inputs are the constants, and the constants."""
    jaxpr = closed.jaxpr
    return replaced(jaxpr, constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars]), list(closed.consts)


def run(closed: ClosedJaxpr, args: Sequence[jax.Array]) -> list[jax.Array]:
    """Evaluates a closed jaxpr."""
    return list(core.jaxpr_as_fun(closed)(*args))


def split_outputs(
    closed: ClosedJaxpr, at: int
) -> tuple[Callable[..., list[jax.Array]], Callable[..., list[jax.Array]]]:
    """Two functions of one list of arguments, for the outputs before and after a position, without dead code."""

    def keeping(used: Sequence[bool]) -> Callable[..., list[jax.Array]]:
        jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, list(used), True)
        return functools.partial(run, core.ClosedJaxpr(jaxpr, closed.consts))

    before = [i < at for i in range(len(closed.out_avals))]
    return keeping(before), keeping([not used for used in before])


def evaluate(
    jaxpr: Jaxpr,
    consts: Sequence[jax.Array],
    args: Sequence[jax.Array],
    evaluate_equation: Callable[[JaxprEqn, list[jax.Array]], Sequence[jax.Array]],
) -> list[jax.Array]:
    """Runs a jaxpr, each equation by the given function; `jax.core.eval_jaxpr` can only bind them."""
    env: dict[Var, jax.Array] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    last_reader = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if not is_literal(v)}
    kept = {v for v in jaxpr.outvars if not is_literal(v)}

    def read(atom: Atom) -> jax.Array:
        return atom.val if isinstance(atom, Literal) else env[atom]

    for i, eqn in enumerate(jaxpr.eqns):
        with _equation_context(eqn):
            outs = evaluate_equation(eqn, [read(atom) for atom in eqn.invars])
        env.update(zip(eqn.outvars, outs, strict=True))
        # Free what is not read again: outside jit, the values are real buffers.
        for var in {v for v in eqn.invars if isinstance(v, Var)} - kept:
            if last_reader[var] == i:
                del env[var]
    return [read(atom) for atom in jaxpr.outvars]


def bind_equation(eqn: JaxprEqn, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """Runs an equation as JAX does."""
    outs = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return outs if eqn.primitive.multiple_results else [outs]


def is_literal(atom: Atom) -> TypeGuard[Literal]:
    """Whether what an equation reads is a constant written into it, and no variable."""
    return isinstance(atom, core.Literal)


@contextlib.contextmanager
def _equation_context(eqn: JaxprEqn) -> Generator[None]:
    # The name scopes, source location and settings that the equation was traced under.
    names = source_info.current_name_stack() + eqn.source_info.name_stack
    with source_info.user_context(eqn.source_info.traceback, name_stack=names), eqn.ctx.manager:
        yield


def strong_type_of(value: object) -> ShapedArray:
    """The type of a value, without weakness."""
    return jax.typeof(value).update(weak_type=False)


def zeros(aval: ShapedArray, length: int | None = None) -> jax.Array:
    """Zeros of a type, with a leading axis if there is a length; unlike `jnp.zeros`, varying over its mesh axes."""
    # The zero of a key's type is, to JAX, its tangent's.
    extended = jnp.issubdtype(aval.dtype, jax.dtypes.extended)
    value = jax.lax.full(aval.shape, 0, aval.dtype) if extended else ad.zeros_like_aval(aval)
    return value if length is None else batching.broadcast(value, length, 0, None)


def remember_per_jaxpr(compute: Callable[[J], V]) -> Callable[[J], V]:
    """Caches a function of a jaxpr, open or closed, for as long as the jaxpr lives: JAX never mutates one."""
    known: weakref.WeakKeyDictionary[AnyJaxpr, V] = weakref.WeakKeyDictionary()
    lock = threading.Lock()

    def remembered(jaxpr: J) -> V:
        # An open jaxpr, such as remat's, is closed anew each time; constants belong to one closed jaxpr.
        key = jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) and not jaxpr.consts else jaxpr
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
    primitive: Primitive, *, batch: Batch, on_tangents: Callable[..., Sequence[jax.Array | None]] | None = None
) -> None:
    """Gives a primitive of several operands the rules of the identity.

    Tangents and cotangents pass it by, unless `on_tangents(tangents, **params)` has something to do with them; tangents
    that are zero are `None` there.
    """

    def identity(*values: V, **_: object) -> list[V]:
        return list(values)

    def jvp(
        primals: Sequence[jax.Array], tangents: Sequence[Tangent], **params: object
    ) -> tuple[Sequence[jax.Array], Sequence[Tangent]]:
        outs = primitive.bind(*primals, **params)
        if on_tangents is None:
            return outs, tangents
        known = [None if type(tangent) is ad.Zero else tangent for tangent in tangents]
        changed = on_tangents(known, **params)
        return outs, [old if new is None else new for old, new in zip(tangents, changed, strict=True)]

    def transpose(cotangents: Sequence[jax.Array], *_: object, **__: object) -> Sequence[jax.Array]:
        return cotangents

    def lower(_: object, *values: V, **__: object) -> Sequence[V]:
        return values

    ours = cast(core.Primitive, primitive)
    ours.def_impl(identity)
    ours.def_abstract_eval(identity)
    ad.primitive_jvps[ours] = jvp
    ad.primitive_transposes[ours] = transpose
    mlir.register_lowering(ours, lower)
    # The "fancy" table, because its rules are also called when nothing is mapped, and learn the size of the axis.
    batching.fancy_primitive_batchers[ours] = batch


def define_linear_identity(primitive: Primitive) -> None:
    """Gives a primitive of one operand the rules of the identity, by which tangents and cotangents do not pass."""

    def identity(value: V, **_: object) -> V:
        return value

    def lower(_: object, value: V, **__: object) -> list[V]:
        return [value]

    def transpose(cotangent: jax.Array, _: object, **params: object) -> list[jax.Array]:
        return [primitive.bind(cotangent, **params)]

    ours = cast(core.Primitive, primitive)
    ours.def_impl(identity)
    ours.def_abstract_eval(identity)
    ad.deflinear2(ours, transpose)
    mlir.register_lowering(ours, lower)
    batching.defvectorized(ours)


def batched_at_front(axis: Axis, value: jax.Array, dim: int | None) -> jax.Array:
    """A value with its mapped axis in front, broadcast if it had none."""
    return batching.bdim_at_front(value, dim, axis.size, axis.explicit_mesh_axis)


def rewrite_binds(primitive: Primitive, bind: Callable[..., Sequence[jax.Array]]) -> None:
    """Puts `bind(original, *args, **params)` before a primitive's `bind`.

    JAX has no hook at which an equation can be seen before `grad` and `vmap` take it apart. It assigns to `bind` in the
    same way itself, for remat.
    """
    original = primitive.bind

    def rewritten(*args: object, **params: object) -> Sequence[jax.Array]:
        return bind(original, *args, **params)

    primitive.bind = rewritten


def watch_jitted_calls(look: Callable[[ClosedJaxpr, str], None]) -> None:
    """Calls `look(program, name)` before a jitted function is called from Python, if JAX has not compiled the call yet.

    JAX has no hook there: outside of traces such a call goes to the compiler without being bound. Compiled calls do not
    come here, and neither do those that JAX makes for a jitted function that it differentiates, which hold parts of its
    program. If the name goes, those who debug get an `AttributeError`, and nobody else.
    """
    from jax._src import pjit

    inner: Any = pjit
    original = inner._run_python_pjit

    def watched(parameters: Any, *args: object) -> Any:
        look(parameters.params["jaxpr"], parameters.params["name"])
        return original(parameters, *args)

    inner._run_python_pjit = watched


def extend_jit(params: Params, closed: ClosedJaxpr, num_inputs: int, num_outputs: int) -> Params:
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


def extend_remat(params: Params, jaxpr: Jaxpr, num_before: int, num_after: int) -> Params:
    """remat's parameters for a jaxpr with more inputs."""
    prevent_cse: bool | tuple[bool, ...] = params["prevent_cse"]
    if not isinstance(prevent_cse, bool):
        prevent_cse = (*[True] * num_before, *prevent_cse, *[True] * num_after)
    return {**params, "jaxpr": jaxpr, "prevent_cse": prevent_cse}


# ---- custom derivatives ---------------------------------------------------------------------------------------------


def without_context(bind_params: Params, context: Callable[[], AbstractContextManager[None]]) -> Params:
    """Bind parameters of a function with a custom derivative, whose forward rule runs inside a context."""

    def enter(fun: Callable[..., T], *args: object) -> T:
        with context():
            return fun(*args)

    fun, forward, *backward = bind_params["subfuns"]
    return {**bind_params, "subfuns": (fun, lu.transformation2(enter)(forward), *backward)}


def differentiated_on_demand(
    fun: Callable[[list[jax.Array]], list[jax.Array]],
) -> Callable[[list[jax.Array]], list[jax.Array]]:
    """A function whose derivative is taken only if a cotangent asks for it: a callback or a kernel in it has none."""
    call: Any = jax.custom_vjp(fun)

    def forward(args: list[jax.Array]) -> tuple[list[Any], list[Any]]:
        return fun(args), args

    def backward(args: list[jax.Array], cotangents: list[jax.Array]) -> tuple[list[jax.Array], ...]:
        return jax.vjp(fun, args)[1](cotangents)

    call.defvjp(forward, backward)
    return call


def graft(
    custom: Callable[..., list[jax.Array]],
    body: Callable[..., list[jax.Array]],
    args: list[jax.Array],
    offsets: list[jax.Array],
) -> list[jax.Array]:
    """The body's value; its derivative in the arguments is that of `custom`, in the offsets that of `body`."""

    @jax.custom_jvp
    def of_offsets(args: list[jax.Array], offsets: list[jax.Array]) -> list[jax.Array]:
        return body([*args, *offsets])

    def of_offsets_jvp(
        primals: tuple[list[jax.Array], list[jax.Array]], tangents: tuple[list[jax.Array], list[jax.Array]]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        # The arguments are not stopped: the derivative in the offsets has itself a derivative in the arguments.
        (args, offsets), (_, offsets_dot) = primals, tangents

        def given(offsets: list[jax.Array]) -> list[jax.Array]:
            return body([*args, *offsets])

        return jax.jvp(given, (offsets,), (offsets_dot,))

    of_offsets.defjvp(of_offsets_jvp)
    return list(map(_second_with_both_tangents, custom(*args), of_offsets(args, offsets)))


@jax.custom_jvp
def _second_with_both_tangents(one: jax.Array, other: jax.Array) -> jax.Array:
    del one
    return other


@_second_with_both_tangents.defjvp
def _second_with_both_tangents_jvp(
    primals: tuple[jax.Array, jax.Array], tangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    one, other = tangents
    return primals[1], one if one.dtype == jax.dtypes.float0 else jnp.add(one, other)


def is_mapped(value: object) -> bool:
    """Whether an array differs along the axis of the `vmap` that is being traced; False inside other transforms.

    JAX's own error about a mapped output under None says where that is in the output as JAX sees it.
    """
    batch_info = getattr(trace_ctx.trace, "to_batch_info", None)
    return batch_info is not None and batch_info(value)[1] is not None


def is_dead_tracer(tracer: Tracer[Any]) -> bool:
    """Whether a tracer belongs to no trace that the running code is inside of.

    JAX has no public way to ask; it only raises, often, once the tracer is used. Traces know the one around them.
    """
    trace = trace_ctx.trace
    while trace is not None:
        if trace is tracer._trace:
            return False
        trace = getattr(trace, "parent_trace", None)
    return True


def is_of_running_trace(tracer: Tracer[Any]) -> bool:
    """Whether a tracer is dead as soon as the innermost running trace ends."""
    return trace_ctx.trace is tracer._trace


def key_impl_of(dtype: object) -> str:
    """The name of the implementation of keys of a dtype; JAX tells it of arrays only, and not of their shapes."""
    return cast(Any, dtype)._impl.name


def running_trace() -> object:
    """A token of the innermost running trace: the same object as long as that runs.

    What JAX exports, `get_opaque_trace_state`, wraps it anew each time, which takes three times as long to make and to
    compare; every Variable that is made asks.
    """
    return trace_ctx.trace._weakref


def is_outermost_trace() -> bool:
    """Whether the running trace is staged, and inside of no other one: what runs in it would run on arrays, too."""
    outer = getattr(trace_ctx.trace, "parent_trace", None)
    return outer is not None and getattr(outer, "parent_trace", None) is None and not hasattr(outer, "frame")


@contextlib.contextmanager
def truth_of_tracers(decide: Callable[[FrameType], bool | None]) -> Generator[None]:
    """Asks `decide`, with the frame that wants to know, whether a traced number of this thread is true.

    None leaves it to JAX, which raises; it has no hook there. Everybody's tracers are asked while this lasts, so what
    other threads trace goes by JAX alone.
    """
    cls, thread = cast(Any, Tracer), threading.get_ident()
    original = cls.__bool__

    def truth(tracer: Tracer[Any]) -> bool:
        ours = threading.get_ident() == thread and tracer.size == 1
        found = decide(sys._getframe(1)) if ours else None
        return original(tracer) if found is None else found

    cls.__bool__ = truth
    try:
        yield
    finally:
        cls.__bool__ = original


@contextlib.contextmanager
def own_functions_traced(within: Callable[[], AbstractContextManager[Any]]) -> Generator[None]:
    """While this lasts, this thread traces JAX's own compiled functions (`jnp.add`, `jax.random.normal`) in a context.

    Who gives each trace a context of its own, so that none is answered from another's, pays for these again each time,
    which is most of the time; and there is nothing of the user's in them, but for functions that they are given. JAX
    roots the metadata of what it traces in the function, so that nothing of the first caller is in it.

    What `vmap` and derivatives make of such a trace (a jaxpr from a jaxpr, with no call of anybody's) is made in that
    context, too: under a `vmap` of `grad` that is most of the time that is left.

    Args:
        within: makes the context, of those that are part of the key of a trace.
    """
    from jax._src import pjit
    from jax._src.interpreters import ad as derivatives
    from jax._src.interpreters import batching as batches
    from jax._src.interpreters import partial_eval as partial

    thread, infer = threading.get_ident(), cast(Any, pjit)._infer_params

    def inferred(fun: Any, info: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ours = threading.get_ident() == thread and _is_own(fun)
        if not ours or not all(map(_is_plain, (*args, *kwargs.values()))):
            return infer(fun, info, args, kwargs)
        with within():
            found = infer(fun, info, args, kwargs)
        _own_jaxprs.add(found[0].params["jaxpr"])
        return found

    def derived(derive: Callable[..., Any]) -> Callable[..., Any]:
        def of_own(jaxpr: Any, *how: Any) -> Any:
            if threading.get_ident() != thread or jaxpr not in _own_jaxprs:
                return derive(jaxpr, *how)
            with within():
                found = derive(jaxpr, *how)
            several = found if isinstance(found, tuple) else (found,)
            _own_jaxprs.update(one for one in several if isinstance(one, ClosedJaxpr))
            return found

        return of_own

    derivations = (
        (batches, "_batch_jaxpr2"),
        (batches, "_batch_jaxpr_axes"),
        (derivatives, "_jvp_jaxpr"),
        (derivatives, "_linearize_jaxpr"),
        (partial, "_prune_closed_jaxpr_outputs"),
        (pjit, "_dce_jaxpr_pjit"),
        (pjit, "_transpose_jaxpr_fancy"),
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(_replaced(pjit, "_infer_params", inferred))
        for module, name in derivations:
            stack.enter_context(_replaced(module, name, derived(getattr(module, name))))
        yield


# The traces of JAX's own functions, and what was derived from them; each lives as long as JAX's caches keep it.
_own_jaxprs: weakref.WeakSet[Any] = weakref.WeakSet()


@contextlib.contextmanager
def _replaced(module: Any, name: str, other: Any) -> Generator[None]:
    original = getattr(module, name)
    setattr(module, name, other)
    try:
        yield
    finally:
        setattr(module, name, original)


_FOLDER = f"{Path(jax.__file__).parent}/"


def _is_own(function: object) -> bool:
    """Whether a function is one of JAX's own, at the top of a module: it closes over nothing, and wraps nothing."""
    if not isinstance(function, FunctionType) or function.__closure__ is not None or hasattr(function, "__wrapped__"):
        return False
    return function.__code__.co_filename.startswith(_FOLDER)


def _is_plain(value: object) -> bool:
    """Whether an argument is no function, or holds none, of somebody else's."""
    if isinstance(value, functools.partial | MethodType) or (callable(value) and not isinstance(value, type)):
        return isinstance(value, BuiltinFunctionType) or _is_own(value)
    return not isinstance(value, tuple | list | dict) or all(map(_is_plain, jax.tree.leaves(value)))


def asks_for_one_integer(error: Exception) -> bool:
    """Whether JAX wanted an integer, such as a number of segments, of an array that has axes: no numbers would do.

    The error says only that it was traced. What was asked for, the frame that raised it knows.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_name != names.ASKS_FOR_VALUES:
        return False
    given = trace.tb_frame.f_locals
    return given.get(names.ASKED_BY) is operator.index and getattr(given.get(names.ASKED_OF), "shape", ()) != ()


def node_of(cls: type, data: object, children: Sequence[PyTree]) -> PyTree:
    """A node of a pytree class, from its own data and its children; JAX offers it for a whole definition alone."""
    definition = definition_of(cls, data, [jax.tree.structure(child) for child in children])
    return definition.unflatten([leaf for child in children for leaf in jax.tree.leaves(child)])


def definition_of(cls: type, data: object, children: Sequence[TreeDef]) -> TreeDef:
    """The definition of a node, from its own data and the definitions of its children."""
    definition = jax.tree_util.PyTreeDef.from_node_data_and_children
    return definition(jax.tree_util.default_registry, (cls, data), cast(Any, children))


def is_exported(cls: type, data: object) -> bool:
    """Whether `jax.export` writes a node of this class, with this data of its own."""
    if cls is dict:
        return all(isinstance(key, str) for key in cast("list[object]", data))
    return cls in (tuple, list, type(None)) or cls in export_nodes.serialization_registry


def write_instead(other: Callable[[TreeDef], TreeDef]) -> None:
    """Has `jax.export` write another definition in the place of each that it comes to.

    It asks for the names and data of nodes that are registered, which nobody can do for dicts, and refuses the rest.
    """
    try:
        from jax._src.export import serialization as export_writer
    except ImportError:  # flatbuffers is no requirement of JAX's; without it nothing is written
        return
    write = export_writer._serialize_pytreedef

    @functools.wraps(write)
    def instead(builder: Any, definition: Any) -> Any:
        return write(builder, other(definition))

    # It calls itself by this name for the children.
    export_writer._serialize_pytreedef = instead


def register_dispatched_node(
    cls: type,
    flatten: Callable[[N], tuple[Iterable[PyTree], object]],
    unflatten: Callable[[Any, Any], N],
    flatten_with_keys: Callable[[N], tuple[Iterable[tuple[object, PyTree]], object]],
    pack: Callable[[N], tuple[Iterable[PyTree], object]],
    unpack: Callable[[Any, Any], N],
) -> None:
    """`jax.tree_util.register_pytree_with_keys` with another pair of functions for calls that `jit` has compiled.

    Such a call asks only for the leaves in order, for something to compare, and for its output made of the leaves that
    come back. So `pack` may give the leaves of a whole tree at once, where `flatten` gives a level.
    """
    if not has_dispatch_registry():
        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
        return
    for registry in private_trees._all_registries:
        if registry is private_trees.dispatch_registry:
            registry.register_node(cls, pack, unpack)
        else:
            registry.register_node(cls, flatten, unflatten, flatten_with_keys)
    private_trees._registry[cls] = private_trees._RegistryEntry(flatten, unflatten)


def has_dispatch_registry() -> bool:
    """Whether this JAX takes calls that are compiled apart by a registry of its own; without it they are slower."""
    return all(
        hasattr(private_trees, name) for name in ("_all_registries", "dispatch_registry", "_registry", "_RegistryEntry")
    )


def traced_from(tracer: Tracer[Any], values: Sequence[object]) -> list[int]:
    """The positions of the values that a tracer was computed from, among arguments of the trace that it belongs to.

    JAX tells it in the text of its errors alone, by the names that its own caller's arguments have.
    """
    found = [i for i, value in enumerate(values) if value is tracer]
    if found:
        return found
    innermost, inner = _innermost(tracer), [_innermost(value) for value in values]
    frame = getattr(getattr(innermost, "_trace", None), "frame", None)
    if frame is None:
        return []
    positions, _ = frame.find_progenitors(innermost)
    variables = [frame.invars[position] for position in positions or ()]
    of_trace = {i: v.val for i, v in enumerate(inner) if getattr(v, "_trace", None) is innermost._trace}
    return [i for i, variable in of_trace.items() if any(variable is other for other in variables)]


def _innermost(value: object) -> Any:
    """What a tracer of `vmap` or of a derivative stands for in the trace that is being staged, if there is one."""
    while (trace := getattr(value, "_trace", None)) is not None and not hasattr(trace, "frame"):
        value = getattr(value, "val", getattr(value, "primal", None))
    return value


def whole_tracebacks() -> AbstractContextManager[None]:
    """JAX's errors keep their tracebacks as they are, in this thread.

    JAX takes its own frames out, with a look at the file system for each one. Who raises thousands of errors and shows
    none of them spends half of the time there.
    """
    return traceback_filtering("off")
