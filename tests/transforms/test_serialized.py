"""What was compiled in one process runs in another, and what was compiled once is found again."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft
import weft.nnx as nnx
from weft.errors import StructureError

MODEL = {"w": jnp.arange(3.0), "rate": weft.Dropout(0.5), "name": "scale"}


def step(model: Any, x: Any) -> Any:
    return model["w"] * x, {**model, "w": model["w"] + 1}


def test_what_was_serialized_takes_and_gives_records():
    jitted = weft.jit(step, donate_argnums=0)
    data = jitted.lower(MODEL, 2.0).compile().serialize()
    loaded = weft.jit(step, donate_argnums=0).load(data, MODEL, 2.0)
    y, model = loaded({**MODEL, "w": jnp.arange(3.0)}, 3.0)
    assert (y.tolist(), model["w"].tolist(), model["name"]) == ([0.0, 3.0, 6.0], [1.0, 2.0, 3.0], "scale")
    with pytest.raises(StructureError, match="the arguments have another structure"):
        loaded({**MODEL, "name": "other"}, 3.0)


def test_what_jax_has_read_from_its_cache_on_disk_is_serialized_whole():
    def scale(model: Any, x: Any) -> Any:
        return model["w"] * x + 17.25  # an executable of its own

    for _ in range(2):  # the second is read from the cache, where there is one: every run of the tests has it
        jax.clear_caches()
        data = weft.jit(scale).lower(MODEL, 2.0).compile().serialize()
        assert weft.jit(scale).load(data, MODEL, 2.0)(MODEL, 2.0).tolist() == [17.25, 19.25, 21.25]


def test_objects_are_changed_by_what_was_serialized():
    @nnx.jit
    def count(model: Any, x: Any) -> Any:
        model.kernel[...] += x
        return model.kernel[...].sum()

    model = nnx.Linear(2, 2, kernel_init=nnx.initializers.zeros, rngs=nnx.Rngs(0))
    data = count.lower(model, 1.0).compile().serialize()
    loaded = count.load(data, model, 1.0)
    assert float(loaded(model, 1.0)) == 4.0
    assert float(model.kernel[...].sum()) == 4.0


def test_what_was_made_from_another_program_is_refused():
    data = weft.jit(step).lower(MODEL, 2.0).compile().serialize()
    with pytest.raises(StructureError, match="compiled from another program"):
        weft.jit(lambda model, x: step(model, x + 1)).load(data, MODEL, 2.0)
    with pytest.raises(StructureError, match="compiled from another program"):
        weft.jit(step).load(data, {**MODEL, "w": jnp.ones(4)}, 2.0)
    with pytest.raises(StructureError, match="not a compiled function"):
        weft.jit(step).load(b"something", MODEL, 2.0)
    for damaged in (data[:-100], data[:20], data[:-5] + b"12345"):
        with pytest.raises(StructureError, match="damaged or truncated"):
            weft.jit(step).load(damaged, MODEL, 2.0)
    with pytest.raises(StructureError, match="only a compiled function"):
        weft.jit(step).lower(MODEL, 2.0).serialize()


PROGRAM = """
    import sys
    from pathlib import Path
    import jax, optax, weft

    compiled = []
    jax.monitoring.register_event_listener(lambda event, **_: compiled.append(event))

    class Net(weft.Module):
        layers: dict
        def __init__(self, key):
            self.layers = {name: weft.Linear(3, 3, key=key) for name in "abc"}
        def __call__(self, x):
            for layer in self.layers.values():
                x = jax.nn.gelu(layer(x))
            return x

    net = Net(jax.random.key(0))
    opt = weft.Optimizer(net, optax.adam(0.1))
    step = weft.jit(lambda net, opt, x: opt.minimize(lambda net, x: net(x).sum(), net, x), donate_argnums=(0, 1))
    x = jax.numpy.ones(3)
    file = Path(sys.argv[1])
    if file.exists():
        run = step.load(file.read_bytes(), net, opt, x)
    else:
        file.write_bytes(step.lower(net, opt, x).compile().serialize())
        run = step
    compiled.clear()
    if sys.argv[2] == "jit":
        run = step
    print(*(leaf for _, net, opt in [run(net, opt, x)] for leaf in jax.tree.leaves(net)[0].ravel().tolist()))
    print(sum("cache_misses" in event for event in compiled))
"""


@pytest.mark.slow
def test_other_processes_find_what_was_compiled_under_any_hash_seed(tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    settings = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    settings["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

    def run(seed: str, how: str) -> tuple[str, int]:
        command = [sys.executable, str(program), str(tmp_path / "step"), how]
        environment = {**os.environ, **settings, "PYTHONHASHSEED": seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
        numbers, misses = done.stdout.splitlines()
        return numbers, int(misses)

    first, _ = run("1", "jit")
    for seed, how in [("2", "jit"), ("3", "loaded")]:
        assert run(seed, how) == (first, 0)
