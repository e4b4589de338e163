"""The edge to JAX: functions that weft needs and for which JAX has no stable public API, each with its reason.

Only this file, `_tracers.py` and `_nodes.py` import `jax._src`. Arguments and results of the functions here have JAX's
own types (`ClosedJaxpr`, `JaxprEqn`, `jax.Array`: a tracer is one too), though much of JAX's inside is untyped. The
tests of the modules that use a name fail loudly when JAX changes it.
"""

# JAX annotates in part, and what it leaves out is unknown to a strict checker; here, and nowhere else, that is taken.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend import core
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var, primitives
from jax.typing import ArrayLike
from weft.core.edge.moved import MissingNameError, Names
from weft.core.edge.trees import PyTree

_SOWING = "what `capture` and `debug_successors` build on"
_lu = Names("jax.extend.linear_util", _SOWING, "wrap_init")
_source_info = Names("jax.extend.source_info_util", _SOWING, "current_name_stack", "user_context")
_core = Names("jax.extend.core", _SOWING, "jaxpr_as_fun")
_calls = Names("jax.extend.core.primitives", _SOWING, "call_p", "closed_call_p")
_ad = Names(
    "jax.interpreters.ad", _SOWING, "Zero", "add_jaxvals", "primitive_jvps", "primitive_transposes", "zeros_like_aval"
)
_batching = Names("jax.interpreters.batching", _SOWING, "bdim_at_front", "broadcast", "fancy_primitive_batchers")
_mlir = Names("jax.interpreters.mlir", _SOWING, "register_lowering")
_partial_eval = Names("jax.interpreters.partial_eval", _SOWING, "dce_jaxpr", "trace_to_jaxpr_dynamic")

T = TypeVar("T")
V = TypeVar("V")
C = TypeVar("C", covariant=True)

# A jaxpr with its constants.
# floor: since JAX 0.11 it is another name for `Jaxpr`, and JAX's type stubs no longer have it.
if TYPE_CHECKING:
    ClosedJaxpr = Jaxpr
else:
    ClosedJaxpr = getattr(core, "ClosedJaxpr", Jaxpr)

Atom = Var | Literal
AnyJaxpr = Jaxpr | ClosedJaxpr
J = TypeVar("J", bound=AnyJaxpr)
# An equation's parameters, which are different for each primitive.
Params = dict[str, Any]
Tangent = Any  # an array, or JAX's symbolic zero
# How a primitive is batched: (axis, values, their mapped axes, **params) -> (values, their mapped axes).
Batch = Callable[..., tuple[Sequence[jax.Array], Sequence[int | None]]]


class Primitive(Protocol):
    """The methods of a `jax.extend.core.Primitive` that weft uses; JAX does not annotate them."""

    multiple_results: bool

    def bind(self, *values: object, **params: object) -> Any: ...

    def get_bind_params(self, params: Params, /) -> Params: ...


class Axis(Protocol):
    """The mapped axis, as JAX passes it to a batching rule."""

    @property
    def name(self) -> object: ...

    @property
    def size(self) -> int: ...

    @property
    def explicit_mesh_axis(self) -> object: ...


def new_primitive(name: str, *, multiple_results: bool = False) -> Primitive:
    """A primitive without rules."""
    primitive = core.Primitive(name)
    primitive.multiple_results = multiple_results
    return primitive


# JAX's own functions and primitives, with the types that its documentation gives them.
make_jaxpr: Callable[[Callable[..., PyTree]], Callable[..., ClosedJaxpr]] = jax.make_jaxpr
asarray: Callable[[object], jax.Array] = jnp.asarray

jit_p: Primitive = primitives.jit_p
remat_p: Primitive = primitives.remat_p
scan_p: Primitive = primitives.scan_p
cond_p: Primitive = primitives.cond_p
while_p: Primitive = primitives.while_p
custom_jvp_call_p: Primitive = primitives.custom_jvp_call_p
custom_vjp_call_p: Primitive = primitives.custom_vjp_call_p


def add(value: ArrayLike, offset: ArrayLike) -> jax.Array:
    """The sum of two values of one type."""
    return _ad.add_jaxvals(value, offset)


def call_primitives() -> list[Primitive]:
    """The primitives that do nothing but call their `call_jaxpr`, of those that this JAX has."""
    return [getattr(_calls, name) for name in ("call_p", "closed_call_p") if _calls.has(name)]


# ---- jaxprs ---------------------------------------------------------------------------------------------------------


def trace(fun: Callable[..., Sequence[jax.Array]], avals: Sequence[Any], *, like: ClosedJaxpr) -> ClosedJaxpr:
    """The closed jaxpr of a function of flat arguments; errors call it by the name of the closed jaxpr `like`.

    Unlike `jax.make_jaxpr` it takes avals, and keeps their weak types and mesh axes.
    """
    debug_info = like.jaxpr.debug_info.with_unknown_names()
    jaxpr, _, consts = _partial_eval.trace_to_jaxpr_dynamic(_lu.wrap_init(fun, debug_info=debug_info), avals)
    return ClosedJaxpr(jaxpr, consts)


def close(jaxpr: AnyJaxpr) -> ClosedJaxpr:
    """A closed jaxpr, from a closed one or from an open one without constants."""
    return jaxpr if is_closed(jaxpr) else ClosedJaxpr(jaxpr, ())


def is_closed(jaxpr: AnyJaxpr) -> bool:
    """Whether a jaxpr has its constants with it."""
    return isinstance(cast(object, jaxpr), ClosedJaxpr)


def replaced(jaxpr: Jaxpr, **parts: Sequence[object]) -> Jaxpr:
    """A jaxpr with other equations, inputs or outputs."""
    return jaxpr.replace(**parts)


def consts_as_inputs(closed: ClosedJaxpr) -> tuple[Jaxpr, list[jax.Array]]:
    """An open jaxpr whose leading inputs are the constants, and the constants."""
    jaxpr = closed.jaxpr
    return replaced(jaxpr, constvars=[], invars=[*jaxpr.constvars, *jaxpr.invars]), list(closed.consts)


def run(closed: ClosedJaxpr, args: Sequence[jax.Array]) -> list[jax.Array]:
    """Evaluates a closed jaxpr."""
    return list(_core.jaxpr_as_fun(closed)(*args))


def split_outputs(
    closed: ClosedJaxpr, at: int
) -> tuple[Callable[..., list[jax.Array]], Callable[..., list[jax.Array]]]:
    """Two functions of one list of arguments, for the outputs before and after a position, without dead code."""

    def keeping(used: Sequence[bool]) -> Callable[..., list[jax.Array]]:
        jaxpr, _ = _partial_eval.dce_jaxpr(closed.jaxpr, list(used), True)
        return functools.partial(run, ClosedJaxpr(jaxpr, closed.consts))

    before = [i < at for i in range(len(closed.out_avals))]
    return keeping(before), keeping([not used for used in before])


def evaluate(
    jaxpr: Jaxpr,
    consts: Sequence[jax.Array],
    args: Sequence[jax.Array],
    evaluate_equation: Callable[[JaxprEqn, list[jax.Array]], Sequence[jax.Array]],
) -> list[jax.Array]:
    """Runs a jaxpr, each equation by `evaluate_equation`; `jax.core.eval_jaxpr` can only bind equations."""
    env: dict[Var, jax.Array] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
    last_reader = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if not is_literal(v)}
    outputs = {v for v in jaxpr.outvars if not is_literal(v)}

    def read(atom: Atom) -> jax.Array:
        return atom.val if isinstance(atom, Literal) else env[atom]

    for i, eqn in enumerate(jaxpr.eqns):
        with _equation_context(eqn):
            outs = evaluate_equation(eqn, [read(atom) for atom in eqn.invars])
        env.update(zip(eqn.outvars, outs, strict=True))
        # Values that no later equation reads are freed at once: outside of jit they are real buffers, which would all
        # stay alive until the end of the program.
        for var in {v for v in eqn.invars if isinstance(v, Var)} - outputs:
            if last_reader[var] == i:
                del env[var]
    return [read(atom) for atom in jaxpr.outvars]


def bind_equation(eqn: JaxprEqn, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """Runs an equation as JAX does."""
    outs = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return outs if eqn.primitive.multiple_results else [outs]


def has_derivative(name: str) -> bool:
    """Whether a primitive of this name has a rule for its derivative."""
    return any(primitive.name == name for primitive in _ad.primitive_jvps)


def lines_of(eqn: JaxprEqn) -> list[tuple[str, str, int, int, int]]:
    """Where an equation was traced, innermost first: (file, function, line, first column, end column).

    The columns are 0 if the expression goes over several lines.
    """
    traceback: Any = eqn.source_info.traceback
    if traceback is None:
        return []
    codes, instructions = traceback.raw_frames()
    places = [traceback.code_addr2location(*frame) for frame in zip(codes, instructions, strict=True)]
    return [
        (code.co_filename, code.co_name, line, *cast("tuple[int, int]", (column, end) if last == line else (0, 0)))
        for code, (line, column, last, end) in zip(codes, places, strict=True)
    ]


def scopes_of(eqn: JaxprEqn) -> list[tuple[bool, str]]:
    """The name scopes and transforms that an equation was traced in, outermost first: (is a transform, name)."""
    return [(type(part).__name__ == "Transform", part.name) for part in eqn.source_info.name_stack.stack]


def is_literal(atom: Atom) -> TypeGuard[Literal]:
    """Whether an operand of an equation is a constant that is written into it, and no variable."""
    return isinstance(atom, core.Literal)


@contextlib.contextmanager
def _equation_context(eqn: JaxprEqn) -> Generator[None]:
    # The equation runs under the name scopes, source location and settings that it was traced under: otherwise a
    # profile and an error would show the line of the interpreter here.
    names = _source_info.current_name_stack() + eqn.source_info.name_stack
    with _source_info.user_context(eqn.source_info.traceback, name_stack=names), eqn.ctx.manager:
        yield


def strong_type_of(value: object) -> ShapedArray:
    """The aval of a value, without a weak type."""
    return jax.typeof(value).update(weak_type=False)


def zeros(aval: ShapedArray, length: int | None = None) -> jax.Array:
    """Zeros of an aval, with a leading axis if there is a length; unlike `jnp.zeros`, varying over its mesh axes."""
    # `zeros_like_aval` of a key's aval returns the zero of its tangent, which is no key.
    extended = jnp.issubdtype(aval.dtype, jax.dtypes.extended)
    value = jax.lax.full(aval.shape, 0, aval.dtype) if extended else _ad.zeros_like_aval(aval)
    return value if length is None else _batching.broadcast(value, length, 0, None)


def remember_per_jaxpr(compute: Callable[[J], V]) -> Callable[[J], V]:
    """Caches a function of a jaxpr, open or closed, as long as the jaxpr lives: JAX never mutates a jaxpr."""
    answers: weakref.WeakKeyDictionary[AnyJaxpr, V] = weakref.WeakKeyDictionary()
    lock = threading.Lock()

    def remembered(jaxpr: J) -> V:
        # An open jaxpr, such as remat's, is wrapped into a new closed one at each use, so the open one is the key. Not
        # if it has constants, which belong to the closed jaxpr.
        key = jaxpr.jaxpr if is_closed(jaxpr) and not jaxpr.consts else jaxpr
        with lock:
            answer = answers.get(key)
        if answer is None:
            answer = compute(jaxpr)
            with lock:
                answers[key] = answer
        return answer

    return remembered


# ---- primitives -----------------------------------------------------------------------------------------------------


def define_identity(
    primitive: Primitive, *, batch: Batch, on_tangents: Callable[..., Sequence[jax.Array | None]] | None = None
) -> None:
    """Gives a primitive of several operands the rules of the identity.

    Tangents and cotangents do not pass through it, unless `on_tangents(tangents, **params)` replaces some of either; a
    symbolic zero is `None` there.
    """

    def identity(*values: V, **_: object) -> list[V]:
        return list(values)

    def jvp(
        primals: Sequence[jax.Array], tangents: Sequence[Tangent], **params: object
    ) -> tuple[Sequence[jax.Array], Sequence[Tangent]]:
        return primitive.bind(*primals, **params), passed(tangents, params)

    def passed(tangents: Sequence[Tangent], params: Params) -> Sequence[Tangent]:
        if on_tangents is None:
            return tangents
        without_zeros = [None if type(tangent) is _ad.Zero else tangent for tangent in tangents]
        changed = on_tangents(without_zeros, **params)
        return [old if new is None else new for old, new in zip(tangents, changed, strict=True)]

    def transpose(cotangents: Sequence[Tangent], *_: object, **params: object) -> Sequence[Tangent]:
        return passed(cotangents, params)

    def lower(_: object, *values: V, **__: object) -> Sequence[V]:
        return values

    ours = cast(core.Primitive, primitive)
    ours.def_impl(identity)
    ours.def_abstract_eval(identity)
    with _refused_when_bound(ours):
        _ad.primitive_jvps[ours] = jvp
        _ad.primitive_transposes[ours] = transpose
        _mlir.register_lowering(ours, lower)
        # The "fancy" table, because JAX calls its rules even if no operand is batched, and passes the size of the axis.
        _batching.fancy_primitive_batchers[ours] = batch


@contextlib.contextmanager
def _refused_when_bound(primitive: core.Primitive) -> Generator[None]:
    """If this JAX lacks a name that defines a primitive, the primitive raises when it is bound. To raise here would
    make `import weft` fail for programs that never bind it."""
    try:
        yield
    except MissingNameError as error:
        missing = error  # Python deletes the name `error` when the `except` block ends

        def refuse(*_: object, **__: object) -> Any:
            raise missing

        primitive.bind = refuse


def batched_at_front(axis: Axis, value: jax.Array, dim: int | None) -> jax.Array:
    """A value with its mapped axis in front, broadcast if it had none."""
    return _batching.bdim_at_front(value, dim, axis.size, axis.explicit_mesh_axis)


def key_impl_of(dtype: object) -> str:
    """The name of the implementation of a key dtype; JAX has a public function for arrays only."""
    return cast(Any, dtype)._impl.name
