"""tabulate: what a model's methods get and give, and how many numbers each part holds."""

from __future__ import annotations

from weft.nnx.summary.calls import CallInfo
from weft.nnx.summary.tables import filter_rng_streams, tabulate

__all__ = ["CallInfo", "filter_rng_streams", "tabulate"]
