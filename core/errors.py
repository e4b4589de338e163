"""weft's errors: one base class, and subclasses that also derive from the builtin error that a user would catch.

Every message says *what* went wrong, *where* (an `at:` line for each path), *what to do* (`fix:`), and inside which
transforms it happened (`inside:`, from the frame stack when the error is raised).
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
        what: the problem, in one sentence, without a full stop if it ends in a value.
        at: the places, as formatted paths or `path: detail` lines.
        fix: what the user can do.

    Attributes:
        of_layer: whether layers raise it about their arguments, so that the layer's path in the model is added.

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
        # Not `super()`: a subclass may derive from one of JAX's errors too, whose constructors take a tracer.
        Exception.__init__(self, self._message())

    def _message(self) -> str:
        lines = [self.what, *(f"  at: {place}" for place in self.at)]
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        if self.inside:
            lines.append(f"  inside: {self.inside}")
        return "\n".join(lines)

    def also_at(self, place: str) -> None:
        """Adds a place before the others: a caller knows the layer's path in the whole model, which the layer does
        not."""
        self.at = (place, *self.at)
        self.args = (self._message(),)

    def rename(self, names: Mapping[str, str]) -> None:
        """Renames places: a caller may know the user's own name for an argument.

        Args:
            names: from the beginning of a place to the text that replaces it.
        """
        places = self.at
        for old, new in names.items():
            places = tuple(new + place.removeprefix(old) if place.startswith(old) else place for place in places)
        if places != self.at:
            self.at = places
            self.args = (self._message(),)


# Messages write "a " before the name of a class. It must be "an" before Affine, Embed and Un, but not before Unit or
# User.
_ARTICLE = re.compile(r"\ba (?=[AEIO][a-z]|U(?!ni|se|r|til)[a-z]|(?:[AEFHILMNORSX](?=[A-Z]))[A-Z]+)")


def _with_articles(text: str) -> str:
    """A sentence with "an" in place of "a" before a class whose spoken name begins with a vowel.

    >>> _with_articles("a Affine in a Linear, a MLP, a Un and a Unit")
    'an Affine in a Linear, an MLP, an Un and a Unit'
    """
    return _ARTICLE.sub("an ", text)


class StructureError(WeftError, ValueError):
    """The structures of two trees differ: of parts and structure, updates and tree, prefix and arguments."""


class FilterError(WeftError, ValueError):
    """A filter cannot be read, leaves a leaf unmatched, or matches none."""


class AliasError(WeftError, ValueError):
    """One array or object has two paths, which ask for different treatment."""


class AxisError(WeftError, ValueError):
    """Axes do not fit: their sizes differ, they are out of range, or an argument has no such axis."""

    of_layer = True


class StaticError(WeftError, TypeError, ValueError):
    """A value cannot be static: it is an array, unhashable, or mutable."""


class FrozenError(WeftError, FrozenInstanceError):
    """A program sets a field of a record, or an attribute that the record's class does not declare."""


class SurgeryError(WeftError, AttributeError, LookupError):
    """There is no such field, key or index in a model that `at` edits."""


class SuccessorError(WeftError, TypeError):
    """A successor is lost, ambiguous, of the wrong type or structure, or its record is used again."""


class CarryError(WeftError, TypeError, ValueError):
    """The structure, shape, dtype or static part of a loop's carry changes from one iteration to the next."""


class BranchError(WeftError, TypeError):
    """The outputs of the branches of a `cond` or `switch` differ in structure, shape, dtype or static parts."""


class DifferentiationError(WeftError, TypeError, ValueError):
    """There is nothing to differentiate, or a value that cannot be: an integer output, a loop without a bound."""


class MissingRuleError(DifferentiationError):
    """A function with a custom derivative is called before its rule is defined."""


class PairError(DifferentiationError):
    """The output is not the pair that `has_aux` asks for."""


class DonatedError(WeftError, RuntimeError, ValueError):
    """An argument was donated to an earlier call. JAX raises either builtin error, depending on the call."""


class MeshError(WeftError, ValueError):
    """The shardings of arguments on an explicit mesh do not fit the transform, or some lie on no mesh."""


class TraceLevelError(WeftError, TypeError):
    """A tracer of another trace, or a `ShapeDtypeStruct`, is used where a value is needed, or the reverse."""


class TracedValueError(WeftError, jax.errors.ConcretizationTypeError):
    """Python needs the value of an argument that is traced."""


class TracedBoolError(TracedValueError, jax.errors.TracerBoolConversionError):
    """A traced bool is used in an `if` or a `while`."""


class TracedIntegerError(TracedValueError, jax.errors.TracerIntegerConversionError):
    """A traced integer is used in a `range`, as the index of a list, or as a size."""


class TracedArrayError(TracedValueError, jax.errors.TracerArrayConversionError):
    """A traced array is passed to NumPy."""


class TracedMaskError(TracedValueError, jax.errors.NonConcreteBooleanIndexError):
    """A traced mask is used as an index: the shape of the result would depend on values."""


class CheckError(WeftError, eqx.EquinoxRuntimeError):
    """The condition of a `weft.error_if` was true, in eager code or while a compiled program ran."""


# The exceptions that traced programs gave to `error_if`, by their texts: a compiled program can hold no more than a
# text, and JAX keeps the program as long as weft keeps this.
exceptions: dict[str, Exception] = {}


def raised_by(text: str) -> Exception:
    """The exception that an `error_if` raises, from its text in a compiled program."""
    return exceptions[text].with_traceback(None) if text in exceptions else CheckError(text)


class NonFiniteError(WeftError, FloatingPointError):
    """A value that is not finite reached an output, under `debug.nonfinite`: says where it arose, and from which
    values.

    Attributes:
        lines: pairs of a word (`inputs`, `reaches`, `hint`) and a text, which only a second run of the call can tell.
    """

    def __init__(
        self, what: str, *, at: str | Iterable[str] = (), fix: str | None = None, lines: Iterable[tuple[str, str]] = ()
    ):
        self.lines = tuple(lines)
        super().__init__(what, at=at, fix=fix)

    def _message(self) -> str:
        return "\n".join([super()._message(), *(f"  {word}: {text}" for word, text in self.lines)])


class KeyReuseError(WeftError, RuntimeError):
    """A random key is used twice, under `debug_keys`."""


class MissingExtraError(WeftError, ModuleNotFoundError):
    """A feature needs a package that only an extra of weft installs."""


class ForeignObjectError(WeftError, TypeError):
    """An object, or a class of objects, of the real flax.nnx is used where one of weft.nnx is needed."""
