"""Whose code a file holds."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import equinox
import jax
import jax.numpy as jnp
import optax
import pytest
import weft
from weft import nnx
from weft.core.callers import calling_line, is_users, owner_of
from weft.typecheck import verify


def file_of(function: Callable[..., object]) -> str:
    return function.__code__.co_filename


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        (file_of(weft.tree.split), "machinery"),
        (file_of(verify), "contracts"),
        (file_of(nnx.split), "nnx"),
        (str(weft.modules.__file__), "modules"),
        (jnp.__file__, "jax"),
        (equinox.__file__, "equinox"),
        (optax.__file__, "installed"),
        (os.__file__, "standard"),
        (json.__file__, "standard"),
        ("<frozen runpy>", "frozen"),
        ("<string>", "generated"),
        ("<stdin>", "generated"),
        (__file__, "user"),
        ("/project/jax/train.py", "user"),
        # Of another environment than the one that runs.
        ("/project/.venv/lib/python3.12/site-packages/jax/numpy.py", "installed"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "installed"),
    ],
)
def test_every_file_has_one_owner(file: str, owner: str):
    assert owner_of(file) == owner


def test_an_error_is_told_by_whoever_is_outside_of_weft_and_what_it_stands_on():
    assert is_users(test_every_file_has_one_owner)
    assert is_users(optax.adam)
    assert not is_users(weft.tree.split)
    assert not is_users(jax.make_jaxpr)
    assert not is_users(equinox.partition)


def test_the_calling_line_is_the_users():
    assert calling_line().rpartition(":")[0] == __file__
