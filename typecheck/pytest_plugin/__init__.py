"""The pytest plugin: options for a run, and the fixture `weft_typecheck` for one test.

- `--weft-typecheck=off|on|strict`: whether contracts are checked, and how;
- `--weft-debug-successors`: a successor that nothing uses is an error, see `weft.debug.debug_successors`;
- `--weft-contracts=package,...`: the contracts of packages that do not import weft are checked, see
  `weft.typecheck.install_import_hook`; at the end it says what could not be.

- `--weft-record[=package,...]`: the structures of the arguments that the functions of packages are called with are
  written to `.weft/calls.json`, for `weft check`; without a name, of the packages that the project has.

It is found through its entry point, under the name `weft_pytest`: being no part of the package `weft`, it imports
neither weft nor JAX before a test run asks for them. pytest-xdist gives the options to its workers, so they run in the
same modes.

    def test_broadcasting(weft_typecheck):
        with weft_typecheck("strict"):
            ...
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from weft.typecheck.modes import Mode

# The hook of `--weft-contracts`; its class is only there once weft is imported.
_HOOK = pytest.StashKey[Any]()
_NOT_CHECKED = pytest.StashKey[list[dict[str, str]]]()
# The recorder of `--weft-record`, and what the workers of pytest-xdist have recorded.
_RECORDER = pytest.StashKey[Any]()
_RECORDED = pytest.StashKey[list[dict[str, list[Any]]]]()
_SAID, _PATHS = pytest.StashKey[list[str]](), pytest.StashKey[list[str]]()
_NO_PACKAGES = ("tests", "test", "docs", "examples")
_MODES = ("off", "on", "strict")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
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
        "--weft-record",
        nargs="?",
        const="",
        default=None,
        metavar="PACKAGES",
        help="record the structure of the arguments of each annotated function that is called, for `weft check`: "
        "of these packages, separated by commas (write --weft-record=NAME), or of those that the project has",
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
        from weft.typecheck.calls.importing import ImportHookError, install_import_hook

        try:
            early_config.stash[_HOOK] = install_import_hook(packages.split(","))
        except ImportHookError as error:
            raise pytest.UsageError(f"--weft-contracts: {packages}: {error.what}; {error.fix}") from None
    recorded = early_config.known_args_namespace.weft_record
    if recorded is not None:
        if packages:
            raise pytest.UsageError("--weft-record and --weft-contracts are for two runs: both change how modules load")
        _record(early_config, recorded)
    if os.environ.get("WEFT_NNX_INSTALL"):
        from weft.nnx.interop.installing import install

        install()


def _record(config: pytest.Config, named: str) -> None:
    """Records the calls of packages from their import on.

    Raises:
        pytest.UsageError: if there is no such package, or it is imported already.
    """
    names = [one for one in named.split(",") if one] or _packages_of(config.rootpath)
    wrong = [one for one in names if not all(part.isidentifier() for part in one.split(".")) or _is_of_tests(Path(one))]
    if wrong or not names:
        why = (
            f"{wrong[0]!r} is no package to record"
            if wrong
            else f"{config.rootpath} has no package, here or below `src`"
        )
        raise pytest.UsageError(f"--weft-record: {why}; name them: --weft-record=PACKAGE,...")
    from weft.typecheck.calls.importing import ImportHookError
    from weft.typecheck.recording.recorder import Recorder

    try:
        config.stash[_RECORDER] = Recorder(names).install()
    except ImportHookError as error:
        raise pytest.UsageError(f"--weft-record: {', '.join(names)}: {error.what}; {error.fix}") from None


def _is_of_tests(path: Path) -> bool:
    """Whether it was meant as a path, as in `pytest --weft-record tests`."""
    return path.name in _NO_PACKAGES or (
        path.is_dir() and not (path / "__init__.py").exists() and any(path.glob("test_*"))
    )


def _packages_of(root: Path) -> list[str]:
    """The packages of a project: below `src`, or beside its `pyproject.toml`; those of its tests are none."""
    for folder in (root / "src", root):
        found = sorted(one.parent.name for one in folder.glob("*/__init__.py"))
        names = [one for one in found if one.isidentifier() and one not in _NO_PACKAGES]
        if names:
            return names
    return []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Takes what a worker of pytest-xdist has recorded, and what it did not check."""
    output = getattr(node, "workeroutput", None) or {}
    if "weft_not_checked" in output:
        node.config.stash.setdefault(_NOT_CHECKED, []).append(json.loads(output["weft_not_checked"]))
    if "weft_calls" in output:
        found = json.loads(output["weft_calls"])
        node.config.stash.setdefault(_RECORDED, []).append(found["calls"])
        node.config.stash.setdefault(_SAID, []).extend(found["said"])
        node.config.stash.setdefault(_PATHS, []).extend(found["paths"])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the recorded calls, or gives them, and what was not checked, to the process that tells it of all."""
    config: Any = session.config
    hook = config.stash.get(_HOOK, None)
    if hook is not None and hasattr(config, "workeroutput"):
        config.workeroutput["weft_not_checked"] = json.dumps(hook.not_checked())
    recorder = config.stash.get(_RECORDER, None)
    if recorder is None:
        return
    said = [f"{name}: not recorded: another import hook has loaded it" for name in recorder.missed()]
    said += [f"{name}: nothing imported it" for name in recorder.packages if name not in sys.modules]
    said += ["there was more than a file should have"] * recorder.full
    output = getattr(config, "workeroutput", None)
    if output is not None:
        output["weft_calls"] = json.dumps({"calls": recorder.calls, "said": said, "paths": sys.path})
        return
    from weft.typecheck.command.recorded import PLACE, joined_calls, write_calls

    workers = config.stash.get(_RECORDED, [])
    if workers:  # this process has only given the tests out
        said = []
    calls = joined_calls([recorder.calls, *workers])
    count = sum(map(len, calls.values()))
    try:
        write_calls(config.rootpath / PLACE, calls, [*sys.path, *config.stash.get(_PATHS, [])])
        said.insert(0, f"{len(calls)} functions, {count} structures: {PLACE}")
    except OSError as error:
        said.insert(0, f"{PLACE} cannot be written: {error.strerror}")
    config.stash[_SAID] = list(dict.fromkeys([*said, *config.stash.get(_SAID, [])]))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says what was recorded, and which functions nobody should take for checked: their annotations cannot be read."""
    hook = config.stash.get(_HOOK, None)
    said = {} if hook is None else _not_checked(hook, config.stash.get(_NOT_CHECKED, []))
    if said:
        terminalreporter.section("contracts that were not checked")
        for name, reason in said.items():
            terminalreporter.line(f"{name}: {reason}")
    if config.stash.get(_SAID, []):
        terminalreporter.section("recorded calls")
        for line in config.stash[_SAID]:
            terminalreporter.line(line)


def _not_checked(hook: Any, workers: list[dict[str, str]]) -> dict[str, str]:
    """What no process has checked; a package that only some workers came to was."""
    found = workers or [hook.not_checked()]
    every = set.intersection(*(set(one) for one in found))
    return {name: why for one in found for name, why in one.items() if name in every or name not in hook.packages}


@pytest.fixture
def weft_typecheck() -> Callable[[str], AbstractContextManager[Mode]]:
    """Contract modes for part of a test: `with weft_typecheck("strict"): ...`."""
    from weft.typecheck.modes import mode

    chosen: Any = mode
    return chosen
