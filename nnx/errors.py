"""Errors that only `weft.nnx` raises, and those of the core that NNX code catches.

`MISSING` is the default of arguments for which None is a valid value, so that leaving one out can be an error.
"""

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
    """Raised when a Variable or object is mutated at another trace level than its own."""


class ImmutableVariableError(WeftError, TypeError):
    """Raised for a write into a read-only Variable."""


class InPlaceError(WeftError, NotImplementedError):
    """Raised for `variable += x`, which would rebind a name instead of changing the Variable."""


class SowError(StructureError, TypeError):
    """Raised if `sow` cannot join a value to those recorded before."""


class PrefixError(AxisError, TypeError):
    """Raised if a prefix (`in_axes`, `out_shardings`) does not match the structure of its tree."""


class ModeError(WeftError, NotImplementedError):
    """Raised for an operation that the current mode does not have."""


class OptionError(WeftError, NotImplementedError):
    """Raised for an option of a flax.nnx transform that weft does not implement."""


class AttributeKindError(WeftError, ValueError):
    """Raised for data in a static attribute, or for `nnx.data` and `nnx.static` inside containers."""


class ArgumentKindError(WeftError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, AssertionError):
    """Raised for an argument of the wrong kind. It is each of the exceptions that flax raises, by whatever it does
    first with the argument, so that code which catches these catches it."""


class DuplicateError(AliasError):
    """Raised for a node with two paths in tree mode."""


class UnwrittenMethodError(WeftError, NotImplementedError):
    """Raised for a method that a subclass must define and does not."""


class Missing:
    """The type of `MISSING`."""


MISSING = Missing()
