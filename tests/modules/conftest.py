"""Shared by the layers' tests."""

import jax
import pytest
from weft.core import hooks


class Draws:
    """In the place of `nnx.Rngs`: the keys that one of our layers splits its own key into, in turn."""

    def __init__(self, key, count=2):
        self.keys = iter(jax.random.split(key, count))

    def params(self):
        return next(self.keys)


@pytest.fixture
def draws():
    return Draws


@pytest.fixture
def unchecked():
    """Contracts off, so that a layer's own checks are what answers."""
    before = hooks.install_contracts(None)
    yield
    hooks.install_contracts(before)
