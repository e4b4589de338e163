"""`%load_ext weft`: a notebook in which mistakes are reported early and briefly.

While the extension is loaded, contracts are checked (a stricter mode stays), an unused successor is an error, and
weft's errors show only frames of the notebook's cells. Unloading undoes all three.
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

# The stack that undoes the loading; a process has one shell.
_loaded: contextlib.ExitStack | None = None


def load(shell: Any) -> None:
    """Switches everything on in an `InteractiveShell`; a second call changes nothing."""
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
        # Moved out of the `with` block, so that an error half way undoes what was switched on, and success keeps it.
        _loaded = stack.pop_all()


def unload(shell: Any) -> None:
    """Undoes what `load` has changed."""
    global _loaded
    if _loaded is not None:
        stack, _loaded = _loaded, None
        stack.close()


def _restore(shell: Any, exceptions: Any, handler: Any) -> None:
    # `set_custom_exc` would wrap the old handler a second time.
    shell.custom_exceptions, shell.CustomTB = exceptions, handler


def _show(
    shell: Any, kind: type[BaseException], error: BaseException, tb: TracebackType, tb_offset: Any = None
) -> None:
    shown = tb if verbose() else users_frames(_below_shell(tb, shell)) or tb
    # JAX attaches its unfiltered traceback as the cause, which the shell would print in full.
    cause, error.__cause__ = error.__cause__, error.__cause__ if verbose() else None
    try:
        shell.showtraceback((kind, error, shown), tb_offset=0)
    finally:
        error.__cause__ = cause


def _below_shell(tb: TracebackType, shell: Any) -> TracebackType:
    """The traceback from the first frame that is not IPython's."""
    import IPython

    folder = os.path.join(os.path.dirname(str(IPython.__file__)), "")
    while tb.tb_next is not None and tb.tb_frame.f_code.co_filename.startswith(folder):
        tb = tb.tb_next
    return tb
