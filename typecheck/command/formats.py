"""Prints findings as text and GitHub commands, part by part; and as JSON and SARIF, as one document."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .lines import Checked, Line

_PREFIXED = ("warning", "skipped", "ignored")

# A sentence for each rule, which GitHub's security tab shows for a SARIF log.
RULES = {
    "contract": "A value does not have the shape or dtype that its annotation says.",
    "error": "Arguments that satisfy the annotations lead to an error.",
    "outer-product": "Broadcasting pairs a dimension with itself, as an outer product does.",
    "memory-order": "Axes are merged or split in an order that mixes their elements.",
    "swapped-axes": "A slice is overwritten by an update that lies across it.",
    "dtype-drift": "A function returns a record whose array has another dtype than in the record that it took.",
    "one-class": "A class that the annotation allows fails where others do not.",
    "undecided": "The search for a verdict ended without one.",
    "unbuilt": "No arguments could be made from the annotations.",
    "private": "Private annotated code, which is checked only where checked public code calls it.",
    "skipped": "A marker leaves the function or class out.",
    "import": "A file cannot be imported.",
    "missing": "A file imports a library that is not installed.",
    "annotation": "An annotation cannot be read.",
    "usage": "A name that the command was given cannot be used.",
    "internal": "An internal error of weft.",
    "stale": "An entry of the baseline without a failure.",
    "unused-ignore": "A marker without a finding to ignore.",
    "unknown-target": "The configuration names a function or class that is not checked.",
}


# Levels that are printed at once, and levels that wait for the end: a run without failures prints a single line.
_FAILURES = ("error", "unusable", "crash")
_WAITING = ("warning", "undecided")
# How many reasons the line of counts names.
_NAMED = 3


class Text:
    """Findings as text: one line for each cause, however many callers reach it.

    If nothing fails, only the line of counts is printed, because nobody reads more in the log of a CI.

    Args:
        verbose: whether to list also conditions, warnings, contracts that are not checked, and programs of failures.
        quiet: whether to leave out warnings even if something fails.
    """

    def __init__(self, verbose: bool = False, quiet: bool = False):
        self.verbose, self.quiet = verbose, quiet
        self._callers: dict[tuple[str, int, str], list[str]] = {}
        self._waiting: list[str] = []

    def lines(self, part: Checked) -> Iterator[str]:
        """The lines of a part that are printed at once; warnings are stored for the end."""
        for line in part.lines:
            # A text that a person reads names the level where the message alone does not say it.
            prefix = f"{line.level}: " if line.level in _PREFIXED else ""
            text = f"{line.file}:{line.line}: {line.name}: {prefix}{line.message}"
            if self.verbose and line.level != "known":
                yield text
                if line.fix is not None:
                    yield f"    # fix: {line.fix.text}"
                yield from (f"    {row}" for row in line.program.splitlines() if line.level == "error")
            elif line.level in _FAILURES:
                callers = [line.name]
                # A helper with a wrong shape fails in each of its callers: a hundred lines would be about one mistake.
                if line.level == "error" and line.line:
                    cause = line.file, line.line, line.message.partition(" (at ")[0]
                    callers = self._callers.setdefault(cause, [])
                    callers.append(line.name)
                if len(callers) == 1:
                    yield text
            elif line.level in _WAITING:
                self._waiting.append(text)
        if self.verbose:
            yield from part.assumptions

    def end(self, checked: Checked, code: int) -> Iterator[str]:
        """The last lines: further callers of the causes above, warnings if something fails, and one line of counts."""
        for (file, line, _), names in self._callers.items():
            if len(names) > 1:
                yield f"{file}:{line}: the same in {_counted(len(names) - 1, 'caller')}: {', '.join(names[1:])}"
        if self.verbose:
            yield checked.summary
            return
        # If nothing fails, warnings stay hidden until `-v`: a run without failures prints one line.
        if code and not self.quiet:
            yield from self._waiting
        conditions = (text.partition(": holds when ")[2] for text in checked.assumptions)
        sums = [
            _summed("on conditions", [f"when {condition}" for condition in conditions if condition]),
            _summed("not checked", [_reason(line.message) for line in checked.lines if line.level == "unbuilt"]),
        ]
        told = "; ".join(filter(None, sums))
        told = f"; {told}" if told else ""
        is_shortened = told or (self._waiting and (self.quiet or not code))
        yield f"{checked.counts({'unbuilt'})}{told}{' (-v lists them)' if is_shortened else ''}"


def _counted(number: int, noun: str) -> str:
    return f"{number} other {noun}{'s' if number > 1 else ''}"


def _reason(message: str) -> str:
    """The reason why a contract is not checked, shortened so that like reasons are counted together."""
    reason = message.removeprefix("not checked: ").partition("; pass ")[0]
    if reason.startswith("guard at "):
        return "no arguments pass a guard"
    place, colon, rest = reason.partition(": ")
    if not colon or " " in place:
        return reason
    return f"`{place.rpartition('.')[2].partition('[')[0]}` {rest.removeprefix('it ')}"


def _summed(heading: str, reasons: Iterable[str]) -> str:
    """A count with its commonest reasons: `113 not checked: 32 this, 20 that, 61 for 9 other reasons`."""
    counts = Counter(filter(None, reasons))
    ranked = sorted(counts.items(), key=lambda counted: (-counted[1], counted[0]))
    # Naming one more reason takes no more room than `for 1 other reason`.
    others = ranked[_NAMED:] if len(ranked) > _NAMED + 1 else []
    named = [f"{number} {reason}" for reason, number in ranked[: len(ranked) - len(others)]]
    if others:
        named.append(f"{sum(number for _, number in others)} for {_counted(len(others), 'reason')}")
    return f"{counts.total()} {heading}: {', '.join(named)}" if counts else ""


def _severity(line: Line) -> str:
    """The severity of a line, as GitHub calls it."""
    return "error" if line.level in _FAILURES else "warning" if line.level in _WAITING else "notice"


def github(part: Checked) -> list[str]:
    """Workflow commands, which GitHub shows as annotations in a pull request."""
    return [
        f"::{_severity(line)} file={_property(line.file)},line={line.line},title={_property(line.name)}::"
        f"{_escaped(line.message)}"
        for line in part.lines
        if line.level != "known" and line.rule != "private"  # there are many, and a reviewer need do nothing about them
    ]


def _escaped(written: str) -> str:
    # The percent sign first, because the other replacements insert percent signs.
    return written.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(written: str) -> str:
    return _escaped(written).replace(":", "%3A").replace(",", "%2C")


def as_json(checked: Checked, code: int, root: Path) -> str:
    """The findings, the assumptions and the counts as a JSON object."""
    return json.dumps(
        {
            "findings": [dataclasses.asdict(line) for line in checked.lines],
            "assumptions": list(checked.assumptions),
            "summary": checked.summary,
            "exit_code": code,
        },
        indent=2,
    )


def as_sarif(checked: Checked, code: int, root: Path) -> str:
    """A SARIF 2.1.0 log, with paths relative to the current folder."""
    rules = sorted({line.rule for line in checked.lines})
    driver = {
        "name": "weft check",
        "rules": [{"id": rule, "shortDescription": {"text": RULES.get(rule, rule)}} for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        # Relative paths need a root, or the log is useless on another machine.
        "originalUriBaseIds": {"ROOT": {"uri": root.as_uri().rstrip("/") + "/"}},
        "invocations": [{"executionSuccessful": code in (0, 1), "exitCode": code}],
        "results": [_result(line, rules.index(line.rule), root) for line in checked.lines],
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2)


def _result(line: Line, index: int, root: Path) -> dict[str, Any]:
    """A finding as a result of SARIF, with the number of its rule."""
    # SARIF calls an accepted failure an error that is suppressed.
    level = "error" if line.level == "known" else _severity(line).replace("notice", "note")
    path = Path(os.path.abspath(line.file))
    below = path.is_relative_to(root)
    place: dict[str, Any] = {"uri": quote(path.relative_to(root).as_posix()) if below else path.as_uri()}
    if below:
        place["uriBaseId"] = "ROOT"
    location: dict[str, Any] = {"artifactLocation": place}
    if line.line > 0:
        location["region"] = {"startLine": line.line}
    result: dict[str, Any] = {
        "ruleId": line.rule,
        "ruleIndex": index,
        "level": level,
        "message": {"text": f"{line.name}: {line.message}"},
        "locations": [{"physicalLocation": location}],
    }
    if line.level in ("ignored", "known", "skipped"):
        in_source = line.level != "known"
        result["suppressions"] = [{"kind": "inSource" if in_source else "external", "status": "accepted"}]
    if line.level == "known":
        result["baselineState"] = "unchanged"
    return result


FORMATS = ("text", "json", "github", "sarif")
