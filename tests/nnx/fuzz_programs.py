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


def _custom_vjp(nnx: Any) -> Callable[..., Any]:
    """Gives a function a rule of its own, made anew at each call: threefold for `x`, so that one sees whose it was."""

    def custom_vjp(
        function: Any,
        *,
        differentiate: bool = False,
        takes_updates: bool = False,
        nondiff_argnums: Any = (),
        **mode: Any,
    ) -> Any:
        def backward(args: Any, g: Any) -> Any:
            if not mode:  # with graph updates: cotangents of all that the arguments became, and the output's
                states = (nnx.filter_state(state, filters.get(i, ...)) for i, state in enumerate(g[0][:2]))
                return *states, args[2] * 3 * g[1]
            return nnx.clone(args[0], **tree), nnx.clone(args[1], **tree), args[2] * 3 * g

        def with_updates(args: Any, g: Any, *, updates_g: Any) -> Any:
            return backward(args, g + sum(leaf.sum() for leaf in jax.tree.leaves(updates_g)))

        def call(m: Any, n: Any, x: Any) -> Any:
            custom = nnx.custom_vjp(function, nondiff_argnums=nondiff_argnums, **mode)
            custom.defvjp(lambda *args: (function(*args), args), with_updates if takes_updates else backward)
            return (nnx.grad(custom, **mode) if differentiate else custom)(m, n, x)

        filters = {diff.argnum: diff.filter for diff in nondiff_argnums}
        tree = {name: value for name, value in mode.items() if name == "graph"}
        return call

    return custom_vjp


def _custom_jvp(nnx: Any) -> Callable[..., Any]:
    """JAX's own, over the State of models: twice the tangent."""

    def custom_jvp(function: Any, graph: bool) -> Any:
        def call(m: Any, n: Any, x: Any) -> Any:
            def pure(state: Any, x: Any) -> Any:
                models = nnx.merge(graphdef, state)
                # Variables alone: a plain array is never changed here, and to write it would change the structure.
                return function(*models, x), nnx.state(models, nnx.Variable, graph=graph)

            def rule(primals: Any, tangents: Any) -> Any:
                out, tangent = jax.jvp(pure, primals, tangents)
                return out, jax.tree.map(lambda t: t if t.dtype == jax.dtypes.float0 else t * 2, tangent)

            graphdef, state = nnx.split((m, n), graph=graph)
            custom = jax.custom_jvp(pure)
            custom.defjvp(rule)
            out, after = custom(state, x)
            nnx.update((m, n), after)
            return out

        return call

    return custom_jvp


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
        names |= {"custom_vjp": _custom_vjp(nnx), "custom_jvp": _custom_jvp(nnx)}
        names |= {"attempt": _attempt(nnx), "attempt_loosely": lambda function, *args: function(*args)}
        exec(code, names)  # the text is written by `fuzz_writer`
        return names["result"]

    return program
