"""What Orbax wrote under flax.nnx is restored under weft.nnx, and the other way round, however one saves and restores.

Each library runs `orbax_idioms.py`, a program as users write it, in processes of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("orbax_idioms.py")
RUN = {"flax": (), "weft": ("-m", "weft.nnx")}
SAVES = ("standard", "pure_dict", "pytree", "managed", "sharded", "nested", "in_the_new_way")
# By which idiom what an idiom restores was saved, where their names do not say it.
SAVED_BY = {
    "onto_a_device": "standard",
    "into_live_objects": "standard",
    "without_a_target": "standard",
    "pure_dict_into_shapes": "pure_dict",
    "into_other_shardings": "sharded",
}
SPEC = re.compile(r"P\([^)]*\)")


def run(library, action, folder):
    """What one library saved into a folder, or restored from it, by idiom."""
    process = subprocess.run(
        [sys.executable, "-W", "ignore", *RUN[library], PROGRAM, action, folder],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=[("flax", "weft"), ("weft", "flax")], ids=["from flax", "into flax"])
def crossed(request, tmp_path_factory):
    """What one library saved, and what the other restored."""
    writer, reader = request.param
    folder = tmp_path_factory.mktemp(writer)
    return run(writer, "save", folder), run(reader, "restore", folder)


@pytest.mark.parametrize("idiom", [*SAVES, *SAVED_BY])
def test_what_one_library_saved_the_other_restores(crossed, idiom):
    saved, restored = crossed
    was, now = saved[f"save_{SAVED_BY.get(idiom, idiom)}"], restored[f"restore_{idiom}"]
    assert "error" not in was | now, was | now
    assert len(was) >= 4
    if idiom == "into_other_shardings":
        assert {spec for leaf in now.values() for spec in SPEC.findall(leaf)} == {"P('data',)"}
        was, now = [{path: SPEC.sub("", leaf) for path, leaf in one.items()} for one in (was, now)]
    assert now == was


def test_every_way_to_save_is_tried(crossed):
    saved, restored = crossed
    assert saved.keys() == {f"save_{name}" for name in SAVES}
    assert restored.keys() == {f"restore_{name}" for name in (*SAVES, *SAVED_BY)}
