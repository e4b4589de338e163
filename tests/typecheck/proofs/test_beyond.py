"""What is about the numbers in an array is skipped, unless no numbers would do."""

from __future__ import annotations

import abc
import signal
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Bool, Float, Int, Key, PyTree
from weft.typecheck.proofs import beyond
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Verdict

T = TypeVar("T")
Edges = Int[Array, "e"]


def as_many_segments(x: Float[Array, "e d"], to: Edges, n: int) -> Float[Array, "n d"]:
    return jax.ops.segment_sum(x, n, to)  # the arguments are swapped


def test_an_array_with_axes_where_an_integer_is_wanted_fails():
    (contract,) = verify(as_many_segments).contracts
    assert contract.verdict is Verdict.FAILS
    assert "traced array with shape int32[" in str(contract.failures[0])


def repeated(x: Float[Array, "e d"], to: Edges) -> Float[Array, "m d"]:
    return jnp.repeat(x, to, axis=0)


def sized(n: Int[Array, ""]) -> Float[Array, "m"]:
    return jnp.zeros(n)


def segments(x: Float[Array, "e d"], to: Edges, n: Int[Array, ""]) -> Float[Array, "m d"]:
    return jax.ops.segment_sum(x, to, n)


def looked_up(x: Float[Array, "2"]) -> Float[Array, ""]:
    return jnp.asarray([0.5, 1.5][jnp.argmin(x)])


def counted(n: Int[Array, ""]) -> Int[Array, ""]:
    return jnp.asarray(sum(range(n)))


def chosen(x: Float[Array, "n"], which: Bool[Array, "n"]) -> Float[Array, "m"]:
    return x[which]


SCALED = jax.custom_vjp(jnp.multiply, nondiff_argnums=(1,))
SCALED.defvjp(lambda x, by: (x * by, None), lambda by, _, cotangent: (cotangent * by,))


def scaled(x: Float[Array, "n"], by: Float[Array, "n"]) -> Float[Array, "n"]:
    return SCALED(x, by)


@pytest.mark.parametrize("function", [repeated, sized, segments, looked_up, counted, chosen, scaled])
def test_what_some_numbers_would_do_for_is_skipped(function: Callable[..., Any]):
    (contract,) = verify(function).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("it needs the numbers in an array, not only its shape")


def looked_up_in_a_map(x: Float[Array, "n 2"]) -> Float[Array, "n"]:
    return jax.vmap(lambda row: [0.5, 1.5][jnp.argmin(row)] * row[0])(x)


def chosen_in_a_map(x: Float[Array, "n d"], which: Bool[Array, "n d"]) -> Float[Array, "n"]:
    return jax.vmap(lambda row, some: row[some].sum())(x, which)


@jax.jit
def looked_up_in_a_jit(x: Float[Array, "2"]) -> Float[Array, ""]:
    return jnp.asarray([0.5, 1.5][jnp.argmin(x)])


class LooksUpInAJit(eqx.Module):
    of: tuple[float, ...] = (0.5, 1.5)

    @eqx.filter_jit
    def __call__(self, x: Float[Array, "2"]) -> Float[Array, ""]:
        return jnp.asarray(self.of[jnp.argmin(x)])


@jax.jit
def scaled_in_a_jit(x: Float[Array, "n"], by: Float[Array, "n"]) -> Float[Array, "n"]:
    return SCALED(x, by)


THINGS = [looked_up_in_a_map, chosen_in_a_map, looked_up_in_a_jit, LooksUpInAJit, scaled_in_a_jit]


@pytest.mark.parametrize("thing", THINGS)
def test_inside_of_a_transform_no_numbers_do(thing: Any):
    assert verify(thing).contracts[0].verdict is Verdict.FAILS


def on_a_mesh(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    with jax.set_mesh(jax.make_mesh((1,), ("rows",))):
        return 2 * x


def test_what_no_trace_can_do_is_skipped():
    (contract,) = verify(on_a_mesh).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("it makes a call that JAX refuses while tracing (ValueError: `set_mesh` can")


def on_a_device(x: Float[Array, "b t h d"]) -> Float[Array, "b t h d"]:
    return jax.nn.dot_product_attention(x, x, x, implementation="cudnn")


def test_a_library_that_is_not_here_is_no_failure():
    (contract,) = verify(on_a_device).contracts
    assert (contract.verdict, contract.reason.partition(" (")[0]) == (
        Verdict.SKIPPED,
        "it needs a device, a library or a file that is not here",
    )


def with_options(x: Float[Array, "n"], options: dict[str, Any], tags: frozenset[object]) -> Float[Array, "n"]:
    try:
        scale = options["scale"]
    except KeyError:
        scale = 1.0
    return -x if "negative" in tags else x * scale


def test_a_collection_of_anything_is_tried_empty_and_that_is_said():
    (contract,) = verify(with_options).contracts
    assert (contract.verdict, contract.assumptions) == (Verdict.HOLDS, ("options is empty", "tags is empty"))


def with_one_option(x: Float[Array, "n"], options: dict[str, Any]) -> Float[Array, "n"]:
    return x * options["scale"]


def with_parts(x: Float[Array, "n"], parts: dict[str, Any]) -> Float[Array, "n"]:
    return x + jnp.stack([*parts.values()]).sum(0)


@pytest.mark.parametrize("function", [with_one_option, with_parts])
def test_what_needs_something_in_it_is_skipped(function: Callable[..., Any]):
    assert verify(function).contracts[0].verdict is Verdict.SKIPPED


class Parts(eqx.Module):
    parts: tuple[Callable[..., Any], ...] = ()

    def chosen(self, which: Int[Array, ""], x: Float[Array, "n"]) -> Float[Array, "n"]:
        return jax.lax.switch(which, self.parts, x)


def test_a_choice_among_no_branches_is_about_the_default():
    (contract,) = verify(Parts).contracts
    assert "Parts.parts: the annotation leaves it open" in contract.reason


class Kept(eqx.Module, Generic[T]):
    value: T


def taken_apart(x: Float[Array, "n"], box: Kept[T]) -> Float[Array, "n"]:
    first, (_, _) = box.value
    return x * first


def test_which_tree_it_is_is_left_open():
    (contract,) = verify(taken_apart).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert "the annotation leaves it open" in contract.reason


class Rule(eqx.Module):
    @abc.abstractmethod
    def applied(self, x: Float[Array, "n"]) -> Float[Array, "n"]: ...


class Twice(Rule):
    def applied(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return 2 * x


def applied_with_a_key(rule: Rule, x: Float[Array, "n"], key: Key[Array, ""]) -> Float[Array, "n"]:
    return rule.applied(x, key)


def test_what_no_class_that_was_tried_can_be_called_with_is_left_open():
    (contract,) = verify(applied_with_a_key).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("rule: the annotation leaves it open")


def of_two(x: Float[Array, "n"], key: Key[Array, ""]) -> Float[Array, "n"]:
    return x


def called_with_one(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return of_two(x)


def test_a_function_of_the_program_that_is_called_otherwise_fails():
    assert verify(called_with_one).contracts[0].verdict is Verdict.FAILS


def partitioned(x: Float[Array, "n"], which: PyTree[bool]) -> Float[Array, "n"]:
    part, _ = eqx.partition({"x": x}, which)
    return part["x"]


def test_which_structure_a_tree_has_is_left_open():
    (contract,) = verify(partitioned).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert "the annotation leaves it open" in contract.reason


def first_of(**rules: Rule) -> Float[Array, "3"]:
    listed = list(rules.values())
    return listed[0].applied(jnp.ones(3))


def test_what_has_no_keywords_to_take_the_first_of_is_left_open():
    (contract,) = verify(first_of).contracts
    assert contract.reason.startswith("**rules: ")


class Unlike(BaseException):
    """A sign of a program to itself."""


def checked(x: Float[Array, "n"], y: Float[Array, "m"]) -> Float[Array, "n"]:
    if x.shape != y.shape:
        raise Unlike
    return x + y


def test_a_sign_that_is_no_exception_is_a_refusal():
    (contract,) = verify(checked).contracts
    assert (contract.verdict, contract.assumptions) == (Verdict.HOLDS, ("m = n",))


def interrupted(x: Float[Array, "n"]) -> Float[Array, "n"]:
    signal.raise_signal(signal.SIGINT)
    return x


def test_what_ends_a_program_from_outside_is_none():
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            verify(interrupted)
    finally:
        signal.signal(signal.SIGINT, usual)


class Loop(eqx.Module):
    """What runs it sets its kind: it has none by itself."""

    kind: str | None = None

    def run(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return eqx.internal.while_loop(lambda x: x.sum() > 0, lambda x: x - 1, x, kind=self.kind)


def searched(x: Float[Array, "n"], y: Float[Array, "n"], mode: str | None = None) -> Float[Array, "m"]:
    return jnp.convolve(x, y, mode=mode)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("thing", [Loop, searched])
def test_a_choice_that_a_library_does_not_know_is_about_no_shapes(thing: Any, monkeypatch: pytest.MonkeyPatch):
    assert verify(thing).contracts[0].verdict is Verdict.FAILS
    monkeypatch.setattr(beyond, "is_installed", lambda file: True)
    (contract,) = verify(thing).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert "(ValueError: " in contract.reason


def slipped(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return jnp.sotfmax(x)  # pyright: ignore[reportAttributeAccessIssue]


def test_what_a_module_has_not_is_a_slip_in_the_users_code_and_a_version_in_an_installed_one(
    monkeypatch: pytest.MonkeyPatch,
):
    (contract,) = verify(slipped).contracts
    assert contract.verdict is Verdict.FAILS
    monkeypatch.setattr(beyond, "is_installed", lambda file: True)
    (contract,) = verify(slipped).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("the error is about no size that annotations name (AttributeError")


def placed(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return jax.device_put(x, jax.memory.Space.Elsewhere)  # pyright: ignore[reportAttributeAccessIssue]


def asked_otherwise(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return jnp.clip(x, least=0)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize("function", [asked_otherwise, placed])
def test_what_jax_has_not_is_a_version_in_an_installed_package(
    function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    assert verify(function).contracts[0].verdict is Verdict.FAILS
    monkeypatch.setattr(beyond, "is_installed", lambda file: True)
    assert verify(function).contracts[0].verdict is Verdict.SKIPPED


def tiled(x: Float[Array, "n"], width: int, patch: int) -> Float[Array, "n"]:
    return x * (7 % (width // patch // 1000))


def test_a_division_by_zero_is_a_fault_of_the_user_and_in_an_installed_package_of_its_integers(
    monkeypatch: pytest.MonkeyPatch,
):
    assert verify(tiled).contracts[0].verdict is Verdict.FAILS
    monkeypatch.setattr(beyond, "is_installed", lambda file: True)
    (contract,) = verify(tiled).contracts
    assert contract.verdict is Verdict.SKIPPED
    assert contract.reason.startswith("the error is about no size that annotations name (ZeroDivisionError")
