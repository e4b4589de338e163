"""The gallery: each program trains, and in the other libraries the same program computes the same losses."""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
STEPS = 3


def _load(path: Path, name: str) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


# The programs import their data by this name, as they do when they are run.
_load(ROOT / "examples" / "gallery" / "gallery_data.py", "gallery_data")
transplant = _load(Path(__file__).with_name("transplant.py"), "gallery_transplant")
count = _load(ROOT / "benchmarks" / "gallery" / "count.py", "gallery_count")

PROGRAMS = list(count.PROGRAMS)
WRITTEN = [
    (program, library)
    for program in PROGRAMS
    for library in count.LIBRARIES
    if count.path_of(program, library).exists()
]


def program_of(name: str, library: str) -> Any:
    return _load(count.path_of(name, library), f"gallery_{library}_{name}")


@functools.cache
def losses_of(name: str) -> tuple[float, ...]:
    """What the weft program prints no digits of: its losses in the first steps."""
    program = program_of(name, "weft")
    return tuple(program.train(program.make(jax.random.key(0)), steps=STEPS))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_trains(name, capsys):
    losses = losses_of(name)
    assert len(losses) >= STEPS
    assert np.isfinite(losses).all()
    assert len(set(losses)) == len(losses)


@pytest.mark.parametrize(("name", "library"), WRITTEN)
def test_the_same_program_in_another_library_computes_the_same_losses(name, library, capsys):
    theirs, ours = program_of(name, library), program_of(name, "weft")
    model = ours.make(jax.random.key(0))
    into = transplant.to_equinox if library == "equinox" else transplant.to_flax
    losses = theirs.train(into(model, theirs.make(jax.random.key(1))), steps=STEPS)
    # Where one computes in bfloat16, the other rounds elsewhere.
    tolerance = 2e-2 if name == "diffusion" else 1e-3
    np.testing.assert_allclose(losses, losses_of(name), rtol=tolerance, atol=1e-6)


def test_every_program_is_there_in_equinox_and_four_in_flax():
    assert [name for name, library in WRITTEN if library == "equinox"] == PROGRAMS
    assert sum(library == "flax" for _, library in WRITTEN) >= 4


def test_no_program_of_weft_needs_another_library_of_layers():
    for name in PROGRAMS:
        source = count.path_of(name, "weft").read_text()
        assert not re.search(r"\b(equinox|flax|eqx|nnx)\b", source)


def test_the_gallery_and_the_readme_have_the_counted_lines():
    assert count.table() in count.PAGE.read_text()
    weft, equinox = (sum(row[library] for row in count.counts().values()) for library in ("weft", "equinox"))
    assert f"{weft} lines of code in weft, {equinox} in equinox" in (ROOT / "README.md").read_text()


def test_a_code_line_is_neither_blank_nor_comment_nor_docstring():
    source = (
        '"""A module."""\n\n# why\ndef f(x):  # what\n    """Doc."""\n    return [\n        x,\n    ]\n\ny = """a\n'
    )
    source += 'b"""\n'
    assert count.code_lines(source) == 6
