"""`table` and `plot`: show the rows of `watch` as text, and as a picture with layers as rows and steps as columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from weft.core.errors import MissingExtraError, StructureError
from weft.insight.debug.watching import COLUMNS, Row
from weft.insight.terminal import columns

_WITH_MATPLOTLIB = (
    "pip install 'weft-jax[train]' (scikit-learn, matplotlib, rich, grain, treescope, orbax-checkpoint, flatbuffers)"
)


def _lines(rows: Iterable[Row]) -> list[tuple[str, str, np.ndarray, float]]:
    """Returns one line for each value: kind, path with the layer's number, statistics and ratio."""
    lines: list[tuple[str, str, np.ndarray, float]] = []
    for row in rows:
        values = np.asarray(row.values)
        ratios = np.broadcast_to(np.asarray(row.ratio), values.shape[:-1])
        for index in np.ndindex(values.shape[:-1]):
            layer = "".join(f"[layer {i}]" for i in index)
            lines.append((row.kind, row.path + layer, values[index], float(ratios[index])))
    return lines


def table(rows: Iterable[Row]) -> str:
    """Returns the statistics as a table of text, one line for each value.

    >>> import jax.numpy as jnp, weft
    >>> row = weft.debug.Row(jnp.array([0.0, 1.0, 2.0, 0.5, 0.0]), jnp.array(0.25), "update", "w")
    >>> print(weft.debug.table([row]))
    kind    path  mean  rms  max  zeros  nonfinite  by weight
    update  w     0     1    2    0.5    0          0.25
    """
    cells = [["kind", "path", *COLUMNS, "by weight"]]
    for kind, path, values, ratio in _lines(rows):
        cells.append([kind, path, *(f"{x:.3g}" for x in values), "" if math.isnan(ratio) else f"{ratio:.3g}"])
    return "\n".join(columns(cells))


def plot(history: Sequence[Iterable[Row]], *, kind: str = "activation", column: str = "rms") -> Any:
    """Draws one statistic, with a row for each layer and a column for each watched step, as a matplotlib figure.

    Args:
        history: the rows of some watched calls, in order.
        kind: the kind of the rows to draw.
        column: `mean`, `rms`, `max`, `zeros` or `nonfinite`.

    Raises:
        MissingExtraError: without matplotlib.
        StructureError: if there is no such column, or no row of this kind.
    """
    if column not in COLUMNS:
        raise StructureError(f"no statistic is called {column!r}", fix=f"one of {', '.join(COLUMNS)}")
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise MissingExtraError(
            "weft.debug.plot draws with matplotlib, which is not installed",
            fix=_WITH_MATPLOTLIB,
        ) from None
    steps = [{path: v for k, path, v, _ in _lines(rows) if k == kind} for rows in history]
    paths = list(dict.fromkeys(path for step in steps for path in step))
    if not paths:
        raise StructureError(
            f"no row is of the kind {kind!r}", fix="pass the rows of watched calls, which are not None"
        )
    place = COLUMNS.index(column)
    # A layer may be missing in a step, for example where a branch did not run: its cell stays empty.
    grid = [[step[path][place] if path in step else np.nan for step in steps] for path in paths]
    # Not `pyplot`: it would choose a backend, and keep every figure alive until it is closed.
    figure = Figure(figsize=(1.5 + 0.4 * len(steps) + 3, 1.5 + 0.3 * len(paths)), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(np.asarray(grid, np.float32), aspect="auto")
    axes.set_yticks(range(len(paths)), paths)
    axes.set(xlabel="watched call", title=f"{column} of each {kind}")
    figure.colorbar(image)
    return figure
