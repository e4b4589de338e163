"""Random functions that return a wrong shape for some value that is no size: none of them is proved.

The right twin of none of them fails. A value is a text, an integer, a float, a flag, an item of a Literal or an Enum, a
dtype, a number of axes, or whether an array is given: as an argument, or as a field of a record. Whether a function is
wrong is found out from its condition.
"""

from __future__ import annotations

import itertools
import linecache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from weft.typecheck import verify
from weft.typecheck.proofs.report import Verdict

BEFORE = """
import enum
from typing import Literal
import jax.numpy as jnp, weft
from jaxtyping import Array, Float, Num
class Kind(enum.Enum):
    A = 1
    B = 2
TABLE = {"relu": 1, "glu": 2}
def helper(act, word): return act == word
"""
KNOWN: dict[str, Any] = {"__name__": __name__}
exec(compile(BEFORE, "<string>", "exec", dont_inherit=True), KNOWN)
Kind = KNOWN["Kind"]

WORDS = st.sampled_from(["'glu'", "'relu'", "'silu'", "''"])
WHOLE, REAL = st.integers(-1, 9).map(str), st.sampled_from(["0", "0.25", "0.5", "1", "1.5"])
TEMPLATES = {
    WORDS: """act == {}; {} != act; act in ({}, 'max'); helper(act, {}); act in {{{}, 'max'}}; act.startswith({}[:1]);
        {} in act; act.upper() == {}; note == {}; note is not None and note != {}""",
    WHOLE: """TABLE.get(act, 0) == {}; len(act) > {}; k == {}; k < {}; {} <= k; k != {}; k % 3 == {}; k + n == {};
        k in ({}, 7); k in {{{}, 7}}; k > n - {}; n == {}; x.shape[-1] == {}; x[k:].shape[0] > {}; len(range(k)) == {};
        x.ndim == {}""",
    REAL: "rate > {}; rate == {}; 0.1 < rate <= {}; 2 * rate < {}; int(rate) == {}",
    st.just(
        ""
    ): """bool(rate){}; flag{}; mode == 'b'{}; mode in {{'b', 'c'}}{}; kind is Kind.B{}; bool(k){}; other is None{};
        x.dtype == jnp.bfloat16{}; x.dtype.itemsize < 4{}; kind.value == 2{}; jnp.issubdtype(z.dtype, jnp.integer){};
        z.dtype == jnp.float32{}; note is None{}""",
}
ATOMS = st.one_of(
    st.tuples(st.sampled_from([one.strip() for one in templates.split(";")]), constants)
    for constants, templates in TEMPLATES.items()
).map(lambda parts: parts[0].format(parts[1]))
CONDITIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "and", "or"]), inner).map(" ".join).map("({})".format),
        inner.map("(not ({}))".format),
    ),
    max_leaves=3,
)

FIELDS = """act: str = "relu"
k: int = 1
rate: float = 0.5
flag: bool = False
mode: Literal["a", "b", "c"] = "a"
kind: Kind = Kind.A
note: str | None = None"""
NAMES = [line.partition(":")[0] for line in FIELDS.splitlines()]
ARRAYS = 'x: Float[Array, "n *b"], z: Num[Array, "n"]'


def function_of(result: str, *, is_record: bool) -> Any:
    """A function, or the class of a record with one method."""
    if is_record:
        fields = "\n    ".join(line.replace(" = ", " = weft.static(default=") + ")" for line in FIELDS.splitlines())
        names = "; ".join(f"{name} = self.{name}" for name in NAMES)
        source = f"""class Function(weft.Module):
    {fields}
    def __call__(self, {ARRAYS}, other: Float[Array, "n"] | None = None) -> Float[Array, "n *b"]:
        {names}; n = x.shape[0]
        return {result}
"""
    else:
        parameters = ", ".join(['other: Float[Array, "n"] | None = None', *FIELDS.splitlines()])
        source = f"""def Function({ARRAYS}, {parameters}) -> Float[Array, "n *b"]:
    n = x.shape[0]
    return {result}
"""
    file = f"<python-input {source}>"  # as at a prompt, so that it is the user's
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    names = dict(KNOWN)
    exec(compile(source, file, "exec", dont_inherit=True), names)
    return names["Function"]


VALUES: dict[str, tuple[Any, ...]] = {
    "act": ("relu", "glu", "silu", "", "max", "s", "GLU", "rgluu"),
    "k": (1, -2, 0, 2, 3, 4, 6, 7, 8, 9, 10),
    "rate": (0.5, 0.0, -1.0, 0.2, 0.25, 0.3, 0.6, 1.0, 1.2, 1.5, 2.0),
    "flag": (False, True),
    "mode": ("a", "b", "c"),
    "kind": tuple(Kind),
    "note": (None, "glu", "relu", "silu", "", "x"),
    "other": (None, 0),
    "x": tuple(
        np.empty((n, *(2,) * axes), dtype)
        for n in (1, 2, 3, 4, 6, 8, 9)
        for axes in range(3)
        for dtype in (jnp.float32, jnp.bfloat16)
    ),
    "z": tuple(np.empty(2, dtype) for dtype in ("float32", "int32", "complex64")),
}


def is_wrong_somewhere(condition: str) -> bool:
    code = compile(condition, "<condition>", "eval")
    used = [name for name in VALUES if name in code.co_names or (name == "x" and "n" in code.co_names)]
    there = KNOWN | {name: values[0] for name, values in VALUES.items()}
    for values in itertools.product(*(VALUES[name] for name in used)):
        there.update(zip(used, values, strict=True))
        there["n"] = there["x"].shape[0]
        if eval(code, there):
            return True
    return False


@given(CONDITIONS, st.booleans())
@example("(act == 'glu' and k == 3)", True)
@example("note == 'glu'", False)
@settings(max_examples=60, derandomize=True, deadline=None)
@pytest.mark.slow
def test_what_is_wrong_for_some_value_is_not_proved(condition: str, is_record: bool):
    _is_judged(condition, is_record)


@pytest.mark.slow
@given(CONDITIONS, st.booleans())
@settings(max_examples=100, derandomize=True, deadline=None)
def test_what_is_wrong_for_some_value_is_not_proved_of_many(condition: str, is_record: bool):
    _is_judged(condition, is_record)


def _is_judged(condition: str, is_record: bool):
    # Where it is wrong it has an axis more.
    report = verify(function_of(f"x[None] if {condition} else x", is_record=is_record))
    if report.verdict is Verdict.PROVED:
        assert not is_wrong_somewhere(condition), f"{condition}: {report}"
    if report.verdict is Verdict.FAILS:
        assert is_wrong_somewhere(condition), f"{condition}: {report}"
    right = verify(function_of(f"x * 2 if {condition} else x", is_record=is_record))
    assert right.verdict in (Verdict.PROVED, Verdict.HOLDS), f"{condition}: {right}"
