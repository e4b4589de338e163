"""JAX still has the names that weft's lints go by: a program for each, traced, and looked through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir
from weft.core.edge import names

X = jnp.ones((2, 3))

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


@pytest.mark.parametrize("name", sorted(names.ELEMENTWISE | names.UNARY))
def test_a_primitive_has_the_name_that_the_lints_know(name: str):
    known = {primitive.name for primitive in mlir._lowerings if isinstance(primitive, Primitive)}
    assert name in known
