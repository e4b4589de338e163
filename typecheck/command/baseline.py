"""`--baseline FILE`: accepts the failures of today, so that only new failures fail.

A failure is recognised by its file, name, rule and message, and by how often it occurs. Line numbers and the sizes that
showed it do not count, because lines may be added to its file. An entry without a failure is a warning, since it would
hide the next failure of its kind.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from .config import ConfigError
from .lines import FAILS, KNOWN, Checked, Line

# File, name, rule and message.
Key = tuple[str, str, str, str]

_VERSION = 1
# A message names the line of a guard as `net.py:12`.
_LINE_NUMBERS = re.compile(r"(?<=\.py):\d+|\bline \d+")
_AGAIN = "--write-baseline writes the baseline again"


class Baseline:
    """The accepted failures of one baseline, which a run uses up.

    Args:
        file: the baseline; the paths in it are relative to its folder.
        entries: how often each failure is accepted.
    """

    def __init__(self, file: Path, entries: Counter[Key] | None = None):
        self.file, self.unused = file, entries or Counter()

    @classmethod
    def read(cls, file: Path) -> Baseline:
        """Reads a baseline.

        Raises:
            ConfigError: in one line, if the file does not exist or is no baseline.
        """
        entries: Counter[Key] = Counter()
        try:
            content = json.loads(file.read_text())
            # A baseline of another version may have other keys, and its entries would accept nothing or too much.
            if content["weft-baseline"] != _VERSION:
                raise ConfigError(f"{file}: its version is {content['weft-baseline']!r}, not {_VERSION}; {_AGAIN}")
            for entry in content["findings"]:
                key = entry["file"], entry["name"], entry["rule"], entry["message"]
                entries[key] += int(entry.get("count", 1))
        except FileNotFoundError:
            raise ConfigError(f"{file}: no such baseline; --write-baseline writes one") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ConfigError(f"{file}: this is not a baseline ({why}); {_AGAIN}") from None
        return cls(file, entries)

    def apply(self, part: Checked) -> Checked:
        """The part with accepted failures as `known` lines; a contract with no other failure does not fail."""
        lines = list[Line]()
        for line in part.lines:
            key = self._key(line)
            if line.level == "error" and self.unused[key]:
                self.unused[key] -= 1
                line = dataclasses.replace(line, level="known")
            lines.append(line)
        if tuple(lines) == part.lines:
            return part
        fails = any(line.level == "error" for line in lines)
        verdicts = tuple(KNOWN if verdict == FAILS and not fails else verdict for verdict in part.verdicts)
        return dataclasses.replace(part, lines=tuple(lines), verdicts=verdicts)

    # Sizes and line numbers are left out: they change with edits that have nothing to do with the failure.
    def _key(self, line: Line) -> Key:
        message = _LINE_NUMBERS.sub("", line.message).partition(" (at ")[0]
        return self._relative(line.file), line.name, line.rule, message

    def _relative(self, file: str) -> str:
        # POSIX paths, so that a baseline written on Windows holds in a CI on Linux.
        return Path(os.path.relpath(file, self.file.parent)).as_posix()

    def stale(self, files: Collection[str]) -> list[Line]:
        """A warning for each entry without a failure, in files that were checked or no longer exist."""
        # A run over a single file says nothing about the entries of other files.
        checked = {self._relative(file) for file in files}
        stale = [
            f"{file}: {name}: {message}: this failure is gone; {_AGAIN}"
            for (file, name, _, message), count in self.unused.items()
            if count and (file in checked or not (self.file.parent / file).exists())
        ]
        return [Line("warning", str(self.file), 0, "baseline", message, "stale") for message in stale]

    def write(self, lines: Iterable[Line]) -> int:
        """Writes the failures among some lines as the baseline, and returns their number.

        Raises:
            ConfigError: in one line, if the file cannot be written.
        """
        # Known failures are written again: they are still there, and a new baseline must not lose them.
        counts = Counter(self._key(line) for line in lines if line.level in ("error", "known"))
        # Sorted, because a baseline is committed and its changes are read as a diff.
        findings = [
            {"file": file, "name": name, "rule": rule, "message": message, **({"count": count} if count > 1 else {})}
            for (file, name, rule, message), count in sorted(counts.items())
        ]
        try:
            self.file.write_text(json.dumps({"weft-baseline": _VERSION, "findings": findings}, indent=2) + "\n")
        except OSError as error:
            raise ConfigError(f"{self.file}: the baseline cannot be written: {error.strerror}") from None
        return counts.total()
