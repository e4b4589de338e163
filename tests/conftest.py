"""What every test runs under: CPU with 8 devices, warnings as errors (see pyproject), hypothesis without deadlines."""

from __future__ import annotations

import os

# Read when JAX starts its backend, so they are set before anything can import it. Eight devices let pmap and shard_map
# run on a machine that has none to spare.
os.environ["JAX_PLATFORMS"] = "cpu"
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()

import hypothesis

# The first example of a property compiles, the others do not: a deadline would call that flaky. The examples are the same
# in every run, so that a change's tests are about the change; `--hypothesis-profile=search` looks for new ones.
hypothesis.settings.register_profile("weft", deadline=None, max_examples=30, print_blob=True, derandomize=True)
hypothesis.settings.register_profile("search", deadline=None, max_examples=300, print_blob=True)
hypothesis.settings.load_profile("weft")
