"""What annotations leave open: each row of the table by a program, and each of its words by who says them."""

from __future__ import annotations

import abc
import codecs
import collections
import inspect
import operator
import re
import sys
from collections.abc import Callable
from functools import reduce
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Key, PyTree
from weft.typecheck.proofs import left_open
from weft.typecheck.proofs.left_open import ROWS, Refusal
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict
from weft.typecheck.proofs.wording import first_line

T = TypeVar("T")
REFUSALS = {name: one for name, one in vars(left_open).items() if isinstance(one, Refusal)}
X = jnp.zeros(3)


class Named(eqx.Module):
    value: Array
    name: str = eqx.field(static=True)


def one_argument(x: Any) -> Any:
    return x


SAID: tuple[Callable[[], Any], ...] = (
    lambda: [1].index(2),
    lambda: (1,).index(2),
    lambda: collections.deque([1]).index(2),
    lambda: range(1).index(2),
    lambda: next(iter(())),
    lambda: one_argument(),
    lambda: one_argument(1, 2),
    lambda: one_argument(1, y=2),
    lambda: inspect.signature(one_argument).bind(),
    lambda: inspect.signature(one_argument).bind(1, 2),
    lambda: X + None,
    lambda: X + {"x": X},
    lambda: X + (X,),
    lambda: X["x"],
    lambda: list(jnp.zeros(())),
    lambda: jnp.stack([]),
    lambda: np.argmax(np.zeros(0)),
    lambda: max([]),
    lambda: jax.lax.switch(0, [], X),
    lambda: reduce(operator.add, []),
    lambda: jax.tree.map(jnp.add, {"x": X}, (X,)),
    lambda: jax.tree.structure(Named(X, "a")).flatten_up_to(Named(X, "b")),
    lambda: jax.vmap(one_argument, in_axes=({"x": 0},))({"y": X}),
    lambda: X[X],
    lambda: X & X,
    lambda: jax.lax.eq(X, jnp.arange(3)),
    lambda: jnp.take(X, X),
    lambda: jnp.gcd(X, X),
    lambda: jnp.take_along_axis(X, X, 0),
    lambda: range(np.float32(1)),
    lambda: {X: 1},
    lambda: jax.eval_shape(lambda x: x(1), X),
    lambda: jax.grad(X),
    lambda: jax.tree_util.Partial(X),
    lambda: X[jax.random.key(0)],
)
# What only newer versions of Python say: there `max` has other words.
OF_LATER = {"argument is empty"} if sys.version_info < (3, 12) else set[str]()


def raised(call: Callable[[], Any]) -> Exception:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("it runs through")


@pytest.mark.parametrize(
    ("name", "words"), [(name, words) for name, one in REFUSALS.items() for words in one.words if words not in OF_LATER]
)
def test_all_words_are_said(name: str, words: str):
    errors = [error for error in map(raised, SAID) if isinstance(error, REFUSALS[name].errors)]
    assert any(re.search(words, first_line(error)) for error in errors), words


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


def looked_up_by_its_axes(x: Float[Array, "n"]) -> Float[Array, "n"]:
    codecs.lookup(f"of {x.ndim} axes")
    return x


class Box(eqx.Module):
    value: Float[Array, "n"]


class Model(eqx.Module):
    weight: Box

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.weight * x  # pyright: ignore[reportOperatorIssue]


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


def neighbours(x: Float[Array, "n"], nodes: tuple[Array, Array]) -> Float[Array, "n"]:
    return jnp.where(x & 1, x[nodes[0]], x[nodes[1]])


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


BY_ROW: dict[str, tuple[Any, ...]] = {
    "a value": (looked_up,),
    "the items of a default": (Parts,),
    "the items of a collection of anything": (of_all, with_settings),
    "integers": (Grid,),
    "a class": (with_a_scale, with_a_key, looked_up_by_its_class),
    "a record": (Model,),
    "a tree": (taken_apart, partitioned, with_a_kernel),
    "contents of some structure": (combined,),
    "kinds of numbers": (volume_below, loss),
    "keywords": (scaled, bound),
    "a key by its name": (Noise, Rows),
    "a method": (looked_up_by_its_axes,),
    "contents": (read, called, of_two_sizes),
}


@pytest.mark.parametrize("name", ROWS)
def test_what_is_about_each_row_is_skipped(name: str):
    reason = ROWS[name].reason.partition("}")[2] or ROWS[name].reason
    for thing in BY_ROW[name]:
        (contract,) = verify(thing).contracts
        assert contract.verdict is Verdict.SKIPPED, str(contract)
        assert reason in contract.reason


def beside_others(x: Float[Array, "3"], y: Float[Array, "4"], z: Array) -> Array:
    return z + (x + y).sum()


def test_shapes_that_are_given_are_not_left_open_beside_others_that_are_none():
    assert verify(beside_others).contracts[0].verdict is Verdict.FAILS


def test_an_integer_that_a_shape_names_is_not_left_open():
    assert verify(Folded).contracts[0].verdict is Verdict.FAILS


def test_which_of_few_arrays_are_of_integers_is_tried():
    assert verify(neighbours).contracts[0].verdict is Verdict.FAILS


class Graph:
    def __init__(self):
        self.edges: list[tuple[int, int]] = []


def highest(graph: Graph, x: Float[Array, "n"]) -> Float[Array, ""]:
    return x[max(edge[0] for edge in graph.edges)]


def test_an_object_that_was_made_without_items_has_none_by_default():
    (contract,) = verify(highest).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("Graph.edges: it is empty by default, and items are needed")


def test_what_a_cross_product_asks_of_an_open_shape_is_a_condition():
    (contract,) = verify(frame_of).contracts
    assert contract.verdict is Verdict.HOLDS
    assert contract.assumptions == ("x and y are of one shape", "x.shape[1] = 3")
