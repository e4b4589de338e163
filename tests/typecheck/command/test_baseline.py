"""`--baseline` and `# weft: ignore[...]`: what is accepted, and that nothing stays accepted in silence."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest
from weft.typecheck.command.front import main as command
from weft.typecheck.command.linter import check, judge_here

WRONG = """
    from jaxtyping import Array, Float

    def pooled(x: Float[Array, "b s d"]) -> Float[Array, "b d"]:{marker}
        return x.mean(axis=0)
"""
OTHER = """
    def turned(x: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return x.T
"""


def run(*arguments: str) -> int:
    return command(["check", *arguments], judge=judge_here)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def write_file(text: str, marker: str = "") -> str:
        (tmp_path / "layers.py").write_text(textwrap.dedent(text).replace("{marker}", marker))
        return "layers.py"

    return write_file


def test_what_is_in_the_baseline_does_not_fail_and_what_is_new_does(write, capsys: pytest.CaptureFixture[str]):
    assert run("--baseline", "base.json", "--write-baseline", write(WRONG)) == 0
    assert capsys.readouterr().err == "base.json: 1 failures are accepted\n"
    # Lines above do not matter, and neither does a new failure.
    assert run("--baseline", "base.json", write("\n\n\n" + textwrap.dedent(WRONG) + textwrap.dedent(OTHER))) == 1
    line, summary = capsys.readouterr().out.splitlines()
    assert line.startswith("layers.py:10: turned: contract")
    assert summary == "2 contracts: 0 proved, 0 hold, 1 fail, 1 in the baseline"


def test_a_failure_that_comes_twice_is_accepted_once(write, tmp_path: Path):
    run("--baseline", "base.json", "--write-baseline", write(WRONG))
    baseline = json.loads((tmp_path / "base.json").read_text())
    assert [(one["file"], one["name"], one["rule"]) for one in baseline["findings"]] == [
        ("layers.py", "pooled", "contract")
    ]
    assert "(at " not in baseline["findings"][0]["message"]
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "layers.py").write_text((tmp_path / "layers.py").read_text())
    assert run("--baseline", "base.json", ".") == 1


def test_an_entry_that_nothing_fails_for_is_said(write, capsys: pytest.CaptureFixture[str]):
    run("--baseline", "base.json", "--write-baseline", write(WRONG))
    capsys.readouterr()
    assert run("-v", "--baseline", "base.json", write(WRONG.replace("axis=0", "axis=1"))) == 0
    line, _ = capsys.readouterr().out.splitlines()
    assert line.startswith("base.json:0: baseline: warning: layers.py: pooled: contract: pooled, return")
    assert line.endswith("this failure is gone; --write-baseline writes the baseline again")


@pytest.mark.parametrize("content", ["{", "[]", '{"weft-baseline": 9}', '{"weft-baseline": 1, "findings": [3]}'])
def test_a_baseline_that_does_not_parse_is_one_line(write, tmp_path: Path, content: str, capsys):
    (tmp_path / "base.json").write_text(content)
    assert run("--baseline", "base.json", write(WRONG)) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("base.json: ")
    assert printed.err.endswith("--write-baseline writes the baseline again\n")
    assert printed.err.count("\n") == 1


def test_a_baseline_that_is_not_there_is_one_line(write, capsys: pytest.CaptureFixture[str]):
    assert run("--baseline", "base.json", write(WRONG)) == 2
    assert capsys.readouterr().err == "base.json: no such baseline; --write-baseline writes one\n"


def test_an_ignored_failure_is_listed_with_its_reason(write, capsys: pytest.CaptureFixture[str]):
    assert run("-v", write(WRONG, "  # weft: ignore[sizes are equal there]")) == 0
    line, summary = capsys.readouterr().out.splitlines()
    assert line.startswith("layers.py:4: pooled: ignored: contract: pooled, return: expected")
    assert line.endswith("[sizes are equal there]")
    assert summary.endswith("0 fail, 1 ignored")


def test_a_marker_that_ignores_nothing_is_a_warning(write, capsys: pytest.CaptureFixture[str]):
    name = write(WRONG.replace("axis=0", "axis=1"), "  # weft: ignore[no reason left]")
    assert run("-v", name) == 0
    warning = "layers.py:4: weft: ignore: warning: the marker has no finding to ignore\n"
    assert capsys.readouterr().out.startswith(warning)
    assert run("--strict", name) == 1


def test_a_marker_in_a_string_is_none(write):
    name = write(WRONG.replace("axis=0)", "axis=0)  # why\n\n    NOTE = '# weft: ignore[x]'"))
    assert [line.level for line in check([name]).lines] == ["error"]
