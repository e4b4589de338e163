"""The page of results on released packages shows the data that lies beside the tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FIELD = Path(__file__).resolve().parents[1] / "typecheck" / "field"


def test_the_table_of_verdicts_is_that_of_the_data(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(FIELD))
    import tables

    monkeypatch.delitem(sys.modules, "tables")
    shown = tables.PAGE.read_text().partition(tables.START)[2].partition(tables.END)[0]
    assert shown == tables.table(), "run python tests/typecheck/field/tables.py"
    counts = dict(tables.verdicts())
    assert counts["coreax"].total() == 352
    assert counts["185 others"].total() == 15_099
