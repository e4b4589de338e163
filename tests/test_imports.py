"""The arrows between packages, rooms and files, read off the source, and what `import weft` itself may load.

core <- transforms <- modules        typecheck -> core        nnx -> all of them, and nothing -> nnx        migrate

The rooms are the sub-packages of core, typecheck and nnx. An import counts wherever it stands, inside of a function too
and under `TYPE_CHECKING`; so does a module that is named in a string, to be imported by it.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("core", "transforms", "modules", "typecheck", "migrate", "nnx", "insight")

# What the files of each package may import of weft; "" is the top-level `__init__.py`, which only `nnx` may lean on.
MAY_IMPORT = {
    "core": {"core"},
    "transforms": {"core", "transforms"},
    "modules": {"core", "transforms", "modules"},
    "typecheck": {"core", "typecheck"},
    # It reads files, and asks weft.nnx what it has, by name.
    "migrate": {"migrate"},
    "nnx": {"", "core", "transforms", "modules", "typecheck", "nnx"},
    "insight": {"core", "transforms", "modules", "nnx", "insight"},
    "": {"", "core", "transforms", "modules", "typecheck", "nnx", "insight"},
}
# What the files of each room may import of the other rooms of their package, from the ground up; "" is the ground, the
# files that lie in the package itself.
EDGE, GROUND = {"edge"}, {""}
MATCHING = {"", "language", "matching"}
VARIABLES = {"", "printing", "variable"}
GRAPHS = {*VARIABLES, "objects", "states", "graphs"}
ROOMS: dict[str, dict[str, set[str]]] = {
    "core": {
        "edge": set(),
        "": EDGE,
        "records": {"", "edge"},
        "sowing": {"", "edge", "records"},
        "threads": {"", "edge", "records", "sowing"},
        "interpreter": {"", "edge", "records", "threads"},
    },
    "modules": {
        "": set(),
        "combinators": GROUND,
        "norms": GROUND,
        "learning": GROUND,
        "summary": GROUND,
        "dense": {"", "combinators"},
        "convolutions": {"", "dense"},
        "recurrence": {"", "dense"},
        "attention": {"", "dense", "norms"},
        "checkpoints": {"", "attention", "combinators", "convolutions", "dense", "norms"},
        "sharding": {"", "attention", "dense", "learning", "norms"},
        "ops": {"", "attention", "convolutions", "dense", "norms", "recurrence"},
    },
    # The checker of calls and the prover do not know each other.
    "typecheck": {
        "": set(),
        "language": GROUND,
        "matching": {"", "language"},
        "messages": MATCHING,
        "calls": {*MATCHING, "messages"},
        "sizes": set(),
        "arguments": {*MATCHING, "sizes"},
        "proofs": {*MATCHING, "messages", "sizes", "arguments"},
        # What was called while the checker's hook was installed, and proofs that start from it: it knows both.
        "shapes": {*MATCHING, "sizes", "arguments", "proofs"},
        "command": {*MATCHING, "arguments", "proofs", "shapes"},
        "server": {*MATCHING, "shapes", "command"},
    },
    "nnx": {
        "": set(),
        "printing": GROUND,
        "variable": {"", "printing"},
        "objects": VARIABLES,
        "states": VARIABLES,
        "graphs": {*VARIABLES, "objects", "states"},
        "modules": GRAPHS,
        "streams": {*GRAPHS, "modules"},
        "training": {*GRAPHS, "modules"},
        "crossing": {*GRAPHS, "modules"},
        "transforms": {*GRAPHS, "crossing"},
        "nn": {*GRAPHS, "modules", "streams", "transforms"},
        "summary": {*GRAPHS, "modules", "streams"},
        "interop": {*GRAPHS, "modules", "streams", "nn", "training", "crossing", "transforms"},
        "bridge": {*GRAPHS, "modules", "streams", "nn", "crossing", "transforms"},
    },
    # Who looks for a wrong number and who looks for its cost do not know each other.
    "insight": {"": set(), "debug": {""}, "plan": {""}},
}
# The files that may reach into JAX's private modules.
PRIVATE_JAX = ("core/edge/_jax.py", "core/edge/_tracers.py", "core/edge/_nodes.py")
# The one room that may import flax: what joins NNX with Linen, and is loaded on use.
FLAX_ROOM = "nnx/bridge/"
# Installed beside weft, as `weft_pytest` and `weft_launcher`: what the plugin loads of weft is up to pytest's options,
# and the launcher loads a few rooms of it without the rest.
OUTSIDE = (("typecheck", "pytest_plugin"), ("typecheck", "launcher"))
# Slow to import and needed by few programs: loaded where they are used.
LOADED_ON_USE = ("weft.nnx", "weft.typecheck", "weft.insight", "optax", "treescope", "rich", "flax", "orbax")
LOADED_ON_USE += ("matplotlib", "sklearn")


def library_files() -> list[Path]:
    files = (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py")))
    return [ROOT / "__init__.py", ROOT / "errors.py", *files]


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
    outside = parts[:2] in OUTSIDE
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
        elif (root == "flax" and not file.startswith(FLAX_ROOM)) or (
            name.startswith("jax._src") and file not in PRIVATE_JAX
        ):
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
        ("nnx/interop/a.py", "import flax", ["flax"]),
        ("nnx/bridge/a.py", "from flax import linen", []),
    ],
)
def test_the_rules_see_what_breaks_them(file: str, source: str, wrong: list[str]):
    assert forbidden_imports(file, source) == wrong


def module_of(file: Path) -> str:
    """The dotted name of a library file, below `weft`."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_modules(source: str, file: str, known: Collection[str]) -> set[str]:
    """The library modules that a file imports, or names in a string; all below `weft`."""
    strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    named = {value.removeprefix("weft.") for value in strings if isinstance(value, str) and value.startswith("weft.")}
    # A package is named where names are told apart; one of its modules, to be loaded.
    modules = {name for name in named if "." in name and name in known}
    for name in imported_names(source, ".".join(("weft", *Path(file).parts[:-1]))):
        root, _, below = name.partition(".")
        # `from a.b import c` may name the module `a.b.c`, or something in `a.b`.
        modules |= {longest(below, known)} if root == "weft" else set()
    return modules - {module_of(ROOT / file), ""}


def longest(name: str, known: Collection[str]) -> str:
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


@functools.cache
def import_graph() -> dict[str, set[str]]:
    files = {module_of(file): file for file in library_files() if file.relative_to(ROOT).parts[:2] not in OUTSIDE}
    return {
        module: imported_modules(file.read_text(), str(file.relative_to(ROOT)), files) for module, file in files.items()
    }


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The largest sets of modules in which each leads to every other."""

    def reached(start: str) -> set[str]:
        modules: set[str] = set()
        ahead = list(graph[start])
        while ahead:
            module = ahead.pop()
            if module not in modules:
                modules.add(module)
                ahead.extend(graph[module])
        return modules

    below = {module: reached(module) for module in graph}
    tied = {frozenset({module, *(other for other in below[module] if module in below[other])}) for module in graph}
    return sorted((set(circle) for circle in tied if len(circle) > 1), key=sorted)


def room_of(module: str) -> tuple[str, str] | None:
    """The package and the room of a module; None for what gathers a whole package."""
    package, *rest = module.split(".")
    if package not in ROOMS or not rest or rest == ["__main__"]:
        return None
    return (package, rest[0] if len(rest) > 1 or (ROOT / package / rest[0]).is_dir() else "")


@pytest.mark.slow
def test_no_file_imports_itself_by_way_of_others():
    assert circles(import_graph()) == []


def test_every_room_is_in_the_table():
    rooms = {room for module in import_graph() if (room := room_of(module))}
    assert rooms == {(package, room) for package, table in ROOMS.items() for room in table}


def test_every_room_says_what_it_promises():
    packages = {file.parent for name in PACKAGES for file in (ROOT / name).rglob("__init__.py")}
    # These hold rooms, and docs/architecture.md says which.
    rooms = packages - {ROOT / name for name in ("core", "nnx", "typecheck", "insight")}
    silent = [str(room.relative_to(ROOT)) for room in rooms if not (room / "README.md").is_file()]
    assert not silent, f"without a README.md: {silent}"
    texts = {room: (room / "README.md").read_text() for room in rooms}
    assert not [room for room, text in texts.items() if "promises" not in text.lower() or "tests/" not in text]


def test_rooms_import_downwards():
    arrows = [
        (module, target)
        for module, targets in import_graph().items()
        for target in targets
        if (here := room_of(module)) and (there := room_of(target)) and here != there and here[0] == there[0]
        if there[1] not in ROOMS[here[0]][here[1]]
    ]
    assert arrows == []
    for package, table in ROOMS.items():
        order = list(table)
        # Each may import what stands above it in the table only, so that the table itself has no circle.
        assert [room for room in order if not table[room] <= set(order[: order.index(room)])] == [], package


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from weft.core import hooks", {"core.hooks"}),
        ("from weft.core.hooks import Deferred", {"core.hooks"}),
        ("def f():\n    import weft.core.paths", {"core.paths"}),
        ("if TYPE_CHECKING:\n    from weft.core.paths import Path", {"core.paths"}),
        ("import_module('weft.core.paths')", {"core.paths"}),
        ("from .paths import Path", {"core.paths"}),
        ("import jax; 'weft.core.nothing'; from weft.core.errors import WeftError", set()),
    ],
)
def test_the_graph_sees_every_kind_of_import(source: str, expected: set[str]):
    assert imported_modules(source, "core/errors.py", ["core", "core.hooks", "core.paths", "core.errors"]) == expected


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"g", "a"}, "g": {"f"}}
    assert circles(graph) == [{"a", "b", "c"}, {"f", "g"}]


def test_no_module_is_named_like_a_public_function():
    # `import a.b` sets `a.b`, and readers look for a function `b` there.
    packages = [import_module(name) for name in ("weft", "weft.nnx", "weft.typecheck")]
    public = [(name, getattr(package, name)) for package in packages for name in package.__all__]
    functions = {name for name, value in public if callable(value) and not isinstance(value, type)}
    # `weft.nnx.training` is one of flax's modules.
    submodules = {name for name, value in public if isinstance(value, ModuleType)}
    # `weft.nnx.nn.lora` and `weft.nnx.bridge.variables` likewise; the functions of these names are far from them.
    of_flax = ("nnx.nn.lora", "nnx.bridge.variables")
    named = {module.rpartition(".")[2] for module in import_graph() if module not in of_flax}
    assert sorted((named & functions) - submodules) == []


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


def test_packages_do_not_claim_the_same_name():
    claims = Counter(name for package in ("core", "transforms", "modules") for name in names_of(package))
    assert [name for name, count in claims.items() if count > 1] == []


def names_of(package: str) -> list[str]:
    return import_module(f"weft.{package}").__all__


@pytest.mark.slow
def test_importing_weft_leaves_the_rest_for_first_use():
    program = f"import sys, weft; print([name for name in {LOADED_ON_USE!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# What `import weft`, records, contracts, `jit`, `grad`, `vmap`, `scan` and `cond` do without.
OPTIONAL_ROOMS = (
    "weft.core.interpreter.explain",
    "weft.core.records.keys",
    "weft.core.records.surgery",
    "weft.core.sowing",
    "weft.core.threads.dataflow",
    "weft.core.threads.lost",
    "weft.core.threads.marks",
    "weft.core.edge._jax",
    "weft.core.edge.derivatives",
    "weft.core.edge.equations",
    "weft.core.edge.executables",
    "weft.core.edge.hijax",
    "weft.insight",
    "weft.modules.",
    "weft.nnx",
    "weft.transforms.custom",
    "weft.transforms.jacobians",
    "weft.transforms.tracing",
    "weft.transforms.shards",
    "weft.transforms.stages",
    "weft.transforms.tracing",
    "weft.typecheck.proofs",
)
FIRST_STEP = """
import jax, jax.numpy as jnp
from jaxtyping import Array, Float

class Net(weft.Module):
    w: Float[Array, "n n"]

    def __call__(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        return jnp.tanh(x @ self.w)

@weft.jit
def step(net, x):
    loss, gradient = weft.value_and_grad(lambda net: net(x).sum())(net)
    return loss, jax.tree.map(lambda w, g: w - g, net, gradient)

net, x = Net(jnp.ones((2, 2))), jnp.ones((3, 2))
for _ in range(4):
    _, net = step(net, x)
weft.vmap(net)(x), weft.cond(True, net, lambda x: x, x)
weft.scan(lambda net, x: (net, net(x)), in_axes=(weft.Carry, 0), out_axes=(weft.Carry, 0))(net, x)
"""


@pytest.mark.slow
@pytest.mark.parametrize("used", ["", FIRST_STEP], ids=["imported", "first step"])
def test_what_is_optional_is_not_loaded_by_a_program_that_does_not_use_it(used: str):
    program = f"import sys, weft\n{used}\nprint([n for n in sys.modules if n.startswith({OPTIONAL_ROOMS!r})])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.strip() == "[]", run.stderr


@pytest.mark.slow
def test_what_loads_on_first_use_makes_jax_forget_no_trace():
    program = """
import sys, jax, weft
traces = []
double = jax.jit(lambda x: traces.append(x) or 2 * x)
double(1.0)
weft.capture, weft.debug.debug_successors, weft.tabulate, weft.typecheck.verify
import weft.typecheck.proofs.trial
double(1.0)
print(len(traces), "weft.core.sowing.tags" in sys.modules, "weft.modules.summary.calls" in sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.split() == ["1", "True", "True"], run.stderr


def test_names_that_load_on_first_use_are_listed_and_the_same_wherever_they_are_found():
    import weft

    assert {*weft.__all__} <= {*dir(weft)}
    for package in (weft.core, weft.transforms, weft.modules):
        assert {*package.__all__} <= {*dir(package)}
        assert [n for n in package.__all__ if getattr(weft, n) is not getattr(package, n)] == []
    with pytest.raises(AttributeError, match=r"module 'weft\.modules' has no attribute 'nonsense'"):
        _ = weft.modules.nonsense


@pytest.mark.parametrize("name", ["tree", "metrics", "ops", "filters", "errors", "debug"])
def test_a_short_namespace_lists_its_own_names_alone(name: str):
    import weft

    listed = dir(getattr(weft, name))
    assert listed
    assert not {"jax", "jnp", "np", "math", "annotations", "Callable", "TypeVar", "T"} & {*listed}
    assert all(getattr(getattr(weft, name), one).__module__.startswith("weft.") for one in listed)


@pytest.mark.parametrize("package", ["core", "transforms", "modules", "errors", "insight.debug"])
def test_what_checkers_read_is_what_is_imported_on_first_use(package: str):
    module = import_module(f"weft.{package}")
    tree = ast.parse(Path(module.__file__).read_text())
    tests = ("TYPE_CHECKING", "_typing.TYPE_CHECKING")
    blocks = [node.body for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) in tests]
    imports = [node for block in blocks for node in block if isinstance(node, ast.ImportFrom)]
    read = {(node.module, name.name, name.asname or name.name) for node in imports for name in node.names}
    entries = [(home, *entry.partition("=")) for home, names in module._HOMES.items() for entry in names.split()]
    assert read == {(home, origin, name or origin) for home, origin, _, name in entries}
