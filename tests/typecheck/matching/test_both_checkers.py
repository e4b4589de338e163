"""Every form of annotation means the same at run time and in a proof.

The run-time checker looks at arrays as they are, a proof at abstract ones, whose sizes may know themselves. Each row
below is one annotation and one value, made in three *worlds*: concrete, abstract and known. Both checkers must come to
one verdict, and bind the same names to the same sizes. Where they differ by decision (see `policies`), a test says so.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, Self, TypedDict

import jax
import jax.numpy as jnp
import pytest
import typing_extensions
from jaxtyping import Array, Float, Float32, Int, Key, PyTree, Shaped
from weft import Module, nnx
from weft.errors import AnnotationError
from weft.typecheck import Batched, Dims, mode
from weft.typecheck.language.reading import Scope, read
from weft.typecheck.matching.arrays import settle
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot
from weft.typecheck.matching.compiling import check_of
from weft.typecheck.matching.policies import PROOF, RUN_TIME, Policy
from weft.typecheck.sizes.dim import Dim
from weft.typecheck.sizes.space import Space

from ..layers import Linear


@dataclass(frozen=True)
class World:
    """How values are made: of which sizes, and by what; `lead` is in front of every array."""

    n: Any
    m: Any
    make: Callable[[tuple[Any, ...], Any], Any]
    lead: tuple[Any, ...] = ()

    def f(self, *shape: Any) -> Any:
        return self.make((*self.lead, *shape), "float32")

    def i(self, *shape: Any) -> Any:
        return self.make((*self.lead, *shape), "int32")

    def key(self) -> Any:
        return jax.random.key(0) if self.make is concrete_array else jax.eval_shape(jax.random.key, 0)

    def linear(self, out: Any, inside: Any) -> Linear:
        return Linear(self.f(out, inside), self.f(out))


def concrete_array(shape: tuple[Any, ...], dtype: Any) -> Array:
    return jnp.ones(shape, dtype)


N, M = 3, 5
CONCRETE = World(N, M, concrete_array)
ABSTRACT = World(N, M, jax.ShapeDtypeStruct)
_space = Space({"n": N, "m": M})
KNOWN = World(Dim(_space, {("n",): 1}), Dim(_space, {("m",): 1}), jax.ShapeDtypeStruct)


class Pair(NamedTuple):
    x: Float[Array, "n"]
    y: Float[Array, "m"]


class Sum(Pair):
    """A pair that declares no field of its own."""

    def total(self) -> Any:
        return self.x.sum() + self.y.sum()


class Rate(TypedDict):
    rate: Float[Array, "n"]


class Options(Rate, total=False):
    other: Float[Array, "m"]


@dataclasses.dataclass
class Box:
    inside: Float[Array, "n"]
    width: int = 3


@dataclasses.dataclass
class Holder:
    box: Box
    pair: Pair | None = None


jax.tree_util.register_dataclass(Box, ["inside"], ["width"])


class Counted(Module):
    n: int
    weight: Float[Array, "n m"]


class Tower(Module):
    first: Annotated[Linear, Dims("out=width")]
    last: Annotated[Linear, Dims("in=width out=2*width")]


class Dense(nnx.Module):
    kernel: nnx.Param[Float[Array, "inside out"]]

    def __init__(self, kernel: Any):
        self.kernel = nnx.Param(kernel)


T = typing.TypeVar("T", bound=Float[Array, "n"])
Width = typing.NewType("Width", int)
Tree = dict[str, "Tree | Float[Array, 'n']"]
Aliased = typing_extensions.TypeAliasType("Aliased", Float[Array, "n"])


@dataclass(frozen=True)
class Row:
    hint: Any
    value: Callable[[World], Any]
    fits: bool | None  # None: whatever both say
    shares: bool = False  # it holds plain records, whose names are the caller's in a proof only
    label: str = ""

    def __str__(self) -> str:
        return self.label or f"{read(self.hint, SCOPE)} {'fits' if self.fits else 'refused'}"


SCOPE = Scope(globals(), {}, Linear)

ROWS = [
    # arrays
    Row(Float[Array, "n m"], lambda w: w.f(w.n, w.m), True),
    Row(Float[Array, "n n"], lambda w: w.f(w.n, w.n), True),
    Row(Float[Array, "n n"], lambda w: w.f(w.n, w.m), False),
    Row(Float[Array, "n"], lambda w: w.f(w.n, w.n), False, label="a rank too much"),
    Row(Float[Array, "n"], lambda w: w.f(), False, label="a rank too few"),
    Row(Float[Array, "n"], lambda w: w.i(w.n), False, label="another dtype"),
    Row(Float[Array, "n"], lambda w: "text", False, label="no array"),
    Row(Float[Array, "n"], lambda w: None, False, label="None for an array"),
    Row(Float[Array, "n"], lambda w: [w.f(w.n)], False, label="a list for an array"),
    Row(Float[Array, "*b n"], lambda w: w.f(w.n, w.m, w.n), True),
    Row(Float[Array, "... n"], lambda w: w.f(w.n, w.m), True),
    Row(Float[Array, "#n m"], lambda w: w.f(1, w.m), True),
    Row(Float[Array, "_ m"], lambda w: w.f(w.n, w.m), True),
    Row(Float[Array, "n 2*n"], lambda w: w.f(w.n, 2 * w.n), True),
    Row(Float[Array, "n 2*n"], lambda w: w.f(w.n, 3 * w.n), False),
    Row(Float[Array, "2*n n"], lambda w: w.f(2 * w.n, w.n), True),
    Row(Float[Array, "n 4"], lambda w: w.f(w.n, 4), True),
    Row(Float[Array, "n 4"], lambda w: w.f(w.n, 6), False),
    Row(Float[Array, ""], lambda w: w.f(), True),
    Row(Float[Array, ""], lambda w: w.f(w.n), False),
    Row(Array, lambda w: w.f(w.n), True),
    Row(Key[Array, ""], lambda w: w.key(), True),
    Row(Key[Array, ""], lambda w: w.f(), False),
    Row(Float32[Float[Array, "m"], "n"], lambda w: w.f(w.n, w.m), True),
    Row(Shaped[Array, "..."], lambda w: w.i(w.n), True),
    Row(T, lambda w: w.f(w.n), True),
    Row("Float[Array, 'n']", lambda w: w.f(w.n), True, label="a string"),
    Row(Aliased, lambda w: w.f(w.n), True, label="an alias"),
    # unions
    Row(Float[Array, "n"] | Int[Array, "m"] | None, lambda w: w.i(w.m), True),
    Row(Float[Array, "n"] | Int[Array, "m"] | None, lambda w: None, True),
    Row(Float[Array, "n n"] | Float[Array, "n m"], lambda w: w.f(w.n, w.m), True),
    Row(Float[Array, "n n"] | Float[Array, "n n 2*n"], lambda w: w.f(w.n, w.m), False),
    Row(Float[Array, "n"] | int, lambda w: 3, True),
    Row(Float[Array, "n"] | int, lambda w: w.n, True, label="a size for a number"),
    Row(Float[Array, "n"] | float, lambda w: w.f(), True, label="a scalar array for a number"),
    Row(Float[Array, "n"] | int, lambda w: "text", False),
    Row(Float[Array, "n"] | abc.Callable[..., Any], lambda w: w.f(w.n), True),
    Row(Float[Array, "n"] | abc.Callable[..., Any], lambda w: w.f(w.n, w.n), False),
    Row(Float[Array, "n"] | Literal["same", 2], lambda w: "same", True),
    Row(Float[Array, "n"] | Literal["same", 2], lambda w: "other", False),
    Row(Float[Array, "n"] | Literal[1], lambda w: True, False),
    Row(Float[jax.typing.ArrayLike, "n"], lambda w: w.f(w.n), True, label="array-like"),
    Row(Float[jax.typing.ArrayLike, "n"], lambda w: w.f(w.n, w.n), False, label="array-like of another rank"),
    # containers
    Row(tuple[Float[Array, "n"], Float[Array, "m"]], lambda w: (w.f(w.n), w.f(w.m)), True),
    Row(tuple[Float[Array, "n"], Float[Array, "n"]], lambda w: (w.f(w.n), w.f(w.m)), False),
    Row(tuple[Float[Array, "n"], Float[Array, "m"]], lambda w: (w.f(w.n),), False),
    Row(tuple[Float[Array, "n"], Float[Array, "m"]], lambda w: [w.f(w.n), w.f(w.m)], False),
    Row(tuple[Float[Array, "n"], ...], lambda w: (w.f(w.n), w.f(w.n)), True),
    Row(tuple[Float[Array, "n"], ...], lambda w: (w.f(w.n), w.f(w.m)), False),
    Row(tuple[()], lambda w: (), True),
    Row(list[Float[Array, "n"]], lambda w: [w.f(w.n), w.f(w.m)], False),
    Row(list[Float[Array, "n"]], lambda w: (w.f(w.n),), False),
    Row(abc.Sequence[Float[Array, "n"]], lambda w: (w.f(w.n),), True),
    Row(dict[str, Float[Array, "n"]], lambda w: {"a": w.f(w.n), "b": w.f(w.n)}, True),
    Row(dict[str, Float[Array, "n"]], lambda w: {"a": w.f(w.n), "b": w.f(w.m)}, False),
    Row(abc.Mapping[str, Float[Array, "n"]], lambda w: w.f(w.n), False),
    Row(Tree, lambda w: {"a": w.f(w.n), "b": {"c": w.f(w.n)}}, True, label="an alias of itself"),
    # pytrees
    Row(PyTree, lambda w: {"a": w.f(w.n)}, True),
    Row(PyTree[Array], lambda w: {"a": w.f(w.n), "b": (w.i(w.m),)}, True),
    Row(PyTree[Float[Array, "n"]], lambda w: {"a": w.f(w.n), "b": [w.f(w.m)]}, False),
    Row(PyTree[Float[Array, "?n"], "T"], lambda w: {"a": w.f(w.n), "b": [w.f(w.m)]}, True),
    Row(PyTree[Float[Array, "?n ?n"], "T"], lambda w: {"a": w.f(w.n, w.n), "b": [w.f(w.n, w.m)]}, False),
    Row(PyTree[tuple[Float[Array, "n"], Float[Array, "m"]]], lambda w: {"a": (w.f(w.n), w.f(w.m))}, True),
    Row(
        PyTree[tuple[Float[Array, "n"], Float[Array, "m"]]],
        lambda w: {"a": (w.f(w.m), w.f(w.n)), "b": (w.f(w.n),) * 2},
        False,
    ),
    Row(PyTree[list[Float[Array, "n"]]], lambda w: ([w.f(w.n)], [w.f(w.n), w.f(w.n)]), True),
    Row(PyTree[dict[str, Float[Array, "n"]]], lambda w: ({"a": w.f(w.n)},), True),
    Row(
        PyTree[Float[Array, "n"] | tuple[Float[Array, "m"], Float[Array, "n"]]],
        lambda w: [w.f(w.n), (w.f(w.m), w.f(w.n))],
        True,
    ),
    Row(PyTree[Float[Array, "n"] | None], lambda w: [w.f(w.n), None], True),
    Row(PyTree[Linear], lambda w: [w.linear(w.n, w.m), {"a": w.linear(w.m, w.n)}], True),
    Row(PyTree[Linear], lambda w: [w.linear(w.n, w.m), w.f(w.n)], False),
    Row(PyTree[Pair], lambda w: [Pair(w.f(w.n), w.f(w.m))], True, shares=True),
    Row(PyTree[Pair], lambda w: [Pair(w.f(w.n), w.f(w.m)), w.f(w.n)], False, shares=True),
    Row(PyTree[Box], lambda w: [Box(w.f(w.n))], True, shares=True),
    Row(PyTree[Options], lambda w: [{"rate": w.f(w.n)}], True, shares=True),
    Row(PyTree[Options], lambda w: [{"rate": w.f(w.n, w.n)}], False, shares=True),
    Row(PyTree[Options], lambda w: {"a": {"rate": w.f(w.n)}, "b": {"rate": w.f(w.m)}}, True, shares=True),
    Row(PyTree[Options], lambda w: {"a": {"other": w.f(w.n)}}, False, shares=True),
    Row(PyTree[PyTree[Float[Array, "n"]]], lambda w: [{"a": w.f(w.n)}], True),
    # several structures
    Row(
        tuple[PyTree[Array, "T"], PyTree[Array, "T"]],
        lambda w: ({"a": w.f(w.n)}, {"a": w.f(w.m)}),
        True,
    ),
    Row(
        tuple[PyTree[Array, "T"], PyTree[Array, "T"]],
        lambda w: ({"a": w.f(w.n)}, {"b": w.f(w.m)}),
        False,
    ),
    Row(
        tuple[PyTree[Array, "S"], PyTree[Array, "T"], PyTree[Array, "S T"]],
        lambda w: ([w.f(w.n)], {"a": w.f(w.n)}, [{"a": w.f(w.n)}]),
        True,
    ),
    Row(
        tuple[PyTree[Array, "S"], PyTree[Array, "T"], PyTree[Array, "S T"]],
        lambda w: ([w.f(w.n)], {"a": w.f(w.n)}, {"a": [w.f(w.n)]}),
        False,
    ),
    Row(
        tuple[PyTree[Array, "S"], PyTree[Array, "S ..."]],
        lambda w: ([w.f(w.n)], [(w.f(w.n), w.f(w.n))]),
        True,
    ),
    Row(tuple[PyTree[Array, "S"], PyTree[Array, "S ..."]], lambda w: ([w.f(w.n)], {"a": w.f(w.n)}), False),
    Row(tuple[PyTree[Array, "..."], PyTree[Array, "..."]], lambda w: ([w.f(w.n)], {"a": w.f(w.n)}), True),
    Row(tuple[PyTree[Array, "T"], PyTree[Array, "... T"]], lambda w: ([w.f(w.n)], {"a": [w.f(w.n)]}), True),
    Row(tuple[PyTree[Array, "T"], PyTree[Array, "... T"]], lambda w: ([w.f(w.n)], {"a": w.f(w.n)}), False),
    Row(
        tuple[PyTree[Float[Array, "?n"], "T"], PyTree[Float[Array, "?n"], "T"]],
        lambda w: ([w.f(w.n), w.f(w.m)], [w.f(w.n), w.f(w.m)]),
        True,
    ),
    Row(
        tuple[PyTree[Float[Array, "?n"], "T"], PyTree[Float[Array, "?n"], "T"]],
        lambda w: ([w.f(w.n), w.f(w.m)], [w.f(w.m), w.f(w.n)]),
        False,
    ),
    Row(
        tuple[PyTree[Float[Array, "?n"], "S"], PyTree[Float[Array, "?n"], "T"]],
        lambda w: ([w.f(w.n)], [w.f(w.m)]),
        True,
    ),
    # records
    Row(Linear, lambda w: w.linear(w.n, w.m), True),
    Row(Linear, lambda w: w.f(w.n), False),
    Row(Self, lambda w: w.linear(w.n, w.m), True, label="Self"),
    Row(Counted, lambda w: Counted(w.n, w.f(w.n, w.m)), True),
    Row(list[Linear], lambda w: [w.linear(w.n, w.m), w.linear(w.m, w.n)], True),
    Row(list[Linear], lambda w: [w.linear(w.n, w.m), 3], False),
    Row(Annotated[Linear, Dims("in=width out=2*width")], lambda w: w.linear(2 * w.n, w.n), True),
    Row(Annotated[Linear, Dims("in=width out=2*width")], lambda w: w.linear(w.m, w.n), False),
    Row(Annotated[list[Linear], Dims("in=width out=width")], lambda w: [w.linear(w.n, w.n)] * 2, True),
    Row(Annotated[list[Linear], Dims("in=width")], lambda w: [w.linear(w.n, w.n), w.linear(w.n, w.m)], False),
    Row(Annotated[Linear, Dims("in=4")], lambda w: w.linear(w.n, 6), False),
    Row(Tower, lambda w: Tower(w.linear(w.n, w.m), w.linear(2 * w.n, w.n)), True),
    Row(Batched[Linear, "depth"], lambda w: w.f(w.n), False),
    Row(Batched[Linear, "depth"], lambda w: dataclasses.replace(w, lead=(7,)).linear(w.n, w.m), True),
    Row(Batched[Linear, "depth"], lambda w: w.linear(w.n, w.m), False),
    Row(Batched[Linear, "*depths"], lambda w: dataclasses.replace(w, lead=(7, 2)).linear(w.n, w.m), True),
    Row(Batched[PyTree[Float[Array, "n"]], "depth"], lambda w: {"a": w.f(7, w.n)}, True),
    Row(Linear, lambda w: dataclasses.replace(w, lead=(7,)).linear(w.n, w.m), False, label="a stack for one record"),
    Row(Pair, lambda w: Pair(w.f(w.n), w.f(w.m)), True, shares=True),
    Row(Pair, lambda w: Pair(w.f(w.n), w.f(w.m, w.m)), False, shares=True),
    Row(Pair, lambda w: (w.f(w.n), w.f(w.m)), False, shares=True),
    Row(Box, lambda w: Box(w.f(w.n)), True, shares=True),
    Row(Box, lambda w: Box(w.i(w.n)), False, shares=True),
    Row(Pair, lambda w: Sum(w.f(w.n), w.f(w.m)), True, shares=True),
    Row(Sum, lambda w: Sum(w.f(w.n), w.f(w.m)), True, shares=True),
    Row(Sum, lambda w: Sum(w.f(w.n), w.f(w.m, w.m)), False, shares=True),
    Row(Sum, lambda w: Pair(w.f(w.n), w.f(w.m)), False, shares=True),
    Row(Holder, lambda w: Holder(Box(w.f(w.n)), Pair(w.f(w.n), w.f(w.m))), True, shares=True),
    Row(Holder, lambda w: Holder(Box(w.f(w.n)), Pair(w.f(w.n, 2), w.f(w.m))), False, shares=True),
    Row(Options, lambda w: {"rate": w.f(w.n)}, True, shares=True),
    Row(Options, lambda w: {"other": w.f(w.n)}, False, shares=True),
    Row(Options, lambda w: {"rate": w.f(w.n), "other": w.i(w.m)}, False, shares=True),
    Row(Options, lambda w: [w.f(w.n)], False, shares=True),
    Row(list[Options], lambda w: [{"rate": w.f(w.n)}, {"rate": w.f(w.m)}], True, shares=True),
    Row(dict[str, Pair], lambda w: {"a": Pair(w.f(w.n), w.f(w.m))}, True, shares=True),
    Row(Dense, lambda w: w.f(w.n), False, label="an array for an object"),
    Row(nnx.Param[Float[Array, "n"]], lambda w: w.f(w.n), False),
    # what holds no array, beside one that does
    Row(tuple[Float[Array, "n"], Any], lambda w: (w.f(w.n), 3), True),
    Row(tuple[Width, Float[Array, "n"]], lambda w: (3, w.f(w.n)), True),
    Row(tuple["Nowhere", Float[Array, "n"]], lambda w: (3, w.f(w.n)), True, label="a name that is not there"),
    Row(tuple[type[int], Float[Array, "n"]], lambda w: (int, w.f(w.n)), True),
    Row(abc.Callable[[int], Float[Array, ""]], lambda w: len, True),
    Row(abc.Iterator[int], lambda w: iter([1]), True),
]

WRAPPERS: dict[str, tuple[Callable[[Any], Any], Callable[[Row, World], Any]]] = {
    "in a list": (lambda hint: list[hint], lambda row, w: [row.value(w)]),
    "in a tuple": (lambda hint: tuple[hint, Int[Array, ""]], lambda row, w: (row.value(w), w.i())),
    "in a mapping": (lambda hint: dict[str, hint], lambda row, w: {"a": row.value(w)}),
    "in a union": (lambda hint: hint | set[int], lambda row, w: row.value(w)),
    "in an optional list": (lambda hint: list[hint] | None, lambda row, w: [row.value(w)]),
    "as leaves": (lambda hint: PyTree[hint], lambda row, w: {"k": [row.value(w)]}),
    "as leaves of a named tree": (lambda hint: PyTree[hint, "S"], lambda row, w: (row.value(w),)),
    "in a stack": (
        lambda hint: Batched[hint, "stages"],
        lambda row, w: row.value(dataclasses.replace(w, lead=(7,))),
    ),
}


def nested() -> Iterator[Row]:
    for name, (hint, value) in WRAPPERS.items():
        for row in ROWS:
            # JAX warns of iterators among the leaves of a tree.
            if not isinstance(row.hint, str | typing.TypeVar) and row.hint != abc.Iterator[int]:
                label = f"{row}, {name}"
                yield Row(hint(row.hint), functools.partial(value, row), None, row.shares, label)


@dataclass(frozen=True)
class Seen:
    """What a checker says of a value: what is wrong with it, if anything, and what it bound."""

    reason: str
    sizes: dict[str, Any]
    axes: dict[str, tuple[Any, ...]]
    structures: dict[str, Any]


def seen(row: Row, world: World, policy: Policy) -> Seen:
    spec = read(row.hint, SCOPE)
    check, bindings = check_of(spec, policy), Bindings(Slot("value", "value", None, spec))
    with mode("off"):  # what does not fit must be made, too
        value = row.value(world)
    try:
        if check is not None:
            check(value, bindings)
        settle(bindings, finally_=True)
    except Mismatch as miss:
        return Seen(miss.reason, {}, {}, {})
    except AnnotationError:  # as of "?n" under two structures
        return Seen("annotation", {}, {}, {})
    axes = {name: tuple(map(number, variadic.shape)) for name, variadic in bindings.variadics.items()}
    return Seen("", {name: number(size) for name, size in bindings.sizes.items()}, axes, bindings.structures)


def number(size: Any) -> int:
    """A size as a number; those that know themselves have that of the concrete world."""
    return size.number if type(size) is Dim else size


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_both_checkers_agree(row: Row):
    agree(row)


@pytest.mark.parametrize("row", tuple(nested()), ids=str)
def test_both_checkers_agree_on_what_is_inside_of_others(row: Row):
    agree(row)


def agree(row: Row) -> None:
    runs = seen(row, CONCRETE, RUN_TIME)
    assert row.fits in (None, not runs.reason)
    for world in (CONCRETE, ABSTRACT, KNOWN):
        proves = seen(row, world, PROOF)
        assert proves.reason == runs.reason
        if not row.shares:
            assert proves == runs
