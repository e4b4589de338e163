"""What SECURITY.md and CITATION.cff state is so: versions, what runs code, and what does not."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
import weft

ROOT = Path(__file__).resolve().parents[1]
SECURITY = (ROOT / "SECURITY.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Modules that rebuild objects from bytes, for which the bytes may name any function.
REBUILD = {"pickle", "marshal", "shelve", "cloudpickle", "dill", "joblib"}


def test_the_supported_versions_are_those_that_are_installed_and_tested():
    pins = dict(
        re.findall(r"^jax==([\d.]+); python_version (\S+) '3\.12'$", (ROOT / "constraints.txt").read_text(), re.M)
    )
    newest, floor = sorted(pins, key=pins.get, reverse=True)
    assert PROJECT["requires-python"] == ">=3.11"
    assert f"Python 3.11 with JAX {floor} and newer" in SECURITY
    assert f"the newest JAX {'.'.join(newest.split('.')[:2])}." in SECURITY
    assert f"weft {'.'.join(weft.__version__.split('.')[:2])}, the newest" in SECURITY


def test_the_citation_is_of_this_version():
    cited = dict(re.findall(r"^(?:  - )?([\w-]+): (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE))
    assert cited["version"] == weft.__version__
    assert cited["license"] == PROJECT["license"]
    assert cited["name"] == PROJECT["authors"][0]["name"]
    assert cited["repository-code"] == PROJECT["urls"]["Source"]
    assert cited["keywords"] == f"[{', '.join(PROJECT['keywords'])}]"


class Attack:
    """An object whose pickle writes a file when it is loaded."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt", "model.npz"])
@pytest.mark.parametrize(
    "read",
    [
        lambda file: weft.load_checkpoint(file, {"w": jax.numpy.ones(2)}),
        weft.inspect_checkpoint,
        lambda file: weft.import_weights(weft.Linear(2, 2, key=jax.random.key(0)), file),
    ],
    ids=["load_checkpoint", "inspect_checkpoint", "import_weights"],
)
def test_a_pickle_in_the_place_of_weights_is_refused_and_not_run(
    read: Callable[[Path], object], name: str, tmp_path: Path
):
    mark = tmp_path / "mark"
    (tmp_path / name).write_bytes(pickle.dumps(Attack(mark)))
    with pytest.raises(weft.CheckpointError):
        read(tmp_path / name)
    assert not mark.exists()
    pickle.loads((tmp_path / name).read_bytes())
    assert mark.exists(), "the attack works on who loads it as a pickle"


def test_weft_unpickles_only_what_its_own_plan_wrote():
    rooms = ("core", "transforms", "modules", "typecheck", "nnx", "insight", "migrate")
    importing: set[str] = set()
    for file in (file for room in rooms for file in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if REBUILD & {name.partition(".")[0] for name in names}:
                importing.add(str(file.relative_to(ROOT)))
    assert importing == {"insight/plan/simulated.py"}


READS = """
import pickle, sys
import jax, jax.numpy as jnp
import weft

tree = {"layer": weft.Linear(2, 2, key=jax.random.key(0)), "epoch": 1}
weft.save_checkpoint("state.safetensors", tree)
with weft.Checkpoints("run") as checkpoints:
    checkpoints.save(1, tree)
    checkpoints.wait()
    checkpoints.restore(tree)  # what Orbax imports on first use may unpickle tables of its own

built = []
sys.addaudithook(lambda event, args: built.append(args) if event == "pickle.find_class" else None)
weft.load_checkpoint("state.safetensors", tree)
weft.inspect_checkpoint("state.safetensors")
weft.inspect_checkpoint("run")
with weft.Checkpoints("run") as checkpoints:
    checkpoints.restore(tree)
before = len(built)
pickle.loads(pickle.dumps(pickle.PickleError()))
print(before, len(built))
"""


@pytest.mark.slow
def test_no_class_is_looked_up_for_a_pickle_while_checkpoints_are_read(tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", READS], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "0 1\n", done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "runs"),
    [(["check", "model.py"], True), (["shapes", "model.py"], True), (["migrate", "."], False)],
    ids=["check", "shapes", "migrate"],
)
def test_a_command_imports_files_if_the_page_says_so(command: list[str], runs: bool, tmp_path: Path):
    (tmp_path / "model.py").write_text("import pathlib\nfrom flax import nnx\npathlib.Path('mark').touch()\n")
    program = [sys.executable, "-c", "import weft_launcher, sys; sys.exit(weft_launcher.main())", *command]
    subprocess.run(program, cwd=tmp_path, capture_output=True, text=True)
    assert (tmp_path / "mark").exists() is runs
    assert (f"`weft {command[0]}`" in SECURITY.partition("## What runs no code")[0]) is runs
