"""What annotations leave to others: type variables, arrays of a package's own, methods that subclasses write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.experimental.sparse import CSC
from jaxtyping import Array, ArrayLike, Float, Int, Real, Shaped
from weft.typecheck import verify
from weft.typecheck.proofs.report import Verdict

K = TypeVar("K")
T = TypeVar("T")


def negated(tree: T, x: Float[Array, "n"]) -> tuple[T, Float[Array, "n"]]:
    return jax.tree.map(jnp.negative, tree), x


def summed(tree: T, x: Float[Array, "n"]) -> Float[Array, ""]:
    return sum((jnp.sum(leaf) for leaf in jax.tree.leaves(tree)), jnp.sum(x))


def scanned(step: Callable[[Float[Array, "d"], T], T], start: T, xs: Float[Array, "n d"]) -> T:
    return jax.lax.scan(lambda carry, x: (step(x, carry), None), start, xs)[0]


class Holder(eqx.Module, Generic[T]):
    inner: T
    scale: Float[Array, "n"]

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.scale * x


@pytest.mark.parametrize("thing", [negated, summed, scanned, Holder])
def test_a_type_variable_stands_for_a_tree(thing: Any):
    report = verify(thing)
    assert report.ok
    assert report.proved or {*report.assumptions} == {"step returns a value like its first argument"}


class Calls(eqx.Module, Generic[T]):
    inner: T

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.inner(x)  # pyright: ignore[reportCallIssue]


def reads(tree: T, x: Float[Array, "n"]) -> Float[Array, "n"]:
    return tree.weight * x  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("thing", [Calls, reads])
def test_what_is_done_with_a_type_variable_that_a_tree_cannot_do_is_no_failure(thing: Any):
    (contract,) = verify(thing).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert "the annotation leaves it open" in contract.reason


class Quantity(eqx.Module):
    value: Array
    unit: str = eqx.field(static=True, default="m")

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> Any:
        return self.value.dtype

    def __mul__(self, factor: float) -> Quantity:
        return Quantity(self.value * factor, self.unit)


def doubled(x: Real[Quantity, "*b"]) -> Real[Quantity, "*b"]:
    return x * 2


def projected(x: Float[Quantity, "n"], weight: Float[Array, "n m"]) -> Float[Array, "m"]:
    return x.value @ weight


def without_last(x: Real[Quantity, "*b n"]) -> Real[Quantity, "*b"]:
    return x * 2


def test_a_record_that_has_the_shape_of_an_array_is_made_around_one():
    assert verify(doubled).proved
    assert verify(projected).proved
    assert "found Quantity f32[1,1]" in str(verify(without_last))


class Kernel(eqx.Module):
    def gram(self, x: Float[Array, "n d"]) -> Float[Array, "n n"]:
        raise NotImplementedError

    def on_end(self) -> None:
        pass


class Linear(Kernel):
    def gram(self, x: Float[Array, "n d"]) -> Float[Array, "n n"]:
        return x @ x.T


class OneDimension(Kernel):
    def gram(self, x: Float[Array, "n d"]) -> Float[Array, "n n"]:
        if x.shape[1] != 1:
            raise ValueError("one dimension")
        return x * x.T


class Never(Kernel):
    def gram(self, x: Float[Array, "n d"]) -> Float[Array, "n n"]:
        raise ValueError("never")


def covariance(kernel: Kernel, x: Float[Array, "n d"]) -> Float[Array, "n n"]:
    return kernel.gram(x) + 1


def test_a_class_whose_methods_its_subclasses_write_is_tried_as_these():
    first, second = verify(covariance).assumptions
    assert first == "d = 1"  # for one of them: what is said holds for all that are named
    assert second.startswith("kernel is Linear or OneDimension, not Never (guard at ")


class Hooked(eqx.Module):
    def on_end(self) -> None:
        pass

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        self.on_end()
        return x


class Loud(Hooked):
    def on_end(self) -> None:
        del self


def test_a_class_with_a_hook_that_promises_nothing_is_tried_as_it_is():
    assert verify(Hooked).proved
    assert verify(Hooked).assumptions == ()


def empty(x: Float[Array, "n"]) -> Float[Array, "n"]: ...  # pyright: ignore[reportReturnType]


def described(x: Float[Array, "n"]) -> Float[Array, "n"]:  # pyright: ignore[reportReturnType]
    """Words, and nothing else."""


def forgotten(x: Float[Array, "n"]) -> Float[Array, "n"]:
    jnp.negative(x)  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("function", [empty, described])
def test_an_empty_body_is_not_judged(function: Any):
    (contract,) = verify(function).contracts
    assert (contract.verdict, contract.reason) == (Verdict.SKIPPED, "it is not implemented")


def test_a_body_without_a_result_is():
    assert "found None" in str(verify(forgotten))


def pooled(x: Float[Array, "n d"], pool: bool = False) -> Float[Array, "n d"]:
    if pool and x.shape[0] % 4:
        raise ValueError("4 divides n")
    return x


def test_what_an_option_needs_is_tried_with_the_option():
    assert verify(pooled).assumptions == ("4 divides n",)


class Likelihood(eqx.Module):
    outputs: int
    scale: Float[Array, "p"]

    def targets(
        self, y: Float[Array, "n k"], mean: Float[Array, "n 1"]
    ) -> tuple[Float[Array, "nk"], Float[Array, "nk"]]:
        return y.T.reshape(-1), jnp.tile(mean, (self.outputs, 1)).reshape(-1)


class Mixed(eqx.Module):
    width: int = eqx.field(static=True)
    rows: int = eqx.field(static=True)

    def __call__(self, x: Float[Array, "b d"]) -> Float[Array, "b d"]:
        return x + jnp.ones((self.rows, 1))


def test_an_integer_that_no_shape_names_may_have_to_be_the_size_of_an_axis():
    report = verify(Likelihood)
    assert report.ok
    assert "k = outputs" in str(report)


def test_an_integer_that_would_have_to_be_the_number_of_rows_is_a_fault():
    assert not verify(Mixed).ok


Y = TypeVar("Y")


def traced(step: Callable[[T, Float[Array, "d"]], tuple[T, Y]], start: T, xs: Float[Array, "n d"]) -> tuple[T, Array]:
    return jax.lax.scan(step, start, xs)


def paired(step: Callable[[T, Float[Array, "d"]], tuple[T, Y]], start: T, xs: Float[Array, "n d"]) -> Float[Array, "d"]:
    return jax.lax.scan(step, start, xs)


def test_what_a_type_variable_stands_for_may_have_to_be_one_array():
    report = verify(traced)
    assert report.ok
    assert "Y is one array" in str(report)


def test_a_pair_where_an_array_is_promised_is_a_fault_whatever_the_trees_are():
    assert "found tuple" in str(verify(paired).failures[0])


class Weighted(eqx.Module):
    weights: Float[Array, "n"]

    @property
    def points(self) -> Float[Array, "n"]:
        return self.weights

    def doubled(self) -> Weighted:
        return eqx.tree_at(lambda one: one.points, self, self.weights * 2)


def test_what_equinox_marks_leaves_with_breaks_no_annotation():
    assert verify(Weighted).ok


def gathered(picks: list[Shaped[Array, "k"]], x: Float[Array, "m d"]) -> Float[Array, "k d"]:
    return sum((x[one] for one in picks), jnp.zeros(()))


def test_the_items_of_a_list_have_one_kind_of_numbers():
    report = verify(gathered)
    assert report.ok
    assert "picks[:] is of integers" in str(report)


def transformed(x: Float[Array, "... i"], w: Float[Array, "o i"]) -> Float[Array, "... o"]:
    return x.T @ w.T


def transformed_alone(x: Float[Array, "... i"], w: Float[Array, "o i"]) -> Float[Array, "... o"]:
    if x.ndim > 1:
        raise ValueError("one at a time")
    return w @ x


def test_what_takes_no_axes_at_all_where_three_dots_stand_is_a_fault():
    assert "dot_general" in str(verify(transformed).failures[0])


def test_but_not_where_a_guard_says_so():
    (contract,) = verify(transformed_alone).contracts
    assert contract.verdict is Verdict.HOLDS
    assert "the `...` of x is of 0 axes" in str(contract)


def resized(image: Float[Array, "h w"], to: Int[Array, "shape=(2,)"]) -> Float[Array, "h w"]:
    return image


def test_an_expression_that_is_no_size_is_said_to_be_none():
    (contract,) = verify(resized).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("to[0]: `(2,)` is (2,), which is not a size")


class Known(Mapping[str, T]):
    """A mapping by its class, which makes it of keywords only."""

    def __init__(self, **arrays: T):
        self.arrays = arrays

    def __getitem__(self, name: str) -> T:
        return self.arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)


class Ordered(dict[K, T]):
    def first(self) -> T:
        return next(iter(self.values()))


def total_of_known(known: Known[Float[Array, "n"]]) -> Float[Array, "n"]:
    return sum(known.arrays.values())


def first_of_ordered(ordered: Ordered[str, Float[Array, "n"]]) -> Float[Array, "n"]:
    return ordered.first()


def test_a_mapping_of_a_class_is_what_the_class_makes_of_a_dict():
    (contract,) = verify(total_of_known).contracts
    assert (contract.verdict, contract.reason) == (
        Verdict.SKIPPED,
        "known: no Known can be made from a dict alone; pass it in `args`",
    )
    (contract,) = verify(first_of_ordered).contracts
    assert contract.verdict is Verdict.PROVED, contract


def solved(matrix: Float[CSC, "n n"], x: Float[Array, "n"]) -> Float[Array, "n"]:
    return matrix @ x


def test_a_sparse_matrix_is_not_made_of_a_shape():
    (contract,) = verify(solved).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("matrix: no CSC can be made from a shape and a dtype alone")


class Coin:
    """A plain class whose one argument may be any number, or an array of them."""

    def __init__(self, p: ArrayLike | None = None):
        self.p = jnp.asarray(0.5 if p is None else p)

    def tails(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x + (-self.p).sum()


def test_a_boolean_among_the_numbers_of_an_array_like_argument_is_no_flag():
    assert verify(Coin).ok


def edges(positions: Float[Array, "atoms 3"], graph: tuple[Array, Array]) -> Float[Array, "edges 3"]:
    valid = graph[0] >= 0
    senders = jnp.where(valid, graph[0], 0)
    receivers = jnp.where(valid, graph[1], 0)
    vectors = positions[senders] - positions[receivers]
    return jnp.where(valid[:, None], vectors, 0.0)


def test_arrays_of_integers_that_are_of_one_axis_are_left_open():
    (contract,) = verify(edges).contracts
    assert contract.verdict is not Verdict.FAILS
