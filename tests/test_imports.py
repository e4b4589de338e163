"""The arrows between packages, read off the source, and what `import weft` itself may load.

core <- transforms <- modules        typecheck -> core        nnx -> all of them, and nothing -> nnx
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("core", "transforms", "modules", "typecheck", "nnx")

# What the files of each package may import of weft; "" is the top-level `__init__.py`, which only `nnx` may lean on.
MAY_IMPORT = {
    "core": {"core"},
    "transforms": {"core", "transforms"},
    "modules": {"core", "transforms", "modules"},
    "typecheck": {"core", "typecheck"},
    "nnx": {"", "core", "transforms", "modules", "typecheck", "nnx"},
    "": {"", "core", "transforms", "modules", "typecheck", "nnx"},
}
# The one file that may reach into JAX's private modules.
PRIVATE_JAX = "core/edge/_jax.py"
# Slow to import and needed by few programs: loaded where they are used.
LOADED_ON_USE = ("weft.nnx", "weft.typecheck", "optax", "treescope", "rich", "flax", "matplotlib", "sklearn")


def library_files() -> list[Path]:
    return [ROOT / "__init__.py", *(file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")))]


def package_of(file: Path) -> str:
    parts = file.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else ""


def imported_names(source: str, module: str = "weft") -> Iterator[str]:
    """Every dotted name that a source imports; `from a import b` counts as `a.b`, as `b` may be a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                base = module.split(".")[: len(module.split(".")) - node.level + 1]
                origin = ".".join([*base, *([origin] if origin else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def forbidden_imports(file: str, source: str) -> list[str]:
    """What a file of the library imports against the rules; `file` is relative to the repository."""
    parts = Path(file).with_suffix("").parts
    # The pytest plugin is installed beside weft, as `weft_pytest`: what it loads of weft is up to pytest's options.
    outside = parts[:2] == ("typecheck", "pytest_plugin")
    package = parts[0] if len(parts) > 1 and not outside else ""
    # For relative imports, the package that the file is in.
    around = ".".join(("weft", *parts[:-1]))
    wrong: list[str] = []
    for name in imported_names(source, around):
        root, *rest = name.split(".")
        if root == "weft":
            target = rest[0] if rest and rest[0] in PACKAGES else ""
            if target not in MAY_IMPORT[package]:
                wrong.append(name)
        elif root == "flax" or (name.startswith("jax._src") and file != PRIVATE_JAX):
            wrong.append(name)
    return wrong


@pytest.mark.parametrize("file", [str(file.relative_to(ROOT)) for file in library_files()])
def test_a_file_imports_only_what_its_package_may(file: str):
    assert forbidden_imports(file, (ROOT / file).read_text()) == []


@pytest.mark.parametrize(
    ("file", "source", "wrong"),
    [
        ("core/a.py", "from weft.core.records.kinds import Kind", []),
        ("core/a.py", "import weft.transforms.compilation", ["weft.transforms.compilation"]),
        ("core/a.py", "from weft import transforms", ["weft.transforms"]),
        ("core/a.py", "from weft import Module", ["weft.Module"]),
        ("core/a.py", "import weft", ["weft"]),
        ("core/a.py", "from ..modules import Linear", ["weft.modules.Linear"]),
        ("core/a.py", "from .kinds import Kind", []),
        ("core/a.py", "def f():\n    from weft.typecheck import mode", ["weft.typecheck.mode"]),
        ("core/a.py", "from jax._src import core", ["jax._src.core"]),
        ("core/edge/_jax.py", "from jax._src import core", []),
        ("transforms/a.py", "import jax._src.core", ["jax._src.core"]),
        ("transforms/a.py", "from weft.modules import Linear", ["weft.modules.Linear"]),
        ("modules/a.py", "from weft.transforms import scan", []),
        ("modules/a.py", "from weft.typecheck import contract", ["weft.typecheck.contract"]),
        ("typecheck/a.py", "from weft.core import hooks", []),
        ("typecheck/a.py", "from weft import nnx", ["weft.nnx"]),
        ("typecheck/pytest_plugin/__init__.py", "from weft.nnx.interop.installing import install", []),
        ("typecheck/a.py", "from weft.transforms import jit", ["weft.transforms.jit"]),
        ("modules/a.py", "from weft import nnx", ["weft.nnx"]),
        ("nnx/a.py", "from weft import modules, nnx", []),
        ("nnx/a.py", "from flax import nnx", ["flax.nnx"]),
    ],
)
def test_the_rules_see_what_breaks_them(file: str, source: str, wrong: list[str]):
    assert forbidden_imports(file, source) == wrong


def test_the_wheel_holds_every_package():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    # A package lies where `package-dir` says, or in its parent's folder.
    folders = {".".join(("weft", *f.parent.relative_to(ROOT).parts)) for f in library_files() if f.stem == "__init__"}
    placed = {folder.replace("/", "."): name for name, folder in table["package-dir"].items() if folder != "."}
    assert sorted(table["packages"]) == sorted(placed.get(name.removeprefix("weft."), name) for name in folders)


@pytest.mark.parametrize("package", ["weft", "weft.core", "weft.transforms", "weft.modules"])
def test_a_package_declares_its_public_names(package: str):
    module = import_module(package)
    declared = module.__all__
    assert len(set(declared)) == len(declared)
    assert [name for name in declared if not hasattr(module, name) or name.startswith("_")] == []


def test_no_submodule_shadows_a_public_name():
    # `import a.b` sets `a.b`, also where `a` had a function `b` from another of its modules.
    weft = import_module("weft")
    modules = {name for name in weft.__all__ if isinstance(getattr(weft, name), ModuleType)}
    assert modules == {"core", "modules", "transforms", "metrics", "ops", "tree"}


def test_packages_do_not_claim_the_same_name():
    claims = Counter(name for package in ("core", "transforms", "modules") for name in names_of(package))
    assert [name for name, count in claims.items() if count > 1] == []


def names_of(package: str) -> list[str]:
    return import_module(f"weft.{package}").__all__


def test_importing_weft_leaves_the_rest_for_first_use():
    program = f"import sys, weft; print([name for name in {LOADED_ON_USE!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_subpackages_load_on_first_use():
    program = "import sys, weft; weft.nnx; weft.typecheck; print('weft.nnx' in sys.modules, 'nnx' in dir(weft))"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True True"


def test_public_modules_are_imported_by_their_short_names():
    program = (
        "import weft.metrics, weft.ops, weft.tree as t; from weft.ops import op; from weft.metrics import Average; "
        "print(weft.ops.op is op, t is weft.tree, weft.metrics.Average is Average)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True True True"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'weft' has no attribute 'nonsense'"):
        import_module("weft").nonsense  # noqa: B018
