"""How many of the corpus's wrong programs `verify` finds, with which false alarms, and how others do beside it."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from weft.typecheck.prover import verify

_spec = importlib.util.spec_from_file_location("weft_corpus", Path(__file__).with_name("corpus.py"))
assert _spec is not None
assert _spec.loader is not None
corpus = sys.modules["weft_corpus"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(corpus)


@dataclass(frozen=True)
class Row:
    """Who objects to a version of a program: verify's failures, its warnings, jaxtyping with beartype, jaxtyc, JAX."""

    fails: bool
    warns: bool
    jaxtyping: bool
    jaxtyc: bool
    jax: bool
    report: str

    @property
    def found(self) -> bool:
        return self.fails or self.warns


pytestmark = pytest.mark.slow

Results = dict[tuple[str, str], Row]


def runs(path: Path) -> bool:
    try:
        corpus.load(path).sample()
    except Exception:
        return False
    return True


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    folder = tmp_path_factory.mktemp("corpus")
    paths = {(p.stem, v): corpus.write(p, v, folder) for p in corpus.PROGRAMS for v in ("right", "wrong")}
    has_jaxtyc = shutil.which("jaxtyc", path=str(Path(sys.executable).parent)) is not None
    jaxtyc = corpus.found_by_jaxtyc(list(paths.values())) if has_jaxtyc else set()
    found: Results = {}
    for key, path in paths.items():
        report = verify(corpus.load(path).entry)
        found[key] = Row(
            not report.ok,
            bool(report.warnings),
            corpus.found_by_jaxtyping(path),
            path in jaxtyc,
            not runs(path),
            str(report),
        )
    return found


def test_there_are_enough_programs_and_half_of_the_bugs_are_hidden_by_the_sample_sizes(results: Results):
    wrong = [row for (_, version), row in results.items() if version == "wrong"]
    assert len(wrong) >= 60
    assert sum(not row.jaxtyping for row in wrong) >= len(wrong) / 2


def test_verify_finds_95_percent(results: Results):
    wrong = {name: row for (name, version), row in results.items() if version == "wrong"}
    missed = [name for name, row in wrong.items() if not row.found]
    assert len(missed) <= 0.05 * len(wrong), missed


def test_verify_raises_no_false_alarm(results: Results):
    alarms = {name: row.report for (name, version), row in results.items() if version == "right" and row.found}
    assert alarms == {}


def test_every_right_program_runs(results: Results):
    assert [name for (name, version), row in results.items() if version == "right" and row.jax] == []


def test_the_comparison_is_printed(results: Results, capsys: pytest.CaptureFixture[str]):
    lines = [f"{'':32}{'wrong found':>12}{'false alarms':>14}   of {len(corpus.PROGRAMS)} programs"]
    columns = {
        "weft verify": lambda row: row.found,
        "weft verify, failures only": lambda row: row.fails,
        "jaxtyping + beartype on samples": lambda row: row.jaxtyping,
        "jaxtyc check": lambda row: row.jaxtyc,
        "JAX alone": lambda row: row.jax,
    }
    for name, test in columns.items():
        counts = [sum(test(row) for (_, v), row in results.items() if v == version) for version in ("wrong", "right")]
        lines.append(f"{name:32}{counts[0]:>12}{counts[1]:>14}")
    with capsys.disabled():
        print("\n" + "\n".join(lines))
    assert len(lines) == 6
