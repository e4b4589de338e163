"""`weft shapes`: what it prints in each format, and what it says of what it cannot use."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from weft.typecheck.command import shapes_front
from weft.typecheck.command.front import main
from weft.typecheck.command.linter import Steps
from weft.typecheck.command.shaping import shaped
from weft.typecheck.shapes.notes import to_json

PROGRAM = """\
import jax.numpy as jnp
from jaxtyping import Array, Float


def attend(q: Float[Array, "t d"], k: Float[Array, "s d"]) -> Float[Array, "t s"]:
    scores = q @ k.T
    return helper(scores)


def helper(x):
    small = x[x < 3] if False else x  # <&>
    return small


class Net:
    def unused(self, x):
        y = x
        return y


def wrong(x: Float[Array, "n d"]):
    y = x @ x
    return y
"""


class Here:
    """A conversation with this process, in place of a worker."""

    def __init__(self, settings, memory):
        self.settings = settings

    def ask(self, unit, asked):
        lines = asked["shapes"]
        lines = [range(first, last + 1) for first, last in lines] if lines else None
        for shapes in shaped(unit, self.settings, Path(unit.file).read_text(), lines, Steps()):
            yield {"shapes": json.loads(json.dumps(to_json(shapes)))}

    def close(self):
        pass


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shapes_front, "Conversation", Here)
    (tmp_path / "program.py").write_text(PROGRAM)

    def run_command(*arguments: str) -> tuple[int, str, str]:
        code = main(["shapes", *arguments])
        return code, *capsys.readouterr()

    return run_command


def test_the_source_with_aligned_comments_and_in_one_line_what_could_not_be_traced(run):
    code, out, err = run("program.py")
    assert code == 2
    assert "    scores = q @ k.T                         # scores f32[t,s]\n" in out
    assert "def helper(x):                               # x f32[t,s]\n" in out
    assert err.count("\n") == 1
    assert err.startswith("program.py:21: wrong: not traced: line 22: TypeError: dot_general requires")


def test_one_function_alone_whoever_called_it(run):
    code, out, err = run("program.py:helper")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "def helper(x):                               # x f32[t,s]",
        "    small = x[x < 3] if False else x  # <&>  # small f32[t,s]",
        "    return small                             # -> f32[t,s]",
    ]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("none.py", "weft shapes: none.py: No such file or directory"),
        ("program.py:atend", "weft shapes: program.py defines no 'atend'; is it attend?"),
        ("broken.py", "broken.py:1: SyntaxError: '(' was never closed"),
        (
            "program.py:unused",
            "program.py:16: unused: it has no annotations, and nothing that could be traced calls it",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line(run, target: str, said: str):
    Path("broken.py").write_text("def f(\n")
    code, _, err = run(target)
    assert (code, err.splitlines()[-1][: len(said)]) == (2, said)


def test_a_page_is_well_formed_escaped_and_needs_nothing_else(run):
    _, page, _ = run("program.py", "--format", "html")
    tree = ElementTree.fromstring(page.partition("\n")[2])
    assert "x[x < 3] if False else x  # <&>" in "".join(tree.itertext())
    assert "scores f32[t,s]" in [one.text for one in tree.iter("span")]
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport"' in page
    assert "http" not in page
    HTMLParser().feed(page)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1280, 900), (390, 844)], ids=["desk", "phone"])
def test_a_page_shows_each_note_in_a_browser_and_nothing_is_cut_off(run, visit, tmp_path: Path, size: tuple[int, int]):
    file = tmp_path / "page.html"
    file.write_text(run("program.py", "--format", "html")[1])
    script = """({
        wide: document.documentElement.scrollWidth - window.innerWidth,
        notes: [...document.querySelectorAll('span')].filter(s => s.innerText).map(s => {
            const [note, code] = [s.getBoundingClientRect(), s.previousElementSibling.getBoundingClientRect()];
            return [s.innerText, note.right, note.height, note.left >= code.right || note.top >= code.bottom];
        }),
    })"""
    (page,) = visit(file.as_uri(), script=script, size=size)
    assert page["wide"] <= 0
    assert "scores f32[t,s]" in [text for text, *_ in page["notes"]]
    assert all(right <= size[0] and height > 0 and apart for _, right, height, apart in page["notes"])


def test_as_json(run):
    _, out, _ = run("program.py:attend", "--format", "json")
    (function,) = json.loads(out)["functions"]
    assert function["name"] == "attend"
    assert {"line": 6, "column": 10, "name": "scores", "shape": "f32[t,s]"} in function["notes"]
    assert function["dims"]["attend"]["d"] == "argument q, axis 1"
