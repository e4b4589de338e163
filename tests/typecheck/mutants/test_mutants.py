"""A sample of the mutants of programs that hold; `mutants.py` judges as many as one likes."""

from __future__ import annotations

import collections
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from .. import corpus

PROGRAMS = [one for one in corpus.PROGRAMS if one.stem in ("mlp_layers", "held_film", "attention_scores", "loss_mse")]


@pytest.fixture(scope="module")
def harness() -> ModuleType:
    spec = importlib.util.spec_from_file_location("weft_mutants", Path(__file__).with_name("mutants.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_what_jaxtyping_objects_to_when_it_runs_fails_and_what_runs_does_not(harness: ModuleType, tmp_path: Path):
    verdicts = collections.Counter(harness.verdict_of(one) for one in harness.mutants(PROGRAMS, tmp_path, 3))
    assert verdicts["killed"] >= 10
    assert not verdicts["lives"] + verdicts["warned"] + verdicts["false alarm"], verdicts
