"""`weft.plan(step, *args, mesh=...)` computes the cost of a step, and `weft.plan.search` ranks meshes by time."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from jax.sharding import AbstractMesh, AxisType, Mesh
from weft.core.errors import AxisError, MeshError
from weft.core.logical_axes import rules_in_force
from weft.insight.plan.activations import activations_of
from weft.insight.plan.analysis import Runs, analysed
from weft.insight.plan.batches import growth_of
from weft.insight.plan.hardware import HARDWARE as _HARDWARE
from weft.insight.plan.hardware import Hardware as _Hardware
from weft.insight.plan.hardware import hardware_of
from weft.insight.plan.report import Plan
from weft.insight.plan.simulated import compiled
from weft.insight.plan.tracing import Program, traced
from weft.insight.terminal import progress_bar

DATA = {"batch": "data", ...: None}
FSDP = {"batch": "data", "embed": "data", ...: None}
TENSOR = {"batch": "data", "mlp": "model", "heads": "model", "vocab": "model", ...: None}
TABLES = {"data": DATA, "fsdp": FSDP, "tensor": TENSOR, "fsdp_tensor": {**TENSOR, **FSDP}}
_FIRST: Any = object()
# A layer that is divided into more parts than this leaves each device a product too small to keep it busy.
_MOST_TENSOR_PARTS = 64


class Candidate(NamedTuple):
    """A mesh that `search` may plan: the table's name, sizes by axis, the traced step, and its bytes a device."""

    table: str
    sizes: dict[str, int]
    program: Program
    trace: Callable[[int], Program]
    local: int


class Planning:
    """Computes the cost of a step: `plan = weft.plan(step, model, opt, batch, mesh={"data": 8}, rules=RULES)`."""

    Hardware: ClassVar = _Hardware
    HARDWARE: ClassVar = _HARDWARE
    TABLES: ClassVar = TABLES

    def __call__(
        self,
        step: Callable[..., Any],
        /,
        *args: Any,
        mesh: Mapping[str, int] | AbstractMesh | Mesh | None = None,
        rules: Any = None,
        hardware: str | _Hardware = "h100",
        batch: Any = _FIRST,
        names: Any = None,
        unnamed: Any = None,
        largest_batch: bool = False,
        progress: bool = True,
    ) -> Plan:
        """Plans a step: bytes a device, every collective, operations and an estimate of its time.

        Nothing is allocated and no device is needed: the step is traced over shapes, lowered for a mesh without
        devices, and compiled in a process of its own that simulates them.

        Args:
            step: a function of `args`; if it is compiled, the plan has its donation and its output shardings.
            args: models, optimizers, NNX objects, batches; arrays may be shapes (`weft.init(..., abstract=True)`).
            mesh: sizes by axis, or a mesh; by default that of the block (`weft.axis_rules`).
            rules: those of the block that the step is traced in, by default of the block around the call; without any
                the arrays' own shardings hold. For NNX, its logical axis rules.
            hardware: a name of `weft.plan.HARDWARE`, or a `weft.plan.Hardware`.
            batch: the axes that divide a batch's first axis: by default the mesh's first; None for none.
            names, unnamed: as for `weft.shard`.
            largest_batch: whether to tell the largest batch that fits. The step is then compiled a second time, for a
                batch twice as large, and the bytes of the two peaks are taken to grow with the batch along a line.
            progress: whether a terminal shows the progress, if `rich` is installed.

        Raises:
            AxisError, FilterError: as `weft.shard`.
            MeshError: if the mesh does not divide a batch, the hardware is unknown, or XLA cannot compile the step.

        >>> import jax, weft, jax.numpy as jnp
        >>> model = weft.init(weft.MLP, 4, 8, 2, abstract=True)
        >>> x = jax.ShapeDtypeStruct((16, 4), jnp.float32)
        >>> rules = {"embed": None, "mlp": "model"}
        >>> plan = weft.plan(lambda model, x: model(x), model, x, mesh={"data": 2, "model": 2}, rules=rules)
        >>> plan.bytes_per_device.batch, [(each.kind, each.axes) for each in plan.collectives]
        (128, [('all-reduce', ('model',))])
        """
        block = rules_in_force()
        if block is not None:
            mesh, rules = block.mesh if mesh is None else mesh, block.table if rules is None else rules
        if mesh is None:
            raise MeshError("a plan is for a mesh", fix='give mesh={"data": 8}, or plan inside of `weft.axis_rules`')
        device, on = hardware_of(hardware), as_mesh(mesh)
        axes = next(iter(on.shape)) if batch is _FIRST else batch
        with progress_bar("planning", 3, progress) as stage:
            stage("tracing")
            trace = functools.partial(traced, step, args, on, rules, axes, names=names, unnamed=unnamed)
            return _planned(trace(), trace, on, device, stage, largest_batch)

    def search(
        self,
        step: Callable[..., Any],
        /,
        *args: Any,
        devices: int,
        tables: Mapping[str, Any] = TABLES,
        hardware: str | _Hardware = "h100",
        most: int = 12,
        progress: bool = True,
    ) -> list[tuple[str, dict[str, int], Plan]]:
        """Plans a step on meshes over `data` and `model` with tables of rules, and ranks those that fit by time.

        Args:
            step, args, hardware, progress: as for a plan.
            devices: the number of devices.
            tables: tables of rules by name.
            most: the number of candidates to compile, each in some seconds: those with the fewest bytes of arguments
                a device.

        Returns:
            Names of tables, meshes and plans, the fastest first: by the time without overlap.

        Raises:
            MeshError: if no mesh divides the step and holds its arguments.
        """
        device, candidates = hardware_of(hardware), list[Candidate]()
        # Tensor parallelism stays within a node, because its collectives are in every layer and need the fast link.
        parts = [2**i for i in range(devices.bit_length())]
        parts = [n for n in parts if devices % n == 0 and n <= min(device.node, _MOST_TENSOR_PARTS)]
        shapes = [
            (name, {"data": devices // n, "model": n})
            for name, rules in tables.items()
            for n in (parts if "model" in rules.values() else [1])
        ]
        with progress_bar("planning", len(shapes), progress) as stage:
            for name, shape in shapes:
                stage(f"tracing {name}")
                # A mesh that does not divide the model or the batch is no candidate.
                with contextlib.suppress(AxisError, MeshError):
                    trace = functools.partial(traced, step, args, as_mesh(shape), tables[name], "data")
                    program = trace()
                    local = sum(argument.local for argument in program.arguments)
                    if local <= device.memory:
                        candidates.append(Candidate(name, shape, program, trace, local))
        if not candidates:
            raise MeshError(
                f"no mesh of {devices} {device.name} divides the arguments of this step and has room for them"
            )
        # Compiling takes seconds a candidate, tracing much less: the least memory is the cheapest good guess.
        chosen = sorted(candidates, key=lambda candidate: candidate.local)[:most]
        with progress_bar("planning", 2 * len(chosen), progress) as stage:
            plans = [
                (each.table, each.sizes, _planned(each.program, each.trace, as_mesh(each.sizes), device, stage))
                for each in chosen
            ]
        return sorted((entry for entry in plans if entry[2].fits), key=lambda entry: entry[2].seconds.serial)


def as_mesh(mesh: Mapping[str, int] | AbstractMesh | Mesh) -> AbstractMesh | Mesh:
    """Returns a mesh without devices, from sizes by axis; returns a mesh unchanged.

    Raises:
        MeshError: if there are no axes, or a size is below 1.
    """
    if isinstance(mesh, AbstractMesh | Mesh):
        return mesh
    if not mesh or any(size < 1 for size in mesh.values()):
        raise MeshError(f"a mesh has axes with sizes of at least 1, and this is {dict(mesh)}")
    return AbstractMesh(tuple(mesh.values()), tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))


def _planned(
    program: Program,
    trace: Callable[[int], Program],
    mesh: Any,
    device: _Hardware,
    stage: Callable[[str], None],
    largest_batch: bool = False,
) -> Plan:
    stage("lowering")
    activations = activations_of(program)
    growth = growth_of(program, activations, trace)
    programs = [program, activations.program]
    if largest_batch:
        # Tracing the step again raises the error that it has for another batch.
        programs.append(growth.larger if growth else trace(2))
    stage(f"compiling for {mesh.size} devices")
    # One child for all programs: each start of a child imports JAX again.
    lowered = [each.lowered() for each in programs if each is not None]
    step, *others = compiled(lowered, mesh.size)
    larger = others.pop() if largest_batch else None
    return analysed(program, activations, growth, Runs(step, others[0] if others else None, larger), mesh.shape, device)


plan = Planning()
