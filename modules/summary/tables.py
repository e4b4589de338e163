"""tabulate: draws the table of the calls, arrays and costs of a model's records."""

from __future__ import annotations

import html
import math
from typing import Any, Literal

import jax
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, NamedSharding
from weft.core.errors import StructureError
from weft.core.logical_axes import rules_in_force
from weft.core.paths import Path, format_path
from weft.core.records.leaves import NUMBERS, Leaf, iter_leaves
from weft.core.records.module import Module
from weft.modules.summary.calls import Call, record_calls
from weft.modules.summary.texts import as_text, bytes_as_text, drawn, rich_modules, size_and_bytes

Rows = list[list[str]]
HEADS = ["path", "type", "inputs", "outputs"]
PLACE_HEADS = ["path", "array", "lies", "bytes", "bytes a device"]
COSTS = ["FLOPs\nforward", "FLOPs\nbackward", "bytes accessed\nforward", "bytes accessed\nbackward"]


def tabulate(  # weft: skip(of any model)
    model: Module,
    /,
    *args: Any,
    method: str = "__call__",
    depth: int | None = None,
    costs: bool = True,
    sharding: bool = False,
    format: Literal["text", "html"] = "text",
    width: int | None = None,
    **kwargs: Any,
) -> str:
    """Returns a table of the calls that a model makes, with inputs, outputs, parameters and costs.

    The method is traced once, and each different call once more for its costs. Nothing is computed or changed. Each
    call of a public method of a record in the model has a row; a repeated call with the same inputs has none, and
    neither have calls inside a function whose trace JAX has taken from its cache. Rows of calls in a loop's body
    show the costs of one iteration, and the rows around the loop those of all iterations.

    Args:
        model: a record; its arrays may be abstract, as of `init(..., abstract=True)`.
        args, kwargs: the method's arguments; arrays may be `jax.ShapeDtypeStruct`s.
        method: the method's name.
        depth: how many levels of calls to show inside of the outermost one.
        costs: whether to show XLA's estimates for each call, made before optimisation: floating-point operations, and
            bytes read and written, of the call and of its derivative with respect to all inputs. The body of a `while`
            loop counts once and has no derivative.
        sharding: whether to show shardings instead of calls: a row for each array, with its sharding and its bytes, as
            a whole and on each device. The model is not called, and may be any tree of arrays.
        format: `"text"`, or `"html"` for a page.
        width: the width of the text in characters; by default as wide as the table needs.

    Returns:
        The table. Under each kind (`Param`, `BatchStat`, ...) it has the count of numbers in a record, including the
        records in it, and their bytes.

    Raises:
        StructureError: if the model is not a record, or the format is unknown.
        AttributeError: if the model has no such method.
        ModuleNotFoundError: without rich.

    >>> import jax, weft
    >>> mlp = weft.MLP(4, 8, 2, key=jax.random.key(0))
    >>> table = tabulate(mlp, jax.ShapeDtypeStruct((3, 4), "float32"), costs=False)
    >>> print(table)
    MLP
    <BLANKLINE>
      path              type     inputs         outputs        Param
     ─────────────────────────────────────────────────────────────────────
      model             MLP      float32[3,4]   float32[3,2]   58 (232 B)
      model.layers[0]   Linear   float32[3,4]   float32[3,8]   40 (160 B)
      model.layers[2]   Linear   float32[3,8]   float32[3,2]   18 (72 B)
     ─────────────────────────────────────────────────────────────────────
                                                total          58 (232 B)
    """
    if not sharding and not isinstance(model, Module):
        raise StructureError(
            f"tabulate is for records, and got a {type(model).__name__}",
            fix="give it a weft.Module; weft.nnx.tabulate is for objects",
        )
    if format not in ("text", "html"):
        raise StructureError(f"tabulate has no format {format!r}", fix='format="text" or format="html"')
    rich, title = rich_modules(), type(model).__name__
    if sharding:
        if args or kwargs:
            raise StructureError(
                "tabulate with sharding=True shows where arrays lie, and does not call the model",
                fix="leave out the arguments",
            )
        heads, (rows, total) = PLACE_HEADS, _of_places(model)
    else:
        heads, rows, total = _of_calls(model, record_calls(model, method, args, kwargs, costs), depth, costs)
    if format == "html":
        return _page(rich, title, heads, rows, total)
    return _text(rich, title, heads, rows, total, width)


def _of_calls(model: Module, calls: list[Call], depth: int | None, costs: bool) -> tuple[list[str], Rows, list[str]]:
    leaves = [leaf for leaf in iter_leaves(model) if hasattr(leaf.value, "shape")]
    kinds = sorted({leaf.kind.__name__ for leaf in leaves})
    rows: Rows = []
    for call in calls:
        # Calls below `depth` are recorded all the same, because a record is found by way of the calls around it.
        if depth is None or call.depth <= depth:
            counts = _counts_by_kind(_inside(leaves, call.path), kinds)
            rows.append([call.place, call.type.__name__, call.inputs, call.outputs, *counts])
            if costs:
                each = (call.forward, call.backward)
                rows[-1] += ["-" if cost is None else _short(cost.flops) for cost in each]
                rows[-1] += ["-" if cost is None else _short(cost.bytes) for cost in each]
    return HEADS + kinds + (COSTS if costs else []), rows, ["", "", "", "total", *_counts_by_kind(leaves, kinds)]


def _inside(leaves: list[Leaf], path: Path | None) -> list[Leaf]:
    """Returns the leaves of a model inside of one of its records; none for a record that the call created."""
    return [] if path is None else [leaf for leaf in leaves if leaf.path[: len(path)] == path]


def _counts_by_kind(leaves: list[Leaf], kinds: list[str]) -> list[str]:
    """Returns for each kind the count of numbers and of bytes in some leaves."""
    cells: list[str] = []
    for kind in kinds:
        arrays = [leaf.value for leaf in leaves if leaf.kind.__name__ == kind]
        sizes = [math.prod(array.shape) for array in arrays]
        count = sum(size * array.dtype.itemsize for size, array in zip(sizes, arrays, strict=True))
        cells.append(size_and_bytes(sum(sizes), count) if arrays else "")
    return cells


def _short(number: int) -> str:
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g} {unit}"
    return str(number)


# --- where arrays lie ------------------------------------------------------------------------------------------------


def _of_places(tree: Any) -> tuple[list[list[str]], list[str]]:
    """Returns a row for each array of a tree, and the row of totals."""
    leaves = [leaf for leaf in iter_leaves(tree, ("model",)) if leaf.dynamic and type(leaf.value) not in NUMBERS]
    lies = {leaf.path: _sharding(leaf.value) for leaf in leaves}
    if (rules := rules_in_force()) is not None:
        # What nobody has placed is shown as the rules of the block would place it.
        by_rules: dict[Path, Any] = {("model", *leaf.path): leaf.value for leaf in iter_leaves(rules.shardings(tree))}
        lies = {path: by_rules[path] if where is None else where for path, where in lies.items()}
    rows: list[list[str]] = []
    sizes: list[list[int]] = []
    for leaf in leaves:
        sharding, shape = lies[leaf.path], np.shape(leaf.value)
        own = shape if sharding is None else sharding.shard_shape(shape)
        sizes.append([math.prod(each) * leaf.value.dtype.itemsize for each in (shape, own)])
        place = _where(leaf.value, sharding)
        rows.append([format_path(leaf.path), as_text(leaf.value), place, *map(bytes_as_text, sizes[-1])])
    totals = [bytes_as_text(sum(column)) for column in zip(*sizes, strict=True)] or ["", ""]
    return rows, ["total", "", "", *totals]


def _sharding(value: Any) -> Any:
    """The sharding of an array; None for an abstract one, and for one that lies where it was made by chance."""
    if isinstance(value, Tracer):
        return jax.typeof(value).sharding
    return getattr(value, "sharding", None) if getattr(value, "committed", True) else None


def _where(value: Any, sharding: Any) -> str:
    if sharding is None:
        return "nowhere: a shape" if isinstance(value, jax.ShapeDtypeStruct) else "one device"
    # A tracer and an abstract mesh have no devices.
    has_devices = not isinstance(value, Tracer) and not isinstance(getattr(sharding, "mesh", None), AbstractMesh)
    if has_devices and len(sharding.device_set) == 1:
        return "one device"
    # Told apart from one device: a replicated array takes its bytes on each of them.
    if sharding.is_fully_replicated:
        return "every device, whole"
    if isinstance(sharding, NamedSharding):
        entries = (_entry(sharding, entry) for entry in sharding.spec)
        return f"({', '.join(entries)})"
    return str(sharding)


def _entry(sharding: NamedSharding, entry: Any) -> str:
    axes = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
    parts = math.prod(sharding.mesh.shape[axis] for axis in axes)
    return f"{entry!r} / {parts}" if axes else "None"


# --- drawing ---------------------------------------------------------------------------------------------------------


def _text(rich: Any, title: str, heads: list[str], rows: Rows, total: list[str], width: int | None) -> str:
    table = rich.table.Table(
        title=title, box=rich.box.SIMPLE, show_footer=True, title_style="bold", title_justify="left"
    )
    several_lines = any("\n" in cell for row in rows for cell in row)
    for place, head in enumerate(heads):
        justify = "left" if place < len(HEADS) or head not in COSTS else "right"
        footer = total[place] if place < len(total) else ""
        table.add_column(head, footer=footer, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*row, end_section=several_lines)
    # Wide enough for any table: without a terminal rich assumes 80 characters, and would fold the paths.
    plain = {"force_terminal": False, "no_color": True, "width": width or 10_000}
    return "\n".join(map(str.rstrip, drawn(rich, table, plain).rstrip().splitlines()))


_STYLE = """
body { font-family: system-ui, sans-serif; margin: 2em; color: #222; background: #fff; }
table { border-collapse: collapse; font-size: 13px; }
caption { font-weight: bold; font-size: 16px; padding: 0.5em; text-align: left; }
th, td { padding: 4px 10px; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
td { font-family: ui-monospace, monospace; white-space: pre; }
th { white-space: pre-line; }
td.number, th.number { text-align: right; }
tfoot td { font-weight: bold; border-top: 2px solid #888; }
tbody tr:hover { background: #f3f6fa; }
"""


def _page(rich: Any, title: str, heads: list[str], rows: Rows, total: list[str]) -> str:
    def cells(tag: str, texts: list[str]) -> str:
        plain = (rich.text.Text.from_markup(text).plain if tag == "td" else text for text in texts)
        look = ["" if place < len(HEADS) else ' class="number"' for place in range(len(texts))]
        return "".join(f"<{tag}{style}>{html.escape(text)}</{tag}>" for style, text in zip(look, plain, strict=True))

    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    foot = cells("td", total + [""] * (len(heads) - len(total)))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"/><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body>\n<table>\n<caption>{html.escape(title)}</caption>\n"
        f"<thead><tr>{cells('th', heads)}</tr></thead>\n<tbody>\n{body}\n</tbody>\n"
        f"<tfoot><tr>{foot}</tr></tfoot>\n</table>\n</body>\n</html>\n"
    )
