"""A name of JAX that goes turns off what needs it, and says so in one line; no other name stops weft."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import pytest
import weft.nnx  # noqa: F401 (declares names of its own)
from weft.core.edge import moved
from weft.core.edge.moved import MissingNameError, Names

NAMES = sorted({(names._module, name) for names in moved.declared() for name in names.present})
# What the interpreter itself needs, so that without it weft is not imported.
NEEDED = {
    ("jax._src.core", "trace_ctx"),
    ("jax.extend.core", "get_opaque_trace_state"),
    ("jax.tree_util", "default_registry"),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[str, str], Any]:
    """How a program ends without each name; see `without_name.py`."""
    script = Path(__file__).parent / "without_name.py"
    # Who debugs needs more of JAX than everybody does.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_DEBUG")}
    command, names = [sys.executable, script], json.dumps(NAMES)
    run = subprocess.run(command, input=names, env=environment, capture_output=True, text=True, check=True)
    return dict(zip(NAMES, json.loads(run.stdout), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(("module", "name"), NAMES, ids=map(".".join, NAMES))
def test_a_name_that_is_gone_stops_what_needs_it_and_nothing_else(module: str, name: str, outcomes: Any):
    of_everybody, of_features = outcomes[module, name]
    if (module, name) in NEEDED:
        assert_names(of_everybody, module, name)
    else:
        assert of_everybody is None
    if of_features is not None:
        assert_names(of_features, module, name)


def assert_names(error: tuple[str, str], module: str, name: str) -> None:
    kind, text = error
    assert kind == "MissingNameError", text
    assert "\n" not in text
    assert f"needs `{module}.{name}`, which JAX {jax.__version__} does not have" in text


def test_a_missing_name_is_told_with_the_feature_that_needs_it():
    gone = Names("jax.numpy", "this test", "gone", "sin", optional=True)
    assert gone.has("sin")
    assert not gone.has("gone")
    assert gone.present == ["sin"]
    with pytest.raises(MissingNameError) as caught:
        gone.gone  # noqa: B018 (asking is what raises)
    assert str(caught.value) == (
        f"this test needs `jax.numpy.gone`, which JAX {jax.__version__} does not have: "
        "install an older JAX, or a newer weft"
    )
    with pytest.raises(AttributeError, match="is not declared"):
        gone.cos  # noqa: B018


def test_this_jax_has_every_name():
    assert moved.missing() == []
