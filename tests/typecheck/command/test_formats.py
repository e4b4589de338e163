"""SARIF, by what version 2.1.0 asks of a log, and GitHub's commands."""

from __future__ import annotations

import json
from pathlib import Path

from weft.typecheck.command.formats import RULES, as_json, as_sarif, github
from weft.typecheck.command.lines import Checked, Line

LEVELS = ("error", "warning", "undecided", "skipped", "ignored", "known", "unbuilt", "unusable", "crash")
LINES = tuple(
    Line(level, f"a folder/{level}.py", i, "f,g:h", "100% wrong\nhere", "contract") for i, level in enumerate(LEVELS)
)


def log(root: Path) -> dict:
    return json.loads(as_sarif(Checked(LINES), 1, root))


def test_a_sarif_log_has_the_structure_of_2_1_0(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = log(tmp_path)
    assert document["version"] == "2.1.0"
    assert document["$schema"].endswith("sarif-2.1.0.json")
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"]
    assert [rule["id"] for rule in driver["rules"]] == ["contract"]
    assert all(rule["shortDescription"]["text"] for rule in driver["rules"])
    assert run["invocations"] == [{"executionSuccessful": True, "exitCode": 1}]
    assert run["originalUriBaseIds"]["ROOT"]["uri"].startswith("file:///")
    assert run["originalUriBaseIds"]["ROOT"]["uri"].endswith("/")
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert result["message"]["text"]
        (location,) = result["locations"]
        place = location["physicalLocation"]
        assert place["artifactLocation"]["uri"].startswith("a%20folder/")
        assert place["artifactLocation"]["uriBaseId"] == "ROOT"
        assert place.get("region", {"startLine": 1})["startLine"] >= 1
        for suppression in result.get("suppressions", ()):
            assert suppression["kind"] in ("inSource", "external")


def test_what_is_accepted_is_suppressed(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = dict(zip(LEVELS, log(tmp_path)["runs"][0]["results"], strict=True))
    kinds = {level: [one["kind"] for one in result.get("suppressions", ())] for level, result in results.items()}
    assert {level for level, kind in kinds.items() if kind} == {"skipped", "ignored", "known"}
    assert results["known"]["baselineState"] == "unchanged"


def test_a_file_outside_of_the_folder_is_an_absolute_uri(tmp_path: Path):
    (result,) = json.loads(as_sarif(Checked((Line("error", "/else/where.py", 0, "f", "x", "error"),)), 1, tmp_path))[
        "runs"
    ][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "file:///else/where.py"}}


def test_json_has_every_level_and_the_rule(tmp_path: Path):
    document = json.loads(as_json(Checked(LINES), 2, tmp_path))
    assert [finding["level"] for finding in document["findings"]] == list(LEVELS)
    assert {finding["rule"] for finding in document["findings"]} == {"contract"}
    assert document["exit_code"] == 2


def test_github_escapes_what_its_commands_are_made_of():
    first = next(iter(github(Checked(LINES))))
    assert first == "::error file=a folder/error.py,line=0,title=f%2Cg%3Ah::100%25 wrong%0Ahere"
    assert len(github(Checked(LINES))) == len(LEVELS) - 1  # what is in the baseline is not shown


def test_rules_have_descriptions():
    assert all(text.endswith(".") for text in RULES.values())
