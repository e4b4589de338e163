"""The records that make up a plan; text and page are made from them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weft.insight.plan.hardware import Hardware
from weft.insight.plan.page import as_page
from weft.insight.plan.text import as_text, comparison


@dataclass(frozen=True)
class Bytes:
    """Bytes on one device.

    Attributes:
        params, optimizer, state, batch: the arguments by role; `state` is all of a model but its parameters.
        outputs: the outputs of the step; XLA writes outputs for donated arguments into the arguments' buffers.
        gradients: estimated: as large as the parameters, and divided in the same way.
        activations: the values kept for the backward pass, in the dtypes of the traced program, divided as XLA divides
            them when the program returns them.
        temporaries: all other memory that XLA's CPU backend needs; it includes gradients and activations.
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
        bytes: for one run on one device, the larger of its input and its output.
        count: how often it runs in a step.
        axes: the mesh axes over which it communicates.
        where: the source line and, in parentheses, the path of the module whose method ran it.
        phase: `forward`, `backward` or `update`.
        moves: the path of the argument whose values it moves unchanged, if any.
        asked: whether a rule asked for it: it sums, moves an argument, or belongs to the update.
        seconds: the estimated time of all its runs.
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
    """Bytes a device that a module computes and the backward pass reads: remat of the module saves at most these."""

    path: str
    bytes: int


@dataclass(frozen=True)
class PlanWarning:
    """A cost of the step that could be lower.

    Attributes:
        kind: `replicated`, `optimizer`, `resharding`, `micro-batch`, `activations`, `compute` or `memory`.
        text: one sentence.
        bytes: the bytes a device that it costs; 0 if it costs time alone.
    """

    kind: str
    text: str
    bytes: int


@dataclass(frozen=True)
class Seconds:
    """A roofline estimate of a step's time: a lower bound, which real kernels exceed.

    Attributes:
        compute: the time of all operations at the datasheet's peak.
        memory: the time to move arguments, outputs and operands of matrix products once each; elementwise operations
            count as fused.
        collectives: the time of a ring's traffic over the links of the datasheet.
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
        """The name of the part that takes longest."""
        parts = {"compute": self.compute, "memory": self.memory, "collectives": self.collectives}
        # Collectives run while the device computes, so the longest part decides, and the sum is the other bound.
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class Plan:
    """The cost of a step on a mesh: memory, collectives, operations and time.

    Attributes:
        mesh: sizes by axis.
        hardware: the device for which times are estimated.
        bytes_per_device: see `Bytes`.
        activations: the values that the backward pass needs, by path, largest first.
        collectives: first the collectives that no rule asked for, then the rest, each by estimated time.
        flops: on one device: `forward`, `backward`, `recomputed` (by remat), `update`, `total`; `model` counts the
            program's matrix products without remat, over all devices.
        seconds: the roofline.
        warnings: the costs to look at first.
        notes: which figures are estimates, and from which sources.
        intensity: operations for each byte of memory traffic.
        examples: the examples in the batch.
        tokens: the elements of the batch's largest array if these are ids, integers of more than 8 bits; or 0.
        largest_batch: the largest batch that fits, if the plan was asked for it: by a line through the peaks for this
            batch and for one twice as large. None if the peak does not grow with the batch.
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
    examples: int = 0
    tokens: int = 0
    largest_batch: int | None = None

    @property
    def examples_per_second(self) -> float:
        """Examples of all devices, by the time without overlap."""
        return self._rate(self.examples)

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all devices, by the time without overlap."""
        return self._rate(self.tokens)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: the share of the devices' peak that the model's own operations use.

        `flops["model"] / (devices * peak * seconds.serial)`, where the peak is the datasheet's rate for the dtypes of
        the products. What remat and devices repeat does not count. It is an upper bound, as the time is a lower one.

        Source: Chowdhery et al., "PaLM", 2022, appendix B.
        """
        devices = math.prod(self.mesh.values())
        # The time of computing is the operations of a device over this peak.
        return self._rate(self.seconds.compute * self.flops["model"] / max(devices * self.flops["total"], 1))

    def _rate(self, amount: float) -> float:
        # A step without arguments and results takes no time.
        return amount / self.seconds.serial if self.seconds.serial else 0.0

    @property
    def fits(self) -> bool:
        return self.bytes_per_device.peak <= self.hardware.memory

    def __str__(self) -> str:
        return as_text(self)

    def save(self, path: str | Path) -> None:
        """Writes the plan as a self-contained HTML page: `plan.save("plan.html")`."""
        Path(path).write_text(as_page(self), encoding="utf-8")

    def compare(self, alternative: Plan) -> str:
        """Returns a table with the figures of this plan and of an alternative in columns."""
        return comparison(self, alternative)

    def as_dict(self) -> dict[str, Any]:
        """Returns the whole plan as dicts, lists, strings and numbers, ready for JSON."""
        return asdict(self)
