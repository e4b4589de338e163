"""A plan as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_BYTES = ("params", "optimizer", "state", "batch", "outputs", "gradients", "activations", "temporaries", "peak")


def as_text(plan: Any) -> str:
    """What `print(plan)` shows: what to mend, bytes, time, activations by path and collectives."""
    lines = [f"plan for {mesh_of(plan)} of {plan.hardware.name}: {verdict(plan)}", bound(plan)]
    lines += [f"! {one.kind}: {one.text}" for one in plan.warnings]
    lines += ["", "bytes a device", *columns(bytes_rows(plan))]
    lines += ["", "operations a device", *columns([(name, f"{number:.3g}") for name, number in plan.flops.items()])]
    if plan.activations:
        lines += ["", "kept for the backward pass (remat saves at most this)"]
        lines += columns([(one.path, show(one.bytes)) for one in plan.activations[:10]])
    if plan.collectives:
        lines += ["", "collectives", *columns([COLLECTIVE_HEADS, *collective_rows(plan)[:20]])]
        lines += [f"  and {len(plan.collectives) - 20} more"] if len(plan.collectives) > 20 else []
    return "\n".join([*lines, "", *(f"note: {note}" for note in plan.notes)])


COLLECTIVE_HEADS = ("kind", "bytes", "times", "over", "time", "phase", "where", "moves")


def mesh_of(plan: Any) -> str:
    return " ".join(f"{name}={size}" for name, size in plan.mesh.items())


def verdict(plan: Any) -> str:
    """Whether it fits, and by how much."""
    peak, memory = plan.bytes_per_device.peak, plan.hardware.memory
    room = f"{show(memory - peak)} to spare" if plan.fits else f"{show(peak - memory)} too much"
    return f"{'fits' if plan.fits else 'does not fit'}, {show(peak)} of {show(memory)} a device, {room}"


def bound(plan: Any) -> str:
    """The bound that holds, in one sentence."""
    times = plan.seconds
    return (
        f"a step takes at least {seconds(times.overlapped)} (estimated; {seconds(times.serial)} without overlap), and "
        f"{times.bound} holds it: compute {seconds(times.compute)}, memory {seconds(times.memory)}, collectives "
        f"{seconds(times.collectives)}"
    )


def seconds(number: float) -> str:
    """A time for readers.

    >>> seconds(0.0123)
    '12.3 ms'
    """
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return f"{number / 1e-9:.3g} ns"


def bytes_rows(plan: Any) -> list[tuple[str, str]]:
    return [(name, show(getattr(plan.bytes_per_device, name))) for name in _BYTES]


def collective_rows(plan: Any) -> list[tuple[str, ...]]:
    return [
        (
            f"{'' if one.asked else '! '}{one.kind}",
            show(one.bytes),
            str(one.count),
            ", ".join(one.axes),
            seconds(one.seconds),
            one.phase,
            one.where,
            one.moves or "",
        )
        for one in plan.collectives
    ]


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = (" ".join(cell.ljust(width + 1) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [f"  {line}".rstrip() for line in padded]


def comparison(plan: Any, other: Any) -> str:
    """Two plans' figures in columns, and how often the second's the first's are."""
    rows = [("", mesh_of(plan), mesh_of(other), "ratio")]
    pairs = [(name, getattr(plan.bytes_per_device, name), getattr(other.bytes_per_device, name)) for name in _BYTES]
    rows += [(name, show(a), show(b), f"{b / a:.2f}" if a else "") for name, a, b in pairs]
    for name in ("compute", "memory", "collectives", "overlapped", "serial"):
        a, b = getattr(plan.seconds, name), getattr(other.seconds, name)
        rows.append((f"{name} time", seconds(a), seconds(b), f"{b / a:.2f}" if a else ""))
    rows.append(("warnings", str(len(plan.warnings)), str(len(other.warnings)), ""))
    return "\n".join(columns(rows))


def show(number: float) -> str:
    """Bytes for readers.

    >>> show(1_500_000)
    '1.50 MB'
    """
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if number >= scale:
            return f"{number / scale:.2f} {unit}"
    return f"{number:.0f} B"
