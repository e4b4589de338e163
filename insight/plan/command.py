"""`weft plan SCRIPT:FUNCTION --mesh data=64,model=8`: a plan from the command line."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

_EPILOG = """FUNCTION takes the mesh (of jax.sharding.AbstractMesh), or nothing, and returns a tuple: the step, and its
arguments as arrays or shapes. Exit code: 0 if the step fits, 1 if it does not, 2 if there is no plan."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(argv: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    parser = _Parser("weft plan", description="What a step will cost on a mesh that need not exist.", epilog=_EPILOG)
    parser.add_argument("target", metavar="SCRIPT:FUNCTION", help="a file, and what in it makes the step")
    parser.add_argument("--mesh", required=True, help="axes with their sizes: data=64,model=8")
    parser.add_argument("--hardware", default="h100", help="a name of weft.plan.HARDWARE (default: %(default)s)")
    parser.add_argument("--rules", help="a table of weft.plan.TABLES, or the name of one in SCRIPT")
    parser.add_argument("--out", metavar="PAGE", help="write a page of HTML, too")
    options = parser.parse_args(argv)
    from weft.core.errors import WeftError
    from weft.insight.plan.planning import TABLES, plan

    try:
        mesh = _read_mesh(options.mesh)
        script, function = _load(options.target)
        rules = TABLES.get(options.rules) or (getattr(script, options.rules, None) if options.rules else None)
        if options.rules and rules is None:
            raise ValueError(
                f"no table of rules is called {options.rules!r}: one of {', '.join(TABLES)}, or SCRIPT's own"
            )
        made = function(mesh) if inspect.signature(function).parameters else function()
        if not isinstance(made, tuple) or not callable(made[0]):
            raise ValueError(f"{options.target} returns {type(made).__name__}, and has to return (step, *arguments)")
        result = plan(made[0], *made[1:], mesh=mesh, rules=rules, hardware=options.hardware)
    except (WeftError, ValueError, TypeError, OSError, AttributeError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        fix = f" ({error.fix})" if isinstance(error, WeftError) and error.fix else ""
        print(f"weft plan: {line}{fix}", file=sys.stderr)
        return 2
    print(result)
    if options.out:
        result.save(options.out)
    return 0 if result.fits else 1


def _read_mesh(text: str) -> Any:
    from weft.insight.plan.planning import _mesh

    pairs = [entry.partition("=") for entry in text.split(",")]
    if not all(name and size.isdigit() for name, _, size in pairs):
        raise ValueError(f"a mesh is written data=64,model=8, and this is {text!r}")
    return _mesh({name: int(size) for name, _, size in pairs})


def _load(target: str) -> tuple[Any, Any]:
    file, _, name = target.rpartition(":")
    if not file or not name:
        raise ValueError(f"what to plan is written SCRIPT:FUNCTION, and this is {target!r}")
    path = Path(file)
    if not path.is_file():
        raise OSError(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise OSError(f"{file} is no Python file")
    script = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(script)
    if not hasattr(script, name):
        raise ValueError(f"{file} has no function {name!r}")
    return script, getattr(script, name)
