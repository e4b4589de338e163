"""What checked code may not do. Events are judged here as Python raises them; `test_workers.py` has whole programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from weft.typecheck.command.sandbox import RefusedError, Sandbox

READ, WRITE = os.O_RDONLY, os.O_WRONLY | os.O_CREAT


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "home").mkdir()
    return Sandbox([str(tmp_path / "scratch")])


@pytest.mark.parametrize(
    ("event", "args", "said"),
    [
        ("socket.connect", (None, ("localhost", 1)), "it opens a socket"),
        ("socket.getaddrinfo", ("localhost", 1, 0, 0, 0), "it looks up a host"),
        ("subprocess.Popen", ("touch", ["touch", "x"], None, None), "it starts a process"),
        ("os.system", (b"touch x",), "it starts a process"),
        ("os.fork", (), "it starts a process"),
        ("os.exec", ("/bin/sh", ["sh"], None), "it starts a process"),
        ("os.kill", (1, 9), "it signals another process"),
        ("open", ("home/x", "w", 0), "it writes home/x"),
        ("open", ("home/x", "r+", 0), "it writes home/x"),
        ("open", ("home/x", None, WRITE), "it writes home/x"),
        ("os.remove", ("home/x", -1), "it deletes home/x"),
        ("os.rename", ("scratch/x", "home/x", -1, -1), "it renames home/x"),
        ("os.mkdir", (b"home/new", 0o777, -1), "it makes the folder home/new"),
        ("os.symlink", ("home/x", "home/y", -1), "it links home/y"),
        ("sqlite3.connect", ("home/x.db",), "it opens the database home/x.db"),
    ],
)
def test_the_world_is_out_of_reach(sandbox: Sandbox, event: str, args: tuple, said: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RefusedError, match=f"{said}, which `weft check` refuses"):
        sandbox.judge(event, args)
    assert sandbox.refusals == [said.removeprefix("it ")]


@pytest.mark.parametrize(
    ("event", "args"),
    [
        ("open", ("home/x", "r", READ)),
        ("open", ("home/x", None, READ)),
        ("open", ("scratch/x", "w", WRITE)),
        ("open", (3, "w", WRITE)),
        ("open", (os.devnull, "w", WRITE)),
        ("open", ("home/__pycache__/x.cpython-311.pyc.123", None, WRITE)),
        ("os.mkdir", ("home/__pycache__", 0o777, -1)),
        ("os.remove", ("scratch/x", -1)),
        ("os.kill", (os.getpid(), 15)),
        ("sqlite3.connect", (":memory:",)),
    ],
)
def test_reading_caches_and_the_temporary_folder_are_free(sandbox: Sandbox, event, args, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sandbox.judge(event, args)
    assert sandbox.refusals == []


def test_a_link_leads_nowhere_else(sandbox: Sandbox, tmp_path: Path):
    (tmp_path / "scratch" / "way").symlink_to(tmp_path / "home")
    (tmp_path / "scratch" / "file").symlink_to(tmp_path / "home" / "file")
    for path in (tmp_path / "scratch" / "way" / "x", tmp_path / "scratch" / "file", tmp_path / "scratch" / ".." / "x"):
        with pytest.raises(RefusedError, match="it writes"):
            sandbox.judge("open", (str(path), "w", WRITE))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors of folders are looked up there")
def test_a_name_below_an_open_folder_is_judged_by_that_folder(sandbox: Sandbox, tmp_path: Path):
    for name, allowed in (("scratch", True), ("home", False)):
        folder = os.open(tmp_path / name, os.O_RDONLY)
        try:
            if allowed:
                sandbox.judge("os.remove", ("x", folder))
            else:
                with pytest.raises(RefusedError, match="it deletes x"):
                    sandbox.judge("os.remove", ("x", folder))
        finally:
            os.close(folder)


def test_what_is_read_is_noted_but_for_sources(sandbox: Sandbox, tmp_path: Path):
    for name in ("home/sizes.toml", "home/layers.py", "scratch/x"):
        sandbox.judge("open", (str(tmp_path / name), "r", READ))
    assert sandbox.reads == {str(tmp_path / "home" / "sizes.toml")}
