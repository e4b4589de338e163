"""tabulate: what a model's records get and give, what they hold, and what they cost."""

from __future__ import annotations

from weft.modules.summary.tables import tabulate

__all__ = ["tabulate"]
