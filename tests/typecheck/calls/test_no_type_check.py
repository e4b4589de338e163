"""`typing.no_type_check` means it at every door: nothing of what it is on is checked or proved."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import no_type_check

import jax.numpy as jnp
import pytest
import weft
from jaxtyping import Array, Float
from weft import ContractError
from weft.typecheck import contract, install_import_hook, verify
from weft.typecheck.command.linter import check

WRONG = jnp.ones((2, 3))
quiet = typing.no_type_check


@no_type_check
def square(x: Float[Array, "n n"]) -> Float[Array, "n"]:
    return x


class Layer(weft.Module):
    w: Float[Array, "n"]

    @no_type_check
    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x

    def checked(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x


@no_type_check
class Quiet(weft.Module):
    w: Float[Array, ""]

    def __call__(self, x: Float[Array, ""]) -> Float[Array, ""]:
        return x


class Loud(Quiet):
    v: Float[Array, "n"]

    def also(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x


@contract
@no_type_check
@dataclasses.dataclass
class Pair:
    first: Float[Array, "n"]


@pytest.mark.parametrize("door", [weft.jit, contract, weft.vmap, lambda f: quiet(contract(f))])
def test_a_function_is_not_checked(door):
    door(square)(WRONG)


def test_a_method_is_not_checked_and_its_sisters_are():
    layer = Layer(jnp.ones(2))
    layer(WRONG)
    weft.jit(layer)(WRONG)
    with pytest.raises(ContractError):
        layer.checked(WRONG)


def test_a_class_is_not_checked_and_what_a_subclass_adds_is():
    Quiet("no array")(WRONG)
    Pair("no array")
    loud = Loud("no array", jnp.ones(2))
    loud(WRONG)
    with pytest.raises(ContractError):
        loud.also(WRONG)


def test_there_is_nothing_to_prove():
    assert not verify(square).proved
    assert not [one for one in verify(Quiet).contracts if one.failures]


FILE = """
from typing import no_type_check as quiet
from jaxtyping import Array, Float

@quiet
def twice(x: Float[Array, "n"]) -> Float[Array, "n n"]:
    return x

@quiet
class Box:
    def get(self, x: Float[Array, "n"]) -> Float[Array, "n n"]:
        return x
"""


def test_a_file_has_no_contract_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "of_quiet.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    checked = check(["of_quiet.py"])
    assert not checked.lines
    assert not checked.verdicts


def test_the_import_hook_leaves_it_alone_under_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "hooked_quiet.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    with install_import_hook("hooked_quiet"):
        import hooked_quiet  # pyright: ignore[reportMissingImports]
    hooked_quiet.twice(WRONG)
    hooked_quiet.Box().get(WRONG)
