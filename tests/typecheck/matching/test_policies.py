"""What the matcher does by itself, and where the two policies differ by decision."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float, PyTree
from weft import Module, nnx, static
from weft.typecheck import Dims, mode
from weft.typecheck.language.reading import Scope, read
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot
from weft.typecheck.matching.compiling import check_of
from weft.typecheck.matching.policies import PROOF, RUN_TIME, UNSHARED, Policy
from weft.typecheck.matching.records import check_instance, dims_of_instance

from ..layers import Linear, linear


def matched(hint: Any, value: Any, policy: Policy) -> Bindings:
    """The names that a value binds."""
    spec = read(hint, Scope(globals()))
    bindings, check = Bindings(Slot("argument", "x", None, spec)), check_of(spec, policy)
    if check is not None:
        check(value, bindings)
    return bindings


def reason(hint: Any, value: Any, policy: Policy) -> str:
    """What is wrong with a value, if anything."""
    try:
        matched(hint, value, policy)
    except Mismatch as miss:
        return miss.reason
    return ""


class Pair(NamedTuple):
    x: Float[Array, "n"]
    y: Float[Array, "n"]


TWO_PAIRS = Pair(jnp.ones(2), jnp.ones(2)), Pair(jnp.ones(3), jnp.ones(3))


def test_plain_records_share_the_callers_names_in_a_proof_only():
    assert matched(Pair, TWO_PAIRS[0], PROOF).sizes == {"n": 2}
    assert matched(Pair, TWO_PAIRS[0], RUN_TIME).sizes == {}
    assert reason(tuple[Pair, Pair], TWO_PAIRS, PROOF) == "size"
    assert reason(tuple[Pair, Pair], TWO_PAIRS, RUN_TIME) == ""
    assert reason(tuple[Pair, Pair], TWO_PAIRS, UNSHARED) == ""


@pytest.mark.parametrize("policy", [RUN_TIME, PROOF, UNSHARED], ids=lambda one: one.name)
@pytest.mark.parametrize("hint", [tuple[Pair, ...], PyTree[Pair], list[Pair], dict[int, Pair]], ids=str)
def test_each_of_several_records_keeps_its_names_under_every_policy(hint, policy):
    several = {list: list(TWO_PAIRS), dict: dict(enumerate(TWO_PAIRS))}
    assert reason(hint, several.get(getattr(hint, "__origin__", tuple), TWO_PAIRS), policy) == ""


@pytest.mark.parametrize("policy", [RUN_TIME, PROOF, UNSHARED], ids=lambda one: one.name)
def test_a_modules_names_are_its_own_under_every_policy(policy):
    assert matched(tuple[Linear, Linear], (linear(2, 3), linear(4, 5)), policy).sizes == {}
    linked = tuple[Annotated[Linear, Dims("out=n")], Annotated[Linear, Dims("in=n")]]
    assert matched(linked, (linear(2, 3), linear(4, 2)), policy).sizes == {"n": 2}
    assert reason(linked, (linear(2, 3), linear(4, 5)), policy) == "link"


def test_what_holds_no_array_is_looked_at_at_run_time_and_in_unions():
    assert (reason(int, "text", RUN_TIME), reason(int, "text", PROOF)) == ("type", "")
    assert reason(int | None, "text", RUN_TIME) == reason(int | None, "text", PROOF) == "type"
    assert reason(None, jnp.ones(2), RUN_TIME) == reason(None, jnp.ones(2), PROOF) == "type"


def test_a_box_stands_for_its_array_in_a_proof():
    box = nnx.Param(jnp.ones(2))
    assert reason(Float[Array, "n"], box, RUN_TIME) == "class"
    assert matched(Float[Array, "n"], box, PROOF).sizes == {"n": 2}
    assert matched(nnx.Param[Float[Array, "n"]], box, RUN_TIME).sizes == {"n": 2}


class Dense(nnx.Module):
    kernel: Float[Array, "i o"]
    bias: Float[Array, "o"]

    def __init__(self, i: int, o: int, other: int):
        self.kernel, self.bias = nnx.Param(jnp.ones((i, o))), nnx.Param(jnp.ones(other))


def test_an_objects_attributes_are_looked_into_in_a_proof_only():
    broken = Dense(2, 3, 4)
    assert reason(Dense, broken, RUN_TIME) == ""
    assert reason(Dense, broken, PROOF) == "size"
    assert reason(Dense, object(), RUN_TIME) == reason(Dense, object(), PROOF) == "type"


class Sized(Module):
    n: float = static()
    weight: Float[Array, "n"]


def test_a_proof_takes_any_integer_for_the_dim_that_it_is_called_like():
    with mode("off"):
        odd = Sized(3, jnp.ones(2))
    assert reason(Sized, odd, RUN_TIME) == ""
    assert reason(Sized, odd, PROOF) == "size"


def test_what_a_constructor_was_given_stands_for_the_dims_of_its_names():
    check_instance(linear(2, 3), PROOF, whole=True, arguments={"in": 3, "out": 2})
    with pytest.raises(Mismatch) as caught:
        check_instance(linear(2, 3), PROOF, whole=True, arguments={"in": 4})
    assert (caught.value.reason, caught.value.expected) == ("size", 4)


def test_fields_that_contradict_each_other_bind_what_fits():
    with mode("off"):
        broken = Linear(jnp.ones((2, 3)), jnp.ones(4))
    assert dims_of_instance(broken, PROOF).sizes == {"out": 2, "in": 3}


@dataclasses.dataclass
class Open:
    scale: Float[Array, "2*width"]


def test_an_expression_that_nothing_binds_waits_for_the_caller_in_a_proof():
    bindings = matched(Open, Open(jnp.ones(6)), PROOF)
    assert [str(one.dim) for one in bindings.pending] == ["2*width"]


@pytest.mark.parametrize(
    ("hint", "value", "path", "why"),
    [
        (dict[str, list[Float[Array, "n"]]], {"a": [jnp.ones(2), jnp.ones(3)]}, ("a", 1), "size"),
        (PyTree[Float[Array, "n"]], {"a": (jnp.ones(2), jnp.ones((2, 2)))}, ("a", 1), "rank"),
        (tuple[Float[Array, "n"], int], (jnp.ones(2),), (), "length"),
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", [RUN_TIME, PROOF], ids=lambda one: one.name)
def test_a_mismatch_says_where_and_why(hint, value, path, why, policy):
    with pytest.raises(Mismatch) as caught:
        matched(hint, value, policy)
    assert (caught.value.path, caught.value.reason) == (path, why)


def test_a_member_of_a_union_that_does_not_fit_leaves_no_names():
    hint = tuple[Float[Array, "a"], Float[Array, "b b"]] | tuple[Float[Array, "c"], Float[Array, "d e"]]
    value = jax.ShapeDtypeStruct((2,), "float32"), jax.ShapeDtypeStruct((3, 4), "float32")
    for policy in (RUN_TIME, PROOF):
        assert matched(hint, value, policy).sizes == {"c": 2, "d": 3, "e": 4}
