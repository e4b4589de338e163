"""JAX still has the names and words that weft goes by: a program for each, traced and looked through, or an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir
from weft.core.edge import _tracers, names

X = jnp.ones((2, 3))
SCALED = jax.custom_vjp(jnp.multiply, nondiff_argnums=(1,))
SCALED.defvjp(lambda x, by: (x * by, None), lambda by, _, cotangent: (cotangent * by,))
SHAPE = jax.ShapeDtypeStruct((), "float32")
TEXTS = np.array(["a", "b"])

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "norm": lambda x: jnp.linalg.norm(x, axis=1, keepdims=True),
    "logsumexp": lambda x: jax.nn.logsumexp(x, 1, keepdims=True),
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
    "mean": lambda x: jnp.mean(x, 1, keepdims=True),
    "sum": lambda x: jnp.sum(x, 1, keepdims=True),
    "max": lambda x: jnp.max(x, 1, keepdims=True),
    "min": lambda x: jnp.min(x, 1, keepdims=True),
    "prod": lambda x: jnp.prod(x, 1, keepdims=True),
    "var": lambda x: jnp.var(x, 1, keepdims=True),
    "std": lambda x: jnp.std(x, 1, keepdims=True),
    "median": lambda x: jnp.median(x, 1, keepdims=True),
    "expand_dims": lambda x: jnp.expand_dims(x, 0),
    "rewriting_take": lambda x: x[:, None],
    "atleast_1d": lambda x: jnp.atleast_1d(x[0, 0]),
    "atleast_2d": lambda x: jnp.atleast_2d(x[0]),
    "meshgrid": lambda x: jnp.meshgrid(x[0], x[1]),
    "reshape": lambda x: jnp.reshape(x, (3, 2)),
    "_reshape": lambda x: x.reshape(3, 2),
}


def equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for value in eqn.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def frames(function: Callable[[Any], Any]) -> Iterator[tuple[str, str]]:
    for eqn in equations(jax.make_jaxpr(function)(X).jaxpr):
        for frame in eqn.source_info.traceback.frames:
            yield frame.file_name, frame.function_name


def test_there_is_a_program_for_each_name():
    assert FUNCTIONS.keys() == names.KEEPING | names.ASKING | names.RESHAPING


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_called_what_the_lints_look_for(name: str):
    assert name in {function.rpartition(".")[2] for _, function in frames(FUNCTIONS[name])}


@pytest.mark.parametrize(("name", "part"), [("sum", names.REDUCTIONS_FILE), ("rewriting_take", names.INDEXING_FILE)])
def test_a_file_is_called_what_the_lints_look_for(name: str, part: str):
    assert any(part in file for file, _ in frames(FUNCTIONS[name]))


def test_methods_are_passed_on_by_functions_that_begin_alike():
    assert any(function.startswith(names.FORWARDING) for _, function in frames(FUNCTIONS["_reshape"]))


@pytest.mark.parametrize(("segments", "expected"), [(jnp.ones((3,), int), True), (jnp.ones((), int), False)])
def test_an_integer_that_is_asked_of_an_array_with_axes_is_told_from_one_of_a_number(segments: Any, expected: bool):
    # JAX cuts the frame that knows it off otherwise.
    with _tracers.whole_tracebacks(), pytest.raises(jax.errors.ConcretizationTypeError) as caught:
        jax.jit(lambda x, n: jax.ops.segment_sum(x, jnp.zeros(2, int), num_segments=n))(X, segments)
    assert _tracers.asks_for_one_integer(caught.value) == expected


@pytest.mark.parametrize("name", sorted(names.ELEMENTWISE | names.UNARY))
def test_a_primitive_has_the_name_that_the_lints_know(name: str):
    known = {primitive.name for primitive in mlir._lowerings if isinstance(primitive, Primitive)}
    assert name in known


# ---- the words of errors: where JAX says another thing, weft's better error would fall silent ------------------------


def escaped() -> Any:
    tracers: list[Any] = []
    jax.jit(lambda x: tracers.append(x) or x)(X)
    return tracers[0]


def use_deleted() -> None:
    gone = X + 1
    gone.delete()
    jax.jit(lambda x: x + 1)(gone)


def donate_twice() -> None:
    same = X + 1
    jax.jit(lambda x, y: (x + 1, y + 1), donate_argnums=(0, 1))(same, same)


def contract_over_a_mesh() -> None:
    mesh = jax.make_mesh((2,), ("data",), (jax.sharding.AxisType.Explicit,), devices=jax.devices()[:2])
    x = jax.device_put(jnp.ones((2, 2)), jax.NamedSharding(mesh, jax.P("data")))
    try:
        jax.jit(jax.grad(lambda w, x: (x @ w).sum()))(jnp.ones((2, 2)), x)
    except Exception as error:
        raise ValueError(type(error).__name__) from error


def lie_unfit() -> None:
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    jax.jit(jnp.sin, out_shardings=jax.NamedSharding(mesh, jax.P(None, "data")))(jnp.ones(2))


def unbounded() -> None:
    jax.grad(lambda x: jax.lax.while_loop(lambda y: y < 3, lambda y: x + y, x))(1.0)


def convolve_unlike() -> None:
    jax.lax.conv(X[None], X, (1,), "SAME")


def fail_in_a_program() -> None:
    jax.jit(lambda x: eqx.error_if(x, x > 0, "too large"))(jnp.ones(()))


def test_jax_logs_what_a_callback_raised_in_these_words(caplog: pytest.LogCaptureFixture):
    def fails(_: Any) -> Any:
        raise ValueError("of the callback")

    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(fails, x, x))(X))
    assert (names.LOGGER, names.LOGGED) in {(record.name, record.msg) for record in caplog.records}


WORDS: dict[str, tuple[type[Exception], str, Callable[[], Any]]] = {
    "an escaped tracer is hashed": (TypeError, names.A_TRACER, lambda: hash(escaped())),
    "an escaped tracer is a shape": (TypeError, names.A_TRACER, lambda: jnp.zeros(escaped())),
    "an array is gone": (RuntimeError, names.DELETED, use_deleted),
    "an array is given away twice": (jax.errors.JaxRuntimeError, names.DONATED_TWICE, donate_twice),
    "a mesh is known from some arguments alone": (ValueError, names.CLASS_OF_SHARDINGS, contract_over_a_mesh),
    "a tracer is not differentiated": (
        jax.errors.UnexpectedTracerError,
        names.NOT_DIFFERENTIATED,
        lambda: jax.eval_shape(SCALED, 3.0, 2.0),
    ),
    "a mesh is set in a program": (
        ValueError,
        names.OUTSIDE_ONLY,
        lambda: jax.eval_shape(lambda x: jax.set_mesh(jax.make_mesh((1,), ("i",))), X),
    ),
    "a shape is traced": (TypeError, names.TRACED_SHAPE, lambda: jax.jit(jnp.zeros)(3)),
    "texts are given to a program": (TypeError, names.NOT_ABSTRACT, lambda: jax.jit(jnp.sin)(TEXTS)),
    "texts are mapped": (TypeError, names.NOT_OF_JAX, lambda: jax.vmap(jnp.sin)(TEXTS)),
    "a shape is computed with": (
        TypeError,
        names.NO_VALUE,
        lambda: jax.jit(jnp.sin)(jax.ShapeDtypeStruct((), "float32")),
    ),
    "a sharding has more axes than its array": (ValueError, names.UNFIT_SHARDING, lie_unfit),
    "a loop has no bound": (ValueError, names.NO_REVERSE, unbounded),
    "an axis is not there": (NameError, f"{names.UNBOUND_AXIS}rows", lambda: jax.lax.psum(1.0, "rows")),
    "arrays are of unlike numbers of axes": (TypeError, f"{names.UNLIKE_RANKS}3 and 2", convolve_unlike),
    "equinox's error": (jax.errors.JaxRuntimeError, f"{names.OF_EQUINOX}too large\n", fail_in_a_program),
}


@pytest.mark.parametrize("case", WORDS)
def test_an_error_is_said_in_the_words_that_weft_looks_for(case: str):
    kind, words, provoke = WORDS[case]
    with pytest.raises(kind) as caught:
        provoke()
    assert words in (str(caught.value).lower() if words == names.A_TRACER else str(caught.value))


def test_the_message_of_equinox_has_the_end_that_weft_cuts_it_at():
    with pytest.raises(jax.errors.JaxRuntimeError) as caught:
        fail_in_a_program()
    rest = str(caught.value).partition(names.OF_EQUINOX)[2]
    assert rest.partition(names.END_OF_EQUINOX)[0].strip() == "too large"


def test_equinox_wraps_leaves_while_it_replaces_some_in_a_class_of_the_module_that_weft_looks_for():
    seen: list[Any] = []
    eqx.tree_at(lambda pair: seen.append(pair[0]) or pair[0], (X, X), X)
    assert names.TREE_AT in {type(one).__module__ for one in seen}
