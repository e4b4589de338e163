"""A code base in a folder of its own, migrated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

pytest.importorskip("libcst")
from weft.migrate.front import main

Migrate = Callable[[Mapping[str, str]], tuple[dict[str, str], str]]


@pytest.fixture
def migrate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Migrate:
    """Writes files, migrates them, and gives them as they are then, with the report; a second run changes nothing."""

    def run(files: Mapping[str, str]) -> tuple[dict[str, str], str]:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        assert main([str(tmp_path), "--write"]) == 0
        report = capsys.readouterr().err
        after = {name: (tmp_path / name).read_text() for name in files}
        assert main([str(tmp_path)]) == 0
        assert capsys.readouterr().out == ""
        return after, report

    return run
