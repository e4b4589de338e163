"""What every test runs under: CPU with 8 devices, quick compiles, warnings as errors, hypothesis without deadlines.

And within what: a process that has grown by 400 MB drops what JAX keeps, and Python looks for garbage seldom.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import ctypes
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

# Read when JAX starts its backend, so they are set before anything can import it. Eight devices let pmap and shard_map
# run on a machine that has none to spare. The tests compile some ten thousand programs of a few operations each, and
# XLA's optimisations are most of what that costs: without them a compile takes 13 ms instead of 33.
_FLAGS = {
    "xla_force_host_platform_device_count": "8",
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": "true",
}
_given = os.environ.get("XLA_FLAGS", "")
_ours = [f"--{name}={value}" for name, value in _FLAGS.items() if name not in _given]
os.environ["XLA_FLAGS"] = " ".join([_given, *_ours]).strip()
os.environ["JAX_PLATFORMS"] = "cpu"

# What one process of a run has compiled, the others load: a worker and the programs that tests start meet the same
# small operations again and again, and so does a worker that has dropped its caches. The folder lasts for a run.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _folder = tempfile.mkdtemp(prefix="weft-compiled-")
    atexit.register(shutil.rmtree, _folder, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _folder
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    os.environ["JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"] = "none"

# The first example of a property compiles, the others do not: a deadline would call that flaky.
hypothesis.settings.register_profile("weft", deadline=None, max_examples=30, print_blob=True)
hypothesis.settings.register_profile("quick", parent=hypothesis.settings.get_profile("weft"), max_examples=5)
hypothesis.settings.load_profile("weft")


# What a change is likely to break first, and what says which room is broken: the interpreter with both boundaries, the
# transforms, the matcher and the search. All else is wide: layers against their peers, programs, tools, docstrings.
_NARROW = (
    "core/",
    "transforms/",
    *(
        f"nnx/{room}/"
        for room in ("variable", "states", "objects", "graphs", "modules", "streams", "crossing", "transforms")
    ),
    *(f"typecheck/{room}/" for room in ("language", "matching", "messages", "calls")),
    "typecheck/proofs/test_verify.py",
    "modules/checkpoints/",
    "test_imports.py",
)
_WIDE = ("core/sowing/", "transforms/test_typing.py")
_TESTS = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where wide tests are left out, files of nothing else are not imported: that took as long as the rest."""
    if "not wide" not in config.option.markexpr or not collection_path.is_relative_to(_TESTS):
        return None
    place = collection_path.relative_to(_TESTS).as_posix() + ("/" if collection_path.is_dir() else "")
    holds_narrow = place == "./" or any(narrow.startswith(place) for narrow in _NARROW)
    return True if _is_wide(place) and not holds_narrow else None


def _is_wide(place: str) -> bool:
    return place.startswith(_WIDE) or not place.startswith(_NARROW)


@pytest.hookimpl(tryfirst=True)  # before `-m` is asked
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of tests that are `one_in(n)`, marks all but each n-th as slow; and those outside of some folders as wide."""
    seen: collections.Counter[str] = collections.Counter()
    for item in items:
        place = item.nodeid.removeprefix("tests/")
        if _is_wide(place):
            item.add_marker(pytest.mark.wide)
        marker = item.get_closest_marker("one_in")
        if marker is not None:
            of_function = item.nodeid.partition("[")[0]
            if seen[of_function] % marker.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[of_function] += 1


# Tracing makes a thousand objects that last for one that is garbage; at Python's usual thresholds, a tenth of the time
# of a run goes into looking at them again and again.
gc.set_threshold(20_000, 20, 20)

# JAX keeps what it has traced and compiled: 3 to 5 GB by the end of a run. The tests of one file have much of it in
# common, and nothing after a while, so it goes whenever the process has grown by this, and not at every file.
_GROWTH = 400 * 2**20
_process = psutil.Process()
_size_when_dropped = _process.memory_info().rss


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Drops JAX's caches between two tests, if the process has grown."""
    global _size_when_dropped
    yield
    if _process.memory_info().rss > _size_when_dropped + _GROWTH and "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
        gc.collect()
        if sys.platform == "linux":
            with contextlib.suppress(OSError, AttributeError):  # another C library than glibc
                ctypes.CDLL(None).malloc_trim(0)  # else what was freed stays the process's
        _size_when_dropped = _process.memory_info().rss


@pytest.fixture
def checking_leaks() -> Callable[[], AbstractContextManager[None]]:
    """`jax.checking_leaks`, at a cost that does not grow with what earlier tests left alive.

    JAX collects garbage at every trace there; what exists before is set aside for as long.
    """
    import jax

    @contextlib.contextmanager
    def checking() -> Iterator[None]:
        gc.freeze()
        try:
            with jax.checking_leaks():
                yield
        finally:
            gc.unfreeze()

    return checking


@pytest.fixture(scope="session")
def visit() -> Callable[..., Any]:
    """Opens a page in a browser, or several in turn: the values of an expression in JavaScript on each.

    Errors of a page, and one that is not ready in a minute, fail the test; see `browser.py`.
    """
    pytest.importorskip("PyQt6.QtWebEngineWidgets", reason="the extra `browser` is not installed", exc_type=ImportError)
    # Chromium's sandbox wants rights that containers do not give; only pages that the tests made are opened.
    chromium = {"QT_QPA_PLATFORM": "offscreen", "QTWEBENGINE_CHROMIUM_FLAGS": "--no-sandbox --disable-gpu"}

    def visit(
        *urls: str, script: str, size: tuple[int, int] = (1280, 900), until: str = "true", picture: str | None = None
    ) -> list[Any]:
        visits = [{"url": url, "script": script, "size": size, "until": until, "picture": picture} for url in urls]
        program = [sys.executable, os.path.join(os.path.dirname(__file__), "browser.py")]
        environment = {**os.environ, **chromium}
        done = subprocess.run(program, input=json.dumps(visits), env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return visit
