"""`weft info` says what a bug report needs, wherever it is asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from weft.typecheck.command.front import main


def test_it_says_versions_devices_modes_and_caches(capsys: pytest.CaptureFixture[str]):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for line in (f"  jax: {jax.__version__}", "  backend: cpu", "  contracts: ", "  enable_x64: ", "  .weft/cache: "):
        assert f"\n{line}" in text
    assert main(["info", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"versions", "platform", "devices", "modes", "environment", "caches"}
    assert report["devices"]["devices"] == jax.device_count()


def test_a_device_that_does_not_start_is_said_in_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fails() -> None:
        raise RuntimeError("Unable to initialize backend 'cuda'\nand more")

    monkeypatch.setattr(jax, "devices", fails)
    monkeypatch.setenv("WEFT_TYPECHECK", "on")
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    assert "  devices: failed: RuntimeError: Unable to initialize backend 'cuda'\nmodes" in text
    assert "  contracts: " in text


def test_nothing_that_is_private_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WEFT_TOKEN", "hidden-1")
    monkeypatch.setenv("SOME_PASSWORD", "hidden-2")
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to={tmp_path}/dump")
    assert main(["info", "--format", "json"]) == 0
    text = capsys.readouterr().out
    assert "hidden" not in text
    assert str(tmp_path) not in text
    environment = json.loads(text)["environment"]
    assert environment["XLA_FLAGS"] == "--xla_dump_to=~/dump"
    assert environment["WEFT_TOKEN"] == "(weft does not read it)"


@pytest.mark.slow
def test_who_reads_no_further_is_no_error():
    command = [sys.executable, "-c", "import sys; from weft_launcher import main; sys.exit(main())", "info"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stdout is not None
    run.stdout.close()
    _, said = run.communicate(timeout=300)
    assert (run.returncode, said) == (141, b"")
