"""What layers' constructors and calls share: parameters, and options that either may give.

A layer keeps lists among its options as tuples: what may change unnoticed would cost a model its plan.
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


def keep_options(layer: Any, given: Mapping[str, Any], *, but: Sequence[str] = ()) -> None:
    """Keeps what a constructor was given, as attributes of the same names: all that its parameters are not made of.

    Args:
        layer: the layer.
        given: the constructor's `locals()`.
        but: arguments that are not kept either.
    """
    for name, value in given.items():
        if name not in ("self", "rngs", *but) and not name.endswith(("_init", "_metadata")):
            setattr(layer, name, hashable(value))


def make_param(init: Any, rngs: Any, shape: Sizes, dtype: Any, metadata: Metadata) -> Param[Any]:
    """A parameter, initialised with the next key of the stream `params`.

    Raises:
        AttributeError: if these are no `Rngs`, nor have such a stream.
    """
    if not hasattr(rngs, "params"):
        refuse_rngs(rngs)
    stream, sizes = rngs.params, as_sizes(shape)
    make = compiled(init, sizes, dtype) if type(stream) is RngStream and is_plain(stream) else None
    value = init(stream(), sizes, dtype) if make is None else draw_by(stream, make)
    return Param(value, **metadata)


class RngsError(WeftError, AttributeError, TypeError):
    """Something else where a layer takes `nnx.Rngs`."""


def refuse_rngs(rngs: Any) -> None:
    """Refuses a seed, a key, or nothing, in place of `Rngs`; what has streams of its own is left to say what it lacks.

    Raises:
        RngsError: naming what was given, and how to make `Rngs` of it.
    """
    if not isinstance(rngs, Pytree):
        given = type(rngs).__name__
        of_it = "0" if rngs is None or callable(rngs) else "seed or key"
        raise RngsError(
            f"a layer draws its parameters from nnx.Rngs, not from {given}", fix=f"pass rngs=nnx.Rngs({of_it})"
        )


def maybe_param(use: bool, init: Any, rngs: Any, shape: Sizes, dtype: Any, metadata: Metadata) -> Any:
    """What to assign to a parameter's attribute: one if it is used; else nothing, and no key is drawn."""
    return make_param(init, rngs, shape, dtype, metadata) if use else data(None)


def value_of(variable: Any) -> Any:
    """A Variable's value; that of nothing is nothing."""
    return None if variable is None else variable[...]


def first_given(name: str, *options: Any, owner: Any) -> Any:
    """The first option that is not `None`: the call's, then the layer's own.

    Raises:
        ConfigError: if none is given.
    """
    for option in options:
        if option is not None:
            return option
    layer = type(owner).__name__
    # Streams are asked for only where something is dropped; flax's users search for the reason.
    why = "`deterministic` is False, but no" if name == "rngs" else "No"
    raise ConfigError(
        f"{why} `{name}` argument was provided to {layer}",
        at=layer,
        fix=f"pass it to the constructor, {layer}(..., {name}=...), or to the call, layer(x, {name}=...)"
        + (f", or to all layers at once: nnx.view(model, {name}=...)" if hasattr(owner, "set_view") else ""),
    )


def as_sizes(value: Sizes) -> tuple[int, ...]:
    """A size, or several, as a tuple."""
    return tuple(value) if isinstance(value, Iterable) else (value,)  # a size may be symbolic
