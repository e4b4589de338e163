"""flax's own tests of NNX, run over `weft.nnx`: `make flax-suite`.

The tests come from flax's source archive at the version that `constraints.txt` pins (`tests/suites.py` says where they
lie and what counts). `docs/differences.md` lists what is known to fail.

    python tests/nnx/flax_suite.py                          all of them
    python tests/nnx/flax_suite.py transforms_test.py       one file, or several
    python tests/nnx/flax_suite.py --archive flax.tar.gz    an archive that is there already
    python tests/nnx/flax_suite.py --fresh                  run them under flax again, too
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from suites import Suite, command_line, fetch, pinned_version, pip  # noqa: E402

# What the tests import besides flax's own dependencies: by package, the module to look for.
NEEDED = {"absl-py": "absl", "cloudpickle": "cloudpickle", "treescope": "treescope"}
# How flax's own `run_all_tests.sh` runs them.
ENVIRONMENT = {
    "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    "JAX_PLATFORMS": "cpu",
    "JAX_NUMPY_RANK_PROMOTION": "raise",
    "FLAX_PROFILE": "1",
}
SUITE = Suite(
    library="flax",
    part="tests/nnx",
    runs=([sys.executable, "-m", "weft.nnx"], ENVIRONMENT),
    under=([sys.executable], ENVIRONMENT),
    listed=(ROOT / "docs" / "differences.md", "## flax's own tests that fail here"),
    beside=("optax", "orbax-checkpoint"),
)


def fetched(archive: Path | None) -> Path:
    """The folder with the tests, and what they need installed."""
    missing = [package for package, module in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        pip("install", "-c", str(ROOT / "constraints.txt"), *missing)
    return fetch("flax", pinned_version("flax"), SUITE.part, archive).parents[1]


if __name__ == "__main__":
    sys.exit(command_line(__doc__, SUITE, fetched, os.cpu_count() or 1))
