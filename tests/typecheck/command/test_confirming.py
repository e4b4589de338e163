"""Failures of an installed package that only jaxtyping's import hook shows: their programs are run, in processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from weft.typecheck.command.programs import Programs

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
LAUNCH = f"""
import sys; sys.path.insert(0, {str(ROOT / "typecheck")!r})
from launcher import main
sys.exit(main())
"""
HEAD = "import sys\nimport jax\nfrom jaxtyping import Array, Float, PRNGKeyArray\n"
# A worker has weft; a stranger's process does not, so that a program may do something else there.
FILES = {
    "confirmed.py": """
        def _turned(x: Float[Array, "n d"]) -> Float[Array, "d n"]:
            print("printed by the program")
            return x
        def gram(x: Float[Array, "n d"]) -> Float[Array, "n n"]:
            return _turned(x) @ x.T
        def scanned(xs: Float[Array, "t n"]) -> Float[Array, "n"]:
            def step(carry: Float[Array, "n"], x: Float[Array, "n 1"]) -> tuple[Float[Array, "n"], None]:
                return carry + x, None
            return jax.lax.scan(step, xs[0], xs)[0]
    """,
    "ended.py": """
        def _through(x: Float[Array, "n d"]) -> Float[Array, "d n"]:
            return x if "weft" in sys.modules else x.T
        def through(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
            return _through(x) * x.shape[0]
        def _otherwise(x: Float[Array, "n d"]) -> Float[Array, "d n"]:
            if "weft" not in sys.modules:
                raise KeyError(1)
            return x
        def otherwise(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
            return _otherwise(x) * x.shape[0]
    """,
    "unhooked.py": """
        def of_no_array(x: Float) -> None:
            pass
        def _turned(x: Float[Array, "n d"]) -> Float[Array, "d n"]:
            return x
        def decorated(x: Float[Array, "n d"]) -> Float[Array, "n n"]:
            return _turned(x) @ x.T
        def inside(xs: Float[Array, "t n"]) -> Float[Array, "n"]:
            def step(carry: Float[Array, "n"], x: Float[Array, "n 1"]) -> tuple[Float[Array, "n"], None]:
                return carry + x, None
            return jax.lax.scan(step, xs[0], xs)[0]
    """,
}
HANGS = """
    def _hangs(x: Float[Array, "n d"]) -> Float[Array, "d n"]:
        while "weft" not in sys.modules:
            pass
        return x
    def hangs(x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        return _hangs(x) * x.shape[0]
"""


def install(folder: Path, files: dict[str, str]) -> None:
    """Puts a package there as `pip install --target` does."""
    package = folder / "site" / "planted"
    package.mkdir(parents=True)
    (folder / "site" / "planted-1.0.dist-info").mkdir()
    for name, text in {"__init__.py": "", **files}.items():
        (package / name).write_text(HEAD + textwrap.dedent(text))


def checked(folder: Path, *arguments: str) -> tuple[str, str]:
    """What the command says of the package."""
    path = os.pathsep.join([str(folder / "site"), *filter(None, sys.path)])
    run = subprocess.run(
        [sys.executable, "-c", LAUNCH, "check", "planted", "--only", "^[a-z]", "-j", "1", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout, run.stderr


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, str]]]:
    """One run over the package."""
    folder = tmp_path_factory.mktemp("confirmed")
    install(folder, FILES)
    out, _ = checked(folder, "--format", "json")
    return folder, {one["name"]: one for one in json.loads(out)["findings"]}


def test_what_the_program_shows_fails(judged):
    for name in ("gram", "scanned"):
        assert judged[1][name]["level"] == "error"
        assert 'install_import_hook("planted.confirmed", "beartype.beartype")' in judged[1][name]["program"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("through", "the program that should show it does not: it runs through"),
        ("otherwise", "it ends with KeyError: 1"),
        ("inside", "its modules cannot be imported under jaxtyping's import hook, which ends with BeartypeDecorHint"),
    ],
)
def test_what_the_program_does_not_show_is_undecided_with_the_reason(judged, name: str, reason: str):
    assert judged[1][name]["level"] == "undecided"
    assert reason in judged[1][name]["message"]


def test_where_the_module_cannot_be_hooked_the_function_alone_is_decorated(judged):
    assert judged[1]["decorated"]["level"] == "error"
    assert "inside._turned = jaxtyped(typechecker=beartype)(inside._turned)" in judged[1]["decorated"]["program"]


def test_nothing_of_it_is_left_or_printed_and_the_verdicts_are_kept(judged):
    folder, found = judged
    out, err = checked(folder, "--format", "json")  # as it was kept
    assert {one["name"]: one for one in json.loads(out)["findings"]} == found
    assert err == ""
    assert not [one for one in folder.rglob("*.pyc") if "jaxtyping" in one.name]


def test_what_takes_too_long_is_undecided_for_want_of_time(tmp_path: Path):
    install(tmp_path, {"waits.py": HANGS})
    out, _ = checked(tmp_path, "--seconds", "1")
    assert "hangs: undecided: " in out
    assert "the program that should show it was ended: it did not end within 1 seconds" in out


def test_a_module_that_cannot_be_hooked_is_found_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "refuses.py").write_text("raise ValueError('no')")
    programs = Programs(60, 4096)
    path = [str(tmp_path), *sys.path]
    first = programs.run("import refuses\n1", "refuses", path)
    assert (first["end"], first["at"], first["checker"], first["limit"]) == ("ValueError: no", "import", False, False)
    monkeypatch.setattr("weft.typecheck.command.programs.Process", None)
    assert programs.run("import refuses\n2", "refuses", path) == first
