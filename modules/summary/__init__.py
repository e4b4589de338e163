"""tabulate: a table of the calls of a model's records, with inputs, outputs, parameters and costs."""

from __future__ import annotations

from weft.modules.summary.tables import tabulate

__all__ = ["tabulate"]
