"""`%load_ext weft`: a notebook in which mistakes are said early, and shortly.

While it is loaded, contracts are checked (unless they were already, perhaps strictly), a successor that nothing uses is
an error, and weft's errors show the cells' frames only. Unloading puts all three back.
"""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import Any

from weft.core.errors import WeftError
from weft.core.threads.lost import debug_successors
from weft.core.tracebacks import users_frames
from weft.typecheck.modes import current_mode, set_mode, verbose

# What undoes the loading; a process has one shell.
_loaded: contextlib.ExitStack | None = None


def load(shell: Any) -> None:
    """Turns everything on, in an `InteractiveShell`; loading twice is loading once."""
    global _loaded
    if _loaded is not None:
        return
    with contextlib.ExitStack() as stack:
        before = current_mode()
        if before == "off":
            set_mode("on")
            stack.callback(set_mode, before)
        stack.enter_context(debug_successors())
        stack.callback(_restore, shell, shell.custom_exceptions, shell.CustomTB)
        shell.set_custom_exc((WeftError,), _show)
        _loaded = stack.pop_all()


def unload(shell: Any) -> None:
    """Puts back what `load` found."""
    global _loaded
    if _loaded is not None:
        stack, _loaded = _loaded, None
        stack.close()


def _restore(shell: Any, exceptions: Any, handler: Any) -> None:
    # Not by `set_custom_exc`, which would wrap the handler once more.
    shell.custom_exceptions, shell.CustomTB = exceptions, handler


def _show(
    shell: Any, kind: type[BaseException], error: BaseException, tb: TracebackType, tb_offset: Any = None
) -> None:
    kept = tb if verbose() else users_frames(_below_shell(tb, shell)) or tb
    # What the shell does not see it cannot print: JAX's own account of the frames that it cut.
    cause, error.__cause__ = error.__cause__, error.__cause__ if verbose() else None
    try:
        shell.showtraceback((kind, error, kept), tb_offset=0)
    finally:
        error.__cause__ = cause


def _below_shell(tb: TracebackType, shell: Any) -> TracebackType:
    """The traceback from the first frame on that is not the shell's."""
    import IPython

    folder = os.path.join(os.path.dirname(str(IPython.__file__)), "")
    while tb.tb_next is not None and tb.tb_frame.f_code.co_filename.startswith(folder):
        tb = tb.tb_next
    return tb
