"""The pytest plugin: options for a test run, and the fixture `weft_typecheck` for a single test.

- `--weft-typecheck=off|on|strict`: whether contracts are checked, and how strictly;
- `--weft-debug-successors`: an unused successor of a record is an error, see `weft.debug.debug_successors`;
- `--weft-contracts=package,...`: checks the contracts of packages that do not import weft, see
   `weft.typecheck.install_import_hook`, and lists at the end what could not be checked;

- `--weft-record[=package,...]`: writes the structures of the arguments of the packages' functions to
   `.weft/calls.json`, for `weft check`; without a name, it does so for the packages of the project.

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
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from weft.typecheck.modes import Mode

# The hook of `--weft-contracts`, typed Any because importing its class would import weft.
_HOOK = pytest.StashKey[Any]()
_NOT_CHECKED = pytest.StashKey[list[dict[str, str]]]()
# The recorder of `--weft-record`, and the calls that the workers of pytest-xdist have recorded.
_RECORDER = pytest.StashKey[Any]()
_RECORDED = pytest.StashKey[list[dict[str, list[Any]]]]()
_SAID, _PATHS = pytest.StashKey[list[str]](), pytest.StashKey[list[str]]()
_NO_PACKAGES = ("tests", "test", "docs", "examples")
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
    recorded = early_config.known_args_namespace.weft_record
    if recorded is not None:
        # Each replaces the loader of a package's modules, so the second one
        # would find modules that the first has loaded.
        if packages:
            raise pytest.UsageError("use --weft-record and --weft-contracts in two runs: both change how modules load")
        _record(early_config, recorded)
    if os.environ.get("WEFT_NNX_INSTALL"):
        from weft.nnx.interop.installing import install

        install()


def _record(config: pytest.Config, named: str) -> None:
    """Records the calls of packages from their import on.

    Raises:
        pytest.UsageError: if there is no such package, or a package is imported already.
    """
    names = [name for name in named.split(",") if name] or _packages_of(config.rootpath)
    # `--weft-record tests` would record the tests themselves.
    wrong = [n for n in names if not all(map(str.isidentifier, n.split("."))) or _is_of_tests(Path(n))]
    if wrong or not names:
        why = f"{config.rootpath} has no package, here or below `src`"
        why = f"{wrong[0]!r} is not a package to record" if wrong else why
        raise pytest.UsageError(f"--weft-record: {why}; name the packages to record: --weft-record=PACKAGE,...")
    from weft.typecheck.calls.importing import ImportHookError
    from weft.typecheck.recording.recorder import Recorder

    try:
        config.stash[_RECORDER] = Recorder(names).install()
    except ImportHookError as error:
        raise pytest.UsageError(f"--weft-record: {', '.join(names)}: {error.what}; {error.fix}") from None


def _is_of_tests(path: Path) -> bool:
    """Whether a name was meant as a path of tests, as in `pytest --weft-record tests`."""
    # argparse takes the next word for the option's value, so the tests' folder ends up here.
    return path.name in _NO_PACKAGES or (
        path.is_dir() and not (path / "__init__.py").exists() and any(path.glob("test_*"))
    )


def _packages_of(root: Path) -> list[str]:
    """The packages of a project, below `src` or next to its `pyproject.toml`, without test packages."""
    # `src` comes first: next to it, a folder such as `scripts` may be a package as well.
    for folder in (root / "src", root):
        folders = sorted(file.parent.name for file in folder.glob("*/__init__.py"))
        names = [name for name in folders if name.isidentifier() and name not in _NO_PACKAGES]
        if names:
            return names
    return []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Collects the calls that a worker of pytest-xdist has recorded, and the functions that it did not check."""
    output = getattr(node, "workeroutput", None) or {}
    if "weft_not_checked" in output:
        node.config.stash.setdefault(_NOT_CHECKED, []).append(json.loads(output["weft_not_checked"]))
    if "weft_calls" in output:
        recorded = json.loads(output["weft_calls"])
        node.config.stash.setdefault(_RECORDED, []).append(recorded["calls"])
        node.config.stash.setdefault(_SAID, []).extend(recorded["said"])
        node.config.stash.setdefault(_PATHS, []).extend(recorded["paths"])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the recorded calls; a worker of pytest-xdist sends them to the main process instead."""
    config: Any = session.config
    hook = config.stash.get(_HOOK, None)
    if hook is not None and hasattr(config, "workeroutput"):
        config.workeroutput["weft_not_checked"] = json.dumps(hook.not_checked())
    recorder = config.stash.get(_RECORDER, None)
    if recorder is None:
        return
    said = [f"{name}: not recorded: another import hook has loaded it" for name in recorder.missed()]
    said += [f"{name}: no test imported it" for name in recorder.packages if name not in sys.modules]
    said += ["the file of recorded calls is full, so further calls were not recorded"] * recorder.full
    output = getattr(config, "workeroutput", None)
    if output is not None:
        # `workeroutput` crosses process boundaries as plain data, so everything is sent as JSON.
        output["weft_calls"] = json.dumps({"calls": recorder.calls, "said": said, "paths": sys.path})
        return
    from weft.typecheck.command.recorded import PLACE, joined_calls, write_calls

    workers = config.stash.get(_RECORDED, [])
    if workers:  # the main process ran no tests itself, and its own messages would be false alarms
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
    """Prints where the recorded calls are, and the functions whose annotations could not be read."""
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
