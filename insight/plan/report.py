"""A plan as data, from which its text and its page are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.insight.plan.hardware import Hardware


@dataclass(frozen=True)
class Bytes:
    """Bytes on one device.

    Attributes:
        params, optimizer, state, batch: the arguments by role; `state` is what a model holds beside parameters.
        outputs: what the step returns; XLA writes donated arguments' outputs in their place.
        gradients: estimated: one for each parameter that a derivative is taken by, lying as it does.
        activations: kept for the backward pass, counted on the program as it was traced, in its own dtypes; how each
            is divided is what XLA chooses where the program returns it.
        temporaries: all that XLA's CPU backend needs beside arguments and outputs, gradients and activations included.
        peak: arguments, outputs that are not written in an argument's place, and temporaries, as XLA counts them.
    """

    params: int
    optimizer: int
    state: int
    batch: int
    outputs: int
    gradients: int
    activations: int
    temporaries: int
    peak: int

    @property
    def arguments(self) -> int:
        return self.params + self.optimizer + self.state + self.batch


@dataclass(frozen=True)
class Collective:
    """One collective operation of the compiled step.

    Attributes:
        kind: as XLA calls it: `all-reduce`, `all-gather`, `reduce-scatter`, `all-to-all`, `collective-permute`.
        bytes: of one run on one device: the larger of what goes in and what comes out.
        count: how often it runs in a step.
        axes: of the mesh, over which it goes.
        where: the source line and, in parentheses, the path of the module whose method ran it.
        phase: `forward`, `backward` or `update`.
        moves: the path of the argument that it moves, if it moves one unchanged.
        asked: whether a rule asked for it: it sums, moves an argument, or belongs to the update.
        seconds: estimated, of all its runs.
    """

    kind: str
    bytes: int
    count: int
    axes: tuple[str, ...]
    where: str
    phase: str
    moves: str | None
    asked: bool
    seconds: float


@dataclass(frozen=True)
class Activation:
    """What a module computes and the backward pass reads, in bytes a device: remat of the module saves at most this."""

    path: str
    bytes: int


@dataclass(frozen=True)
class PlanWarning:
    """Something that costs more than it need.

    Attributes:
        kind: `replicated`, `optimizer`, `resharding` or `memory`.
        text: one sentence.
        bytes: a device that it costs.
    """

    kind: str
    text: str
    bytes: int


@dataclass(frozen=True)
class Seconds:
    """A roofline's estimate of a step: nothing takes less, and real kernels take more.

    Attributes:
        compute: at the datasheet's peak.
        memory: arguments, outputs and matrix products' operands once each; what is elementwise counts as fused.
        collectives: over the links of the datasheet, by a ring's traffic.
    """

    compute: float
    memory: float
    collectives: float

    @property
    def overlapped(self) -> float:
        return max(self.compute, self.memory, self.collectives)

    @property
    def serial(self) -> float:
        return max(self.compute, self.memory) + self.collectives

    @property
    def bound(self) -> str:
        """The part that holds a step back."""
        parts = {"compute": self.compute, "memory": self.memory, "collectives": self.collectives}
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class Plan:
    """What a step costs on a mesh.

    Attributes:
        mesh: sizes by axis.
        hardware: what times are estimated for.
        bytes_per_device: see `Bytes`.
        activations: what the backward pass needs, by path, largest first.
        collectives: those that no rule asked for first, then by estimated time.
        flops: on one device: `forward`, `backward`, `recomputed` (by remat), `update`, `total`; `model` is what the
            program's matrix products need without remat, over all devices.
        seconds: the roofline.
        warnings: what to look at first.
        notes: what is estimated, and from what.
        intensity: operations for each byte of memory traffic.
    """

    mesh: dict[str, int]
    hardware: Hardware
    bytes_per_device: Bytes
    activations: list[Activation]
    collectives: list[Collective]
    flops: dict[str, int]
    seconds: Seconds
    warnings: list[PlanWarning]
    notes: list[str]
    intensity: float

    @property
    def fits(self) -> bool:
        return self.bytes_per_device.peak <= self.hardware.memory

    def __str__(self) -> str:
        from weft.insight.plan.text import as_text

        return as_text(self)

    def save(self, path: str | Path) -> None:
        """Writes the plan as a page that needs nothing else, `plan.save("plan.html")`."""
        from weft.insight.plan.page import as_page

        Path(path).write_text(as_page(self), encoding="utf-8")

    def compare(self, other: Plan) -> str:
        """This plan's figures beside another's, as a table."""
        from weft.insight.plan.text import comparison

        return comparison(self, other)

    def as_dict(self) -> dict[str, Any]:
        """The whole plan as dicts, lists, texts and numbers, as JSON writes them."""
        from dataclasses import asdict

        return asdict(self)
