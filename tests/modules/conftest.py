"""Shared by the layers' tests."""

import pytest
from weft.core import hooks


@pytest.fixture
def unchecked():
    """Contracts off, so that a layer's own checks are what answers."""
    before = hooks.install_contracts(None)
    yield
    hooks.install_contracts(before)
