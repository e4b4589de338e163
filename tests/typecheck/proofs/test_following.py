"""What a follower is told: starts, values that are yielded, ends; by both of the ways that Python has."""

from __future__ import annotations

import sys
import threading

import pytest
from weft.typecheck.proofs import frames
from weft.typecheck.proofs.frames import listening, paused

MONITORS = sys.version_info >= (3, 12)
WAYS = [
    pytest.param(frames._traced, marks=pytest.mark.skipif(MONITORS, reason="sys.monitoring is there, and used")),
    pytest.param(
        frames._MONITOR.following, marks=pytest.mark.skipif(not MONITORS, reason="Python 3.12 and newer has it")
    ),
]


class Log:
    own = frozenset()

    def __init__(self):
        self.told = []

    def ignores(self, code):
        return code.co_filename != __file__ or code.co_name in ("wait", "<module>")

    def wants(self, frame):
        return True

    def reads(self, code):
        return code.co_name == "lines"

    def at_line(self, frame):
        self.told.append(("line", frame.f_lineno - frame.f_code.co_firstlineno, dict(frame.f_locals)))

    def called(self, frame, *, thrown):
        self.told.append(("throws" if thrown else "calls", frame.f_code.co_name))

    def ended(self, frame, how, value):
        self.told.append((how, frame.f_code.co_name, value))


def double(x):
    return 2 * x


def fails():
    raise ValueError


def counts():
    try:
        yield 1
        yield 2
    finally:
        double(3)


def lines():
    x = double(1)
    for _ in range(2):
        x = x + 1
    return x


@pytest.fixture(params=WAYS)
def log(request):
    log = Log()

    def run(function):
        with listening(), request.param(log):
            function()
        return log.told

    return run


def test_calls_and_what_they_return(log):
    assert log(lambda: double(2))[1:3] == [("calls", "double"), ("return", "double", 4)]


def test_a_call_that_raises_returns_nothing(log):
    def run():
        with pytest.raises(ValueError):  # noqa: PT011
            fails()

    assert [one[0] for one in log(run) if one[1] == "fails"] == ["calls", "raises"]


def test_a_generator_stands_at_each_value_and_is_closed(log):
    def run():
        values = counts()
        next(values), next(values)
        values.close()

    told = [one for one in log(run) if one[1] in ("counts", "double")]
    assert told[:5] == [
        ("calls", "counts"),
        ("yield", "counts", 1),
        ("calls", "counts"),
        ("yield", "counts", 2),
        ("throws", "counts"),
    ]
    assert told[5:7] == [("calls", "double"), ("return", "double", 6)]


def test_nothing_is_said_while_paused_or_of_other_threads(log):
    def run():
        with paused():
            double(1)
        thread = threading.Thread(target=double, args=(1,))
        thread.start()
        thread.join()

    assert [one for one in log(run) if one[1] == "double"] == []


def test_lines_are_told_before_they_run_and_only_of_what_is_read(log):
    told = [one[1:] for one in log(lines) if one[0] == "line"]
    assert [number for number, _ in told] == [1, 2, 3, 2, 3, 2, 4]
    assert [names.get("x") for _, names in told] == [None, 2, 2, 3, 3, 4, 4]
