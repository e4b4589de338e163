"""weft's errors: one base class, and subclasses that are also the builtin that one would expect.

Every message says *what* went wrong, *where* (one `at:` line a path), *what to do* (`fix:`), and inside which
transforms it happened (`inside:`, from the frame stack at the time of raising).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import FrozenInstanceError
from typing import ClassVar

import equinox as eqx
import jax
from weft.core.frames import format_frames


class WeftError(Exception):
    """Base of every error that weft raises on purpose.

    Args:
        what: one sentence, without a full stop if it ends in a value.
        at: the places concerned, formatted paths or `path: detail` lines.
        fix: what the user can do.

    Attributes:
        of_layer: whether layers raise it about what they are given; it is told where in the model the layer is.

    >>> print(StructureError("the parts do not fit the structure", at=["model.weight"], fix="pass every part"))
    the parts do not fit the structure
      at: model.weight
      fix: pass every part
    """

    of_layer: ClassVar[bool] = False

    def __init__(self, what: str, *, at: str | Iterable[str] = (), fix: str | None = None):
        self.what = _with_articles(what)
        self.at = (at,) if isinstance(at, str) else tuple(at)
        self.fix = None if fix is None else _with_articles(fix)
        self.inside = format_frames()
        # Not `super()`: a subclass may be one of JAX's errors too, which are made of tracers.
        Exception.__init__(self, self._message())

    def _message(self) -> str:
        lines = [self.what, *(f"  at: {place}" for place in self.at)]
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        if self.inside:
            lines.append(f"  inside: {self.inside}")
        return "\n".join(lines)

    def also_at(self, place: str) -> None:
        """Adds a place to the message, before the others: where in the whole it happened, which a part did not know."""
        self.at = (place, *self.at)
        self.args = (self._message(),)

    def rename(self, names: Mapping[str, str]) -> None:
        """Calls places by other names: for who knows an argument under the user's name for it.

        Args:
            names: from the beginning of a place to what it shall be called.
        """
        places = self.at
        for old, new in names.items():
            places = tuple(new + place.removeprefix(old) if place.startswith(old) else place for place in places)
        if places != self.at:
            self.at = places
            self.args = (self._message(),)


# "a " before the name of a class, which messages are written around: Affine, Embed, Un; but a Unit, a User.
_ARTICLE = re.compile(r"\ba (?=[AEIO][a-z]|U(?!ni|se|r|til)[a-z]|(?:[AEFHILMNORSX](?=[A-Z]))[A-Z]+)")


def _with_articles(text: str) -> str:
    """A sentence with "an" where the class that it names begins with a vowel, as it is spoken.

    >>> _with_articles("a Affine in a Linear, a MLP, a Un and a Unit")
    'an Affine in a Linear, an MLP, an Un and a Unit'
    """
    return _ARTICLE.sub("an ", text)


class StructureError(WeftError, ValueError):
    """Pieces that should fit together do not: parts and structure, updates and tree, prefix and arguments."""


class FilterError(WeftError, ValueError):
    """A filter that cannot be read, that leaves a leaf unmatched, or that matches none."""


class AliasError(WeftError, ValueError):
    """One thing reached under two paths that ask for different treatment."""


class AxisError(WeftError, ValueError):
    """Axes that do not fit: inconsistent sizes, out of range, or given for what is not there."""

    of_layer = True


class StaticError(WeftError, TypeError, ValueError):
    """A static value that cannot be static: an array, something unhashable, something mutable."""


class FrozenError(WeftError, FrozenInstanceError):
    """A record that is changed in place, or given an attribute that its class does not declare."""


class SurgeryError(WeftError, AttributeError, LookupError):
    """A place in a model that `at` was asked for, and that is not there."""


class SuccessorError(WeftError, TypeError):
    """A successor of the wrong type or structure, or a record used after its successor was taken."""


class CarryError(WeftError, TypeError, ValueError):
    """A loop carry whose structure, shape, dtype or static part drifts from one iteration to the next."""


class BranchError(WeftError, TypeError):
    """Branches of one `cond` or `switch` that do not return the same thing."""


class DifferentiationError(WeftError, TypeError, ValueError):
    """Nothing to differentiate, or what cannot be differentiated: an output, a loop without a bound."""


class MissingRuleError(DifferentiationError):
    """A function with a derivative rule of its own that is called before it was given one."""


class PairError(DifferentiationError):
    """An output that is not the pair that `has_aux` asks for."""


class DonatedError(WeftError, RuntimeError, ValueError):
    """A record that was donated to an earlier call, used again. JAX raises one of the two builtins, by the call."""


class MeshError(WeftError, ValueError):
    """Arguments that lie on an explicit mesh as a transform cannot take them, or some on one and others on none."""


class TraceLevelError(WeftError, TypeError):
    """A tracer, or a mere shape, where a value is needed, or the reverse."""


class TracedValueError(WeftError, jax.errors.ConcretizationTypeError):
    """A value that Python needs, of an argument that is traced."""


class TracedBoolError(TracedValueError, jax.errors.TracerBoolConversionError):
    """A traced bool in an `if` or a `while`."""


class TracedIntegerError(TracedValueError, jax.errors.TracerIntegerConversionError):
    """A traced integer in a `range`, an index of a list, or a shape."""


class TracedArrayError(TracedValueError, jax.errors.TracerArrayConversionError):
    """A traced array given to NumPy."""


class TracedMaskError(TracedValueError, jax.errors.NonConcreteBooleanIndexError):
    """A traced mask as an index, whose result would have a shape that depends on values."""


class CheckError(WeftError, eqx.EquinoxRuntimeError):
    """A check of values that failed, in eager code or while a compiled program ran: of `weft.error_if`."""


class NonFiniteError(WeftError, FloatingPointError):
    """A value that is not finite and reached an output, under `debug.nonfinite`: where it arose, and out of what."""


class KeyReuseError(WeftError, RuntimeError):
    """A random key consumed twice, under `Keys` debugging mode."""


class MissingExtraError(WeftError, ModuleNotFoundError):
    """What needs a package that only an extra of weft installs."""


class ForeignObjectError(WeftError, TypeError):
    """An object, or a class of objects, of the real flax.nnx where one of weft.nnx is meant."""
