"""What tests of several examples use."""

from __future__ import annotations

import runpy
import sys

import pytest


@pytest.fixture
def fails(monkeypatch, tmp_path, request):
    """Runs the test module's `SCRIPT` in this process until it exits, and gives what it exits with."""
    script = str(request.module.SCRIPT)

    def run_until_exit(*arguments):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
        with pytest.raises(SystemExit) as exit:
            runpy.run_path(script, run_name="__main__")
        return exit.value.code

    return run_until_exit
