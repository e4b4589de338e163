"""tabulate: a table of a model's calls, with inputs, outputs, Variables and costs."""

from __future__ import annotations

from weft.nnx.summary.calls import CallInfo
from weft.nnx.summary.tables import filter_rng_streams, tabulate

__all__ = ["CallInfo", "filter_rng_streams", "tabulate"]
