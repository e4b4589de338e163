"""The corpus of `bugs/`: each file is a right program, and says by `# bug:` how it would have been wrong.

A line that ends in `# bug: <line>` stands, in the wrong version, as `<line>`. Every program has an `entry` (what is
verified) and a `sample` (a call on concrete arrays).
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import jaxtyping

PROGRAMS = sorted((Path(__file__).parent / "bugs").glob("*.py"))
_MARK = re.compile(r"^(\s*)\S.*?  # bug: (.*)$", re.M)
_numbers = itertools.count()


def source(program: Path, version: str) -> str:
    """The text of a version, `right` or `wrong`."""
    text = program.read_text()
    if version == "wrong":
        return _MARK.sub(r"\1\2", text)
    return re.sub(r"  # bug: .*$", "", text, flags=re.M)


def write(program: Path, version: str, folder: Path) -> Path:
    """A version as a file of its own."""
    path = folder / version / program.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source(program, version))
    return path


def load(path: Path) -> ModuleType:
    """Imports a file under a name that nothing else has."""
    name = f"corpus_{path.stem}_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found_by_jaxtyping(path: Path) -> bool:
    """Whether jaxtyping and beartype (or JAX itself) object when a file's sample runs, everything in it decorated."""
    name = f"{path.parent.name}_{path.stem}"
    sys.path.insert(0, str(path.parent))
    try:
        renamed = path.with_name(f"{name}.py")
        renamed.write_text(path.read_text())
        with jaxtyping.install_import_hook(name, "beartype.beartype"):
            try:
                importlib.import_module(name).sample()
            except Exception:  # that it objects is the measurement, in whichever words
                return True
        return False
    finally:
        sys.path.remove(str(path.parent))
        renamed.unlink()


def found_by_jaxtyc(paths: list[Path]) -> set[Path]:
    """The files that `jaxtyc check` finds fault with; one that it crashes on spoils the rest, so that is left out."""
    command = [str(Path(sys.executable).parent / "jaxtyc"), "check", "--format", "concise", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Traceback" in done.stderr:
        half = len(paths) // 2
        return found_by_jaxtyc(paths[:half]) | found_by_jaxtyc(paths[half:]) if half else set()
    return {path for path in paths if re.search(rf"^{re.escape(str(path))}:\d+.*error", done.stdout, re.M)}
