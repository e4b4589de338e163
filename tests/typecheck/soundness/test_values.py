"""What is wrong for some value that is no size is never called proved, and its right twin never fails.

Each row is a function of what the row writes, which returns another shape where the row's condition holds; its right
twin returns the same shape there.
"""

from __future__ import annotations

import linecache
import sys
import types
from typing import Any

import pytest
from weft.typecheck import verify
from weft.typecheck.proofs.report import Verdict

BEFORE = """
import abc, dataclasses, enum, functools, math, re
from typing import Any, Callable, Literal, NamedTuple
import equinox as eqx, jax, jax.numpy as jnp, weft
from jaxtyping import Array, Bool, Float, Inexact, Int, Num, Shaped

TABLE = {"relu": 1, "glu": 2}
def is_glu(act): return act == "glu"
def matched(act):
    match act:
        case "glu" | "silu": return True
    return False
@functools.lru_cache
def cached(act): return act == "glu"
class Kind(enum.Enum):
    A = 1
    B = 2
class Config(NamedTuple):
    width: int = 4
    act: str = "relu"
@dataclasses.dataclass
class Options:
    act: str = "relu"
    deep: bool = False
    sizes: tuple[int, ...] = (1,)
class Inner(weft.Module):
    w: Float[Array, "d"]
    act: str = weft.static(default="relu")
    depth: int = weft.static(default=1)
    @property
    def is_gated(self): return self.act == "glu"
class Outer(weft.Module):
    inner: Inner
    scale: float = weft.static(default=1.0)
class Plain(eqx.Module):
    w: Float[Array, "d"]
    kind: Kind = eqx.field(static=True, default=Kind.A)
    def __init__(self, d: int, kind: Kind = Kind.A):
        self.w, self.kind = jnp.zeros(d), kind
class Shape(eqx.Module):
    @abc.abstractmethod
    def area(self) -> Float[Array, ""]: ...
class Disc(Shape):
    r: Float[Array, ""]
    def area(self) -> Float[Array, ""]: return self.r**2
class Square(Shape):
    a: Float[Array, ""]
    def area(self) -> Float[Array, ""]: return self.a**2
"""

# By name: the parameters after `x`, and the condition; with `x` itself where its annotation is what matters.
X = 'x: Float[Array, "n d"]'
ROWS: dict[str, tuple[str, str]] = {
    # texts
    "text": (f"{X}, act: str = 'relu'", "act == 'glu'"),
    "text_reflected": (f"{X}, act: str = 'relu'", "'relu' != act"),
    "text_among": (f"{X}, act: str = 'relu'", "act in ('glu', 'swiglu')"),
    "text_of_set": (f"{X}, act: str = 'relu'", "act in {'glu', 'swiglu'}"),
    "text_of_dict": (f"{X}, act: str = 'relu'", "TABLE[act] == 2"),
    "text_get": (f"{X}, act: str = 'relu'", "TABLE.get(act, 3) == 3"),
    "text_begins": (f"{X}, act: str = 'relu'", "act.startswith('g')"),
    "text_ends": (f"{X}, act: str = 'relu'", "act.endswith(('glu', 'x'))"),
    "text_inside": (f"{X}, act: str = 'relu'", "'lu' not in act"),
    "text_of_text": (f"{X}, act: str = 'relu'", "act in 'glu swiglu'"),
    "text_upper": (f"{X}, act: str = 'relu'", "act.upper() == 'GLU'"),
    "text_matched": (f"{X}, act: str = 'relu'", "matched(act)"),
    "text_helper": (f"{X}, act: str = 'relu'", "is_glu(act)"),
    "text_cached": (f"{X}, act: str = 'relu'", "cached(act)"),
    "text_required": (f"{X}, act: str", "act == 'glu'"),
    "text_or_none": (f"{X}, act: str | None = None", "act == 'glu'"),
    "text_not_none": (f"{X}, act: str | None = None", "act is not None"),
    "text_named": (f"{X}, act: str = 'tanh'", "getattr(jnp, act) is jnp.abs"),
    "text_printed": (f"{X}, act: str = 'relu'", "f'{act}' == 'glu'"),
    "text_percent": (f"{X}, act: str = 'relu'", "'%s' % act == 'glu'"),
    "text_length": (f"{X}, act: str = 'relu'", "len(act) == 3"),
    "text_joined": (f"{X}, act: str = 'relu'", "''.join([act, 'x']) == 'glux'"),
    "text_added": (f"{X}, act: str = 'relu'", "'x' + act == 'xglu'"),
    "text_pattern": (f"{X}, act: str = 'relu'", "re.fullmatch('gl.', act) is not None"),
    "text_first": (f"{X}, act: str = 'relu'", "act[0] == 'g'"),
    "text_and_size": (f"{X}, act: str = 'relu'", "act == 'glu' and x.shape[0] == 3"),
    "two_texts": (f"{X}, a: str = 'x', b: str = 'y'", "a == 'u' and b == 'v'"),
    # integers and floats
    "whole": (f"{X}, k: int = 1", "k == 3"),
    "whole_order": (f"{X}, k: int = 1", "k > 7"),
    "whole_between": (f"{X}, k: int = 1", "3 < k < 5"),
    "whole_rest": (f"{X}, k: int = 1", "k % 7 == 3"),
    "whole_and_size": (f"{X}, k: int = 1", "k + x.shape[0] == 9"),
    "whole_above_size": (f"{X}, k: int = 1", "k > x.shape[0] + 5"),
    "whole_range": (f"{X}, k: int = 1", "sum(range(k)) > 5"),
    "whole_index": (f"{X}, k: int = 1", "(0, 0, 0, 1)[k] == 1"),
    "whole_truth": (f"{X}, k: int = 1", "not k"),
    "whole_negative": (f"{X}, k: int = 1", "k == -2"),
    "whole_of_set": (f"{X}, k: int = 1", "k in {4, 5}"),
    "whole_smallest": (f"{X}, k: int = 5", "min(k, 2) == k"),
    "whole_printed": (f"{X}, k: int = 1", "str(k) == '3'"),
    "whole_slice": (f"{X}, k: int = 1", "x[k - 1 :].shape != x.shape"),
    "whole_required": (f"{X}, k: int", "k % 7 == 3"),
    "real": (f"{X}, rate: float = 0.0", "rate > 0"),
    "real_between": (f"{X}, rate: float = 0.0", "0.25 < rate < 0.3"),
    "real_scaled": (f"{X}, rate: float = 0.0", "2 * rate > 1.5"),
    "real_rounded": (f"{X}, rate: float = 0.0", "int(rate) == 2"),
    "real_root": (f"{X}, rate: float = 1.0", "math.sqrt(rate) > 1.5"),
    "real_required": (f"{X}, rate: float", "rate == 0"),
    # what is listed
    "flag": (f"{X}, flag: bool = False", "flag"),
    "three_flags": (f"{X}, a: bool = False, b: bool = False, c: bool = False", "a and b and c"),
    "flag_or_none": (f"{X}, flag: bool | None = None", "flag is False"),
    "literal": (f"{X}, mode: Literal['a', 'b'] = 'a'", "mode == 'b'"),
    "literal_or_none": (f"{X}, mode: Literal['a', 'b'] | None = None", "mode == 'b'"),
    "enum": (f"{X}, kind: Kind = Kind.A", "kind is Kind.B"),
    "enum_or_none": (f"{X}, kind: Kind | None = None", "kind is Kind.B"),
    "flag_and_size": (f"{X}, flag: bool = False", "flag and x.shape[1] % 4 == 3"),
    # what stays as it is
    "callable": (f"{X}, f: Callable = jnp.tanh", "f is jnp.abs"),
    "tuple": (f"{X}, s: tuple[int, int] = (1, 1)", "s[0] == 2"),
    "dtype": (f"{X}, dtype: Any = jnp.float32", "dtype == jnp.bfloat16"),
    "unannotated": (f"{X}, k=1", "k == 2"),
    "unannotated_none": (f"{X}, k=None", "k is not None"),
    # fields
    "field": (f"{X}, m: Inner", "m.act == 'glu'"),
    "field_whole": (f"{X}, m: Inner", "m.depth > 2"),
    "field_property": (f"{X}, m: Inner", "m.is_gated"),
    "field_inside": (f"{X}, m: Outer", "m.inner.act == 'glu'"),
    "field_real": (f"{X}, m: Outer", "m.scale < 0"),
    "field_by_constructor": (f"{X}, m: Plain", "m.kind is Kind.B"),
    "field_of_tuple": (f"{X}, c: Config", "c.act == 'glu'"),
    "field_of_tuple_whole": (f"{X}, c: Config", "c.width == 5"),
    "field_of_dataclass": (f"{X}, c: Options", "c.act == 'glu'"),
    "field_flag": (f"{X}, c: Options", "c.deep"),
    "field_tuple": (f"{X}, c: Options", "len(c.sizes) == 3"),
    "field_by_name": (f"{X}, m: Inner", "getattr(m, 'a' + 'ct') == 'glu'"),
    "one_of_classes": (f"{X}, s: Shape", "isinstance(s, Square)"),
    # dtypes, axes, items
    "half": (X, "x.dtype == jnp.bfloat16"),
    "bytes": (X, "x.dtype.itemsize == 2"),
    "integers": (f'{X}, y: Num[Array, "n"]', "jnp.issubdtype(y.dtype, jnp.integer)"),
    "complex": (f'{X}, y: Inexact[Array, "n"]', "jnp.iscomplexobj(y)"),
    "bools": (f'{X}, y: Shaped[Array, "n"]', "y.dtype == bool"),
    "axes": (f'{X}, y: Float[Array, "*b"]', "y.ndim == 2"),
    "no_axes": (f'{X}, y: Float[Array, "*b"]', "y.ndim == 0"),
    "dots": (f'{X}, y: Float[Array, "... k"]', "y.ndim == 3"),
    "unlike_axes": (f'{X}, y: Float[Array, "*#b k"], z: Float[Array, "*#b k"]', "y.ndim != z.ndim"),
    "items": (f'{X}, ys: tuple[Float[Array, "k"], ...]', "len(ys) == 3"),
    "one_item": (f'{X}, ys: list[Float[Array, "k"]]', "len(ys) == 1"),
    "many": (f'{X}, *ys: Float[Array, "k"]', "len(ys) == 1"),
    "entries": (f'{X}, ys: dict[str, Float[Array, "k"]]', "len(ys) == 1"),
    "not_given": (f'{X}, y: Float[Array, "k"] | None = None', "y is None"),
    "neither_given": (f'{X}, y: Float[Array, "k"] | None = None, z: Float[Array, "k"] | None = None', "y is z is None"),
    "large": (X, "x.size > 1 << 20"),
    "many_bytes": (X, "x.nbytes >= 2**31"),
    "long": (X, "x.shape[0] > 10**7"),
}  # fmt: skip


def function_of(name: str, wrong: bool) -> Any:
    parameters, condition = ROWS[name]
    source = f"""{BEFORE}
def function({parameters}) -> Float[Array, "n d"]:
    return {"x.sum(-1)" if wrong else "x * 2"} if {condition} else x
"""
    file, module = f"<python-input {name} {wrong}>", types.ModuleType(f"of_{name}_{wrong}")
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    sys.modules[module.__name__] = module  # where the subclasses of an abstract class are looked for
    exec(compile(source, file, "exec", dont_inherit=True), vars(module))
    return vars(module)["function"]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", ROWS)
def test_what_is_wrong_for_some_value_is_not_called_proved(name: str):
    report = verify(function_of(name, wrong=True))
    assert report.verdict in (Verdict.FAILS, Verdict.HOLDS), report
    assert report.failures or report.assumptions or report.contracts[0].reason, "what is not known is said"


@pytest.mark.one_in(6)
@pytest.mark.parametrize("name", ROWS)
def test_the_right_twin_is_proved_or_holds(name: str):
    report = verify(function_of(name, wrong=False))
    assert report.verdict in (Verdict.PROVED, Verdict.HOLDS), report
