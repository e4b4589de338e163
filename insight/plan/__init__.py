"""`weft.plan`: computes the memory, collectives and time of a step on a mesh of devices that need not exist."""

from __future__ import annotations

from weft.insight.plan.hardware import HARDWARE, Hardware
from weft.insight.plan.planning import Planning, plan
from weft.insight.plan.report import Activation, Bytes, Collective, Plan, PlanWarning, Seconds

__all__ = ["HARDWARE", "Activation", "Bytes", "Collective", "Hardware", "Plan", "PlanWarning", "Planning"]
__all__ += ["Seconds", "plan"]
