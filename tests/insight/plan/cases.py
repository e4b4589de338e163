"""Steps that the tests plan, and a program that really runs one of them on eight simulated devices.

    python cases.py gpt

writes as JSON the bytes that each device holds of the step's arguments and outputs, XLA's own counts of its compiled
program, and that program's text. JAX takes the number of devices when it starts, so this is a process of its own.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import weft
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from weft import nnx
from weft.core.edge.executables import compile_module
from weft.insight.plan.simulated import Compiled, Lowered

SIZES = {"data": 4, "model": 2}
RULES = {"embed": "data", "mlp": "model", ...: None}
ADAM = optax.adam(1e-3)
X = jax.ShapeDtypeStruct((32, 16), jnp.float32)


def mean_square(model: Any, x: Any) -> Any:
    return (model(x) ** 2).mean()


@weft.jit(donate_argnums=(0, 1))
def step(model: Any, opt: Any, x: Any) -> Any:
    _, model, opt = opt.minimize(mean_square, model, x)
    return model, opt


def mlp() -> tuple[Any, Any]:
    model = weft.MLP(16, 64, 16, key=jax.random.key(0))
    return model, weft.Optimizer(model, ADAM)


def shapes() -> tuple[Any, Any]:
    return jax.eval_shape(mlp)


@functools.cache
def sharded_lm() -> Any:
    """The example of that name, as a module of another name than that under which tests of the example load it."""
    path = Path(weft.__file__).parent / "examples" / "sharded_lm.py"
    spec = importlib.util.spec_from_file_location("planned_sharded_lm", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["planned_sharded_lm"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Layers(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        made = nnx.initializers.lecun_normal()
        into, back = (nnx.with_partitioning(made, names) for names in (("embed", "mlp"), ("mlp", "embed")))
        self.up = nnx.Linear(16, 64, use_bias=False, rngs=rngs, kernel_init=into)
        self.down = nnx.Linear(64, 16, use_bias=False, rngs=rngs, kernel_init=back)

    def __call__(self, x: Any) -> Any:
        return self.down(nnx.relu(self.up(x)))


@nnx.jit
def nnx_step(model: Any, optimizer: Any, x: Any) -> Any:
    value, gradients = nnx.value_and_grad(mean_square)(model, x)
    optimizer.update(model, gradients)
    return value


def nnx_objects() -> tuple[Any, Any]:
    with nnx.use_eager_sharding(False):
        model = Layers(nnx.Rngs(0))
        return model, nnx.Optimizer(model, ADAM, wrt=nnx.Param)


@dataclass(frozen=True)
class Case:
    """A step on a mesh, with or without devices: as it is planned, and with the arrays of a real run."""

    step: Callable[[Any], Any]
    planned: Callable[[], tuple[Any, ...]]
    real: Callable[[Any], tuple[Any, ...]]
    rules: Any


def divided(mesh: Any, x: Any) -> Any:
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))


def mlp_on(mesh: Any) -> tuple[Any, ...]:
    return *(weft.shard(part, mesh, RULES) for part in mlp()), divided(mesh, np.ones(X.shape, X.dtype))


def gpt_on(mesh: Any) -> tuple[Any, ...]:
    example = sharded_lm()
    return weft.init(example.State, key=jax.random.key(0)), example.place(next(example.batches(1)), mesh)


def gpt_planned() -> tuple[Any, ...]:
    example = sharded_lm()
    tokens = jax.ShapeDtypeStruct((example.BATCH, example.LENGTH), jnp.int32)
    return weft.init(example.State, abstract=True), tokens


def nnx_on(mesh: Any) -> tuple[Any, ...]:
    objects = nnx_objects()
    with nnx.logical_axis_rules(NNX_RULES.items()):
        for part in objects:
            state = nnx.state(part)
            specs = nnx.get_named_sharding(state, mesh)
            nnx.update(part, jax.device_put(state, specs))
    return *objects, divided(mesh, np.ones(X.shape, X.dtype))


NNX_RULES = {"embed": "data", "mlp": "model"}
CASES = {
    "mlp": Case(lambda mesh: step, lambda: (*shapes(), X), mlp_on, RULES),
    "gpt": Case(lambda mesh: sharded_lm().make_step(mesh), gpt_planned, gpt_on, sharded_lm().RULES["product"][1]),
    "nnx": Case(lambda mesh: nnx_step, lambda: (*nnx_objects(), X), nnx_on, NNX_RULES),
}


def compiled_here(programs: Sequence[Lowered], count: int) -> list[Compiled]:
    """Compiles programs on devices of this process, and not in a child."""
    return [Compiled(*compile_module(program.module, count, program.open_outputs)) for program in programs]


def bytes_held(tree: Any) -> int:
    """Bytes of a tree's arrays on one device."""
    leaves = jax.tree.leaves(nnx.state(tree) if isinstance(tree, nnx.Module | nnx.Optimizer) else tree)
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)


def main(name: str) -> None:
    case = CASES[name]
    mesh = jax.make_mesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * len(SIZES))
    with jax.set_mesh(mesh), weft.axis_rules(mesh, case.rules):
        step, args = case.step(mesh), case.real(mesh)
        arguments = sum(map(bytes_held, args))
        compiled = step.lower(*args).compile()
        outputs = [step(*args)]
    outputs += [arg for arg in args if isinstance(arg, nnx.Module | nnx.Optimizer)]
    cost, memory = compiled.cost_analysis(), compiled.memory_analysis()
    result = {
        "arguments": arguments,
        "outputs": sum(map(bytes_held, outputs)),
        "flops": cost["flops"],
        "text": compiled.as_text(),
        "memory": {name: getattr(memory, f"{name}_size_in_bytes") for name in ("argument", "output", "alias", "temp")},
    }
    print(json.dumps(result))


def run(name: str) -> dict[str, Any]:
    """What a real run of a case gives, in a process with eight devices."""
    import subprocess

    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    ended = subprocess.run([sys.executable, __file__, name], env=environment, capture_output=True, text=True)
    assert not ended.returncode, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


if __name__ == "__main__":
    main(sys.argv[1])
