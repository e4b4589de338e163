"""What checked code may not do: reach for the world while it is imported and judged.

A worker sees Python's own events (`sys.addaudithook`) and refuses sockets, processes, and files that would be written,
moved or deleted outside of its temporary folder. Reading is free, and so are caches: `__pycache__` and JAX's folder
of compiled programs. The error is a `PermissionError`, which programs that can do without handle.

This guards against accidents. It is no jail: native code raises no events, and a hook's own process can undo it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class RefusedError(PermissionError):
    """Checked code reached for something outside."""


_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# Events that are refused, by what they are called in a verdict.
_WORLD = {
    **dict.fromkeys(("socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg"), "opens a socket"),
    **dict.fromkeys(("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"), "looks up a host"),
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.posix_spawn", "os.spawn", "os.exec"), "starts a process"),
    **dict.fromkeys(("os.fork", "os.forkpty", "pty.spawn", "os.startfile"), "starts a process"),
    **dict.fromkeys(("webbrowser.open", "urllib.Request"), "opens a URL"),
    **dict.fromkeys(("syslog.syslog", "syslog.openlog"), "writes to the system's log"),
}
# Events that change files: what they are called, which arguments are paths, and where the folder's descriptor is.
_FILES: dict[str, tuple[str, tuple[tuple[int, int | None], ...]]] = {
    "os.remove": ("deletes", ((0, 1),)),
    "os.rmdir": ("deletes", ((0, 1),)),
    "shutil.rmtree": ("deletes", ((0, 1),)),
    "os.rename": ("renames", ((0, 2), (1, 3))),
    "os.mkdir": ("makes the folder", ((0, 2),)),
    "os.link": ("links", ((1, 3),)),
    "os.symlink": ("links", ((1, 2),)),
    "os.truncate": ("writes", ((0, None),)),
    "os.chmod": ("changes the mode of", ((0, 2),)),
    "os.chown": ("changes the owner of", ((0, 3),)),
    "os.utime": ("changes the times of", ((0, 3),)),
    "os.setxattr": ("changes the attributes of", ((0, None),)),
    "os.removexattr": ("changes the attributes of", ((0, None),)),
    "sqlite3.connect": ("opens the database", ((0, None),)),
}


class Sandbox:
    """What has been refused in this process, and what has been read.

    Args:
        writable: folders that may be written to.
        unread: folders whose files are not noted when they are read.
    """

    def __init__(self, writable: Iterable[str], unread: Iterable[str] = ()):
        self.writable = tuple(os.path.join(os.path.realpath(one), "") for one in writable)
        self.unread = tuple(os.path.join(one, "") for one in (*unread, "/proc", "/sys", "/dev", "/etc"))
        self.refusals: list[str] = []
        self.reads: set[str] = set()

    def install(self) -> None:
        """From now on, for as long as the process lives."""
        # Bound here: what checked code does to this module's globals or to `os.path` must not end the guard.
        judge = self.judge

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event in _NOTED:
                judge(event, args)

        sys.addaudithook(hook)

    def judge(self, event: str, args: tuple[Any, ...]) -> None:
        """Decides on one event.

        Raises:
            RefusedError: if it is refused.
        """
        if event == "open":
            self._open(*args[:3])
        elif event in _FILES:
            verb, places = _FILES[event]
            for index, folder in places:
                fd = args[folder] if folder is not None and folder < len(args) else -1
                if not self._may_write(args[index], fd):
                    self._refuse(f"{verb} {_shown(args[index])}")
        elif event == "os.kill":
            if args[0] != os.getpid():
                self._refuse("signals another process")
        elif event in _WORLD:
            self._refuse(_WORLD[event])

    def _open(self, path: Any, mode: Any, flags: Any) -> None:
        if isinstance(path, int):
            return
        writes = bool(isinstance(flags, int) and flags & _WRITING)
        writes = writes or (isinstance(mode, str) and any(one in mode for one in "wax+"))
        if not writes:
            self._note(path)
        elif not self._may_write(path, -1):
            self._refuse(f"writes {_shown(path)}")

    def _note(self, path: Any) -> None:
        name = os.path.abspath(os.fsdecode(path))
        if not name.endswith((".py", ".pyc", ".so")) and not name.startswith((*self.unread, *self.writable)):
            self.reads.add(name)

    def _may_write(self, path: Any, folder: Any) -> bool:
        if isinstance(path, int):
            return True  # what was opened before was judged then
        name = os.fsdecode(path)
        if isinstance(folder, int) and folder >= 0 and not os.path.isabs(name):
            try:
                name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
            except OSError:
                return False
        if name in (os.devnull, ":memory:", ""):
            return True
        # The folder's links are followed, those of the file itself are what would be changed.
        parent, last = os.path.split(os.path.abspath(name))
        parent = os.path.realpath(parent)
        if os.path.islink(os.path.join(parent, last)):
            parent = os.path.dirname(os.path.realpath(os.path.join(parent, last)))
        if os.path.basename(parent) == "__pycache__" or last == "__pycache__":
            return True
        return os.path.join(parent, last, "").startswith(self.writable)

    def _refuse(self, what: str) -> None:
        self.refusals.append(what)
        raise RefusedError(f"it {what}, which `weft check` refuses")


def _shown(path: Any) -> str:
    try:
        return str(Path(os.fsdecode(path)))
    except (TypeError, ValueError):
        return "a file"


_NOTED = frozenset({"open", "os.kill", *_FILES, *_WORLD})
