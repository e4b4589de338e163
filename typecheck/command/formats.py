"""How findings are printed: text and GitHub's commands part by part as they come, JSON and SARIF as one document."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .lines import Checked, Line

_GITHUB = {
    "error": "error",
    "unusable": "error",
    "crash": "error",
    "warning": "warning",
    "undecided": "warning",
    "unbuilt": "notice",
    "skipped": "notice",
    "ignored": "notice",
}
_SARIF = {"notice": "note"}
_PREFIXED = ("warning", "skipped", "ignored")

# What each rule is about, for SARIF's readers.
RULES = {
    "contract": "A value has not the shape or dtype that its annotation says.",
    "error": "Arguments that satisfy the annotations lead to an error.",
    "outer-product": "Broadcasting pairs a dimension with itself, as an outer product does.",
    "memory-order": "Axes are merged or split in an order that mixes what they hold.",
    "swapped-axes": "A slice is overwritten by an update that lies across it.",
    "dtype-drift": "An array of a successor comes out with another dtype than it went in with.",
    "one-class": "A class that the annotation allows fails where others do not.",
    "undecided": "The search for a verdict ended without one.",
    "unbuilt": "No arguments could be made from the annotations.",
    "skipped": "Left out by a marker.",
    "import": "A file cannot be imported.",
    "annotation": "An annotation cannot be read.",
    "usage": "Something cannot be checked as it was asked for.",
    "internal": "An internal error of weft's.",
    "stale": "An entry of the baseline that nothing fails for any more.",
    "unused-ignore": "A marker that ignores nothing.",
    "unknown-target": "The configuration names a function that is not there.",
}


def text(part: Checked) -> list[str]:
    """One line a finding, then what had to be assumed."""
    return [*(_text(line) for line in part.lines if line.level != "known"), *part.assumptions]


def _text(line: Line) -> str:
    prefix = f"{line.level}: " if line.level in _PREFIXED else ""
    return f"{line.file}:{line.line}: {line.name}: {prefix}{line.message}"


def github(part: Checked) -> list[str]:
    """Workflow commands, which show up as annotations of a pull request."""
    return [
        f"::{_GITHUB[one.level]} file={_property(one.file)},line={one.line},title={_property(one.name)}::"
        f"{_escaped(one.message)}"
        for one in part.lines
        if one.level != "known"
    ]


def _escaped(written: str) -> str:
    return written.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(written: str) -> str:
    return _escaped(written).replace(":", "%3A").replace(",", "%2C")


def as_json(checked: Checked, code: int, root: Path) -> str:
    """An object with the findings, the assumptions and the counts."""
    return json.dumps(
        {
            "findings": [vars(line) for line in checked.lines],
            "assumptions": list(checked.assumptions),
            "summary": checked.summary,
            "exit_code": code,
        },
        indent=2,
    )


def as_sarif(checked: Checked, code: int, root: Path) -> str:
    """A log of SARIF 2.1.0, with paths relative to the current folder."""
    rules = sorted({line.rule for line in checked.lines})
    driver = {
        "name": "weft check",
        "rules": [{"id": rule, "shortDescription": {"text": RULES.get(rule, rule)}} for rule in rules],
    }
    run = {
        "tool": {"driver": driver},
        "originalUriBaseIds": {"ROOT": {"uri": root.as_uri().rstrip("/") + "/"}},
        "invocations": [{"executionSuccessful": code in (0, 1), "exitCode": code}],
        "results": [_result(line, rules.index(line.rule), root) for line in checked.lines],
    }
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=2)


def _result(line: Line, index: int, root: Path) -> dict[str, Any]:
    level = "error" if line.level == "known" else _GITHUB[line.level]
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
        "level": _SARIF.get(level, level),
        "message": {"text": f"{line.name}: {line.message}"},
        "locations": [{"physicalLocation": location}],
    }
    if line.level in ("ignored", "known", "skipped"):
        in_source = line.level != "known"
        result["suppressions"] = [{"kind": "inSource" if in_source else "external", "status": "accepted"}]
    if line.level == "known":
        result["baselineState"] = "unchanged"
    return result


# What is printed of each part at once, and what is printed of everything at the end.
STREAMED: dict[str, Callable[[Checked], Iterable[str]]] = {"text": text, "github": github}
WHOLE: dict[str, Callable[[Checked, int, Path], str]] = {"json": as_json, "sarif": as_sarif}
FORMATS = ("text", "json", "github", "sarif")
