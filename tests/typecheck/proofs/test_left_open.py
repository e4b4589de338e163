"""What annotations leave open: each kind of it by a program whose error shows nothing."""

from __future__ import annotations

import abc
import codecs
import inspect
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, Key, PyTree
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict

T = TypeVar("T")


def one_argument(x: Any) -> Any:
    return x


def looked_up(x: Float[Array, "n"], name: str) -> Float[Array, "n"]:
    return x * ["a", "b"].index(name)


class Parts(eqx.Module):
    parts: tuple[Callable[..., Any], ...] = ()

    def all(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return jnp.stack([part(x) for part in self.parts]).sum(0)


def of_all(x: Float[Array, "n"], parts: dict[str, Any]) -> Float[Array, "n"]:
    return x + jnp.stack([*parts.values()]).sum(0)


def with_settings(x: Float[Array, "n"], settings: dict[str, Any]) -> Float[Array, "n"]:
    return x + one_argument(**settings)


class Folded(eqx.Module):
    rows: int
    columns: int

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "rows columns"]:
        return x.reshape(self.rows, self.columns)


class Grid(eqx.Module):
    sides: int
    faces: int

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, ""]:
        return x.reshape(self.sides, self.faces).sum()


class Rule(eqx.Module):
    @abc.abstractmethod
    def applied(self, x: Float[Array, "n"]) -> Float[Array, "n"]: ...


class Twice(Rule):
    def applied(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return 2 * x


def with_a_scale(rule: Rule, x: Float[Array, "n"]) -> Float[Array, "n"]:
    return rule.scale * x  # pyright: ignore[reportAttributeAccessIssue]


def with_a_key(rule: Rule, x: Float[Array, "n"], key: Key[Array, ""]) -> Float[Array, "n"]:
    return rule.applied(x, key)  # pyright: ignore[reportCallIssue]


def looked_up_by_its_class(rule: Rule, x: Float[Array, "n"]) -> Float[Array, "n"]:
    codecs.lookup(type(rule).__name__)  # as multiple dispatch looks methods up
    return rule.applied(x)


class Kept(eqx.Module, Generic[T]):
    value: T


def taken_apart(x: Float[Array, "n"], box: Kept[T]) -> Float[Array, "n"]:
    first, (_, _) = box.value  # pyright: ignore[reportGeneralTypeIssues]
    return x * first


def with_a_kernel(kernel: Float[Array, "..."], params: PyTree) -> PyTree:
    return params | {"kernel": kernel.reshape(params["kernel"].shape)}


def partitioned(x: Float[Array, "n"], which: PyTree[bool]) -> Float[Array, "n"]:
    return eqx.partition({"x": x}, which)[0]["x"]


def combined(x: Float[Array, "n"], more: dict[str, Float[Array, "n"]]) -> Float[Array, "n"]:
    return jax.tree.map(jnp.add, {"x": x}, more)["x"]


def scaled(x: Float[Array, "n"], **options: Any) -> Float[Array, "n"]:
    return x * options["scale"]


def bound(x: Float[Array, "n"], **options: Any) -> Float[Array, "n"]:
    inspect.signature(one_argument).bind(**options)
    return x


def read(x: Float[Array, "n"], more: dict[str, Float[Array, "n"]]) -> Float[Array, "n"]:
    return x + [*more.values()][3]


def called(x: Float[Array, "n"], f: PyTree[Float[Array, "n"]]) -> Float[Array, "n"]:
    return jax.tree.leaves(f)[0](x)


def of_two_sizes(x: Float[Array, "..."]) -> Float[Array, "6 7"]:
    return x.reshape(6, 1) + x.reshape(7)


def frame_of(x: Array, y: Array) -> Array:
    x = x / jnp.sqrt((x**2).sum(axis=-1, keepdims=True))
    normal = y - (x * y).sum(axis=-1, keepdims=True) * x
    normal = normal / jnp.sqrt((normal**2).sum(axis=-1, keepdims=True))
    return jnp.stack([x, normal, jnp.cross(x, normal)], axis=-1)


class Tree(NamedTuple):
    """Nodes with a box each: which of these are integers, no annotation says."""

    left: Array
    right: Array
    low: Array
    high: Array


def volume_below(x: Float[Array, "n"], tree: Tree) -> Array:
    of = tree.low[tree.left] * tree.high[tree.right]
    return jnp.where(x[tree.left] & 1, of, jnp.inf)


def loss(logits: Array, targets: Array) -> Array:
    chunks = logits.reshape(*logits.shape[:-1], -1, 64)
    scale = jax.nn.logsumexp(chunks, axis=(-2, -1))
    return scale - jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]


class Noise(eqx.Module):
    rng: Any

    def __init__(self, rng):  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
        self.rng = rng

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x + jax.random.normal(self.rng(), x.shape)


class Rows(eqx.Module):
    rows: Float[Array, "n d"]

    def __getitem__(self, key) -> Array:  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType]
        return self.rows[key]


OPEN: dict[str, tuple[Any, ...]] = {
    "a text": (looked_up,),
    "the items of a default": (Parts,),
    "the items of a collection of anything": (of_all, with_settings),
    "integers": (Grid,),
    "a class": (with_a_scale, with_a_key, looked_up_by_its_class),
    "a tree": (taken_apart, partitioned, with_a_kernel),
    "contents of some structure": (combined,),
    "kinds of numbers": (volume_below, loss),
    "keywords": (scaled, bound),
    "a key by its name": (Noise, Rows),
    "contents": (read, called, of_two_sizes),
}


@pytest.mark.parametrize("name", OPEN)
def test_what_is_about_what_is_open_is_skipped(name: str):
    for thing in OPEN[name]:
        (contract,) = verify(thing).contracts
        assert contract.verdict is Verdict.SKIPPED, str(contract)
        assert "the annotation leaves it open" in contract.reason


def beside_others(x: Float[Array, "3"], y: Float[Array, "4"], z: Array) -> Array:
    return z + (x + y).sum()


def test_shapes_that_are_given_are_not_left_open_beside_others_that_are_none():
    assert verify(beside_others).contracts[0].verdict is Verdict.FAILS


def test_an_integer_that_a_shape_names_is_not_left_open():
    assert verify(Folded).contracts[0].verdict is Verdict.FAILS


class Graph:
    def __init__(self):
        self.edges: list[tuple[int, int]] = []


def highest(graph: Graph, x: Float[Array, "n"]) -> Float[Array, ""]:
    return x[max(edge[0] for edge in graph.edges)]


def test_an_object_that_was_made_without_items_has_none_by_default():
    (contract,) = verify(highest).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("Graph.edges: the annotation leaves it open")


def test_what_a_cross_product_asks_of_an_open_shape_is_a_condition():
    (contract,) = verify(frame_of).contracts
    assert contract.verdict is Verdict.HOLDS
    assert contract.assumptions == ("x and y are of one shape", "x.shape[1] = 3")
