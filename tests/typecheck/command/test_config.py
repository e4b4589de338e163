"""`[tool.weft.check]` in `pyproject.toml`, and what the command cannot be run with: one line each, exit code 2."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from weft.typecheck.command.config import Config, ConfigError, read
from weft.typecheck.command.front import main as command
from weft.typecheck.command.linter import judge_here
from weft.typecheck.proofs.explaining import USUAL

LAYERS = """
    from jaxtyping import Array, Float

    def halved(x: Float[Array, "n"], by: str) -> Float[Array, "n"]:
        return {"two": x / 2}[by]

    def eight(x: Float[Array, "n"]) -> Float[Array, "8"]:
        return x
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a package `pkg` with a table of options, and goes to a folder below."""

    def make(table: str, layers: str = LAYERS) -> Path:
        package = tmp_path / "src" / f"pkg_{tmp_path.name}"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "layers.py").write_text(textwrap.dedent(layers))
        (tmp_path / "pyproject.toml").write_text(textwrap.dedent(table).replace("PKG", package.name))
        (tmp_path / "docs").mkdir()
        monkeypatch.chdir(tmp_path / "docs")
        return package

    return make


def run(*arguments: str) -> int:
    return command(["check", *arguments], judge=judge_here)


def test_paths_sizes_and_arguments_come_from_the_table(project, capsys: pytest.CaptureFixture[str]):
    project("""
        [tool.weft.check]
        paths = ["src"]
        dims = { "PKG.layers:eight" = { n = 8 } }
        args = { "PKG.layers:halved" = { by = "two" } }
    """)
    assert run() == 0
    assert capsys.readouterr().out == "2 contracts: 2 proved, 0 hold, 0 fail\n"


def test_an_argument_may_be_imported(project, capsys: pytest.CaptureFixture[str]):
    layers = """
        from collections.abc import Callable
        from jaxtyping import Array, Float

        def applied(x: Float[Array, "n"], activation: Callable) -> Float[Array, "n"]:
            return activation(x)
    """
    project('[tool.weft.check]\nargs."PKG.layers:applied".activation = { import = "jax.nn:relu" }\n', layers)
    assert run("../src") == 0
    assert capsys.readouterr().out.startswith("1 contract: 1 proved")


def test_the_command_line_wins(project, capsys: pytest.CaptureFixture[str]):
    project('[tool.weft.check]\npaths = ["nowhere"]\nstrict = true\nexclude = ["src/*/layers.py"]\n')
    assert run("../src", "--no-strict") == 0
    assert capsys.readouterr().out.startswith("0 contracts")


def test_a_name_that_is_not_there_is_said(project, capsys: pytest.CaptureFixture[str]):
    package = project('[tool.weft.check]\npaths = ["src"]\ndims = { "PKG.layers:halve" = { n = 8 } }\n')
    run()
    name = f"{package.name}.layers:halve"
    assert f"warning: [tool.weft.check] configures {name!r}, and no public" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("stricly = true", "[tool.weft.check] has no key 'stricly'; it has paths, exclude, strict"),
        ("paths = 'src'", "paths = 'src' is not a list of strings"),
        ("strict = 1", "strict = 1 is not true or false"),
        ("jobs = -1", "jobs: -1 is not a number of processes"),
        ("dims = { f = { n = 8 } }", 'is not a table of tables by "module:name", of sizes'),
        ("seconds = 0", "seconds: 0 is too small"),
        ("strict = [", "pyproject.toml: "),
    ],
)
def test_a_table_that_cannot_be_used_is_one_line(project, table: str, said: str, capsys: pytest.CaptureFixture[str]):
    project(f"[tool.weft.check]\n{table}\n")
    assert run("../src") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[tool]\nweft = 3\n", "[tool.weft] is not a table"),
        ("[tool.weft]\ncheck = 3\n", "[tool.weft.check] is not a table"),
        ("[tool.weft.chek]\nstrict = true\n", "[tool.weft] has no key 'chek'; it has check"),
    ],
)
def test_a_table_of_another_name_is_one_line(project, content: str, said: str, capsys: pytest.CaptureFixture[str]):
    project(content)
    assert run("../src") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-j", "-2", "."], "jobs: -2 is not a number of processes; 0 means one for each core\n"),
        (["--memory", "10", "."], "memory: 10 MB are too little"),
        (["--seconds", "0", "."], "seconds: 0.0 is too small"),
        (["--write-baseline", "."], "--write-baseline needs --baseline FILE"),
        ([], "nothing to check: name files, folders or modules"),
    ],
)
def test_options_that_cannot_be_used_are_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_two_packages_of_one_name_are_one_line_and_the_first_is_checked(
    tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    for version in ("one", "two"):
        package = tmp_path / version / "twice"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "layers.py").write_text(textwrap.dedent(LAYERS))
    assert run("one", "two", "--only", "eight") == 2
    first, *_, summary = capsys.readouterr().out.splitlines()
    message = "a process can import one package named 'twice', and one/twice is another one; check each alone"
    assert first == f"two/twice:0: weft check: {message}"
    assert summary.startswith("1 contract: 0 proved, 0 hold, 1 fail")


def test_without_a_table_the_defaults_hold(tmp_path: Path):
    assert read(tmp_path / "nowhere").jobs == 0
    assert Config().trials == USUAL.trials


def test_the_nearest_file_counts(tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text("[tool.weft.check]\nnonsense = 1\n")
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "pyproject.toml").write_text("")
    assert not read(tmp_path / "inner").strict
    with pytest.raises(ConfigError, match="no key 'nonsense'"):
        read(tmp_path)


def test_to_leave_out_every_file_is_one_line_but_for_files_named_one_by_one(
    project, capsys: pytest.CaptureFixture[str]
):
    package = project("[tool.weft.check]\n")
    assert run(str(package), "--exclude", "src/**") == 2
    assert capsys.readouterr().err == "weft check: nothing to check: src/** leaves out every file\n"
    (package.parents[1] / "pyproject.toml").write_text('[tool.weft.check]\nexclude = ["src"]\n')
    assert run(str(package)) == 2
    assert run(str(package / "layers.py")) == 0  # as pre-commit names the files of a commit


def test_an_argument_that_nothing_takes_is_said(project, capsys: pytest.CaptureFixture[str]):
    project("""
        [tool.weft.check]
        paths = ["src"]
        args = { "PKG.layers:halved" = { nosuch = 1 } }
    """)
    assert run() == 2
    assert "halved: no function that is judged has a parameter 'nosuch'" in capsys.readouterr().out
