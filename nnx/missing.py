"""The default of arguments for which None is a valid value."""

from __future__ import annotations


class Missing:
    """The type of `MISSING`."""


MISSING = Missing()
