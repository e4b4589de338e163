"""The mark of an argument that was not given, where `None` is a value."""

from __future__ import annotations


class Missing:
    """The type of `MISSING`."""


MISSING = Missing()
