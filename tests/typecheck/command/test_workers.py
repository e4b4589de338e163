"""The command with its workers, as a stranger's CI runs it: nothing that is checked ends a run or reaches out of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from weft.typecheck.command.config import Settings
from weft.typecheck.command.process import Conversation
from weft.typecheck.command.units import unit_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
# A run of tests in the background ignores ^C, and so would what it starts.
LAUNCH = f"""
import signal; signal.signal(signal.SIGINT, signal.default_int_handler)
import sys; sys.path[:] = [one for one in sys.path if one]  # as the installed script has it
sys.path.insert(0, {str(ROOT / "typecheck")!r}); sys.argv[0] = "weft"
from launcher import main
code = main()
print("jax" in sys.modules, "weft" in sys.modules, file=sys.stderr)
sys.exit(code)
"""

HEAD = "from jaxtyping import Array, Float\nimport os, socket, subprocess, sys, tempfile\n"
FILES = {
    "a_ends.py": """
        def before(x: Float[Array, "n"]) -> Float[Array, "n"]:
            return x
        def exits_at_once(x: Float[Array, "n"]) -> Float[Array, "n"]:
            os._exit(0)
        def crashes(x: Float[Array, "n"]) -> Float[Array, "n"]:
            os.kill(os.getpid(), 11)
        def exits(x: Float[Array, "n"]) -> Float[Array, "n"]:
            sys.exit(3)
        def interrupts(x: Float[Array, "n"]) -> Float[Array, "n"]:
            raise KeyboardInterrupt
        def goes_deep(x: Float[Array, "n"]) -> Float[Array, "n"]:
            return goes_deep(x)
        def loops(x: Float[Array, "n"]) -> Float[Array, "n"]:
            while True:
                pass
        def grows(x: Float[Array, "n"]) -> Float[Array, "n"]:
            kept = []
            while True:
                kept.append(bytearray(10_000_000))
        def after(x: Float[Array, "n"]) -> Float[Array, "n n"]:
            return x
    """,
    "b_reaches.py": """
        def prints(x: Float[Array, "n"]) -> Float[Array, "n"]:
            with tempfile.TemporaryDirectory() as folder:
                open(f"{folder}/x", "w").write("1")
            print("[noise"); os.write(1, b"{noise"); return x
    """,
    "c_import.py": "os._exit(0)",
    "d_import.py": 'print("}"); raise SystemExit(3)',
    "e_syntax.py": "def f(:",
}
UNDECIDED = {
    "exits_at_once": "the process ended, with exit code 0",
    "crashes": "the process was ended by SIGSEGV",
    "exits": "it raises SystemExit(3), which ends a program",
    "interrupts": "it raises KeyboardInterrupt(), which ends a program",
    "goes_deep": "goes_deep calls itself without an end, with arguments of the same shapes each time",
    "loops": "it did not end within 1 seconds of processor time (`--seconds`)",
    "grows": "it took more than 1500 MB of memory (`--memory`)",
}


def command(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)}
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, "check", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).write_text(HEAD + textwrap.dedent(text))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict, int]:
    """One run over all of the files above."""
    folder = tmp_path_factory.mktemp("nasty")
    write(folder, FILES)
    run = command(folder, "--format", "json", "--seconds", "1", "--memory", "1500", "-j", "2", ".")
    out, _ = run.communicate()
    return folder, json.loads(out), run.returncode


def test_each_costs_one_verdict_with_its_reason(ran):
    messages = {
        finding["name"]: finding["message"] for finding in ran[1]["findings"] if finding["level"] == "undecided"
    }
    assert messages == {name: f"undecided: {reason}" for name, reason in UNDECIDED.items()}


def test_the_rest_is_judged_in_the_order_of_the_files(ran):
    _, report, code = ran
    assert [finding["name"] for finding in report["findings"] if finding["level"] == "error"] == ["after"]
    assert report["summary"] == ("10 contracts: 2 proved, 0 hold, 1 fail, 7 undecided, 3 unusable")
    files = [finding["file"] for finding in report["findings"]]
    assert files == sorted(files)
    assert code == report["exit_code"] == 2


def test_a_file_that_cannot_be_imported_is_one_line(ran):
    messages = {finding["file"]: finding["message"] for finding in ran[1]["findings"] if finding["level"] == "unusable"}
    assert messages == {
        "c_import.py": "the process ended, with exit code 0, while the file was imported",
        "d_import.py": "SystemExit: 3",
        "e_syntax.py": "SyntaxError: invalid syntax (e_syntax.py, line 3)",
    }


def test_nothing_is_left_behind(ran):
    assert {one.name for one in ran[0].iterdir()} - {"__pycache__"} == {*FILES, ".weft"}


RIGHT = 'def right(x: Float[Array, "n"]) -> Float[Array, "n"]:\n    return x\n'
FOREVER = 'def forever(x: Float[Array, "n"]) -> Float[Array, "n"]:\n    while True:\n        pass\n'


def test_an_unchanged_project_is_answered_without_jax(tmp_path: Path):
    write(tmp_path, {"one.py": RIGHT, "two.py": RIGHT.replace('"n"]:', '"n n"]:')})
    first = command(tmp_path, ".")
    out, err = first.communicate()
    assert first.returncode == 1
    assert err == "False False\n"  # the workers have it, the command never
    second = command(tmp_path, ".", "-j", "3")
    assert second.communicate() == (out, "False False\n")
    assert second.returncode == 1
    assert out.splitlines()[-1] == "2 contracts: 1 proved, 0 hold, 1 fail"


def alive(mark: str) -> list[str]:
    """The processes that have a word in their command line."""
    processes = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in file.read_bytes():
                processes.append(file.parent.name)
    return processes


def children(parent: int) -> list[str]:
    """The processes that a process has started."""
    processes = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if file.read_text().rpartition(") ")[2].split()[1] == str(parent):
                processes.append(file.parent.name)
    return processes


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="what runs is read from /proc")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM], ids=["^C", "a time limit's"])
@pytest.mark.parametrize("moment", ["as it starts", "while it judges"])
def test_an_interruption_prints_the_verdicts_so_far_and_leaves_no_process(
    tmp_path: Path, sent: signal.Signals, moment: str
):
    mark = f"sleep-of-{tmp_path.name}"
    child = f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', {mark!r}])\n"
    write(tmp_path, {"a.py": RIGHT.replace('"n"]:', '"n n"]:'), "b.py": child + RIGHT + FOREVER, "c.py": RIGHT})
    run = command(tmp_path, "-j", "1", ".")
    assert run.stdout is not None
    if moment == "while it judges":
        assert run.stdout.readline().startswith("a.py:3: right: contract")  # it comes before the run is over
        while not alive(mark):
            time.sleep(0.05)
    else:
        # Before it has a worker, Python may not have begun the program.
        while not children(run.pid):
            time.sleep(0.05)
    start = time.monotonic()
    run.send_signal(sent)
    out, err = run.communicate(timeout=60)
    assert time.monotonic() - start < 5  # on a busy machine; one second where it is idle
    assert run.returncode == 130
    assert out.splitlines()[-1].startswith(
        "1 contract: 0 proved, 0 hold, 1 fail" if moment == "while it judges" else "0 contracts"
    )
    assert "weft check: interrupted, " in err
    assert "Traceback" not in err
    for _ in range(100):
        if not alive(mark):
            break
        time.sleep(0.1)
    assert alive(mark) == []


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no such signal")
def test_an_interrupted_report_is_whole_json_and_writes_no_baseline(tmp_path: Path):
    write(
        tmp_path,
        {
            "a.py": RIGHT.replace('"n"]:', '"n n"]:'),
            "b.py": RIGHT,  # while it is judged, the verdict of the first arrives
            "c.py": "print('it waits', file=sys.stderr, flush=True)\n" + FOREVER,
        },
    )
    run = command(tmp_path, "-j", "1", "--format", "json", "--baseline", "known.json", "--write-baseline", ".")
    assert run.stderr is not None
    assert any(line == "it waits\n" for line in run.stderr)
    run.send_signal(signal.SIGTERM)
    out, _ = run.communicate(timeout=60)
    report = json.loads(out)
    assert (report["exit_code"], [finding["rule"] for finding in report["findings"]]) == (130, ["contract"])
    assert not (tmp_path / "known.json").exists()


COSTS_ITS_VERDICT = "2 contracts: 2 proved, 0 hold, 0 fail, 1 unusable"
COSTS_NOTHING = "3 contracts: 3 proved, 0 hold, 0 fail"
FORGED = '{"end": true, "reads": [], "changed": []}'
MISCHIEF = {
    "it writes into every open pipe": (
        "import contextlib\nfor number in range(3, 64):\n    with contextlib.suppress(OSError):\n"
        f"        os.write(number, b'1\\n{FORGED}\\n')\n",
        COSTS_ITS_VERDICT,
    ),
    "it closes every open pipe": ("os.closerange(3, 64)\n", COSTS_ITS_VERDICT),
    "its children go on in its place": ("os.fork()\nos.fork()\n", COSTS_NOTHING),
    "its child computes for ever": ("if not os.fork():\n    while True:\n        pass\n", COSTS_NOTHING),
}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has neither fork nor named pipes")
@pytest.mark.parametrize(("mischief", "summary"), MISCHIEF.values(), ids=MISCHIEF)
def test_a_file_costs_its_own_verdict_at_most(tmp_path: Path, mischief: str, summary: str):
    write(tmp_path, {"a.py": RIGHT, "b.py": mischief + RIGHT, "c.py": RIGHT})
    os.mkfifo(tmp_path / "d.py")
    out, _ = command(tmp_path, "-j", "1", ".").communicate(timeout=300)
    assert out.splitlines()[-1] == summary, out


def test_a_command_that_is_ended_from_outside_leaves_no_worker_behind(tmp_path: Path):
    told = "print('it is judged', file=sys.stderr, flush=True)\n"
    write(tmp_path, {"a.py": told + FOREVER})
    run = command(tmp_path, "-j", "1", ".")
    assert run.stderr is not None
    assert any(line == "it is judged\n" for line in run.stderr)
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=300)  # the worker holds the other end of this pipe until it ends; the loop has none


def test_an_internal_error_is_reported_and_the_run_goes_on(tmp_path: Path):
    # An annotation whose own code fails stands for a fault of weft's; what only makes up attributes is no function.
    broken = """
        class Odd:
            def __getattr__(self, name):
                raise ZeroDivisionError(name)
        odd = Odd()
        def broken(x: Odd()) -> Float[Array, "n"]:
            return x
        def before(x: Float[Array, "n"]) -> Float[Array, "n"]:
            return x
    """
    write(tmp_path, {"a.py": broken, "b.py": RIGHT})
    run = command(tmp_path, "-j", "1", ".")
    out, _ = run.communicate()
    assert run.returncode == 2
    first, summary = out.splitlines()
    assert "undecided: weft failed: ZeroDivisionError" in first
    assert " (typecheck/language/" in first
    assert first.endswith("please report it")
    assert summary.endswith("2 proved, 0 hold, 0 fail, 1 undecided, 1 internal errors")


def test_watching_judges_again_what_has_changed_and_ends_at_an_interrupt(tmp_path: Path):
    write(
        tmp_path,
        {"used.py": "N = 1", "uses.py": 'import used\ndef f(x: Float[Array, "n"]) -> Float[Array, "n"]: return x'},
    )
    run = command(tmp_path, "--watch", "uses.py")
    said = iter(run.stdout.readline, "")
    assert next(said) == "1 contract: 1 proved, 0 hold, 0 fail\n"
    write(tmp_path, {"used.py": "import nothing_such"})
    assert "it needs nothing_such, which is not installed" in next(said)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 0
    assert "Traceback" not in err
    assert "watching 2 files; ^C ends" in err


def test_a_process_that_has_ended_leaves_no_pipe_open():
    conversation = Conversation(Settings(), 4096)
    conversation.start()
    worker = conversation._worker
    conversation.close()
    worker.listening.join()
    assert worker.process.stdin.closed
    assert worker.process.stdout.closed


def test_a_worker_that_an_endless_import_holds_can_be_abandoned_for_the_mended_file(tmp_path: Path):
    write(tmp_path, {"a.py": "while True:\n    pass\n"})
    conversation, unit, messages = Conversation(Settings(), 4096), unit_of(tmp_path / "a.py"), []
    conversation.start()
    waiting = threading.Thread(target=lambda: messages.extend(conversation.ask(unit, {})))
    waiting.start()
    while waiting.is_alive():
        conversation.abandon(0.1)
        waiting.join(0.05)
    assert [message for message in messages if "at" not in message] == []
    write(tmp_path, {"a.py": RIGHT})
    parts = [message["part"] for message in conversation.ask(unit, {}) if "part" in message]
    assert [part["verdicts"] for part in parts if part.get("verdicts")] == [["proved"]]
    conversation.close()


KERNELS = {
    "__init__.py": "",
    "base.py": """
        import abc
        import equinox as eqx
        class Kernel(eqx.Module):
            @abc.abstractmethod
            def gram(self, x: Float[Array, "n d"]) -> Float[Array, "n n"]: ...
        def twice(kernel: Kernel, x: Float[Array, "n d"]) -> Float[Array, "n n"]:
            return 2 * kernel.gram(x)
    """,
    "linear.py": """
        from .base import Kernel
        class Linear(Kernel):
            def gram(self, x: Float[Array, "n d"]) -> Float[Array, "n n"]:
                return x @ x.T
    """,
    "ends.py": """
        import os
        from .base import Kernel
        class Ends(Kernel): ...
        os._exit(3)
    """,
}


def test_what_stands_for_an_abstract_class_does_not_depend_on_what_was_judged_before(tmp_path: Path):
    """Nor on a file of the package that ends the process: it costs the others no more than what it would stand for."""
    package = tmp_path / "kernels"
    package.mkdir()
    write(package, {name: text for name, text in KERNELS.items() if name != "ends.py"})
    said = {}
    for order in (["base", "linear"], ["linear", "base"], ["base"]):
        out, _ = command(tmp_path, "-v", "--no-cache", "-j", "1", *(f"kernels/{one}.py" for one in order)).communicate()
        said[tuple(order)] = [line.partition(": ")[2] for line in out.splitlines() if "twice" in line]
    assert [*said.values()] == [["twice: holds when kernel is Linear"]] * 3
    write(package, KERNELS)
    out, _ = command(tmp_path, "-v", "--no-cache", "-j", "1", "kernels/base.py").communicate()
    assert "twice" in out
    assert "undecided" in out


def test_who_stops_reading_gets_no_traceback(tmp_path: Path):
    write(tmp_path, {f"a{number}.py": RIGHT.replace('"n"]:', '"n n"]:') for number in range(3)})
    run = command(tmp_path, "-j", "1", ".")
    assert run.stdout is not None
    assert run.stdout.readline().startswith("a0.py")
    run.stdout.close()
    assert run.stderr is not None
    with run.stderr:
        assert "Traceback" not in run.stderr.read()
    assert run.wait() == 141


def test_a_file_called_like_pythons_own_modules_is_no_end(tmp_path: Path):
    write(tmp_path, {"json.py": RIGHT, "typing.py": RIGHT, "a.py": "import json\n" + RIGHT})
    out, _ = command(tmp_path, "-j", "1", ".").communicate()
    assert out == "3 contracts: 3 proved, 0 hold, 0 fail\n"


def test_verdicts_do_not_depend_on_the_order_of_the_files(tmp_path: Path):
    names = {"a.py": RIGHT, "b.py": RIGHT.replace('"n"]:', '"n n"]:'), "c.py": "import nothing_such"}
    write(tmp_path, names)
    orders = ([*names], [*names][::-1])
    told = [command(tmp_path, "-v", "--no-cache", "-j", "2", *order).communicate()[0].splitlines() for order in orders]
    assert sorted(told[0]) == sorted(told[1])
