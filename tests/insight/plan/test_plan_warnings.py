"""Planted faults, each in several models, are told before all else; right programs are told nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import pytest
import weft
from jax.sharding import AbstractMesh, AxisType, PartitionSpec
from weft import nnx

from .cases import CASES, RULES, SIZES, Layers, X, nnx_objects, shapes

# Two of the plants leave donated buffers without an output that lies as they do, which JAX says.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")]
MESH = AbstractMesh(tuple(SIZES.values()), tuple(SIZES), axis_types=(AxisType.Auto,) * len(SIZES))


def planned(name: str, *args: Any, **changes: Any) -> Any:
    case = CASES[name]
    step = changes.pop("step", None) or case.step(MESH)
    return weft.plan(step, *args, mesh=MESH, **{"rules": case.rules, **changes})


def gpt() -> tuple[Any, Any]:
    return CASES["gpt"].planned()


def last(*names: Any) -> Callable[..., bool]:
    return lambda path, kind, value: tuple(path)[-len(names) :] == names


def moved(x: Any) -> Any:
    """A value whose last axis lies over `data`, as no rule has it: XLA moves it there and back."""
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*[None] * (x.ndim - 1), "data"))


def replicated_mlp() -> Any:
    return planned("mlp", *shapes(), X, names={last("layers", 2, "kernel"): (None, None)})


def replicated_gpt() -> Any:
    return planned("gpt", *gpt(), names={last("mlp", "layers", 0, "kernel"): (None, None)})


def replicated_nnx() -> Any:
    class Whole(Layers):
        def __init__(self, rngs: nnx.Rngs):
            super().__init__(rngs)
            self.down = nnx.Linear(64, 16, use_bias=False, rngs=rngs)

    with nnx.use_eager_sharding(False):
        model = Whole(nnx.Rngs(0))
        return planned("nnx", model, nnx.Optimizer(model, nnx_objects()[1].tx, wrt=nnx.Param), X)


@pytest.mark.parametrize(
    ("plant", "path"),
    [(replicated_mlp, "layers[2].kernel"), (replicated_gpt, "mlp.layers[0].kernel"), (replicated_nnx, "down.kernel")],
)
def test_a_replicated_kernel_is_told_first(plant: Callable[[], Any], path: str):
    plan = plant()
    assert plan.warnings[0].kind == "replicated"
    assert path in plan.warnings[0].text


def resharding_mlp() -> Any:
    @weft.jit
    def bent(model, opt, x):
        return opt.minimize(lambda model, x: (moved(model(x)) ** 2).mean(), model, x)

    return planned("mlp", *shapes(), X, step=bent)


def resharding_gpt() -> Any:
    @weft.jit
    def bent(state, tokens):
        loss = lambda model, tokens: moved(model(tokens)).std()  # noqa: E731
        return state.optimizer.minimize(loss, state.model, tokens)

    return planned("gpt", *gpt(), step=bent)


def resharding_nnx() -> Any:
    @nnx.jit
    def bent(model, optimizer, x):
        optimizer.update(model, nnx.grad(lambda model: (moved(model(x)) ** 2).mean())(model))

    return planned("nnx", *nnx_objects(), X, step=bent)


# XLA moves an operand where that is smaller: in the NNX model the relu's output. Where annotations place the arrays
# around it, as in the GPT, the value itself is moved.
@pytest.mark.parametrize(
    ("plant", "file"),
    [
        (resharding_mlp, "test_plan_warnings.py:"),
        (resharding_gpt, "test_plan_warnings.py:"),
        (resharding_nnx, "cases.py:"),
    ],
)
def test_a_resharding_is_told_first(plant: Callable[[], Any], file: str):
    plan = plant()
    assert plan.warnings[0].kind == "resharding"
    assert any(file in warning.text for warning in plan.warnings[:2])
    assert not plan.collectives[0].asked


def undivided_mlp() -> Any:
    model, opt = shapes()
    return planned("mlp", weft.shard(model, MESH, RULES), opt, X, rules=None)


def undivided_gpt() -> Any:
    state, tokens = gpt()
    model = weft.shard(state.model, MESH, CASES["gpt"].rules)
    return planned("gpt", state.replace(model=model), tokens, rules=None)


def undivided_nnx() -> Any:
    model, optimizer = nnx_objects()
    for _, variable in nnx.iter_graph(optimizer):
        if isinstance(variable, nnx.Variable):
            variable.set_metadata("out_sharding", None)
    return planned("nnx", model, optimizer, X)


@pytest.mark.parametrize("plant", [undivided_mlp, undivided_gpt, undivided_nnx])
def test_an_optimizer_state_that_is_not_divided_is_told_first(plant: Callable[[], Any]):
    assert plant().warnings[0].kind == "optimizer"


@pytest.mark.parametrize("name", ["mlp", "nnx"])
def test_a_right_program_has_no_warnings(name: str):
    assert planned(name, *CASES[name].planned()).warnings == []
