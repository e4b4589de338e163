"""Switches: debugging modes that the environment turns on for a whole process."""

from __future__ import annotations

import os


def is_on(variable: str) -> bool:
    """Whether an environment variable is set, and neither empty nor 0."""
    return os.environ.get(variable, "0") not in ("", "0")
