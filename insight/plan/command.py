"""The command `weft plan SCRIPT:FUNCTION --mesh data=64,model=8`, which prints a plan."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

_EPILOG = """FUNCTION takes the mesh (jax.sharding.AbstractMesh), or nothing, and returns (step, *arguments). Arguments
may be shapes. The script sees as many simulated devices as the mesh has. Exit code: 0 if the step fits, 1 if it does
not, 2 if there is no plan."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code; prints one line and exits with 2 if there is no plan."""
    parser = _Parser("weft plan", description="What a step will cost on a mesh that need not exist.", epilog=_EPILOG)
    parser.add_argument("target", metavar="SCRIPT:FUNCTION", help="a file, and the function in it that makes the step")
    parser.add_argument("--mesh", required=True, help="axes with their sizes: data=64,model=8")
    parser.add_argument("--hardware", default="h100", help="a name of weft.plan.HARDWARE (default: %(default)s)")
    parser.add_argument("--rules", help="a table of weft.plan.TABLES, or the name of one in SCRIPT")
    parser.add_argument("--out", metavar="PAGE", help="write a page of HTML, too")
    parser.add_argument("--largest-batch", action="store_true", help="tell the largest batch that fits: compiles twice")
    options = parser.parse_args(argv)
    file, _, name = options.target.rpartition(":")
    pairs = [entry.partition("=") for entry in options.mesh.split(",")]
    if not file or not name:
        parser.error(f"SCRIPT:FUNCTION is a file and a function, and this is {options.target!r}")
    if not all(axis and size.isdigit() for axis, _, size in pairs):
        parser.error(f"a mesh is written data=64,model=8, and this is {options.mesh!r}")
    if not Path(file).is_file():
        parser.error(f"there is no file {file}")
    try:
        plan = _plan(file, name, {axis: int(size) for axis, _, size in pairs}, options, parser.error)
        if options.out:
            plan.save(options.out)
    # The script is the user's and may raise anything; its line says more than the frames of this command.
    except Exception as error:
        parser.error(_in_one_line(error, file))
    print(plan)
    return 0 if plan.fits else 1


def _plan(file: str, name: str, sizes: dict[str, int], options: Any, refuse: Callable[[str], NoReturn]) -> Any:
    import jax
    from weft.insight.plan.planning import TABLES, as_mesh, plan

    mesh = as_mesh(sizes)
    # For scripts that make a mesh of devices as they load, this process gets as many as the mesh has.
    jax.config.update("jax_platforms", "cpu")
    # JAX refuses this after its backend has started, as in a notebook. The plan does not need it, only such scripts do.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", mesh.size)
    script = _load(Path(file))
    function = getattr(script, name, None)
    if not callable(function):
        refuse(f"{file} has no function {name!r}")
    rules = TABLES.get(options.rules, getattr(script, options.rules or "", None))
    if options.rules and rules is None:
        refuse(f"no table of rules is called {options.rules!r}: name one of {', '.join(TABLES)}, or one in SCRIPT")
    made = function(mesh) if inspect.signature(function).parameters else function()
    if not isinstance(made, tuple) or not made or not callable(made[0]):
        refuse(f"{options.target} returns {type(made).__name__}, and has to return (step, *arguments)")
    asked = {"hardware": options.hardware, "largest_batch": options.largest_batch}
    return plan(made[0], *made[1:], mesh=mesh, rules=rules, **asked)


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    # Dataclasses and pickles look their module up in `sys.modules` while the script runs.
    script = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    # As `python SCRIPT` does, so that the script finds the modules in its folder.
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(script)
    return script


def _in_one_line(error: Exception, file: str) -> str:
    """Returns an error on one line: with its fix, or with the line of the script that raised it."""
    from weft.core.errors import WeftError

    line = (str(error).splitlines() or [""])[0]
    if isinstance(error, WeftError):
        return f"{line} ({error.fix})" if error.fix else line
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == Path(file).resolve()]
    place = f"{file}:{lines[-1]}" if lines else file
    return f"{place}: {type(error).__name__}: {line}"
