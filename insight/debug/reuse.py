"""`debug_keys` with errors that name the modules and lines of both uses of a key, where JAX's name neither."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Generator
from typing import Any

import jax
from jax.extend.core import JaxprEqn
from weft.core.edge._tracers import reuse
from weft.core.edge.patches import patched
from weft.core.errors import KeyReuseError
from weft.core.frames import is_users, place_of
from weft.core.records import keys
from weft.insight.calls import around_calls, name_module
from weft.insight.debug import places
from weft.insight.equations import scopes


class ReusedKeyError(KeyReuseError, jax.errors.KeyReuseError):
    """A plain JAX key is used twice, under `debug_keys`."""


@contextlib.contextmanager
def debug_keys(enabled: bool = True) -> Generator[None]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(keys.debug_keys(enabled))
        if enabled:
            stack.enter_context(around_calls(name_module, "debug_keys"))
            stack.enter_context(patched(*((reuse.module, name, _looking_for_reuse) for name in reuse.present)))
        try:
            yield
        except jax.errors.KeyReuseError as error:
            if isinstance(error, KeyReuseError):
                raise
            # Outside of a compiled function JAX looks at each call, so the running line is the second use.
            frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if is_users(frame)]
            raise _error_at([f"again in {place_of(frame)}" for frame in frames[-1:]]) from None


debug_keys.__doc__ = keys.debug_keys.__doc__


def _looking_for_reuse(look: Callable[[Any], Any], jaxpr: Any) -> Any:
    """Looks for keys that a jaxpr uses twice, and raises an error that names the equations."""
    try:
        return look(jaxpr)
    except jax.errors.KeyReuseError as error:
        # The error holds no equation, but the frame that raised it does.
        scopes_of_frames = (frame.f_locals for frame, _ in traceback.walk_tb(error.__traceback__))
        scope = next((scope for scope in scopes_of_frames if "snk" in scope), None)
        if scope is None or isinstance(error, KeyReuseError):
            raise
        second, uses = scope["eqn"], list[str]()
        key = second.invars[scope["snk"].idx]
        for eqn in scope["jaxpr"].eqns:
            if any(atom is key for atom in eqn.invars):
                uses.append(_where(eqn))
            if eqn is second:
                break
        raise _error_at([f"first used in {uses[0]}", f"again in {uses[-1]}"]) from None


def _error_at(at: list[str]) -> ReusedKeyError:
    fix = "split it: first, second = jax.random.split(key), and use each once"
    return ReusedKeyError("the same key is used twice", at=at, fix=fix)


def _where(eqn: JaxprEqn) -> str:
    modules: list[Any] = scopes(eqn)[1]
    return ", ".join((*modules[-1:], places.place_of(eqn).where))
