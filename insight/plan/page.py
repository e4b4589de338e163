"""A plan as one page of HTML that loads nothing else and is read on a phone too."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from weft.insight.plan.text import COLLECTIVE_HEADS, bound, bytes_rows, collective_rows, mesh_of, show, verdict

_STYLE = """
body { font: 16px/1.45 system-ui, sans-serif; margin: 0 auto; padding: 1em; max-width: 70em; color: #222; }
h1 { font-size: 1.3em; } h2 { font-size: 1.05em; margin-top: 1.6em; }
p { overflow-wrap: anywhere; }
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
    """The page: what to mend, bars of bytes, activations by path, and all collectives."""
    title = f"Plan for {mesh_of(plan)} of {plan.hardware.name}"
    sizes = [(name, getattr(plan.bytes_per_device, name), text) for name, text in bytes_rows(plan)]
    kept = [(one.path, one.bytes, show(one.bytes)) for one in plan.activations[:20]]
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        *(f"<p>{html.escape(line)}</p>" for line in (verdict(plan), bound(plan))),
    ]
    parts += [f'<p class="warning">{html.escape(f"{one.kind}: {one.text}")}</p>' for one in plan.warnings]
    parts += ["<h2>Bytes a device</h2>", _bars(sizes)]
    parts += ["<h2>Kept for the backward pass</h2>", _bars(kept)] if kept else []
    if plan.collectives:
        parts += ["<h2>Collectives</h2>", _table(plan)]
    parts += [f'<p class="note">{html.escape(note)}</p>' for note in plan.notes]
    head = (
        f'<meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
    )
    body = "\n".join(parts)
    return f'<!DOCTYPE html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'


def _bars(rows: Sequence[tuple[str, int, str]]) -> str:
    most = max([size for _, size, _ in rows] + [1])
    return "\n".join(
        f'<div class="row"><span style="overflow-wrap:anywhere">{html.escape(name)}</span>'
        f'<b style="width:{100 * size / most:.1f}%"></b><span>{html.escape(text)}</span></div>'
        for name, size, text in rows
    )


def _table(plan: Any) -> str:
    head = "".join(f"<th>{name}</th>" for name in COLLECTIVE_HEADS)
    rows = (
        f"<tr{'' if one.asked else ' class=unasked'}>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>"
        for one, row in zip(plan.collectives, collective_rows(plan), strict=True)
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{"".join(rows)}\n</tbody></table></div>'
