"""Formats a plan as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from weft.insight.terminal import columns

COLLECTIVE_HEADS = ("kind", "bytes", "times", "over", "time", "phase", "where", "moves")


def as_text(plan: Any) -> str:
    """Returns the text that `print(plan)` shows: warnings, bytes, operations, activations by path and collectives."""
    tables: list[tuple[str, Sequence[Sequence[str]]]] = [
        ("bytes a device", [(name, show(size)) for name, size in sizes_of(plan)]),
        (
            "operations a device (model: on all devices, without remat)",
            [(name, f"{count:.3g}") for name, count in plan.flops.items()],
        ),
        ("kept for the backward pass (remat saves at most this)", [(a.path, show(a.bytes)) for a in plan.activations]),
        ("collectives", [COLLECTIVE_HEADS, *collective_rows(plan)] if plan.collectives else []),
    ]
    lines = [f"plan for {mesh_of(plan)} of {plan.hardware.name}: {verdict(plan)}", bound(plan), throughput(plan)]
    lines += [f"! {warning.kind}: {warning.text}" for warning in plan.warnings]
    for title, rows in tables:
        # A deep model has hundreds of rows, and the largest are first. `plan.collectives` has all of them.
        lines += ["", title, *(f"  {line}" for line in columns(rows[:20]))] if rows else []
        lines += [f"  and {len(rows) - 20} more"] if len(rows) > 20 else []
    return "\n".join([*lines, "", *(f"note: {note}" for note in plan.notes)])


def mesh_of(plan: Any) -> str:
    return " ".join(f"{name}={size}" for name, size in plan.mesh.items())


def verdict(plan: Any) -> str:
    """Says whether the step fits into memory, and by how much."""
    peak, memory = plan.bytes_per_device.peak, plan.hardware.memory
    room = f"{show(memory - peak)} to spare" if plan.fits else f"{show(peak - memory)} too much"
    return f"{'fits' if plan.fits else 'does not fit'}, {show(peak)} of {show(memory)} a device, {room}"


def bound(plan: Any) -> str:
    """Returns one sentence with the estimated time and the part that bounds it."""
    times = plan.seconds
    return (
        f"a step takes at least {seconds(times.overlapped)} (estimated; {seconds(times.serial)} without overlap), "
        f"bound by {times.bound}: compute {seconds(times.compute)}, memory {seconds(times.memory)}, "
        f"collectives {seconds(times.collectives)}"
    )


def throughput(plan: Any) -> str:
    """Returns one sentence with the rate of the batch, the MFU and, if it was asked for, the largest batch."""
    name, rate = ("tokens", plan.tokens_per_second) if plan.tokens else ("examples", plan.examples_per_second)
    largest = (
        "" if plan.largest_batch is None else f"; the largest batch that fits is {plan.largest_batch:,} (estimated)"
    )
    return f"at most {rate:,.0f} {name} a second on all devices, MFU at most {plan.mfu:.1%} (estimated){largest}"


def seconds(number: float) -> str:
    """Formats a time in the largest unit in which it is at least 1.

    >>> seconds(0.0123)
    '12.3 ms'
    """
    unit, scale = _scaled(number, (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)))
    return f"{number / scale:.3g} {unit}"


def show(number: float) -> str:
    """Formats a number of bytes in the largest unit in which it is at least 1.

    >>> show(1_500_000), show(12)
    ('1.50 MB', '12 B')
    """
    unit, scale = _scaled(number, (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3), ("B", 1)))
    return f"{number / scale:.{2 if scale > 1 else 0}f} {unit}"


def _scaled(number: float, units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    return next((unit for unit in units if number >= unit[1]), units[-1])


def sizes_of(plan: Any) -> list[tuple[str, int]]:
    return [(field.name, getattr(plan.bytes_per_device, field.name)) for field in fields(plan.bytes_per_device)]


def collective_rows(plan: Any) -> list[tuple[str, ...]]:
    return [
        (
            f"{'' if each.asked else '! '}{each.kind}",
            show(each.bytes),
            str(each.count),
            ", ".join(each.axes),
            seconds(each.seconds),
            each.phase,
            each.where,
            each.moves or "",
        )
        for each in plan.collectives
    ]


def comparison(plan: Any, alternative: Any) -> str:
    """Returns a table with the figures of two plans, and the ratios of the second plan's to the first's."""
    rows = [("", mesh_of(plan), mesh_of(alternative), "ratio")]
    figures = [(name, a, b, show) for (name, a), (_, b) in zip(sizes_of(plan), sizes_of(alternative), strict=True)]
    for name in ("compute", "memory", "collectives", "overlapped", "serial"):
        figures.append((f"{name} time", getattr(plan.seconds, name), getattr(alternative.seconds, name), seconds))
    figures.append(("MFU", plan.mfu, alternative.mfu, "{:.1%}".format))
    rows += [(name, written(a), written(b), f"{b / a:.2f}" if a else "") for name, a, b, written in figures]
    return "\n".join(columns([*rows, ("warnings", str(len(plan.warnings)), str(len(alternative.warnings)), "")]))
