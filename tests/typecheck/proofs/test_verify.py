"""What `verify` finds of functions, classes and instances, and how it says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypedDict

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Real
from weft.core import Module
from weft.typecheck.errors import AnnotationError
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict


def project(x: Float[Array, "*batch i"], w: Float[Array, "o i"]) -> Float[Array, "*batch o"]:
    return x @ w.T


def project_wrong(x: Float[Array, "*batch i"], w: Float[Array, "o i"]) -> Float[Array, "*batch o"]:
    return x @ w


def test_what_traces_symbolically_is_proved():
    report = verify(project)
    assert report.proved
    assert report.contracts[0].symbolic == ("batch.0", "i", "o")
    assert str(report) == "project: proved for all *batch, i, o"


def test_a_failure_names_the_function_the_line_and_the_smallest_sizes():
    report = verify(project_wrong)
    (failure,) = report.failures
    assert not report
    assert report.verdict is Verdict.FAILS
    assert failure.file == __file__
    assert failure.line == project_wrong.__code__.co_firstlineno + 1
    assert dict(failure.sizes) == {"batch.0": 1, "i": 1, "o": 2}
    assert "dot_general requires contracting dimensions to have the same shape" in failure.message


def test_a_wrong_return_shows_what_was_expected_and_found():
    def pooled(x: Float[Array, "b s d"]) -> Float[Array, "b d"]:
        return x.mean(axis=0)

    (failure,) = verify(pooled).failures
    assert failure.rule == "contract"
    assert 'return: expected Float[Array, "b d"], found f32[1,1]' not in failure.message
    assert 'pooled, return: expected Float[Array, "b d"], found f32[' in failure.message


def test_a_wrong_dtype_is_a_failure():
    def counts(x: Float[Array, "n"]) -> Int[Array, "n"]:
        return x * 2

    assert "found f32[" in verify(counts).failures[0].message


def test_local_functions_are_held_to_their_annotations():
    def scanned(xs: Float[Array, "t n"]) -> Float[Array, "n"]:
        def step(carry: Float[Array, "n"], x: Float[Array, "n 1"]) -> tuple[Float[Array, "n"], None]:
            return carry + x, None

        return jax.lax.scan(step, jnp.zeros(xs.shape[1]), xs)[0]

    (failure,) = verify(scanned).failures
    assert 'scanned.<locals>.step, argument x: expected Float[Array, "n 1"]' in failure.message


def test_an_already_jitted_function_is_proved_as_it_was_written():
    assert verify(jax.jit(project)).proved
    assert not verify(jax.jit(project_wrong))


@pytest.mark.slow
def test_a_trace_that_jax_has_seen_is_watched_again():
    @jax.jit
    def inner(x: Float[Array, "n"]) -> Float[Array, "n n"]:
        return x

    def outer(x: Float[Array, "n"]) -> Float[Array, "_"]:
        return inner(x)

    assert [bool(verify(outer)) for _ in range(2)] == [False, False]


class Pair(NamedTuple):
    a: Float[Array, "n d"]
    b: Float[Array, "m d"]


class Options(TypedDict):
    x: Float[Array, "n d"]


@dataclasses.dataclass
class Plain:
    x: Float[Array, "n d"]


def of_pair(pair: Pair) -> Float[Array, "n m"]:
    return pair.a @ pair.b.T


def of_typed_dict(options: Options) -> Float[Array, "d"]:
    return options["x"].sum(axis=0)


def of_plain(plain: Plain) -> Plain:
    return Plain(plain.x * 2)


def of_key(key: PRNGKeyArray, n: int) -> Float[Array, "n"]:
    return jax.random.normal(key, (n,))


def of_literal(x: Float[Array, "n d"], how: Literal["sum", "mean"]) -> Float[Array, "n"]:
    return x.sum(axis=1) if how == "sum" else x.mean(axis=1)


def of_callable(f: Callable[[Float[Array, "d"]], Float[Array, "e"]], x: Float[Array, "n d"]) -> Float[Array, "n e"]:
    return jax.vmap(f)(x)


def of_tree(tree: PyTree[Float[Array, "..."], "T"]) -> PyTree[Float[Array, "..."], "T"]:
    return jax.tree.map(lambda leaf: leaf * 2, tree)


def of_lists(xs: list[Float[Array, "n d"]]) -> Float[Array, "_ n d"]:
    return jnp.stack(xs)


def of_varargs(*xs: Float[Array, "n"]) -> Float[Array, "n"]:
    return sum(xs[1:], xs[0])


def of_default(x: Float[Array, "n"], scale: Float[Array, ""] | float = 1.0) -> Float[Array, "n"]:
    return x * scale


def of_strings(x: 'Float[Array, "n"]') -> 'Float[Array, "n"]':
    return x


@pytest.mark.parametrize(
    "function",
    [
        of_pair,
        of_typed_dict,
        of_plain,
        of_key,
        of_literal,
        of_callable,
        of_tree,
        of_lists,
        of_varargs,
        of_default,
        of_strings,
    ],
    ids=lambda function: function.__name__,
)
def test_arguments_are_built_from_annotations_alone(function: Callable[..., Any]):
    report = verify(function)
    assert report.ok, report
    assert not report.skipped


def test_an_optional_argument_is_tried_both_ways():
    def masked(x: Float[Array, "b s"], mask: Bool[Array, "b s"] | None = None) -> Float[Array, "b"]:
        return (x * mask).sum(axis=1)

    (failure,) = verify(masked).failures
    assert failure.options == ("mask left out",)


def test_an_option_that_the_code_refuses_is_a_note():
    def needs_key(x: Float[Array, "n"], key: PRNGKeyArray | None = None) -> Float[Array, "n"]:
        if key is None:
            raise ValueError("a key is needed")
        return x

    report = verify(needs_key)
    assert report.ok
    line = needs_key.__code__.co_firstlineno + 2
    assert report.assumptions == (f"key is given (guard at test_verify.py:{line})",)


@pytest.mark.parametrize(
    ("function", "assumption"),
    [
        (lambda: split_heads, "heads divides m"),
        (lambda: rotate, "2 divides d"),
        (lambda: largest, "k <= n"),
        (lambda: chunked, "8 divides n"),
    ],
)
def test_what_the_code_needs_is_an_assumption_and_no_failure(function: Callable[[], Any], assumption: str):
    report = verify(function())
    assert report.ok, report
    assert assumption in report.assumptions


def split_heads(x: Float[Array, "s m"], heads: int) -> Float[Array, "s heads _"]:
    return x.reshape(x.shape[0], heads, x.shape[1] // heads)


def rotate(x: Float[Array, "s d"]) -> Float[Array, "s d"]:
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([-b, a], axis=-1)


def largest(x: Float[Array, "n"], k: int) -> Float[Array, "k"]:
    return jax.lax.top_k(x, k)[0]


def chunked(x: Float[Array, "n"], size: int = 8) -> Float[Array, "_ 8"]:
    return x.reshape(-1, size)


def test_a_size_of_one_that_the_code_refuses_is_an_assumption():
    def differences(x: Float[Array, "n"]) -> Float[Array, ""]:
        return (x[1:] - x[:-1]).max()

    report = verify(differences)
    assert report.ok
    assert "n >= 2" in report.assumptions


def test_squeezing_too_much_shows_at_a_size_of_one():
    def scores(x: Float[Array, "b d"], w: Float[Array, "d 1"]) -> Float[Array, "b"]:
        return (x @ w).squeeze()

    (failure,) = verify(scores).failures
    assert failure.sizes["b"] == 1


def test_several_ranks_of_a_variadic_name_are_tried():
    def wrong_axis(x: Float[Array, "*batch s d"]) -> Float[Array, "*batch d"]:
        return x.mean(axis=1)

    assert not verify(wrong_axis)


def test_fixed_dims_stay_fixed():
    report = verify(project, dims={"i": 3})
    assert report.contracts[0].symbolic == ("batch.0", "o")


def test_given_arguments_are_used_as_they_are():
    def rows(x: Float[Array, "n"], names: list[bytes]) -> Float[Array, "n"]:
        return x * len(names[0])

    assert "names[0]: weft has no rule that makes a bytes" in verify(rows).skipped[0].reason
    assert verify(rows, args={"names": [b"a"]}).proved


def test_an_outer_product_that_nobody_asked_for_is_a_warning_and_under_strict_a_failure():
    def mse(pred: Float[Array, "b 1"], y: Float[Array, "b"]) -> Float[Array, ""]:
        return jnp.mean((pred - y) ** 2)

    report = verify(mse)
    assert report.ok
    assert [warning.rule for warning in report.warnings] == ["outer-product"]
    assert "sub of (b, 1) with (1, b) pairs every b with every b" in report.warnings[0].message
    assert not verify(mse, strict=True)


SQUARE = jnp.ones((8, 8))


def test_arrays_from_outside_do_not_tie_dims_together():
    def project_square(x: Float[Array, "b i"], bias: Float[Array, "o"]) -> Float[Array, "b i"]:
        return x @ SQUARE + bias

    assert not verify(project_square)


def test_a_closure_over_a_numpy_table_stays_as_it_is():
    table = np.arange(4.0)

    def weigh(x: Float[Array, "b d"]) -> Float[Array, "b"]:
        return x @ jnp.asarray(table)

    report = verify(weigh)
    assert report.ok
    assert report.assumptions == ("d = 4",)


class Linear(Module):
    weight: Float[Array, "out inp"]
    bias: Float[Array, "out"] | None

    def __init__(self, inp: int, out: int, *, key: PRNGKeyArray):
        self.weight = jax.random.normal(key, (out, inp))
        self.bias = jnp.zeros(out)

    def __call__(self, x: Float[Array, "*batch inp"]) -> Float[Array, "*batch out"]:
        return x @ self.weight.T


class Transposed(Linear):
    def __call__(self, x: Float[Array, "*batch inp"]) -> Float[Array, "*batch out"]:
        return x @ self.weight


class Misbuilt(eqx.Module):
    weight: Float[Array, "out inp"]

    def __init__(self, inp: int, out: int):
        self.weight = jnp.zeros((inp, out))

    def __call__(self, x: Float[Array, "inp"]) -> Float[Array, "out"]:
        return x @ self.weight


class Chain(eqx.Module):
    layers: list[Linear]
    scale: Float[Array, "d"]

    def __init__(self, layers: list[Linear], d: int):
        self.layers = layers
        self.scale = jnp.ones(d)

    def __call__(self, x: Float[Array, "d"]) -> Float[Array, "_"]:
        x = x * self.scale
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_class_is_constructed_from_its_annotations():
    report = verify(Linear)
    assert report.ok
    assert [contract.name for contract in report.contracts] == ["Linear.__call__"]


class Untold(eqx.Module):
    """Its `__init__` says nothing of what it takes: no annotations, and no names of dims."""

    down: Float[Array, "r i"]
    up: Float[Array, "o r"]
    rate: float = eqx.field(static=True, default=0.5)

    def __init__(self, in_size, out_size, rank, key):
        self.down = jax.random.normal(key, (rank, in_size))
        self.up = jnp.zeros((out_size, rank))

    def __call__(self, x: Float[Array, "i"]) -> Float[Array, "o"]:
        return self.up @ (self.down @ x) * self.rate

    def transposed(self, x: Float[Array, "i"]) -> Float[Array, "o"]:
        return (self.down @ x) @ self.up


class NamedLikeDims(Untold):
    def __init__(self, i, o, r, key):
        super().__init__(i, o, r, key)


@pytest.mark.parametrize("cls", [Untold, NamedLikeDims])
def test_a_class_whose_init_has_no_annotations_is_told_by_its_fields(cls: type):
    called, transposed = verify(cls).contracts
    assert called.verdict is Verdict.PROVED
    assert transposed.verdict is Verdict.FAILS


def test_a_method_of_a_class_is_proved_on_an_instance_of_it():
    (contract,) = verify(Untold.transposed).contracts
    assert (contract.name, contract.verdict) == ("Untold.transposed", Verdict.FAILS)


def test_a_constructor_that_breaks_its_fields_fails():
    (failure,) = verify(Misbuilt).failures
    assert "Misbuilt, field weight" not in failure.message or failure.rule == "contract"


def test_a_square_instance_still_shows_a_transposed_weight():
    key = jax.random.key(0)
    assert verify(Linear(8, 8, key=key)).ok
    assert not verify(Transposed(8, 8, key=key))


@pytest.mark.slow
def test_dims_of_submodules_are_joined_by_the_program():
    key = jax.random.key(0)
    chain = Chain([Linear(8, 8, key=key), Linear(8, 8, key=key)], 8)
    report = verify(chain)
    assert report.ok, report
    assert not verify(Chain([Linear(8, 8, key=key), Transposed(8, 8, key=key)], 8))


def test_a_bound_method_is_verified_alone():
    class Two(Module):
        w: Float[Array, "n"]

        def right(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
            return x * self.w

        def wrong(self, x: Float[Array, "n"]) -> Float[Array, "n 1"]:
            return x * self.w

    two = Two(jnp.ones(3))
    assert verify(two.right).ok
    assert not verify(two.wrong)
    assert not verify(two)


def test_what_is_wrong_with_a_result_behind_a_guard_fails():
    def grouped(x: Float[Array, "b t w"], y: Float[Array, "b t h"]) -> Float[Array, "b t w"]:
        assert x.shape[-1] % y.shape[-1] == 0
        return x.swapaxes(0, 1)

    (contract,) = verify(grouped).contracts
    assert contract.verdict is Verdict.FAILS
    assert contract.failures[0].sizes == {"b": 1, "t": 2, "w": 1, "h": 1}


def test_a_dtype_without_brackets_is_an_annotation_that_accepts_nothing():
    def scaled(x: Float[Array, "n"], by: Real) -> Float[Array, "n"]:
        return x * by

    with pytest.raises(
        AnnotationError, match=r"by: jaxtyping accepts no array for Real without brackets; write Real\[Array"
    ):
        verify(scaled)


def test_an_unreadable_annotation_is_one_clear_line():
    def odd(x: "Float[Array, 'a,b']") -> None: ...

    with pytest.raises(AnnotationError, match="Axes should be separated with spaces, not commas") as caught:
        verify(odd)
    assert "\n" not in caught.value.what


def test_what_is_neither_function_nor_class_nor_instance_is_refused():
    with pytest.raises(TypeError, match="verify takes a function, a Module class, an instance or a method, not 3"):
        verify(3)
