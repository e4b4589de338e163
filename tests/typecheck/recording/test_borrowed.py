"""What one recorded call says of others: instances, and sizes of a configuration."""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from weft.typecheck.command.called import Recorded
from weft.typecheck.command.config import Settings
from weft.typecheck.command.recorded import write_calls
from weft.typecheck.command.units import Unit
from weft.typecheck.proofs.budget import USUAL
from weft.typecheck.proofs.report import Contract, Verdict
from weft.typecheck.recording.recorder import Recorder

SOURCE = """
    import equinox as eqx
    import jax.numpy as jnp
    from jaxtyping import Array, Float

    class Grid(eqx.Module):
        shape: tuple[int, ...] = eqx.field(static=True)
        cells: Float[Array, "cells d"]

        def __init__(self, shape):
            if shape is None or any(one % 2 for one in shape):
                raise ValueError("even shapes only")
            self.shape = tuple(shape)
            self.cells = jnp.ones((sum(shape), len(shape)))

        def called(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
            return x * self.cells[0]

        def never(self, x: Float[Array, "n d"]) -> Float[Array, "n"]:
            return x @ self.cells[0]

        def wrong(self, x: Float[Array, "n m"]) -> Float[Array, "n"]:
            return x.sum(0)

        def later(self, x: Float[Array, "n m"]) -> Float[Array, "n"]:
            raise NotImplementedError

        def field(self, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
            return x + jnp.ones(self.shape)

    def of_grid(name, grid: Grid, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x

    def takes_grid(grid: Grid, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x * grid.cells.sum()

    def turns_grid(grid: Grid, x: Float[Array, "n m"]) -> Float[Array, "n m"]:
        return x.T

"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory):
    """A module of which some calls were recorded, and what judges names of it by them."""
    folder = tmp_path_factory.mktemp("borrowed")
    (folder / "borrowed_package.py").write_text(textwrap.dedent(SOURCE))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        with Recorder(["borrowed_package"]).install() as recorder:
            module: Any = importlib.import_module("borrowed_package")
        module.Grid((4, 6)).called(jnp.ones((3, 2)))
        module.Grid((4, 6)).field(jnp.ones((4, 6)))
        module.Grid((2, 2)).field(jnp.ones((2, 2)))
        file = Path(folder) / ".weft" / "calls.json"
        write_calls(file, recorder.calls)
        unit = Unit(module.__file__, "borrowed_package", str(folder))
        yield module, Recorded(unit, module, Settings(calls=str(file)))
    sys.modules.pop("borrowed_package", None)


def proof(package: Any, name: str) -> Contract:
    """The verdict of a name from what was recorded."""
    module, recorded = package
    owner, _, method = name.rpartition(".")
    cls = getattr(module, owner) if owner else None
    found = recorded.contract(name, getattr(cls or module, method), cls, {}, USUAL)
    assert found is not None
    return found


def test_a_method_that_nobody_called_is_judged_with_the_instance_of_one_that_was(package: Any):
    contract = proof(package, "Grid.never")
    assert contract.verdict is Verdict.PROVED
    assert contract.assumptions[0].startswith("self is as recorded in other calls")
    failing = proof(package, "Grid.wrong")
    assert failing.verdict is Verdict.FAILS
    assert "self as recorded elsewhere" in str(failing.failures[0])


def test_a_function_takes_a_recorded_instance_of_the_class_that_it_asks_for(package: Any):
    assert proof(package, "takes_grid").verdict is Verdict.PROVED
    # Of the class that it asks for there may be others, for which it does.
    contract = proof(package, "turns_grid")
    assert contract.verdict is Verdict.UNDECIDED
    assert "with grid as recorded elsewhere" in contract.reason
    module, recorded = package
    assert recorded.contract("Grid.later", module.Grid.later, module.Grid, {}, USUAL) is None
    assert "name: it has no annotation" in proof(package, "of_grid").reason


def test_sizes_that_the_configuration_has_stay_as_recorded_where_others_do_not_fit(package: Any):
    contract = proof(package, "Grid.field")
    assert contract.verdict in (Verdict.PROVED, Verdict.HOLDS)
    assert any("*shape[0] = 4, *shape[1] = 6, as its configuration says" in one for one in contract.assumptions)
