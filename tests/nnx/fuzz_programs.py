"""Runs the text of a random program: `program_of(text)` is a function of the library, and what the text may call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import agreement
import jax
import jax.numpy as jnp


class PartialWriteError(BaseException):
    """An exception left the caller's objects changed."""


def _custom_vjp(nnx: Any, function: Any, keywords: dict[str, Any], backward: Any) -> Any:
    def call(m: Any, n: Any, x: Any) -> Any:
        custom = nnx.custom_vjp(function, **keywords)
        custom.defvjp(lambda *args: (function(*args), args), backward)
        return nnx.grad(custom, **keywords)(m, n, x)

    return call


def custom_vjp_updates(nnx: Any, function: Any, keywords: dict[str, Any]) -> Any:
    """A custom rule in its form with graph updates, differentiated."""
    return _custom_vjp(nnx, function, keywords, lambda args, g: (*g[0][:2], args[2] * g[1]))


def custom_vjp_plain(nnx: Any, function: Any, keywords: dict[str, Any]) -> Any:
    """A custom rule in its form without them."""
    return _custom_vjp(nnx, function, keywords, lambda args, g: (nnx.clone(args[0]), nnx.clone(args[1]), args[2] * g))


def pulled_back(results: Any) -> Any:
    """What `nnx.vjp` returned, the pullback applied."""
    loss, pull, *aux = results
    return loss, pull(jnp.ones(())), *aux


def like(value: Any, target: Any) -> Any:
    """A value in the shape of an array or Variable: itself, or its sum everywhere."""
    value = jnp.asarray(value, float)
    return value if value.shape == target.shape else jnp.broadcast_to(value.sum(), target.shape)


def fed(value: Any, *shape: int) -> Any:
    """An input for a layer, of one size wherever it is called: the mean of a value, times different numbers."""
    count = math.prod(shape)
    return jnp.asarray(value, float).mean() * jnp.arange(1.0, count + 1.0).reshape(shape) / count


def _stacked(nnx: Any) -> Callable[[Callable[[Any], Any], int], Any]:
    """Makes a layer whose Variables have so many leading axes of two, to be mapped over."""

    def stacked(make: Callable[[Any], Any], axes: int) -> Any:
        layer = make(nnx.Rngs(7))
        for _, variable in nnx.to_flat_state(nnx.state(layer)):
            value = variable.get_value()
            scales = (jnp.arange(2.0**axes) + 1).reshape((2,) * axes + (1,) * value.ndim)
            variable.set_value(value * scales.astype(value.dtype))
        return layer

    return stacked


def _attempt(nnx: Any) -> Callable[..., Any]:
    """Calls a function; under weft, nothing may have changed if it raises."""

    def attempt(function: Any, *args: Any) -> Any:
        members = agreement.members(nnx, args[:2])
        before = agreement.observe((members, *args), nnx)
        try:
            return function(*args)
        except Exception as error:
            after = agreement.observe((members, *args), nnx)
            if nnx.__name__.startswith("weft") and agreement.difference(before, after):
                raise PartialWriteError(agreement.difference(before, after)) from error
            raise

    return attempt


def program_of(text: str) -> Callable[[Any], Any]:
    """A program's text as a function of the library."""
    code = compile(text, "<program>", "exec")

    def program(nnx: Any) -> Any:
        devices = jax.devices()[:2]
        names = {"nnx": nnx, "jax": jax, "jnp": jnp, "P": jax.sharding.PartitionSpec, "devices": devices}
        names |= {"mesh": jax.sharding.Mesh(devices, ("i",)), "like": like, "pulled_back": pulled_back}
        names |= {"fed": fed, "stacked": _stacked(nnx)}
        names |= {"members": lambda *roots: agreement.members(nnx, *roots)}
        names |= {"custom_vjp_updates": custom_vjp_updates, "custom_vjp_plain": custom_vjp_plain}
        names |= {"attempt": _attempt(nnx), "attempt_loosely": lambda function, *args: function(*args)}
        exec(code, names)  # the text is written by `fuzz_writer`
        return names["result"]

    return program
