"""The pytest plugin: `--weft-typecheck=off|on|strict` for a run, and the fixture `weft_typecheck` for one test.

It is found through its entry point, under the name `weft_pytest`: being no part of the package `weft`, it imports
neither weft nor JAX before a test run asks for them. pytest-xdist gives the option to its workers, so they run in the
same mode.

    def test_broadcasting(weft_typecheck):
        with weft_typecheck("strict"):
            ...
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from weft.typecheck.modes import Mode

_MODES = ("off", "on", "strict")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option."""
    parser.getgroup("weft").addoption(
        "--weft-typecheck",
        choices=_MODES,
        default=None,
        help="whether weft checks contracts in this run: off, on (the default) or strict "
        "(implicit rank and dtype promotion are errors too)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Sets the mode for the process; without the option nothing is imported."""
    chosen = config.getoption("--weft-typecheck")
    if chosen is not None:
        from weft.typecheck.modes import set_mode

        set_mode(chosen, "--weft-typecheck")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Makes `flax.nnx` be `weft.nnx` where pytest was started by `python -m weft.nnx`, in xdist's workers too."""
    if os.environ.get("WEFT_NNX_INSTALL"):
        from weft.nnx.install import install

        install()


@pytest.fixture
def weft_typecheck() -> Callable[[str], AbstractContextManager[Mode]]:
    """Contract modes for part of a test: `with weft_typecheck("strict"): ...`."""
    from weft.typecheck.modes import mode

    chosen: Any = mode
    return chosen
