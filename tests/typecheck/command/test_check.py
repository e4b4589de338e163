"""`weft check`: what it reads, what it prints, and its exit codes."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest
from weft.typecheck.command.front import main as command
from weft.typecheck.command.lines import Line
from weft.typecheck.command.linter import check, judge_here
from weft.typecheck.command.units import units_of
from weft.typecheck.language.siblings import modules_of


def main(arguments: list[str]) -> int:
    """The command, judging in this process: tests of its workers are in `test_workers.py`."""
    return command(arguments, judge=judge_here)


RIGHT = """
    from jaxtyping import Array, Float

    def project(x: Float[Array, "b i"], w: Float[Array, "o i"]) -> Float[Array, "b o"]:
        return x @ w.T
"""

WRONG = """
    import jax.numpy as jnp
    from jaxtyping import Array, Float

    def pooled(x: Float[Array, "b s d"]) -> Float[Array, "b d"]:
        return x.mean(axis=0)

    def mse(pred: Float[Array, "b 1"], y: Float[Array, "b"]) -> Float[Array, ""]:
        return jnp.mean((pred - y) ** 2)

    def _private(x: Float[Array, "n"]) -> Float[Array, "n n"]:
        return x

    def plain(x):
        return x

    if __name__ == "__main__":
        raise SystemExit("the main part ran")
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def write_file(name: str, text: str) -> str:
        (tmp_path / name).write_text(textwrap.dedent(text))
        return name

    return write_file


def test_what_holds_gives_exit_code_0_and_a_summary(write, capsys: pytest.CaptureFixture[str]):
    assert main(["check", write("right_one.py", RIGHT)]) == 0
    assert capsys.readouterr().out == "1 contract: 1 proved, 0 hold, 0 fail\n"


def test_another_name_for_a_function_is_no_other_contract(write, capsys: pytest.CaptureFixture[str]):
    assert main(["check", write("aliased.py", RIGHT + "\n    forward = project\n    entry = forward\n")]) == 0
    assert capsys.readouterr().out.startswith("1 contract: 1 proved")


def test_a_failure_is_a_line_and_exit_code_1(write, capsys: pytest.CaptureFixture[str]):
    assert main(["check", write("wrong_one.py", WRONG)]) == 1
    first, second, summary = capsys.readouterr().out.splitlines()
    assert first.startswith('wrong_one.py:5: pooled: contract: pooled, return: expected Float[Array, "b d"], found')
    assert second.startswith("wrong_one.py:9: mse: outer-product: sub of (b, 1) with (1, b)")
    assert summary.startswith("2 contracts: 0 proved, 0 hold, 2 fail; 1 not checked: 1 it is private")


def test_of_two_saves_within_a_second_the_second_is_judged(
    write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for axis in (0, 1):
        path = write("saved_twice.py", WRONG.replace("axis=0", f"axis={axis}"))
        os.utime(path, (1_700_000_000, 1_700_000_000))
        main(["check", "--no-cache", path])
        assert ("pooled" in capsys.readouterr().out) is (axis == 0)
    assert not (tmp_path / "__pycache__").exists()


def test_strict_makes_warnings_failures(write):
    name = write(
        "drifts.py",
        """
        import jax.numpy as jnp
        from jaxtyping import Array, Float

        def merged(x: Float[Array, "a b c"]) -> Float[Array, "b a*c"]:
            return x.reshape(x.shape[1], -1)
        """,
    )
    assert check([name]).exit_code == 0
    assert check([name], strict=True).exit_code == 1


def test_json_has_the_findings(write, capsys: pytest.CaptureFixture[str]):
    main(["check", "--format", "json", "--only", "pooled", write("wrong_three.py", WRONG)])
    report = json.loads(capsys.readouterr().out)
    assert report["exit_code"] == 1
    assert [(one["file"], one["line"], one["name"]) for one in report["findings"]] == [("wrong_three.py", 5, "pooled")]


def test_github_has_workflow_commands(write, capsys: pytest.CaptureFixture[str]):
    main(["check", "--format", "github", write("wrong_four.py", WRONG)])
    assert "::error file=wrong_four.py,line=5,title=pooled::contract: pooled, return" in capsys.readouterr().out


def test_a_class_of_fields_is_judged_by_what_its_initialiser_makes(write, capsys: pytest.CaptureFixture[str]):
    text = """
        import jax.numpy as jnp, equinox as eqx
        from jaxtyping import Array, Float

        class Table(eqx.Module):
            rows: Float[Array, "vocab d"]

            def __init__(self, vocab: int, d: int):
                self.rows = jnp.zeros((d, vocab))

        class Pair(eqx.Module):
            left: Float[Array, "d"]
            right: Float[Array, "d"]
    """
    assert main(["check", "-v", "--only", "Table", write("of_fields.py", text)]) == 1
    out = capsys.readouterr().out
    assert 'of_fields.py:5: Table: contract: Table, field rows: expected Float[Array, "vocab d"], found f32[2,1]' in out
    assert "    Table(1, 2)\n" in out
    assert "weft" not in out
    assert main(["check", "of_fields.py"]) == 1
    assert "1 contract: " in capsys.readouterr().out


def test_a_skip_comment_leaves_one_out_with_its_reason(write):
    text = WRONG.replace('"b d"]:', '"b d"]:  # weft: skip(known to be wrong)')
    checked = check([write("skipped_one.py", text)], only="pooled")
    assert checked.exit_code == 0
    assert [(one.level, one.name, one.message) for one in checked.lines if one.level == "skipped"] == [
        ("skipped", "pooled", "known to be wrong")
    ]
    assert checked.summary.endswith("0 fail, 1 skipped")


def test_what_cannot_be_built_is_listed(write, capsys: pytest.CaptureFixture[str]):
    text = """
        from jaxtyping import Array, Float

        def named(x: Float[Array, "n"], name) -> Float[Array, "n"]:
            return x
    """
    assert main(["check", "-v", write("unbuilt_one.py", text)]) == 0
    line, summary = capsys.readouterr().out.splitlines()
    why = "it has no annotation and no default; pass it in `args`"
    assert line == f"unbuilt_one.py:4: named: not checked: name: {why}"
    assert summary.endswith("1 not checked")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import still_checked.part\n", "1: import: ModuleNotFoundError: No module named 'still_checked.part'"),
        ("def f(:\n    pass\n", "1: import: SyntaxError: invalid syntax"),
        ("raise SystemExit(3)\n", "1: import: SystemExit: 3"),
    ],
)
def test_a_file_that_does_not_import_is_one_line_and_exit_code_2(
    write, text: str, line: str, capsys: pytest.CaptureFixture[str]
):
    good = write("still_checked.py", WRONG)
    (Path.cwd() / "broken.py").write_text(text)
    assert main(["check", "broken.py", good]) == 2
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"broken.py:{line}")
    assert any(one.startswith("still_checked.py:5: pooled") for one in out)


def test_an_unreadable_annotation_is_one_line_and_the_rest_is_checked(write):
    text = """
        from __future__ import annotations
        from jaxtyping import Array, Float

        def odd(x: Float[Array, "a,b"]) -> Float[Array, "a"]:
            return x

        def even(x: Float[Array, "a"]) -> Float[Array, "a"]:
            return x
    """
    checked = check([write("unreadable.py", text)])
    assert checked.exit_code == 2
    assert [(one.level, one.line, one.name) for one in checked.lines] == [("unusable", 5, "odd")]
    assert len(checked.verdicts) == 1


def test_a_name_that_nothing_has_is_one_line(write, capsys: pytest.CaptureFixture[str]):
    assert main(["check", "--only", "nosuch", write("wrong_four.py", WRONG)]) == 2
    assert capsys.readouterr().err == "weft check: --only 'nosuch' matches the name of no function or class\n"


def test_no_name_is_no_folder(capsys: pytest.CaptureFixture[str]):
    assert main(["check", ""]) == 2
    assert capsys.readouterr().out.startswith("'':0: weft check: no such file, folder or module\n")


def test_an_unknown_name_is_unusable():
    checked = check(["no/such/path.py"])
    assert checked.exit_code == 2
    assert str(checked.lines[0]) == "no/such/path.py:0: weft check: no such file, folder or module"


def test_an_unknown_option_is_exit_code_2(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(["check", "--format", "xml", "x.py"])
    assert caught.value.code == 2
    assert "invalid choice: 'xml'" in capsys.readouterr().err


def test_a_bad_regular_expression_is_one_line(capsys: pytest.CaptureFixture[str]):
    assert main(["check", "--only", "(", "x.py"]) == 2
    assert capsys.readouterr().err.startswith("--only is not a regular expression: '('")


def test_modules_go_by_their_dotted_name_and_folders_are_walked(write, tmp_path: Path):
    (tmp_path / "inner").mkdir()
    write("inner/one.py", RIGHT)
    write("inner/two.py", RIGHT.replace("project", "other"))
    assert len(check(["inner"]).verdicts) == 2
    assert check(["weft.typecheck.language.dims"]).exit_code == 0


def test_copies_that_tools_make_and_environments_are_no_part_of_a_project(write, tmp_path: Path):
    for folder in ("layers", "layers/build/lib/layers", "build/lib", "venv/lib", "layers/dist"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "venv/pyvenv.cfg").touch()
    (tmp_path / "layers/build.py").touch()
    for name in ("layers/__init__.py", "layers/build/lib/layers/__init__.py"):
        write(name, "")
    write("layers/right.py", RIGHT)
    for copy in ("layers/build/lib/layers/wrong.py", "build/lib/wrong.py", "venv/lib/wrong.py", "layers/dist/wrong.py"):
        write(copy, WRONG)
    assert [unit.file for unit in units_of(["."])[0]] == ["layers/__init__.py", "layers/build.py", "layers/right.py"]
    assert [name for name, _ in modules_of("layers", "layers")] == ["layers", "layers.build", "layers.right"]


CALLERS = """
    from jaxtyping import Array, Float

    def helper(x: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return x.T

    def first(x: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return helper(x)

    def second(x: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return helper(x) + 1
"""


def test_one_cause_is_told_once_and_its_callers_are_named(write, capsys: pytest.CaptureFixture[str]):
    assert main(["check", write("callers.py", CALLERS)]) == 1
    cause, callers, summary = capsys.readouterr().out.splitlines()
    assert cause.startswith("callers.py:4: helper: contract: helper, return: expected")
    assert callers == "callers.py:4: the same in 2 other callers: first, second"
    assert summary == "3 contracts: 0 proved, 0 hold, 3 fail"


REASONS = """
    from jaxtyping import Array, Float

    def one(x: Float[Array, "n"], model) -> Float[Array, "n"]:
        return x

    def two(model, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x

    def heads(x: Float[Array, "n d"]) -> Float[Array, "n 4 d//4"]:
        return x.reshape(x.shape[0], 4, -1)
"""


def test_conditions_and_what_is_not_checked_are_summed_by_reason_and_listed_on_request(
    write, capsys: pytest.CaptureFixture[str]
):
    name = write("reasons.py", REASONS)
    assert main(["check", name]) == 0
    assert capsys.readouterr().out == (
        "3 contracts: 0 proved, 1 hold, 0 fail; 1 on conditions: 1 when 4 divides d; "
        "2 not checked: 2 `model` has no annotation and no default (-v lists them)\n"
    )
    assert main(["check", "-v", name]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("reasons.py:4: one: not checked: model: it has no annotation")
    assert told[2:] == [
        "reasons.py:10: heads: holds when 4 divides d",
        "3 contracts: 0 proved, 1 hold, 0 fail, 2 not checked",
    ]


def test_quiet_counts_warnings_and_lists_failures(write, capsys: pytest.CaptureFixture[str]):
    text = (
        CALLERS
        + """
    def merged(x: Float[Array, "a b c"]) -> Float[Array, "b a*c"]:
        return x.reshape(x.shape[1], -1)
"""
    )
    assert main(["check", "-q", "--only", "merged|helper", write("quiet.py", text)]) == 1
    failure, summary = capsys.readouterr().out.splitlines()
    assert failure.startswith("quiet.py:4: helper")
    assert summary.endswith("1 fail, 1 warnings (-v lists them)")


def test_where_nothing_fails_the_counts_are_all_that_is_printed(write, capsys: pytest.CaptureFixture[str]):
    text = """
        from jaxtyping import Array, Float

        def merged(x: Float[Array, "a b c"]) -> Float[Array, "b a*c"]:
            return x.reshape(x.shape[1], -1)
    """
    assert main(["check", write("warned.py", text)]) == 0
    assert capsys.readouterr().out == "1 contract: 1 proved, 0 hold, 0 fail, 1 warnings (-v lists them)\n"
    assert main(["check", "-v", write("warned.py", text)]) == 0
    assert "merged: warning: memory-order: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nothing_like_this\n", "it needs nothing_like_this, which is not installed"),
        (
            "try:\n    import not_there.at_all\nexcept ImportError as error:\n    raise ImportError('no') from error\n",
            "it needs not_there, which is not installed",
        ),
    ],
)
def test_a_library_that_ones_own_file_needs_is_an_error_and_one_that_a_package_may_use_is_not(
    write, text: str, reason: str, monkeypatch: pytest.MonkeyPatch
):
    path = write("optional.py", text)
    checked = check([path])
    assert checked.exit_code == 2
    assert [(line.level, line.message) for line in checked.lines] == [("unusable", reason)]
    monkeypatch.setattr("weft.typecheck.command.linter.installed_roots", lambda: (os.path.dirname(path),))
    checked = check([path])
    assert checked.exit_code == 0
    assert [(line.level, line.message) for line in checked.lines] == [("unbuilt", f"not checked: {reason}")]


def test_torch_code_is_called_that(write, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (line,) = check([write("of_torch.py", "import torch\n")]).lines
    why = "it needs torch, which is not installed (it is torch code: weft checks JAX code)"
    assert line.message == why


def test_a_loss_that_broadcasts_a_dim_against_itself_is_an_error_in_ones_own_code_only(write):
    name = write("own.py", WRONG)
    assert [line.level for line in check([name], only="mse").lines] == ["error"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("weft.typecheck.command.linter.installed_roots", lambda: (str(Path.cwd()),))
        assert [line.level for line in check([name], only="mse").lines] == ["warning"]


def test_no_address_is_in_any_text():
    assert Line("error", "a.py", 1, "f", "got <function f at 0x7f00AB>").message == "got <function f>"


def test_a_control_flow_error_says_which_component_differs(write):
    text = """
        import jax
        from jaxtyping import Array, Float

        def walk(x: Float[Array, "n"], h: Float[Array, "d"]) -> Float[Array, "d"]:
            return jax.lax.scan(lambda carry, _: ({"h": carry["h"][None]}, None), {"h": h}, x)[0]["h"]

        def branch(x: Float[Array, "n"]) -> Float[Array, "n"]:
            return jax.lax.cond(x.sum() > 0, lambda a: (a, a), lambda a: (a, a[None]), x)[0]
    """
    walk, branch = (line.message for line in check([write("flows.py", text)]).lines)
    assert "The input carry component carry['h'] has type float32[d] but the corresponding output" in walk
    assert "The output of true_fun at path [1] has type float32[n] but the corresponding output of false_fun" in branch


def test_folders_without_an_init_are_packages_where_their_imports_say_so(write, tmp_path: Path):
    (tmp_path / "spaced" / "inner").mkdir(parents=True)
    write("spaced/inner/first.py", RIGHT)
    write(
        "spaced/inner/second.py",
        "from spaced.inner.first import project\nfrom .first import project as other\n" + textwrap.dedent(RIGHT),
    )
    for name in ("spaced", "spaced.inner.second", "spaced/inner/second.py"):
        checked = check([name])
        assert (checked.exit_code, checked.lines, set(checked.verdicts)) == (0, (), {"proved"})
    (unit,), _ = units_of(["spaced/inner/first.py"])
    assert unit.module == "first"  # a script: nothing in it asks for a package
