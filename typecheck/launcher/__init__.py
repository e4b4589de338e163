"""The script `weft`: the command, without `import weft`, which would import JAX.

A package of its own, `weft_launcher`, for that reason. It loads the files of `typecheck` that the command itself needs
from where weft lies, by a name of its own: these files import each other relatively, and nothing else of weft. Workers
import weft in the usual way.
"""

from __future__ import annotations

import importlib
import importlib.util
import signal
import sys
from pathlib import Path

_NAME = "weft_check"


def main() -> int:
    """Runs the command and returns its exit code."""
    # `check` prints the verdicts so far and `migrate` finishes the file that it is writing; the others write nothing
    # that could be lost, so ^C ends them at once, whatever they import. A CI's time limit sends SIGTERM.
    ends = signal.default_int_handler if sys.argv[1:2] in (["check"], ["migrate"], ["lsp"]) else signal.SIG_DFL
    signal.signal(signal.SIGINT, ends)
    if sys.argv[1:2] == ["check"]:
        signal.signal(signal.SIGTERM, ends)
    try:
        return _main()
    except KeyboardInterrupt:
        return 130


def _main() -> int:
    weft = importlib.util.find_spec("weft")  # finds it without importing it
    if weft is None or weft.origin is None:
        raise ImportError("weft is not installed beside its launcher")
    folder = Path(weft.origin).parent / "typecheck"
    if not folder.is_dir():
        raise ImportError(
            f"the package `weft` in {Path(weft.origin).parent} is another project's, not weft-jax's, to which "
            "this command belongs: pip uninstall weft; pip install --force-reinstall --no-deps weft-jax"
        )
    spec = importlib.util.spec_from_file_location(
        _NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    sys.modules[_NAME] = importlib.util.module_from_spec(spec)  # not executed: it would import JAX
    return importlib.import_module(f"{_NAME}.command.front").main(
        serve=lambda options: importlib.import_module(f"{_NAME}.server.serving").serve(options)
    )
