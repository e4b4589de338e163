"""The pytest plugin: options for a test run, and the fixture `weft_typecheck` for a single test.

- `--weft-typecheck=off|on|strict`: whether contracts are checked, and how strictly;
- `--weft-debug-successors`: an unused successor of a record is an error, see `weft.debug.debug_successors`;
- `--weft-contracts=package,...`: checks the contracts of packages that do not import weft, see
   `weft.typecheck.install_import_hook`, and lists at the end what could not be checked.

pytest finds the plugin by its entry point, under the name `weft_pytest`. It is no part of the package `weft`, so it
imports neither weft nor JAX before an option asks for them. pytest-xdist passes the options to its workers, which
therefore run in the same modes.

    def test_broadcasting(weft_typecheck):
        with weft_typecheck("strict"):
            ...
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from weft.typecheck.modes import Mode

# The hook of `--weft-contracts`, typed Any because importing its class would import weft.
_HOOK = pytest.StashKey[Any]()
_NOT_CHECKED = pytest.StashKey[list[dict[str, str]]]()
_MODES = ("off", "on", "strict")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds weft's options to pytest."""
    group = parser.getgroup("weft")
    group.addoption(
        "--weft-debug-successors",
        action="store_true",
        default=False,
        help="whether a record's successor that nothing uses is an error in this run; see weft.debug.debug_successors",
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
    """Sets the modes for the process; without the options, weft is not imported."""
    if config.getoption("--weft-debug-successors"):
        # Subprocesses that tests start read the environment.
        os.environ["WEFT_DEBUG_SUCCESSORS"] = "1"
        from weft.core.threads.lost import debug_successors

        mode = debug_successors()
        mode.__enter__()
        config.add_cleanup(functools.partial(_leave, mode))
    chosen = config.getoption("--weft-typecheck")
    if chosen is not None:
        # Imported here, as a run without the option must not pay for weft and JAX.
        from weft.typecheck.modes import set_mode

        set_mode(chosen, "--weft-typecheck")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Installs import hooks before the first import of flax.nnx and of the packages whose contracts are checked.

    This runs in xdist's workers as well. `python -m weft.nnx` starts pytest with `flax.nnx` standing for `weft.nnx`.
    """
    packages = early_config.known_args_namespace.weft_contracts
    if packages:
        from weft.typecheck.calls.importing import ImportHookError, install_import_hook

        try:
            early_config.stash[_HOOK] = install_import_hook(packages.split(","))
        except ImportHookError as error:
            raise pytest.UsageError(f"--weft-contracts: {packages}: {error.what}; {error.fix}") from None
    if os.environ.get("WEFT_NNX_INSTALL"):
        from weft.nnx.interop.installing import install

        install()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Collects what a worker of pytest-xdist did not check."""
    output = getattr(node, "workeroutput", None) or {}
    if "weft_not_checked" in output:
        node.config.stash.setdefault(_NOT_CHECKED, []).append(json.loads(output["weft_not_checked"]))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Sends what a worker of pytest-xdist did not check to the main process."""
    config: Any = session.config
    hook = config.stash.get(_HOOK, None)
    if hook is not None and hasattr(config, "workeroutput"):
        config.workeroutput["weft_not_checked"] = json.dumps(hook.not_checked())


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints the functions whose annotations could not be read."""
    hook = config.stash.get(_HOOK, None)
    said = {} if hook is None else _not_checked(hook, config.stash.get(_NOT_CHECKED, []))
    if said:
        terminalreporter.section("contracts that were not checked")
        for name, reason in said.items():
            terminalreporter.line(f"{name}: {reason}")


def _not_checked(hook: Any, workers: list[dict[str, str]]) -> dict[str, str]:
    """The names that no process checked; a package that at least one worker imported counts as checked."""
    outcomes = workers or [hook.not_checked()]
    # Each worker runs some of the tests, so a package may be imported in one of them only.
    every = set.intersection(*map(set, outcomes))
    listed = [pair for reasons in outcomes for pair in reasons.items()]
    return {name: why for name, why in listed if name in every or name not in hook.packages}


@pytest.fixture
def weft_typecheck() -> Callable[[str], AbstractContextManager[Mode]]:
    """A context manager for contract modes in part of a test: `with weft_typecheck("strict"): ...`."""
    from weft.typecheck.modes import mode

    chosen: Any = mode
    return chosen
