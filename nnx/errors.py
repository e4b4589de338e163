"""Errors of the adapter that have no twin in the core: what NNX code may catch by name."""

from __future__ import annotations

from weft.core.errors import AliasError as AliasError
from weft.core.errors import AxisError as AxisError
from weft.core.errors import FilterError as FilterError
from weft.core.errors import MissingExtraError as MissingExtraError
from weft.core.errors import StaticError as StaticError
from weft.core.errors import StructureError as StructureError
from weft.core.errors import TraceLevelError as TraceLevelError
from weft.core.errors import WeftError as WeftError


class TraceContextError(TraceLevelError):
    """A Variable or object of one trace level, mutated from another."""


class ImmutableVariableError(WeftError, TypeError):
    """A Variable that is read-only, written to."""


class InPlaceError(WeftError, NotImplementedError):
    """`variable += x`, which would rebind a name instead of changing the Variable."""


class SowError(StructureError, TypeError):
    """A value that `sow` cannot join to what is there."""


class PrefixError(AxisError, TypeError):
    """A prefix (`in_axes`, `out_shardings`) of another form than what it is a prefix of."""


class ModeError(WeftError, NotImplementedError):
    """What does not exist in the mode asked for."""


class OptionError(WeftError, NotImplementedError):
    """An option that a transform of flax.nnx lists, and that is not carried out here."""


class AttributeKindError(WeftError, ValueError):
    """Data where a static attribute is declared, or an annotation inside of a container."""


class DuplicateError(AliasError):
    """One thing found under two paths where only trees are allowed."""


class UnwrittenMethodError(WeftError, NotImplementedError):
    """A method that a base class leaves to its subclasses, and that this one has not got."""
