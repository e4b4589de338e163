"""A plan as one page of HTML that loads nothing else and can be read on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from weft.insight.plan.text import (
    COLLECTIVE_HEADS,
    bound,
    collective_rows,
    mesh_of,
    show,
    sizes_of,
    throughput,
    verdict,
)

_STYLE = """
body { font: 16px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 1em; max-width: 70em; color: #222; }
h1 { font-size: 1.3em; } h2 { font-size: 1.05em; margin-top: 1.6em; }
p, .row span { overflow-wrap: anywhere; }
.warning { border-left: 4px solid #c60; background: #fff4e5; padding: .5em .8em; margin: .5em 0; }
.row { display: grid; grid-template-columns: 8em 1fr 6em; gap: .6em; align-items: center; margin: .2em 0; }
.row b { background: #3f51b5; height: .8em; display: block; min-width: 1px; }
.row span:last-child { text-align: right; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; }
th, td { padding: 4px 10px; border-bottom: 1px solid #ddd; text-align: left; white-space: nowrap; }
tr.unasked td { background: #fff4e5; } .note { color: #666; font-size: 13px; }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #1b1d22; } .warning, tr.unasked td { background: #40300f; }
}
"""


def as_page(plan: Any) -> str:
    """Returns the page of a plan as HTML: warnings, bars of bytes, activations by path, and all collectives."""
    # Names and source lines may contain `<` and `&`, so each text on the page is escaped.
    title = escape(f"Plan for {mesh_of(plan)} of {plan.hardware.name}")
    activations = [(activation.path, activation.bytes) for activation in plan.activations[:20]]
    parts = [
        f"<h1>{title}</h1>",
        *(f"<p>{escape(line)}</p>" for line in (verdict(plan), bound(plan), throughput(plan))),
        *(f'<p class="warning">{escape(f"{each.kind}: {each.text}")}</p>' for each in plan.warnings),
        *_bars("Bytes a device", sizes_of(plan)),
        *_bars("Kept for the backward pass", activations),
        *_table(plan),
        *(f'<p class="note">{escape(note)}</p>' for note in plan.notes),
    ]
    head = (
        f'<meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{title}</title><style>{_STYLE}</style>"
    )
    body = "\n".join(parts)
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'


def _bars(title: str, rows: Sequence[tuple[str, int]]) -> list[str]:
    largest = max([size for _, size in rows], default=0) or 1
    bars = [
        f'<div class="row"><span>{escape(name)}</span><b style="width:{100 * size / largest:.1f}%"></b>'
        f"<span>{show(size)}</span></div>"
        for name, size in rows
    ]
    return [f"<h2>{title}</h2>", *bars] if bars else []


def _table(plan: Any) -> list[str]:
    head = "".join(f"<th>{name}</th>" for name in COLLECTIVE_HEADS)
    rows = [
        f"<tr{'' if each.asked else ' class=unasked'}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for each, row in zip(plan.collectives, collective_rows(plan), strict=True)
    ]
    table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{''.join(rows)}\n</tbody></table>"
    return ["<h2>Collectives</h2>", f'<div class="wide">{table}</div>'] if rows else []
