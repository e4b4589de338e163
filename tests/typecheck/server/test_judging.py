"""What is judged of documents that are saved, and what is said of them then."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from weft.typecheck.command.lines import Checked, Line, to_json
from weft.typecheck.server import judging
from weft.typecheck.server.hovers import hover
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


class Worker:
    """In place of a conversation: it says one line of each definition, below its head."""

    def __init__(self, settings, memory):
        self.asked: list[str] = []
        self.settings, self.carried = settings, set()
        CONVERSATIONS.append(self)

    def start(self):
        pass

    def ask(self, unit, asked):
        if "shapes" in asked:
            return
        self.asked.append(Path(unit.file).name)
        for number, line in enumerate(Path(unit.file).read_text().split("\n"), 1):
            if line.startswith(("def ", "class ")):
                name = line.split()[1].partition("(")[0].rstrip(":")
                said = Line("error", unit.file, number + 1, name, f"says {name}")
                yield {"part": to_json(Checked((said,), ("fails",), (f"net.py:1: {name}: given n > 1",), name=name))}

    def abandon(self, seconds):
        pass

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
            told.append([(line.line, line.message) for line in document.lines()])
            news.release()

    class Edited(Judge):
        """Judges one file; called with its text, it gives what is said of it."""

        def __call__(self, text: str) -> list[tuple[int, str]]:
            (tmp_path / "net.py").write_text(text)
            self.edit(str(tmp_path / "net.py"), text, None)
            self.saved(str(tmp_path / "net.py"))
            return self.news()

        def news(self) -> list[tuple[int, str]]:
            assert news.acquire(timeout=60)
            return told[-1]

    judge = Edited(hear)
    judge.start()
    yield judge
    judge.stop()
    judge.join(timeout=60)


def test_a_file_is_judged_as_it_was_saved(judge, tmp_path: Path):
    assert judge(TEXT) == [(4, "says first"), (7, "says helper"), (10, "says Net"), (14, "says Other")]
    judge.edit(str(tmp_path / "net.py"), TEXT.partition("class Net")[0], None)
    assert CONVERSATIONS[0].asked == ["net.py"]
    (tmp_path / "net.py").write_text(TEXT.partition("class Net")[0])
    judge.saved(str(tmp_path / "net.py"))
    assert judge.news() == [(4, "says first"), (7, "says helper")]
    assert CONVERSATIONS[0].asked == ["net.py", "net.py"]


def test_a_verdict_is_told_with_its_conditions(judge, tmp_path: Path):
    judge(TEXT)
    document = judge.documents[str(tmp_path / "net.py")]
    assert document.verdicts()["first"] == "fails; given n > 1"
    assert hover(document, 3, 5) == "`first`: fails; given n > 1"
    assert hover(document, 4, 12) is None


def test_what_imports_a_file_that_was_saved_is_judged_again(judge, tmp_path: Path):
    judge("import other\n" + TEXT)
    judge.saved(str(tmp_path / "other.py"))
    judge.news()
    assert CONVERSATIONS[0].asked == ["net.py"] * 2
    judge.saved(str(tmp_path / "unrelated.py"))
    judge(TEXT)
    assert CONVERSATIONS[0].asked == ["net.py"] * 3


def test_a_save_of_the_file_that_is_being_judged_ends_a_silent_worker_and_its_verdicts_are_not_shown(
    judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked, abandoned = threading.Event(), threading.Event()

    class Stuck(Worker):
        def ask(self, unit, asked_for):
            if "endless" in Path(unit.file).read_text():
                asked.set()
                assert abandoned.wait(timeout=60)
                return iter(())
            return super().ask(unit, asked_for)

        def abandon(self, seconds):
            assert seconds > 0
            abandoned.set()

    monkeypatch.setattr(judging, "Conversation", Stuck)
    path = tmp_path / "net.py"
    path.write_text("endless")
    judge.edit(str(path), "endless", None)
    judge.saved(str(path))
    assert asked.wait(timeout=60)
    assert judge(TEXT)[0] == (4, "says first")


def test_a_configuration_that_cannot_be_read_is_said(judge, tmp_path: Path):
    (tmp_path / "pyproject.toml").write_text("[tool.weft.check]\njobs = 'many'")
    ((line, message),) = judge(TEXT)
    assert line == 1
    assert "jobs = 'many' is not a number of processes" in message


def test_a_new_configuration_begins_a_new_conversation(judge, tmp_path: Path):
    for number, trials in enumerate((7, 8)):
        (tmp_path / "pyproject.toml").write_text(f"[tool.weft.check]\ntrials = {trials}")
        for _ in range(2):
            assert judge(TEXT)[0] == (4, "says first")
        assert CONVERSATIONS[number].settings.trials == trials
    assert len(CONVERSATIONS) == 2
