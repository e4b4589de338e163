"""The error for an input with the wrong number of features, which names the layer, its path and both sizes.

The sizes are compared only after the layer has failed. A check beforehand would refuse valid calls: a user may have
replaced the kernel by one of another shape, or pass a product that accepts other inputs.
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
    """Raised for an input whose number of features differs from the layer's."""


def names_features(sizes: Callable[[Any], Mapping[int, int]]) -> Callable[[F], F]:
    """Decorates a layer's method: if it fails on an input with the wrong sizes, a `FeatureError` explains it.

    Args:
        sizes: a function from the layer to the sizes of the feature axes of the method's first argument.
    """

    def decorate(method: F) -> F:
        first = method.__code__.co_varnames[1]  # the input may be passed as a keyword

        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                # Sizes are compared only after a failure: a kernel may have been replaced by one of another size, which
                # works, and calls that work should pay nothing.
                return method(self, *args, **kwargs)
            except (TypeError, ValueError) as error:
                # The error of an inner layer is the better explanation: its sizes are closer to the fault.
                if not isinstance(error, FeatureError) and (args or first in kwargs):
                    _explain(self, args[0] if args else kwargs[first], sizes)
                raise

        return cast(F, call)

    return decorate


def _explain(layer: Any, x: Any, sizes_of: Callable[[Any], Mapping[int, int]]) -> None:
    try:
        shape, sizes = jnp.shape(x), sizes_of(layer)
    except (TypeError, AttributeError):
        return  # no array, or a layer without the attribute: the original error says so
    wrong = {axis: size for axis, size in sizes.items() if not -len(shape) <= axis < len(shape) or shape[axis] != size}
    if not wrong:
        return
    axis, size = next(iter(wrong.items()))
    actual = shape[axis] if -len(shape) <= axis < len(shape) else "no such axis"
    where = "the last axis" if axis == -1 else f"axis {axis}"
    # In place of the op's error, which names neither the layer nor its path.
    raise FeatureError(
        f"{type(layer).__name__} takes {size} features on {where}, not {actual}",
        at=[*whereabouts.find(layer, "called"), f"input: {jax.typeof(jnp.asarray(x))}"],
        fix="check the layer's size and its input; a missing or extra axis causes this too",
    ) from None
