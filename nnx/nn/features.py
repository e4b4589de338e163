"""Inputs whose features are not those of a layer: the commonest mistake, as an error that names the layer and its path.

Nothing is checked beforehand: a layer whose kernel was replaced, or whose product is the user's own, may take what its
options do not say. Only when the layer has failed are the sizes compared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from weft.core.errors import AxisError
from weft.nnx.graphs import whereabouts

F = TypeVar("F", bound=Callable[..., Any])


class FeatureError(AxisError, TypeError):
    """An input with other features than its layer takes."""


def names_features(sizes: Callable[[Any], Mapping[int, int]]) -> Callable[[F], F]:
    """Makes a method of a layer say what is wrong if it fails on an input of other sizes.

    Args:
        sizes: given the layer, the size of each axis of features of the method's first argument.
    """

    def decorate(method: F) -> F:
        first = method.__code__.co_varnames[1]  # an input may come by its name

        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except (TypeError, ValueError) as error:
                if not isinstance(error, FeatureError) and (args or first in kwargs):
                    _explain(self, args[0] if args else kwargs[first], sizes)
                raise

        return cast(F, call)

    return decorate


def _explain(layer: Any, x: Any, sizes_of: Callable[[Any], Mapping[int, int]]) -> None:
    try:
        shape, sizes = jnp.shape(x), sizes_of(layer)
    except (TypeError, AttributeError):
        return  # it is no array at all, or the layer lacks an attribute, and that is what the error says
    wrong = {axis: size for axis, size in sizes.items() if not -len(shape) <= axis < len(shape) or shape[axis] != size}
    if not wrong:
        return
    axis, size = next(iter(wrong.items()))
    found = shape[axis] if -len(shape) <= axis < len(shape) else "no such axis"
    where = "the last axis" if axis == -1 else f"axis {axis}"
    raise FeatureError(
        f"{type(layer).__name__} takes {size} features on {where}, not {found}",
        at=[*whereabouts.find(layer, "called"), f"input: {jax.typeof(jnp.asarray(x))}"],
        fix="check the layer's size, or what comes before it; a missing or extra axis shows here too",
    ) from None
