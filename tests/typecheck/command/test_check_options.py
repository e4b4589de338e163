"""`weft check`: options together, in every pair and more, and what cannot be used, each in one line."""

from __future__ import annotations

import itertools
import json
import re
import textwrap
from pathlib import Path

import pytest
from weft.core.edge.contexts import contract_mode
from weft.typecheck.command.front import main as command
from weft.typecheck.command.linter import judge_here


def main(arguments: list[str]) -> int:
    """The command, judging in this process: tests of its workers are in `test_workers.py`."""
    return command(arguments, judge=judge_here)


# One definition of each kind of finding; `{skip}` may leave out the wrong one.
FILES = {
    "first.py": """
        from jaxtyping import Array, Float

        def right(x: Float[Array, "n m"]) -> Float[Array, "m n"]:
            return x.T

        def wrong(x: Float[Array, "n m"]) -> Float[Array, "n m"]:{skip}
            return x.T

        def suspicious(x: Float[Array, "a b c"]) -> Float[Array, "b a*c"]:
            return x.reshape(x.shape[1], -1)
    """,
    "second.py": """
        from jaxtyping import Array, Float

        def unbuilt(x: Float[Array, "n"], name) -> Float[Array, "n"]:
            return x

        def other(x: Float[Array, "n"]) -> Float[Array, "n"]:
            return x
    """,
}
LEVELS = {"wrong": "error", "suspicious": "warning", "unbuilt": "unbuilt"}


def lines_of(text: str, form: str) -> set[tuple[str, str, int]]:
    """Level, name and line of each finding, read back from what was printed."""
    if form == "json":
        return {(one["level"], one["name"], one["line"]) for one in json.loads(text)["findings"]}
    if form == "github":
        commands = re.findall(r"^::(\w+) file=.*?,line=(\d+),title=(\w+)::(not checked)?", text, flags=re.M)
        skipped = {"notice": "skipped"}
        return {
            ("unbuilt" if unbuilt else skipped.get(level, level), name, int(line))
            for level, line, name, unbuilt in commands
        }
    commands = re.findall(r"^\S+\.py:(\d+): (\w+): (warning|skipped|not checked)?", text, flags=re.M)
    levels = {"": "error", "not checked": "unbuilt"}
    return {(levels.get(level, level), name, int(line)) for line, name, level in commands}


def expected(only: str | None, strict: bool, skip: bool) -> set[tuple[str, str, int]]:
    levels = {**LEVELS, "wrong": "skipped" if skip else "error", "suspicious": "error" if strict else "warning"}
    places = {"wrong": 7, "suspicious": 11, "unbuilt": 4}
    return {(levels[name], name, places[name]) for name in levels if only is None or re.search(only, name)}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def write(skip: bool) -> Path:
        # Modules are imported once a process under their folder's name, so each project has a folder of its own.
        for name, text in FILES.items():
            mark = "  # weft: skip(known)" if skip else ""
            (tmp_path / name).write_text(textwrap.dedent(text).replace("{skip}", mark))
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("form", "only", "strict", "skip"),
    list(itertools.product(["text", "json", "github"], [None, "wrong|un", "suspicious"], [False, True], [False, True])),
)
def test_options_go_together(project, form, only, strict, skip, capsys: pytest.CaptureFixture[str]):
    options = ["-v", "--format", form, *(["--only", only] if only else []), *(["--strict"] if strict else [])]
    code = main(["check", *options, str(project(skip))])
    wanted = expected(only, strict, skip)
    assert lines_of(capsys.readouterr().out, form) == wanted
    assert code == any(level == "error" for level, _, _ in wanted)


UNUSABLE = """
    from jaxtyping import Array, Float

    def by_zero(x: Float[Array, "a"]) -> Float[Array, "a//0"]:
        return x

    def a_hole(x: Float[Array, "{m}*a"]) -> Float[Array, "a"]:
        return x

    def unbound(x: Float[Array, "a"]) -> Float[Array, "b*c"]:
        return x

    def at_times(x: Float[Array, "a"]) -> Float[Array, "a//(a-1)*a"]:
        return x

    def right(x: Float[Array, "a"]) -> Float[Array, "a"]:
        return x
"""


def test_a_dim_expression_that_cannot_be_solved_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "unsolvable.py").write_text(textwrap.dedent(UNUSABLE))
    assert main(["check", "-v", str(tmp_path)]) == 2
    lines = [
        line.partition("unsolvable.py:")[2] or line
        for line in capsys.readouterr().out.splitlines()
        if not line.startswith("    ")
    ]
    assert lines == [
        "4: by_zero: the dim expression 'a//0' cannot be evaluated: "
        "ZeroDivisionError: integer division or modulo by zero",
        "7: a_hole: the dim expression '{m}*a' reads 'm', which nothing binds",
        "10: unbound: the dim expression 'b*c' reads 'b', which nothing binds",
        '13: at_times: contract: at_times, return: expected Float[Array, "a//(a-1)*a"], found f32[2]: a//(a-1)*a is 4, '
        "not 2 (at a=2)",
        "13: at_times: given a >= 2",
        "2 contracts: 1 proved, 0 hold, 1 fail, 3 unusable",
    ]


def test_an_unknown_mode_is_one_line_and_the_rest_is_checked(
    project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    # As the environment gives it, which is read as weft is imported.
    monkeypatch.setattr(contract_mode, "_process", "fast")
    monkeypatch.setenv("WEFT_TYPECHECK", "fast")
    assert main(["check", "--only", "right", str(project(False))]) == 2
    printed = capsys.readouterr()
    assert printed.err == "unknown WEFT_TYPECHECK 'fast': it is one of off, on, strict\n"
    assert printed.out == "1 contract: 1 proved, 0 hold, 0 fail\n"
