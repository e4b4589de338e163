"""The fixtures of jaxtyping's own tests, which its source archive leaves out, over weft or over jaxtyping itself."""

import itertools
import os
import sys
import types

import jax
import jaxtyping
import pytest

from .helpers import checker

# JAX has removed this name since the tests were written.
jax.tree_map = jax.tree.map

# One test names its checker, and does not take the fixture.
_typeguard = types.ModuleType("typeguard")
_typeguard.typechecked = checker
sys.modules["typeguard"] = _typeguard

if os.environ["CHECKED_BY"] != "jaxtyping":
    from weft.typecheck import install_import_hook

    def _hook(packages, typechecker):
        """Weft's hook takes the packages alone."""
        return install_import_hook(packages)

    jaxtyping.install_import_hook = _hook


@pytest.fixture
def typecheck():
    """The decorator that checks a call."""
    return checker


@pytest.fixture
def getkey():
    """A function that gives another key at each call."""
    seeds = itertools.count()
    return lambda: jax.random.key(next(seeds))
