"""Shared by layers' constructors and calls: parameters, and options that a constructor or a call may set.

Layers store list options as tuples: a plan would have to compare a list at each call, because it is mutable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from weft.core.errors import WeftError
from weft.modules.construct import ConfigError
from weft.modules.ops import hashable
from weft.nnx.modules.pytree import Pytree
from weft.nnx.nn.initializers import compiled
from weft.nnx.objects.attributes import data
from weft.nnx.streams.rngs import RngStream, draw_by, is_plain
from weft.nnx.variable.kinds import Param

Metadata = Mapping[str, Any]
Sizes = int | Sequence[int]
NO_METADATA: Metadata = MappingProxyType({})


def keep_options(layer: Any, arguments: Mapping[str, Any], *, but: Sequence[str] = ()) -> None:
    """Stores a constructor's arguments as attributes of the same names, except those that only make parameters.

    Args:
        layer: the layer.
        arguments: the constructor's `locals()`.
        but: further arguments to leave out.
    """
    # In the order of the parameters, which is the order of attributes in `vars(layer)` and in its text.
    for name, value in arguments.items():
        if name not in ("self", "rngs", *but) and not name.endswith(("_init", "_metadata")):
            setattr(layer, name, hashable(value))


def make_param(init: Any, rngs: Any, shape: Sizes, dtype: Any, metadata: Metadata) -> Param[Any]:
    """Creates a parameter, initialised with the next key of the stream `params`.

    Raises:
        AttributeError: if `rngs` are no `Rngs`, or have no such stream.
    """
    # By attribute and not by type: an object of the user's with streams of its own is accepted, as in flax.
    if not hasattr(rngs, "params"):
        refuse_rngs(rngs)
    stream, sizes = rngs.params, as_sizes(shape)
    # One compiled call for the key and the numbers, where it gives the same bits: eager initializers take several
    # operations each, and a model has hundreds of parameters.
    make = compiled(init, sizes, dtype) if type(stream) is RngStream and is_plain(stream) else None
    value = init(stream(), sizes, dtype) if make is None else draw_by(stream, make)
    return Param(value, **metadata)


# An AttributeError too: flax fails at `rngs.params` when it is passed a seed, and the class of an error must be flax's.
class RngsError(WeftError, AttributeError, TypeError):
    """Raised when a layer gets something else than `nnx.Rngs`."""


def refuse_rngs(rngs: Any) -> None:
    """Refuses a seed, a key or None in place of `Rngs`. An object may have streams of its own, and raises by itself.

    Raises:
        RngsError: naming the type that was passed, and how to make `Rngs`.
    """
    if not isinstance(rngs, Pytree):
        kind = type(rngs).__name__
        seed = "0" if rngs is None or callable(rngs) else "seed or key"
        raise RngsError(
            f"a layer draws its parameters from nnx.Rngs, not from {kind}", fix=f"pass rngs=nnx.Rngs({seed})"
        )


def maybe_param(use: bool, init: Any, rngs: Any, shape: Sizes, dtype: Any, metadata: Metadata) -> Any:
    """Creates a parameter if `use`; else returns None, declared as data, without drawing a key."""
    # Marked as data, because None by itself would make the attribute static, and a Param could not be assigned to it
    # later.
    return make_param(init, rngs, shape, dtype, metadata) if use else data(None)


def value_of(variable: Any) -> Any:
    """Returns a Variable's value, or None for None."""
    return None if variable is None else variable[...]


def first_given(name: str, *options: Any, owner: Any) -> Any:
    """Returns the first option that is not None: that of the call, else that of the layer.

    Raises:
        ConfigError: if all are None.
    """
    for option in options:
        if option is not None:
            return option
    layer = type(owner).__name__
    # flax's wording, which users search for: a stream is needed only because `deterministic` is False.
    why = "`deterministic` is False, but no" if name == "rngs" else "No"
    raise ConfigError(
        f"{why} `{name}` argument was provided to {layer}",
        at=layer,
        fix=f"pass it to the constructor, {layer}(..., {name}=...), or to the call, layer(x, {name}=...)"
        # Only layers with `set_view` are reached by `nnx.view`, so only for these is it a way out.
        + (f", or to all layers at once: nnx.view(model, {name}=...)" if hasattr(owner, "set_view") else ""),
    )


def as_sizes(value: Sizes) -> tuple[int, ...]:
    """Converts a size, or several, to a tuple."""
    return tuple(value) if isinstance(value, Iterable) else (value,)  # a size may be symbolic
