"""The public names: each has one home, the former ones say where it is, and a star import hides nothing."""

from __future__ import annotations

import builtins
import subprocess
import sys
import typing
from collections import Counter
from importlib import import_module
from types import ModuleType

import pytest
import weft
from weft.core.errors import WeftError
from weft.core.public_names import MOVED

# `weft.nnx` is flax's, with flax's names.
NAMESPACES = ["weft", *(f"weft.{name}" for name in weft._NAMESPACES if name != "nnx")]


def names_of(namespace: str) -> list[str]:
    module = import_module(namespace)
    return [name for name in getattr(module, "__all__", dir(module)) if not name.startswith("_")]


def public() -> list[tuple[str, str, object]]:
    return [(space, name, getattr(import_module(space), name)) for space in NAMESPACES for name in names_of(space)]


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_a_namespace_lists_its_public_names(namespace: str):
    names = names_of(namespace)
    assert len(set(names)) == len(names) > 3
    assert {*names} <= {*dir(import_module(namespace))}


def test_every_public_name_has_exactly_one_home():
    # JAX's activations have two names there, too.
    own = [found for found in public() if getattr(found[2], "__module__", "").startswith("weft.")]
    homes = Counter(id(thing) for _, _, thing in own)
    assert [f"{space}.{name}" for space, name, thing in own if homes[id(thing)] > 1] == []
    assert len(own) > 250
    assert [name for _, name, thing in public() if isinstance(thing, ModuleType)] == []


@pytest.mark.parametrize("former", MOVED)
def test_the_error_about_a_moved_name_says_where_it_is(former: str):
    module, _, name = former.rpartition(".")
    place, _, now = MOVED[former].rpartition(".")
    assert now in names_of(place)
    if former == "weft.metrics.MetricError":  # which is written in that very file
        assert name not in names_of(module)
        return
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}': it is {place}\.{now} \(`weft migrate`"):
        getattr(import_module(module), name)


@pytest.mark.parametrize(
    ("statement", "place"),
    [
        ("from weft import split", "weft.tree.split"),
        ("from weft import Module, AxisError", "weft.errors.AxisError"),
        ("from weft import inference", "weft.inference_mode"),
        ("from weft.core import Not", "weft.filters.Not"),
        ("from weft.transforms import map", "weft.lax_map"),
        ("from weft.typecheck import ContractError", "weft.ContractError"),
        ("from weft.debug import NonFiniteError", "weft.errors.NonFiniteError"),
        ("from weft.ops import avg_pool", "weft.avg_pool"),
        ("import weft.split", "weft.tree.split"),
    ],
)
def test_the_error_about_an_import_of_a_moved_name_says_where_it_is(statement: str, place: str):
    with pytest.raises(ImportError, match=rf"it is {place} \(`weft migrate` rewrites programs of weft 0.2\)"):
        exec(statement, {})


def test_an_unknown_name_is_an_error_without_a_place():
    with pytest.raises(AttributeError, match=r"^module 'weft' has no attribute 'nonsense'$"):
        weft.nonsense  # noqa: B018
    with pytest.raises(ImportError, match=r"cannot import name 'nonsense' from 'weft'"):
        exec("from weft import nonsense", {})


def test_an_import_of_all_names_hides_neither_pythons_nor_typings_nor_modules():
    names: dict[str, object] = {}
    exec("from weft import *", names)
    brought = {name for name in names if not name.startswith("__")}
    assert brought == {*weft.__all__}
    assert not brought & {*dir(builtins), *typing.__all__}
    assert not [name for name in brought if isinstance(names[name], ModuleType)]


def test_every_error_that_a_user_can_meet_has_a_home():
    homes = ("weft.core.", "weft.transforms.", "weft.modules.")
    listed = {thing for space, _, thing in public() if space in ("weft", "weft.errors")} - {WeftError}

    def subclasses(cls: type) -> set[type]:
        return {cls, *(below for sub in cls.__subclasses__() for below in subclasses(sub))}

    met = {cls for cls in subclasses(WeftError) if cls.__module__.startswith(homes)}
    # A class that is told under the name of the one it is derived from is caught by that.
    assert [cls.__name__ for cls in met - {WeftError} if not {*cls.__mro__} & listed] == []
    assert len(met) > 30


def test_errors_but_for_five_are_in_their_namespace():
    things = [(name, getattr(weft, name)) for name in weft.__all__]
    exceptions = {name for name, thing in things if isinstance(thing, type) and issubclass(thing, BaseException)}
    assert exceptions == {"AliasError", "CheckpointError", "ContractError", "SuccessorError", "WeftError"}
    assert all(issubclass(getattr(weft.errors, name), Exception) for name in weft.errors.__all__)


@pytest.mark.slow
def test_namespaces_load_on_first_use_and_are_imported_by_their_names():
    program = """
import sys, weft
spaces = [f"weft.{name}" for name in weft._NAMESPACES]
print([name for name in spaces if name in sys.modules], {*weft._NAMESPACES} <= {*dir(weft)})
import weft.metrics, weft.ops, weft.tree as t
from weft.errors import AxisError, CaptureError
from weft.filters import Not
from weft.metrics import Average
from weft.ops import op
print("weft.modules.norms.moments" in sys.modules)
print(weft.ops.op is op, t is weft.tree, weft.metrics.Average is Average, weft.filters.Not is Not)
weft.nnx, weft.typecheck
print("weft.nnx" in sys.modules, "weft.typecheck" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.splitlines() == ["[] True", "True", "True True True True", "True True"], run.stderr


def test_the_version_is_that_of_the_new_names():
    assert weft.__version__ == "0.3.0"
