"""Writing a checkpoint: all or nothing, for this process, for others, and for whoever may read the file."""

import errno
import os
import random
import re
import resource
import signal
import stat
import subprocess
import sys

import numpy as np
import pytest
from weft.modules import CheckpointError, load_checkpoint, save_checkpoint

pytestmark = pytest.mark.slow

# More for a longer look: WEFT_KILLS=1000.
KILLS = int(os.environ.get("WEFT_KILLS", "15"))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "state.safetensors"


def mode(file):
    return stat.S_IMODE(file.stat().st_mode)


def tree(number, size=8):
    return {"a": np.full(size, number), "b": [np.full((size, 3), number, np.float32)], "number": number}


def test_a_private_file_stays_private(file):
    save_checkpoint(file, tree(0))
    file.chmod(0o600)
    save_checkpoint(file, tree(1))
    assert mode(file) == 0o600
    file.chmod(0o640)
    save_checkpoint(file, tree(2))
    assert mode(file) == 0o640
    assert load_checkpoint(file, tree(0))["number"] == 2


def test_a_private_file_is_private_while_it_is_written(file, monkeypatch):
    save_checkpoint(file, tree(0))
    file.chmod(0o600)
    seen = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (seen.append(stat.S_IMODE(os.fstat(fd).st_mode)), fsync(fd))[1])
    create = os.open
    modes = []
    monkeypatch.setattr(os, "open", lambda *args: (modes.append(args[2:]), create(*args))[1])
    save_checkpoint(file, tree(1))
    assert modes[0] == (0o600,)
    assert seen[0] == 0o600


def test_a_new_file_has_the_mode_that_the_umask_gives(file):
    before = os.umask(0o027)
    try:
        save_checkpoint(file, tree(0))
    finally:
        os.umask(before)
    assert mode(file) == 0o640


def test_the_target_of_a_link_is_written_and_the_link_stays(file, tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    link = tmp_path / "latest"
    link.symlink_to(folder / "real")
    for number in range(2):  # a link to nothing yet, and one to a file
        save_checkpoint(link, tree(number))
        assert link.is_symlink()
        assert load_checkpoint(folder / "real", tree(0))["number"] == number
    assert os.listdir(folder) == ["real"]


def test_a_circle_of_links_is_an_os_error_and_stays(tmp_path):
    link = tmp_path / "circle"
    link.symlink_to(link)
    with pytest.raises(OSError, match="symbolic links"):
        save_checkpoint(link, tree(0))
    assert link.is_symlink()


def test_a_folder_or_a_pipe_is_never_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(IsADirectoryError):
        save_checkpoint(tmp_path, tree(0))
    with pytest.raises(OSError, match="not a regular file"):
        save_checkpoint(pipe, tree(0))
    assert os.listdir(tmp_path) == ["pipe"]


def test_the_file_and_its_folder_are_on_the_disk_when_it_returns(file, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor):
        events.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda *args: (events.append("moved"), replace(*args)))
    save_checkpoint(file, tree(0))
    assert events == ["file", "moved", "folder"]


def test_a_full_disk_is_an_os_error_and_leaves_what_was_there(file):
    save_checkpoint(file, tree(1, size=100_000))
    before = file.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # What a limit on the size of files raises comes at the same place as a full disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, hard))
    try:
        with pytest.raises(OSError, match=re.escape(os.strerror(errno.EFBIG))):
            save_checkpoint(file, tree(2, size=100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_an_interrupt_leaves_what_was_there(file, monkeypatch):
    save_checkpoint(file, tree(1))

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(file, tree(2))
    assert load_checkpoint(file, tree(0))["number"] == 1
    assert os.listdir(file.parent) == [file.name]


# --- other processes -------------------------------------------------------------------------------------------------

# One process imports weft, and its children write until they are killed: an import takes longer than a hundred saves.
KILLER = """
import os, random, signal, sys, time, warnings
warnings.simplefilter("ignore")  # of fork: the children use no threads
import numpy as np
from weft.modules import load_checkpoint, save_checkpoint
file, kills = sys.argv[1], int(sys.argv[2])
def tree(number):
    return {"a": np.full(200_000, number), "b": np.full((300_000, 2), number, np.float32), "number": number}
save_checkpoint(file, tree(0))
most = number = 0
for kill in range(kills):
    child = os.fork()
    if not child:
        while True:
            number += 1
            save_checkpoint(file, tree(number))
    time.sleep(random.random() * 0.05)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    found = load_checkpoint(file, tree(0))
    number = found["number"]
    assert (found["a"] == number).all() and (found["b"] == number).all(), "a part of another checkpoint"
    most = max(most, len(os.listdir(os.path.dirname(file))))
assert most <= 2, f"{most} files: strays add up"
save_checkpoint(file, tree(-1))
assert os.listdir(os.path.dirname(file)) == [os.path.basename(file)], "a stray was left behind"
print("saved", number)
"""


def test_a_process_may_be_killed_at_any_moment(file):
    command = [sys.executable, "-c", KILLER, str(file), str(KILLS)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("saved")


PAUSED = """
import os, signal, sys
import numpy as np
from weft.modules import save_checkpoint
fsync = os.fsync
def paused(descriptor):
    os.kill(os.getpid(), signal.SIGSTOP)
    fsync(descriptor)
os.fsync = paused
save_checkpoint(sys.argv[1], {"a": np.full(8, 1), "b": [np.full((8, 3), 1, np.float32)], "number": 1})
"""


@pytest.mark.parametrize("end", [signal.SIGCONT, signal.SIGKILL])
def test_strays_of_the_dead_are_cleared_and_a_living_writer_goes_on(file, end):
    writer = subprocess.Popen([sys.executable, "-c", PAUSED, str(file)])
    os.waitpid(writer.pid, os.WUNTRACED)
    (temporary,) = os.listdir(file.parent)
    save_checkpoint(file, tree(2))
    assert sorted(os.listdir(file.parent)) == sorted([temporary, file.name])
    os.kill(writer.pid, end)
    if end == signal.SIGCONT:
        # It stops once more, before it syncs the folder.
        os.waitpid(writer.pid, os.WUNTRACED)
        os.kill(writer.pid, end)
        assert writer.wait() == 0
        assert load_checkpoint(file, tree(0))["number"] == 1
    else:
        writer.wait()
        save_checkpoint(file, tree(3))
    assert os.listdir(file.parent) == [file.name]


def test_files_that_only_look_like_strays_stay(file):
    others = [".state.safetensors.backup", "state.safetensors.1-deadbeef", ".other.safetensors.1-deadbeef"]
    for name in others:
        (file.parent / name).write_text("mine")
    save_checkpoint(file, tree(0))
    assert sorted(os.listdir(file.parent)) == sorted([*others, file.name])


WRITER = """
import sys
import numpy as np
from weft.modules import load_checkpoint, save_checkpoint
number = int(sys.argv[2])
tree = {"a": np.full(50_000, number), "b": np.full((9, 3), number), "number": number}
for _ in range(30):
    save_checkpoint(sys.argv[1], tree)
    found = load_checkpoint(sys.argv[1], tree)
    assert (found["a"] == found["number"]).all() and (found["b"] == found["number"]).all()
"""


def test_many_may_write_and_read_one_file_at_once(file):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(file), str(number)]) for number in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert os.listdir(file.parent) == [file.name]


def test_any_flipped_bit_is_found_out(file):
    save_checkpoint(file, tree(5))
    whole = file.read_bytes()
    chosen = random.Random(0)
    header = 8 + int.from_bytes(whole[:8], "little")
    places = [chosen.randrange(8 * header) for _ in range(150)] + [chosen.randrange(8 * len(whole)) for _ in range(50)]
    for place in places:
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"is (damaged|not a checkpoint)|has format"):
            load_checkpoint(file, tree(0))
