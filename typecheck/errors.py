"""The two errors of contracts: a contract that does not hold, and an annotation that cannot be read."""

from __future__ import annotations

from weft.core.errors import WeftError


class ContractError(WeftError, TypeError):
    """A value that is not what its annotation says."""


class AnnotationError(WeftError, ValueError):
    """An annotation that cannot be read, or a dim expression that cannot be evaluated. Always one clear line."""
