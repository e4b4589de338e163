"""Which definitions are judged again after an edit, and where what is known of the others stands then."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from weft.typecheck.command.lines import Checked, Line, to_json
from weft.typecheck.command.recorded import PLACE, write_calls
from weft.typecheck.server import judging
from weft.typecheck.server.definitions import definitions_of
from weft.typecheck.server.judging import Document, Judge

TEXT = """\
SCALE = 2

def first(x):
    return helper(x) * SCALE

def helper(x):
    return x

class Net:
    def call(self, x: "Other"):
        return x

class Other:
    pass
"""


def edited(old: str, new: str) -> set[str]:
    """The definitions whose verdicts an edit ends."""
    before, after = definitions_of(TEXT), definitions_of(TEXT.replace(old, new))
    return {name for name in after if name not in before or before[name].key != after[name].key}


@pytest.mark.parametrize(
    ("old", "new", "reached"),
    [
        ("return helper(x) * SCALE", "return helper(x)", {"first"}),
        ("helper(x):\n    return x", "helper(x):\n    return x + 1", {"first", "helper"}),
        ("SCALE = 2", "SCALE = 3", {"first"}),
        ("    pass", "    size: int", {"Net", "Other"}),
        ("SCALE = 2", "SCALE = 2\n\n\n", set()),
        ("SCALE = 2", "SCALE = 2\nprint(1)", {"first", "helper", "Net", "Other"}),
    ],
)
def test_an_edit_ends_the_verdicts_of_what_reaches_it(old: str, new: str, reached: set[str]):
    assert edited(old, new) == reached


class Worker:
    """In place of a conversation: it says one line of each definition, two below its head."""

    def __init__(self, settings, memory):
        self.asked: list[list[str]] = []
        self.settings = settings
        CONVERSATIONS.append(self)

    def start(self):
        pass

    def ask(self, unit, asked):
        if "shapes" in asked:
            return
        text = asked["texts"][unit.file]
        found = {name: one for name, one in definitions_of(text).items() if re.search(asked["only"], name)}
        self.asked.append([*found])
        for name, one in found.items():
            yield {"part": to_json(Checked((Line("error", unit.file, one.first + 1, name, f"says {name}"),)))}

    def close(self):
        pass


CONVERSATIONS: list[Worker] = []


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(judging, "Conversation", Worker)
    CONVERSATIONS.clear()
    told: list[list[tuple[int, str]]] = []
    news = threading.Semaphore(0)

    def hear(document: Document, shapes: bool) -> None:
        if not shapes:
            told.append([(number, line.message) for number, line in document.lines()])
            news.release()

    class Edited(Judge):
        """Judges one file; called with its text, it gives what is said of it."""

        def __call__(self, text: str) -> list[tuple[int, str]]:
            self.edit(str(tmp_path / "net.py"), text, None)
            return self.news()

        def news(self) -> list[tuple[int, str]]:
            assert news.acquire(timeout=60)
            return told[-1]

    judge = Edited(hear)
    judge.start()
    yield judge
    judge.stop()
    judge.join(timeout=60)


def test_what_is_kept_moves_with_its_definition(judge):
    assert judge(TEXT) == [(4, "says first"), (7, "says helper"), (10, "says Net"), (14, "says Other")]
    longer = TEXT.replace("    return helper(x) * SCALE", "    y = 1\n    return helper(x) * SCALE")
    assert judge(longer) == [(4, "says first"), (8, "says helper"), (11, "says Net"), (15, "says Other")]
    assert CONVERSATIONS[0].asked == [["first", "helper", "Net", "Other"], ["first"]]


def test_while_there_is_no_syntax_what_was_known_stays(judge):
    judge(TEXT)
    assert judge(TEXT + "def broken(:")[-1] == (15, "SyntaxError: invalid syntax")
    assert judge(TEXT + "def broken(:")[0] == (4, "says first")
    assert len(CONVERSATIONS[0].asked) == 1


def test_what_imports_a_file_that_was_saved_is_judged_again(judge, tmp_path: Path):
    (tmp_path / "other.py").write_text("")
    (tmp_path / "net.py").write_text("import other")
    judge(TEXT)
    judge.saved(str(tmp_path / "other.py"))
    judge.news()
    assert CONVERSATIONS[0].asked == [["first", "helper", "Net", "Other"]] * 2
    judge.saved(str(tmp_path / "unrelated.py"))
    judge(TEXT)
    assert len(CONVERSATIONS[0].asked) == 2


def test_what_is_gone_says_nothing(judge):
    judge(TEXT)
    assert judge(TEXT.partition("class Net")[0]) == [(4, "says first"), (7, "says helper")]


def test_a_configuration_that_cannot_be_read_is_said(judge, tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text("[tool.weft.check]\njobs = 'many'")
    ((line, message),) = judge(TEXT)
    assert line == 1
    assert "jobs = 'many' is not a number of processes" in message


def test_recorded_calls_are_in_force_and_new_ones_are_seen(judge, tmp_path: Path):
    judge(TEXT)
    assert CONVERSATIONS[0].settings.calls == ""
    file = tmp_path / PLACE
    for i in (1, 2):
        write_calls(file, {"net:first": [{"args": [i], "kwargs": {}}]})
        assert judge(TEXT)[0] == (4, "says first")
        assert CONVERSATIONS[i].settings.calls == str(file)
        assert CONVERSATIONS[i].asked == [["first", "helper", "Net", "Other"]]
    judge(TEXT)
    assert len(CONVERSATIONS) == 3
    file.write_text("{}")
    assert "this is no file of recorded calls" in judge(TEXT)[0][1]
