"""A `type` alias, and a type parameter, says what the annotation without it says: in a file of today's syntax."""

from __future__ import annotations

import sys
import types

import jax.numpy as jnp
import pytest
import weft
from weft import ContractError
from weft.typecheck import contract, verify

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 cannot read `type X = ...`")

SOURCE = """
from typing import TYPE_CHECKING
import jax.numpy as jnp
from jaxtyping import Array, Float
if TYPE_CHECKING:
    from nowhere import State

type Opt = State | None
type Pair[T] = tuple[T, T]
type Vec = Float[Array, "n"]
type Tree[T] = dict[str, Tree[T]] | T
type Row[A, *B, C] = tuple[A, *B, C]

def optional(x: Vec, s: Opt = None) -> Vec:
    return x
def pair(p: Pair[Vec]) -> Vec:
    return p[0]
def bound[T: Float[Array, "n"]](x: T) -> T:
    return x if x.shape[0] < 5 else x[:2]
def tree(p: Tree[Vec]) -> Float[Array, "n"]:
    return jnp.ones(3)
def row(r: Row[Vec, int, None, Vec]) -> Vec:
    return r[0]
"""
THREE, FOUR = jnp.ones(3), jnp.ones(4)


@pytest.fixture(params=["", "from __future__ import annotations\n"], ids=["values", "strings"])
def module(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    made = types.ModuleType("of_aliases")
    monkeypatch.setitem(sys.modules, "of_aliases", made)
    exec(compile(request.param + SOURCE, "of_aliases.py", "exec", dont_inherit=True), vars(made))
    return made


@pytest.mark.parametrize("door", [weft.jit, contract])
@pytest.mark.parametrize(
    ("name", "right", "wrong", "fragment"),
    [
        ("optional", (THREE,), (jnp.ones((3, 1)),), "argument x of optional"),
        ("pair", ((THREE, THREE),), ((THREE, FOUR),), "argument p[1] of pair"),
        ("bound", (THREE,), (jnp.ones(6),), "return value of bound"),
        ("bound", (THREE,), (jnp.ones((3, 3)),), "argument x of bound"),
        ("tree", ({"a": THREE},), ({"a": FOUR},), "return value of tree"),
        ("row", ((THREE, 1, None, THREE),), ((THREE, 1, None, FOUR),), "argument r[3] of row"),
    ],
)
def test_an_alias_is_checked_as_what_it_stands_for(module, door, name, right, wrong, fragment):
    checked = door(getattr(module, name))
    checked(*right)
    with pytest.raises(ContractError) as caught:
        checked(*wrong)
    assert fragment in str(caught.value)


def test_an_alias_is_proved_as_what_it_stands_for(module):
    assert verify(module.optional).proved
    assert verify(module.pair).proved
    assert not verify(module.bound)
