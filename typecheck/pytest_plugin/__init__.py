"""The pytest plugin: options for a run, and the fixture `weft_typecheck` for one test.

- `--weft-typecheck=off|on|strict`: whether contracts are checked, and how;
- `--weft-debug-successors`: a successor that nothing uses is an error, see `weft.debug_successors`;
- `--weft-contracts=package,...`: the contracts of packages that do not import weft are checked, see
  `weft.typecheck.install_import_hook`; at the end it says what could not be.

It is found through its entry point, under the name `weft_pytest`: being no part of the package `weft`, it imports
neither weft nor JAX before a test run asks for them. pytest-xdist gives the options to its workers, so they run in the
same modes.

    def test_broadcasting(weft_typecheck):
        with weft_typecheck("strict"):
            ...
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from weft.typecheck.modes import Mode

# The hook of `--weft-contracts`; its class is only there once weft is imported.
_HOOK = pytest.StashKey[Any]()
_MODES = ("off", "on", "strict")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("weft")
    group.addoption(
        "--weft-debug-successors",
        action="store_true",
        default=False,
        help="whether a record's successor that nothing uses is an error in this run; see weft.debug_successors",
    )
    group.addoption(
        "--weft-contracts",
        default=None,
        metavar="PACKAGES",
        help="packages, separated by commas, whose jaxtyping contracts are checked in this run while their code runs",
    )
    group.addoption(
        "--weft-typecheck",
        choices=_MODES,
        default=None,
        help="whether weft checks contracts in this run: off, on (the default) or strict "
        "(implicit rank and dtype promotion are errors too)",
    )


def _leave(mode: AbstractContextManager[Any]) -> None:
    mode.__exit__(None, None, None)


def pytest_configure(config: pytest.Config) -> None:
    """Sets the modes for the process; without the options nothing is imported."""
    if config.getoption("--weft-debug-successors"):
        # For the processes that tests start, too.
        os.environ["WEFT_DEBUG_SUCCESSORS"] = "1"
        from weft.core.threads.lost import debug_successors

        mode = debug_successors()
        mode.__enter__()
        config.add_cleanup(functools.partial(_leave, mode))
    chosen = config.getoption("--weft-typecheck")
    if chosen is not None:
        from weft.typecheck.modes import set_mode

        set_mode(chosen, "--weft-typecheck")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Does what has to come before the first import: of flax.nnx, of packages whose contracts are checked.

    In xdist's workers, too. `flax.nnx` is `weft.nnx` where pytest was started by `python -m weft.nnx`.
    """
    packages = early_config.known_args_namespace.weft_contracts
    if packages:
        from weft.typecheck.calls.importing import install_import_hook

        early_config.stash[_HOOK] = install_import_hook(packages.split(","))
    if os.environ.get("WEFT_NNX_INSTALL"):
        from weft.nnx.interop.installing import install

        install()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says of which functions the annotations could not be read, so that nobody takes them for checked."""
    hook = config.stash.get(_HOOK, None)
    if hook is not None and hook.unread:
        terminalreporter.section("contracts that were not checked")
        for name, reason in hook.unread.items():
            terminalreporter.line(f"{name}: {reason}")


@pytest.fixture
def weft_typecheck() -> Callable[[str], AbstractContextManager[Mode]]:
    """Contract modes for part of a test: `with weft_typecheck("strict"): ...`."""
    from weft.typecheck.modes import mode

    chosen: Any = mode
    return chosen
