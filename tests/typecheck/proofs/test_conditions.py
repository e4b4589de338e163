"""What a contract "holds when": conditions are read off questions, and else the sizes that were tried are stated."""

import itertools
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from equinox import AbstractVar
from jax.extend.random import threefry_prng_impl
from jaxtyping import Array, Float, Integer, PyTree
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict


def line_of(function: Any, of: int) -> int:
    return function.__code__.co_firstlineno + of


def long_enough(x: Float[Array, "n"]) -> Float[Array, "n"]:
    if x.shape[0] < 8:
        raise ValueError("too short")
    return x


def even(x: Float[Array, "n"]) -> Float[Array, "n"]:
    assert x.shape[0] % 2 == 0
    return x


def a_power(x: Float[Array, "n"]) -> Float[Array, "n"]:
    if x.shape[0] & (x.shape[0] - 1): raise ValueError("a power of two")  # noqa: E701  # fmt: skip
    return x


def fewer(x: Float[Array, "n"], y: Float[Array, "k"]) -> Float[Array, "n"]:
    if y.shape[0] >= x.shape[0]:
        raise ValueError("k is less than n")
    return x


class Attention(eqx.Module):
    weight: Float[Array, "dim dim"]

    def __init__(self, dim: int, heads: int):
        if dim % (4 * heads):
            raise ValueError("dim must be divisible by 4 * heads")
        self.weight = jnp.zeros((dim, dim))

    def __call__(self, x: Float[Array, "b dim"]) -> Float[Array, "b dim"]:
        return x @ self.weight


class Residual(eqx.Module):
    weight: Float[Array, "i o"]

    def __init__(self, i: int, o: int, channels: int):
        if i != o or i != channels:
            raise ValueError("in = out = channels")
        self.weight = jnp.zeros((i, o))

    def __call__(self, x: Float[Array, "b i"]) -> Float[Array, "b o"]:
        return x + x @ self.weight


def wide_enough(x: Float[Array, "n"], y: Float[Array, "k"]) -> Float[Array, "n"]:
    if x.shape[0] < 2 * y.shape[0] + 1:
        raise ValueError("n is at least 2 * k + 1")
    return x


def windows(x: Float[Array, "t d"], size: int) -> Float[Array, "t-size+1 size d"]:
    starts = jnp.arange(x.shape[0] - size + 1)
    return jax.vmap(lambda start: jax.lax.dynamic_slice_in_dim(x, start, size))(starts)


def many(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    if x.shape[0] < 37:
        raise ValueError("too few")
    return x


def sixes(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    if x.shape[0] % 6 or x.shape[0] < 20:
        raise ValueError("a multiple of 6, from 20 on")
    return x


def in_heads(x: Float[Array, "n d"], heads: int) -> Float[Array, "n d"]:
    if x.shape[1] % heads:
        raise ValueError("heads divides d")
    return x.reshape(x.shape[0], heads, -1).reshape(x.shape)


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (long_enough, ("n >= 8",)),
        (wide_enough, ("2*k < n",)),
        (in_heads, ("heads divides d",)),
        (windows, ("size <= t + 1",)),
        (many, ("n >= 37",)),  # and not that d divides n, by which 77 was found
        (sixes, ("6 divides n", "n >= 20")),
        (even, ("2 divides n",)),
        (fewer, ("k < n",)),
        (Attention, ("4*heads divides dim",)),
        (Residual, ("o = i", "channels = i")),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_a_condition_is_what_holds_at_its_edge_and_beyond(thing: Any, words: tuple[str, ...]):
    report = verify(thing)
    assert report.ok, str(report)
    assert tuple(assumption.partition(" (guard at ")[0] for assumption in report.assumptions) == words


def not_of_threes(x: Float[Array, "n"]) -> Float[Array, "n"]:
    if x.shape[0] % 3 == 0:
        raise ValueError("no multiple of three")
    return x


def not_both_even(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    if x.shape[0] % 2 == 0 == x.shape[1] % 2:
        raise ValueError("not both even")
    return x


def no_scalars(x: Float[Array, "n"] | Float[Array, ""]) -> Float[Array, "n"]:
    if x.ndim == 0:
        raise ValueError("no scalars")
    return x


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (not_of_threes, "3 does not divide n"),
        (not_both_even, "2 does not divide d or 2 does not divide n"),
        (no_scalars, 'x is not a Float[Array, ""]'),
    ],
    ids=["a remainder of one size", "a remainder of all sizes", "a member of a union"],
)
def test_what_a_guard_refuses_is_a_condition_in_words(function: Any, words: str):
    at = f"test_conditions.py:{line_of(function, 2)}"
    assert verify(function).assumptions == (f"{words} (guard at {at})",)


def test_what_is_asked_of_bits_is_said_of_the_sizes_tried_only():
    report = verify(a_power)
    assert report.verdict is Verdict.HOLDS
    (words,) = report.assumptions
    assert words.startswith("n is among the sizes tried: ")
    sizes = [int(one) for one in words.partition(": ")[2].split(", ")]
    assert all(size & (size - 1) == 0 for size in sizes)


@pytest.mark.parametrize("n", [8, 9, 31, 32])
def test_a_stated_condition_is_true_at_sizes_that_were_not_tried(n: int):
    assert long_enough(jnp.ones(n)).shape == (n,)
    with pytest.raises(ValueError, match="too short"):
        long_enough(jnp.ones(7))


def one_of_two(a: Float[Array, "n"] | None = None, b: Float[Array, "n"] | None = None) -> Float[Array, "n"]:
    if (a is None) == (b is None):
        raise ValueError("one of them")
    return b if a is None else a  # pyright: ignore[reportReturnType]


def test_exactly_one_of_two_optional_arguments_is_a_condition_with_its_guard():
    report = verify(one_of_two)
    assert report.verdict is Verdict.HOLDS
    at = f"test_conditions.py:{line_of(one_of_two, 2)}"
    assert report.assumptions == (f"exactly one of a and b is given (guard at {at})",)


def test_a_guard_that_nothing_passes_is_no_failure():
    def refuses(x: Float[Array, "n"]) -> Float[Array, "n"]:
        raise ValueError("never")

    (contract,) = verify(refuses).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert f'guard at test_conditions.py:{line_of(refuses, 1)}: raise ValueError("never")' in contract.reason


def of_two_options(
    x: Float[Array, "n"], mask: Float[Array, "n"] | None = None, keep: bool = False
) -> Float[Array, "n"]:
    return x[None] if mask is None and keep else x


def of_an_option_and_a_rank(x: Float[Array, "*b n"], keep: bool = False) -> Float[Array, "*b n"]:
    return x[0] if keep and x.ndim == 3 else x


@pytest.mark.parametrize("function", [of_two_options, of_an_option_and_a_rank], ids=lambda one: one.__name__)
def test_options_are_varied_in_pairs_and_with_ranks(function: Any):
    (failure,) = verify(function).failures
    assert "return: expected" in failure.message


Rows = Float[Array, "n d"]


def of_four_options_and_a_need(
    x: Rows, a: Rows | None = None, b: Rows | None = None, c: Rows | None = None, e: Rows | None = None
) -> Rows:
    x = x.reshape(x.shape[0], 4, -1).reshape(x.shape)
    return x[:1] if a is None and b is None and c is None and e is not None else x


def test_three_options_are_varied_together_also_where_sizes_were():
    (failure,) = verify(of_four_options_and_a_need).failures
    assert "return: expected" in failure.message


def of_four_tuples(
    x: Float[Array, "n"], a: tuple[int, ...], b: tuple[int, ...], c: tuple[int, ...], d: tuple[int, ...]
) -> Float[Array, "n"]:
    for first, second in ((a, b), (c, d), (b, c)):
        if len(first) != len(second):
            raise ValueError("not as long as each other")
    return x


def test_collections_that_are_as_long_as_each_other_are_so_in_a_chain():
    report = verify(of_four_tuples)
    assert report.verdict is Verdict.HOLDS
    assert len(report.assumptions) == 3
    assert not any("has not" in words for words in report.assumptions)


def test_a_tree_without_annotated_contents_is_tried_as_one_array():
    def activated(ys: PyTree) -> PyTree:
        return jnp.tanh(ys)

    report = verify(activated)
    assert report.ok
    assert "ys is one array" in report.assumptions


def test_arrays_without_a_shape_are_tried_with_one_shape():
    def scaled(x: Array, y: Array) -> Array:
        return x * y

    assert verify(scaled).assumptions == ("x and y are of one shape",)


class Abstract(eqx.Module):
    weight: AbstractVar[Array]

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x * self.weight


class Physical:
    """An array type of a package's own."""

    def __init__(self, value: Any):
        self.value = value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> Any:
        return self.value.dtype


def of_a_quantity(x: Float[Physical, "n"]) -> Float[Array, "n"]:
    return x.value


@pytest.mark.parametrize(
    ("thing", "reason"),
    [
        (Abstract, "self: Abstract is abstract"),
        (of_a_quantity, "x: no Physical can be made from a shape and a dtype alone"),
    ],
)
def test_what_cannot_be_made_is_no_failure(thing: Any, reason: str):
    (contract,) = verify(thing).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith(reason)


def test_every_condition_of_one_size_is_exact():
    """A small sweep: guards of one size, and whether the words say just what the guard lets pass."""
    for least, step in itertools.product((1, 3), (1, 3)):

        def guarded(x: Float[Array, "n"], least: float = least, step: float = step) -> Float[Array, "n"]:
            if x.shape[0] < least or x.shape[0] % step:
                raise ValueError("refused")
            return jax.nn.relu(x)

        expected = [f"{step} divides n"] * (step > 1) + [f"n >= {least}"] * (least > step)
        *conditions, of_least, of_step = verify(guarded).assumptions
        assert [one.partition(" (guard")[0] for one in conditions] == expected
        assert (of_least, of_step) == (f"least = {least}", f"step = {step}")


def _as_points(x: Float[Array, "n d"] | Float[Array, "n"]) -> Float[Array, "n d"]:
    return x if x.ndim == 2 else x[:, None]


class Pairs(eqx.Module):
    data: Float[Array, "n d"] = eqx.field(converter=_as_points)
    labels: Float[Array, "n p"] = eqx.field(converter=_as_points)

    def __init__(self, data: Float[Array, "n d"], labels: Float[Array, "n p"]):
        self.data, self.labels = data, labels


def paired(data: Float[Array, "n d"], labels: Float[Array, "n p"]) -> Pairs:
    return Pairs(data, labels)


def test_the_names_of_two_converters_are_not_one():
    assert verify(paired).proved


def split_in_heads(x: Float[Array, "b s d"], heads: int) -> Float[Array, "b heads s s"]:
    b, s, d = x.shape
    if d % heads:
        raise ValueError("heads must divide d")
    split = x.reshape(b, s, heads, d // heads)
    return jnp.einsum("bqhd,bkhe->bhqk", split, x)


def test_what_fails_behind_a_guard_is_a_failure_and_not_the_guard():
    (failure,) = verify(split_in_heads).failures
    assert "Einstein sum" in failure.message


class Positions(eqx.Module):
    weight: Float[Array, "..."]

    def __init__(self, weight: Float[Array, "..."]):
        self.weight = weight

    def __call__(self, x: Float[Array, "..."], *, as_image: bool = False) -> Float[Array, "..."]:
        if as_image:
            c, h, w = x.shape
            x = x.reshape(c, h * w).T
        return x + self.weight


def test_what_one_option_needs_is_not_stated_of_the_others():
    # As an image it would take `x` of three axes and a weight of one, with which the usual option fails.
    (contract,) = verify(Positions).contracts
    assert set(contract.assumptions) == {"weight and x are of one shape", "as_image is not True"}


class Coordinates(eqx.Module):
    table: Float[Array, "n _"]
    linear: eqx.nn.Linear

    def __init__(self, dim: int, rank: int, n: int, *, key: Array):
        self.table = jnp.ones((n, 1 if rank == 1 else 2))
        self.linear = eqx.nn.Linear(rank, dim, key=key)

    def __call__(self, x: Float[Array, "n _"]) -> Float[Array, "n dim"]:
        return jax.vmap(self.linear)(self.table)


def test_an_integer_that_no_shape_names_may_be_one_of_few():
    (contract,) = verify(Coordinates).contracts
    assert contract.verdict is Verdict.HOLDS
    assert [one for one in contract.assumptions if one.startswith("rank ")] == ["rank is among the sizes tried: 2"]


def quartered(x: Float[Array, "c h w"]) -> Float[Array, "c h_out w_out"]:
    c, h, w = x.shape
    x = x[:, ::2, ::2].reshape(c, h // 2, w // 2)
    return x[:, ::2, ::2].reshape(c, h // 4, w // 4)


def test_sizes_that_an_error_does_not_speak_of_may_have_to_be_multiples():
    (contract,) = verify(quartered).contracts
    assert set(contract.assumptions) == {"4 divides h", "4 divides w"}


class Cut(eqx.Module):
    skip: int = eqx.field(static=True)
    groups: int = eqx.field(static=True)

    def __init__(self, skip: int, groups: int):
        self.skip, self.groups = skip, groups

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        jnp.ones(self.skip).reshape(0)
        return x.reshape(x.shape[0], self.groups, -1).reshape(x.shape)


def test_no_size_is_zero():
    assert verify(Cut).verdict is Verdict.FAILS


class Gaussian(NamedTuple):
    mean: Float[Array, "d"]
    cov: Float[Array, "d d"] | Float[Array, "packed"]


def whitened(x: Float[Array, "n d"], normal: Gaussian) -> Float[Array, "n d"]:
    return (x - normal.mean) @ jnp.linalg.cholesky(normal.cov)


def factor(cov: Float[Array, "d d"]) -> Float[Array, "d d"]:
    return jnp.linalg.cholesky(cov)


def whitened_in_two(x: Float[Array, "n d"], normal: Gaussian) -> Float[Array, "n d"]:
    return (x - normal.mean) @ factor(normal.cov)


def whitened_by(x: Float[Array, "n d"], cov: Float[Array, "d d"] | Float[Array, "packed"]) -> Float[Array, "n d"]:
    return x @ jnp.linalg.cholesky(cov)


def test_a_function_need_not_take_all_that_a_record_may_hold_but_what_it_writes():
    for function in (whitened, whitened_in_two):
        (contract,) = verify(function).contracts
        assert 'normal.cov is not a Float[Array, "packed"]' in contract.assumptions
    assert verify(whitened_by).verdict is Verdict.FAILS


class Generator(eqx.Module):
    state: Integer[Array, "2"]

    def bits(self, width: int) -> Integer[Array, "3"]:
        return threefry_prng_impl.random_bits(self.state.astype("uint32"), width, (3,))


def test_an_error_may_name_the_integers_that_it_takes():
    (contract,) = verify(Generator).contracts
    assert contract.assumptions == ("width = 64",)


class Named(eqx.Module):
    values: Float[Array, "a b"]
    names: tuple[int, int] = eqx.field(static=True)

    def axis(self, name: int) -> Float[Array, "_"]:
        return jnp.sum(self.values, self.names.index(name))


def test_what_looks_a_value_up_holds_where_it_is_there():
    (contract,) = verify(Named).contracts
    assert contract.assumptions == ("names[1] = name",)


class Surfaces(eqx.Module):
    triangles: Float[Array, "n 3"]
    materials: tuple[str, ...] = eqx.field(default=(), static=True)

    def areas(self) -> Float[Array, "m n"]:
        return jnp.stack([self.triangles[:, len(one) % 3] for one in self.materials])


def test_what_needs_items_of_a_collection_that_is_empty_by_default():
    (contract,) = verify(Surfaces).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert "Surfaces.materials: the annotation leaves it open" in contract.reason


def as_image(x: Float[Array, "n d"]) -> Float[Array, "d side side"]:
    side = int(x.shape[0] ** 0.5)
    return x.T.reshape(x.shape[1], side, side)


def smoothed(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    side = math.isqrt(x.shape[0])
    if side * side != x.shape[0]:
        raise ValueError("not an image")
    image = jnp.cumsum(jnp.cumsum(x.T.reshape(-1, side, side), axis=1), axis=2)
    return image.reshape(-1, side * side).T


@pytest.mark.parametrize("function", [as_image, smoothed])
def test_where_a_number_is_taken_of_a_size_it_holds_at_the_sizes_tried(function: Any):
    """That `n` is a square asks nothing of it: Python's own root is taken."""
    (contract,) = verify(function).contracts
    assert contract.verdict is Verdict.HOLDS
    (words,) = contract.assumptions
    tried = int(words.removeprefix("n is among the sizes tried: "))
    assert math.isqrt(tried) ** 2 == tried


class Fused(eqx.Module):
    qkv: Float[Array, "3*dim dim"]

    def __init__(self, dim: int, heads: int, *, key: Array):
        if dim % heads:
            raise ValueError("heads must divide dim")
        self.qkv = jax.random.normal(key, (dim, 3 * dim))

    def __call__(self, x: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
        return x


def test_what_is_wrong_at_the_end_of_a_call_lies_behind_its_guards():
    (contract,) = verify(Fused).contracts
    assert contract.verdict is Verdict.FAILS
    assert "field qkv" in str(contract.failures[0])


def summed(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return jax.lax.associative_scan(jnp.add, x)


def test_a_scan_that_needs_the_number_of_one_size_leaves_the_others_free():
    (contract,) = verify(summed).contracts
    assert str(contract).startswith("summed: holds for all d; on the sizes tried of n\n")


class Classifier(eqx.Module):
    weight: Float[Array, "features classes"]

    def __call__(self, x: Float[Array, "784"]) -> Float[Array, " classes"]:
        return x @ self.weight


def mapped(model: Classifier, xs: Float[Array, "n 784"]) -> Float[Array, "n classes"]:
    return jax.vmap(model)(xs)


def test_a_module_that_is_printed_for_debug_info_takes_the_number_of_no_size():
    (contract,) = verify(mapped).contracts
    assert "holds when features = 784" in str(contract)
    assert not contract.sampled
