"""Random functions that return a wrong shape where a random condition on sizes holds: none of them is proved.

Whether a function is wrong is found out by calling it, abstractly, at many sizes.
"""

from __future__ import annotations

import itertools
import linecache
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jaxtyping import Array, Float
from weft.typecheck import verify
from weft.typecheck.proofs.report import Verdict

INTEGERS = st.recursive(
    st.one_of(st.sampled_from(["n", "m"]), st.integers(1, 6).map(str)),
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["{} + {}", "{} - {}", "{} * {}", "{} // {}", "{} % {}"]), inner, inner),
        st.tuples(
            st.sampled_from(["min({}, {})", "max({}, {})", "math.gcd({}, {})", "divmod({}, {})[0]"]), inner, inner
        ),
        st.tuples(st.sampled_from(["sorted(({}, {}, 3))[1]", "math.prod(({}, {}))", "sum(({}, {}))"]), inner, inner),
        st.tuples(st.sampled_from(["-{}", "abs({})", "{} ** 2", "{} >> 1", "{} & 3", "len(x[:{}])"]), inner),
        st.tuples(st.sampled_from(["math.ceil({} / 2)", "round({} / 4)", "int({} / 3)", "math.isqrt(abs({}))"]), inner),
    ).map(lambda parts: f"({parts[0].format(*parts[1:])})"),
    max_leaves=4,
)
# What a library makes of the sizes; `n` of elements, or less, or more.
ARRAYS = st.recursive(
    st.sampled_from(["x", "y", "z"]),
    lambda inner: st.one_of(
        st.tuples(
            st.sampled_from(["jnp.concatenate([{}, {}])", "jnp.convolve({}, {}, 'valid')", "{}[:, None] + {}"]),
            inner,
            inner,
        ),
        st.tuples(st.sampled_from(["{}[:3]", "{}[2:]", "{}[m // 2 : n]", "{}[::2]", "jnp.pad({}, (0, 2))"]), inner),
        st.tuples(
            st.sampled_from(["jnp.diff({})", "jnp.fft.rfft({}).real", "{}.reshape(-1, 2)", "jnp.repeat({}, 2)"]), inner
        ),
    ).map(lambda parts: parts[0].format(*(f"jnp.ravel({part})" for part in parts[1:]))),
    max_leaves=3,
)
SIZES_OF_ARRAYS = st.tuples(ARRAYS, st.sampled_from(["size", "shape[0]", "shape[-1]"])).map(
    lambda it: f"({it[0]}).{it[1]}"
)
COMPARED = st.one_of(INTEGERS, INTEGERS, SIZES_OF_ARRAYS)
CONDITIONS = st.recursive(
    st.tuples(COMPARED, st.sampled_from(["==", "!=", "<", "<=", "in {3, 6} or 1 =="]), INTEGERS).map(" ".join),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join).map("({})".format),
        inner.map("(not ({}))".format),
    ),
    max_leaves=3,
)


def function_of(condition: str) -> Callable[..., Any]:
    source = f"""def function(x: Float[Array, "n"], y: Float[Array, "m"], z: Float[Array, "n m"]) -> Float[Array, "n"]:
    n, m = x.shape[0], y.shape[0]
    return x[:1] if {condition} else x
"""
    file = f"<{condition}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names: dict[str, Any] = {"Float": Float, "Array": Array, "jnp": jnp, "np": np, "math": math}
    exec(compile(source, file, "exec"), names)
    return names["function"]


def sizes_that_break(function: Callable[..., Any], largest: int) -> Iterator[tuple[int, int]]:
    for n, m in itertools.product(range(2, largest), range(1, largest)):
        try:
            result = jax.eval_shape(
                function, *(jax.ShapeDtypeStruct(shape, "float32") for shape in ((n,), (m,), (n, m)))
            )
        except (ZeroDivisionError, TypeError, ValueError):
            continue
        if result.shape != (n,):
            yield n, m


@given(CONDITIONS)
@example("-(n // -m) > 3")
@example("len(x[:3]) == len(x[: (m if m == n else 1)])")
@example("math.ceil(n / 2) == 1")
@example("n != sorted((n, 6, len(x[:m])))[1]")
@example("(y[:, None] + jnp.ravel(z)).shape[-1] < 3")
@example("len(x[:0]) < n // m < math.ceil(n / 4) // len(x[:5])")
@example("jnp.diff(x).size == m and jnp.diff(x).size == 1")
@example("jnp.fft.rfft(jnp.ravel(jnp.outer(x, jnp.diff(y)))).shape[-1] < 2")
@settings(max_examples=60, derandomize=True)
def test_what_is_wrong_somewhere_is_not_proved(condition: str):
    _is_not_proved(condition, 8)


@pytest.mark.slow
@given(CONDITIONS)
@settings(max_examples=600, derandomize=True)
def test_what_is_wrong_somewhere_is_not_proved_of_many(condition: str):
    _is_not_proved(condition, 12)


def _is_not_proved(condition: str, largest: int):
    function = function_of(condition)
    (contract,) = verify(function).contracts
    if contract.verdict is Verdict.PROVED:
        assert list(sizes_that_break(function, largest)) == [], str(contract)
    elif contract.verdict is Verdict.HOLDS and not (contract.sampled or contract.reason):
        for n, m in sizes_that_break(function, largest):
            assert not all(is_met(words, n, m) for words in contract.assumptions), f"{contract}, and n={n}, m={m}"


def is_met(words: str, n: int, m: int) -> bool:
    """Whether a condition of a report is met: `m <= n or 3 divides n - 1`."""
    return any(eval(in_python(part), {"n": n, "m": m}) for part in words.split(" or "))


def in_python(words: str) -> str:
    for verb, operator in ((" divides ", "=="), (" does not divide ", "!=")):
        divisor, verb_there, dividend = words.partition(verb)
        if verb_there:
            return f"({dividend}) % ({divisor}) {operator} 0"
    return words.replace(" = ", " == ")
