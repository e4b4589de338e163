"""A plan is compiled in a process of its own, which has as many devices as the mesh."""

from __future__ import annotations

from typing import Any

import pytest
import weft
from weft.insight.plan import planning

from .cases import RULES, X, compiled_here, mean_square, shapes


def test_a_process_with_the_devices_of_the_mesh_compiles_what_a_process_with_more_does(monkeypatch: pytest.MonkeyPatch):
    def step(model: Any, opt: Any, x: Any) -> Any:
        """A step that is not compiled: XLA places its outputs."""
        return model(x), *opt.minimize(mean_square, model, x)

    def plan() -> Any:
        return weft.plan(step, *shapes(), X, mesh={"data": 2, "model": 2}, rules=RULES, largest_batch=True)

    of_child = plan()
    monkeypatch.setattr(planning, "compiled", compiled_here)
    assert plan().as_dict() == of_child.as_dict()
