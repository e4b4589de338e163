"""Switches: debugging modes that the environment turns on for a whole process."""

from __future__ import annotations

import os


def is_on(variable: str) -> bool:
    """Whether a variable of the environment is set to something other than nothing or 0."""
    return os.environ.get(variable, "0") not in ("", "0")
