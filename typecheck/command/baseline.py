"""`--baseline FILE`: the failures of today are accepted, and only what is new fails.

A failure is known by its file, name, rule and message, without line numbers and without the sizes that showed it, and
by how often it is there: a file that other lines are added to keeps its entries. What an entry stands for and fails no
more is said, as such an entry would hide the next failure like it.
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

Key = tuple[str, str, str, str]

_VERSION = 1
_LINE_NUMBERS = re.compile(r"(?<=\.py):\d+|\bline \d+")
_SIZES = re.compile(r" \(at [^()]*\)$")


class Baseline:
    """The accepted failures of one file, while a run uses them up.

    Args:
        file: where it lies; the paths in it are relative to its folder.
        entries: how often each failure is accepted.
    """

    def __init__(self, file: Path, entries: Counter[Key] | None = None):
        self.file, self.left = file, entries or Counter()

    @classmethod
    def read(cls, file: Path) -> Baseline:
        """Reads one.

        Raises:
            ConfigError: in one line, if there is none, or it is no baseline.
        """
        try:
            found = json.loads(file.read_text())
            if found["weft-baseline"] != _VERSION:
                raise ConfigError(f"{file}: a baseline of version {found['weft-baseline']!r}, not {_VERSION}; {_AGAIN}")
            entries: Counter[Key] = Counter()
            for one in found["findings"]:
                entries[(one["file"], one["name"], one["rule"], one["message"])] += int(one.get("count", 1))
        except FileNotFoundError:
            raise ConfigError(f"{file}: no such baseline; --write-baseline makes one") from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            what = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ConfigError(f"{file}: this is no baseline ({what}); {_AGAIN}") from None
        return cls(file, entries)

    def apply(self, part: Checked) -> Checked:
        """A part with its accepted failures as `known` lines; a contract that has no other does not fail."""
        lines = tuple(self._known(line) for line in part.lines)
        if lines == part.lines:
            return part
        remain = any(line.level == "error" for line in lines)
        verdicts = part.verdicts if remain else tuple(KNOWN if one == FAILS else one for one in part.verdicts)
        return dataclasses.replace(part, lines=lines, verdicts=verdicts)

    def _known(self, line: Line) -> Line:
        key = self.key(line)
        if line.level != "error" or not self.left[key]:
            return line
        self.left[key] -= 1
        return dataclasses.replace(line, level="known")

    def key(self, line: Line) -> Key:
        """What a failure is known by."""
        return self._relative(line.file), line.name, line.rule, _SIZES.sub("", _LINE_NUMBERS.sub("", line.message))

    def _relative(self, file: str) -> str:
        return Path(os.path.relpath(file, self.file.parent)).as_posix()

    def stale(self, files: Collection[str]) -> list[Line]:
        """A warning for each entry that nothing was found for, of the files that were checked or are gone."""
        seen = {self._relative(file) for file in files}
        return [
            Line(
                "warning",
                str(self.file),
                0,
                "baseline",
                f"{file}: {name}: {message}: this fails no more; {_AGAIN}",
                "stale",
            )
            for (file, name, _, message), count in self.left.items()
            if count and (file in seen or not (self.file.parent / file).exists())
        ]

    def write(self, lines: Iterable[Line]) -> int:
        """Writes the failures among lines as the baseline, and says how many they are.

        Raises:
            ConfigError: in one line, if it cannot be written.
        """
        counts = Counter(self.key(line) for line in lines if line.level in ("error", "known"))
        findings = [
            {"file": file, "name": name, "rule": rule, "message": message, **({"count": count} if count > 1 else {})}
            for (file, name, rule, message), count in sorted(counts.items())
        ]
        try:
            self.file.write_text(json.dumps({"weft-baseline": _VERSION, "findings": findings}, indent=2) + "\n")
        except OSError as error:
            raise ConfigError(f"{self.file}: the baseline cannot be written: {error.strerror}") from None
        return counts.total()


_AGAIN = "--write-baseline makes it anew"
