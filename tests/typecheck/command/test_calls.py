"""`weft check` with recorded calls."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from weft.typecheck.command.front import main as command
from weft.typecheck.command.linter import judge_here
from weft.typecheck.command.recorded import calls_in, joined_calls, read_calls, write_calls

SOURCE = """
    import jax.numpy as jnp
    from jaxtyping import Array, Float

    def named(x: Float[Array, "n m"], name) -> Float[Array, "n m"]:
        return x.T if name.startswith("turned") else x

    class Plain:
        def twice(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
            return x + x

    def wrong(x: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return x.T

    def unreadable(x: Float[Array, "n {"]) -> None:
        pass

    if __name__ == "__main__":
        print("in the script")
        named(jnp.ones((2, 3)), "as it is")
        Plain().twice(jnp.ones(3))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "with_calls.py").write_text(textwrap.dedent(SOURCE))
    return tmp_path


def check(*arguments: str) -> int:
    return command(["check", *arguments], judge=judge_here)


def called(name: str, shape: list[int]) -> dict[str, list[object]]:
    call = {"args": [{"array": "float32", "shape": shape}, name], "kwargs": {}}
    return {"with_calls:named": [call]}


def test_what_was_skipped_gets_its_verdict_from_recorded_calls(folder: Path, capsys: pytest.CaptureFixture[str]):
    arguments = ("-v", "with_calls.py", "--only", "named")
    assert check(*arguments) == 0
    assert "not checked: name: it has no annotation" in capsys.readouterr().out
    write_calls(folder / ".weft" / "calls.json", called("as it is", [2, 3]))
    assert check(*arguments) == 0
    assert ": named: holds when it is called as recorded" in capsys.readouterr().out
    write_calls(folder / ".weft" / "calls.json", called("turned", [3, 3]))
    assert check(*arguments) == 1
    assert "called as recorded)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "this is not a file of recorded calls"),
        ('{"format": 1, "calls": {"f": [3]}}', "this is not a file of recorded calls"),
        ('{"format": 99, "calls": {}}', "the calls have format 99, and this version of weft reads format 1"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], content: str, why: str
):
    (folder / ".weft").mkdir()
    (folder / ".weft" / "calls.json").write_text(content)
    assert check("with_calls.py") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "calls.json: " in line
    assert why in line


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--exclude", "", "."), "--exclude is empty"),
        (("--baseline", "", "."), "--baseline is empty"),
    ],
)
def test_an_option_that_is_empty_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], why: str
):
    assert check(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line


def test_what_processes_recorded_is_joined_alike_in_any_order(folder: Path):
    first, second = called("a", [2, 3]), called("b", [2, 3])
    assert joined_calls([first, second, first]) == joined_calls([second, first])
    write_calls(folder / ".weft" / "calls.json", joined_calls([first, second]), [str(folder / "tests"), "/elsewhere"])
    assert read_calls(*calls_in(folder))[0] == joined_calls([first, second])
    assert json.loads((folder / ".weft" / "calls.json").read_text())["paths"] == ["tests"]
    assert (folder / ".weft" / ".gitignore").read_text() == "*\n"
