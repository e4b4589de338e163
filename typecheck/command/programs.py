"""Programs of failures, run: each in a fresh process, that the import hook can be there before the package is.

A process that has hooked a module runs the next program that hooks the same; that a module cannot be imported so is
found out once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .process import STARTING, Process

# This folder alone is a package there, so that nothing imports weft.
_START = """
import sys
sys.path = [one for one in sys.path if one]
import importlib, importlib.util, json
folder, sys.path[:] = json.loads(sys.argv.pop())
spec = importlib.util.spec_from_file_location("beside", folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules["beside"] = importlib.util.module_from_spec(spec)
importlib.import_module("beside.program").main()
"""


class Programs:
    """Runs programs, one at a time.

    Args:
        seconds: of processor time that the imports of a program may take, and its call.
        memory: how much a process may take, in megabytes.
        refused: of modules that cannot be imported under the hook, what was raised; it is added to.
    """

    def __init__(self, seconds: float, memory: float, refused: dict[str, dict[str, Any]] | None = None):
        self.seconds, self.memory = seconds, memory
        self._refused = {} if refused is None else refused
        self._process: Process | None = None
        self._hooked = ""

    def run(self, text: str, hooked: str, path: Sequence[str]) -> Mapping[str, Any]:
        """Runs a program.

        Args:
            text: its lines.
            hooked: the module that it hooks before it imports anything else of its package; "" if it hooks none.
            path: where its modules are found.

        Returns:
            "end" (what it raised, "" if it ran through), "at" ("import" or "call"), "checker" (whether that was a
            violation that jaxtyping or beartype saw) and "limit" (whether a limit has ended it, and nothing else is
            known of it).
        """
        key = "\0".join((hooked, *path))
        if hooked and key in self._refused:
            return self._refused[key]
        process = self._process
        if process is None or not hooked or key != self._hooked:
            self.close()
            process = self._process = self._start(path)
            self._hooked = key
        try:
            found = self._ask(process, text)
        except BaseException:  # its answer would be taken for the next one's
            self.close()
            raise
        if hooked and found["at"] == "import" and not found["limit"]:
            self._refused[key] = found
        if found["at"] == "import" or process.has_died:
            self.close()
        return found

    def close(self) -> None:
        """Ends the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _start(self, path: Sequence[str]) -> Process:
        given = str(Path(__file__).parent), list(path)
        process = Process(_START, given, seconds=self.seconds, memory=self.memory, silent=True)
        process.tell({"seconds": self.seconds})
        process.answer(STARTING)  # if it does not start, it does not answer later either
        return process

    def _ask(self, process: Process, text: str) -> dict[str, Any]:
        at = "import"
        process.tell({"run": text})
        while (message := process.answer(self.seconds * 4 + 10)) is not None:
            at = message["at"]
            if "end" in message:
                return {"limit": False, **message}
        why = process.why()
        return {"end": why, "at": at, "checker": False, "limit": process.is_over}
