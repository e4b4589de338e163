"""`weft.plan(step, *args, mesh=...)` and `weft.plan.search`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from jax.sharding import AbstractMesh, AxisType, Mesh
from weft.core.errors import AxisError, MeshError
from weft.insight.plan.activations import kept_values
from weft.insight.plan.analysis import analysed
from weft.insight.plan.hardware import HARDWARE as _HARDWARE
from weft.insight.plan.hardware import Hardware as _Hardware
from weft.insight.plan.hardware import hardware_of
from weft.insight.plan.report import Plan
from weft.insight.plan.simulated import compiled
from weft.insight.plan.tracing import Program, traced

FSDP = {"embed": "data", ...: None}
TENSOR = {"mlp": "model", "heads": "model", "vocab": "model", ...: None}
TABLES = {"data": {...: None}, "fsdp": FSDP, "tensor": TENSOR, "fsdp_tensor": {**FSDP, **TENSOR, "embed": "data"}}
_FIRST: Any = object()


class Planning:
    """What a step will cost on a mesh: `plan = weft.plan(step, model, opt, batch, mesh={"data": 8}, rules=RULES)`."""

    Hardware: ClassVar = _Hardware
    HARDWARE: ClassVar = _HARDWARE
    TABLES: ClassVar = TABLES

    def __call__(
        self,
        step: Callable[..., Any],
        /,
        *args: Any,
        mesh: Mapping[str, int] | AbstractMesh | Mesh,
        rules: Any = None,
        hardware: str | _Hardware = "h100",
        batch: Any = _FIRST,
        names: Any = None,
        unnamed: Any = None,
    ) -> Plan:
        """Plans a step: bytes a device, every collective, operations and an estimate of its time.

        Nothing is allocated and no device is needed: the step is traced over shapes, lowered for a mesh without
        devices, and compiled in a process of its own that simulates them.

        Args:
            step: of the arguments; compiled or not, its donation and its outputs' shardings hold.
            args: models, optimizers, NNX objects, batches; arrays may be shapes (`weft.init(..., abstract=True)`).
            mesh: sizes by axis, or a mesh.
            rules: for `weft.shard`; without them the arrays' own shardings hold. For NNX, its logical axis rules.
            hardware: a name of `weft.plan.HARDWARE`, or a `weft.plan.Hardware`.
            batch: the axes that divide a batch's first axis: by default the mesh's first; None for none.
            names, unnamed: as for `weft.shard`.

        Raises:
            AxisError, FilterError: as `weft.shard`.
            MeshError: if a batch is not divided by the mesh, the hardware is unknown, or XLA cannot compile the step.

        >>> import jax, weft, jax.numpy as jnp
        >>> model = weft.init(weft.MLP, 4, 8, 2, abstract=True)
        >>> x = jax.ShapeDtypeStruct((16, 4), jnp.float32)
        >>> rules = {"embed": None, "mlp": "model"}
        >>> plan = weft.plan(lambda model, x: model(x), model, x, mesh={"data": 2, "model": 2}, rules=rules)
        >>> plan.bytes_per_device.batch, [(one.kind, one.axes) for one in plan.collectives]
        (128, [('all-reduce', ('model',))])
        """
        device, on = hardware_of(hardware), _mesh(mesh)
        axes = next(iter(on.shape)) if batch is _FIRST else batch
        program = traced(step, args, on, rules, axes, names=names, unnamed=unnamed)
        return _planned(program, on, device)

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
            step, args, hardware: as for a plan.
            devices: how many there are.
            tables: tables of rules by name.
            most: how many are compiled, in the order of the least bytes of arguments a device; some seconds each.
            progress: whether a bar is shown, where `rich` is installed.

        Returns:
            Names of tables, meshes and plans, the fastest first: by the time without overlap.
        """
        device, programs = hardware_of(hardware), []
        model_sizes = [2**i for i in range(int(math.log2(min(devices, device.node, 64))) + 1) if devices % 2**i == 0]
        for name, rules in tables.items():
            uses = {axis for axis in rules.values() if axis}
            for size in model_sizes if "model" in uses else [1]:
                shape = {"data": devices // size, "model": size}
                try:
                    program = traced(step, args, _mesh(shape), rules, "data")
                except (AxisError, MeshError):  # this mesh does not divide the model or the batch
                    continue
                local = sum(one.local for one in program.arguments)
                if local <= device.memory:
                    programs.append((local, len(programs), name, shape, program))
        if not programs:
            raise MeshError(f"no mesh of {devices} {device.name} divides this step and holds its arguments")
        chosen = sorted(programs)[:most]
        plans = [(name, shape, _planned(p, _mesh(shape), device)) for *_, name, shape, p in _shown(chosen, progress)]
        return sorted((one for one in plans if one[2].fits), key=lambda one: one[2].seconds.serial)


def _planned(program: Program, mesh: Any, device: _Hardware) -> Plan:
    kept = kept_values(program)
    lowered = [program.lowered(), *([program.lowered(kept[0])] if kept else [])]
    results = compiled(lowered, mesh.size)
    paths = kept[1] if kept else []
    return analysed(program, results[0], results[1] if kept else None, paths, mesh.shape, device)


def _mesh(mesh: Mapping[str, int] | AbstractMesh | Mesh) -> AbstractMesh | Mesh:
    if isinstance(mesh, AbstractMesh | Mesh):
        return mesh
    if not mesh or any(size < 1 for size in mesh.values()):
        raise MeshError(f"a mesh has axes with sizes of at least 1, and this is {dict(mesh)}")
    return AbstractMesh(tuple(mesh.values()), tuple(mesh), axis_types=(AxisType.Auto,) * len(mesh))


def _shown(items: list[Any], progress: bool) -> Any:
    try:
        from rich.progress import track
    except ModuleNotFoundError:
        return items
    return track(items, "planning", transient=True) if progress else items


plan = Planning()
