"""What every test runs under: CPU with 8 devices, quick compiles, warnings as errors, hypothesis without deadlines."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import hypothesis
import pytest

# Read when JAX starts its backend, so they are set before anything can import it. Eight devices let pmap and shard_map
# run on a machine that has none to spare. The tests compile some ten thousand programs of a few operations each, and
# XLA's optimisations are most of what that costs: without them a compile takes 13 ms instead of 33.
_FLAGS = {
    "xla_force_host_platform_device_count": "8",
    "xla_backend_optimization_level": "0",
    "xla_llvm_disable_expensive_passes": "true",
    "xla_cpu_use_fusion_emitters": "false",
}
_given = os.environ.get("XLA_FLAGS", "")
_ours = [f"--{name}={value}" for name, value in _FLAGS.items() if name not in _given]
os.environ["XLA_FLAGS"] = " ".join([_given, *_ours]).strip()
os.environ["JAX_PLATFORMS"] = "cpu"

# The first example of a property compiles, the others do not: a deadline would call that flaky.
hypothesis.settings.register_profile("weft", deadline=None, max_examples=30, print_blob=True)
hypothesis.settings.load_profile("weft")


@pytest.fixture
def checking_leaks() -> Callable[[], AbstractContextManager[None]]:
    """`jax.checking_leaks`, at a cost that does not grow with what earlier tests left alive.

    JAX collects garbage at every trace there; what exists before is set aside for as long.
    """
    import jax

    @contextlib.contextmanager
    def checking() -> Iterator[None]:
        gc.freeze()
        try:
            with jax.checking_leaks():
                yield
        finally:
            gc.unfreeze()

    return checking
