"""Stand-ins for callables: a function that accepts what its annotation says and returns values of its return type.

If the annotation does not say what is returned, the stand-in returns its first argument, as an activation does. This
is an assumption, and the report says so: a failure behind it is no evidence against the contract.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from weft.core.records.leaves import is_array
from weft.typecheck.arguments.builder import BUILDERS, Builder, Scope, Unbuildable
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import Anything, CallableOf, Variable
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot, Variadic
from weft.typecheck.matching.compiling import check_of
from weft.typecheck.matching.policies import PROOF
from weft.typecheck.sizes.dim import is_same


def any_callable(builder: Builder, place: str, scope: Scope) -> Any:
    """A stand-in for a callable whose annotation says nothing."""
    return _callable(builder, CallableOf(None, Anything()), place, scope)


def _callable(builder: Builder, spec: CallableOf, place: str, scope: Scope) -> Any:
    """A function that returns what its annotation says, at the shapes of the call, or else its first argument."""
    builder.vague.add(place)

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if isinstance(spec.returns, Anything):
            same = [
                parameter
                for parameter, asked in zip(args, spec.parameters or (), strict=False)
                if asked == spec.returns
            ]
            # For `Callable[[X, T], T]`, the argument that is annotated T.
            candidates = (*(same if isinstance(spec.returns, Variable) else ()), *args, *kwargs.values())
            if not candidates:
                raise Unbuildable(f"{place}: it is called without arguments, and its annotation gives no return type")
            builder.assumed.add(place)
            return candidates[0]
        like = builder.build(spec.returns, f"{place}()", _scope_of_call(place, spec, args, scope))
        for key in builder.sizes:  # axes without a name: only the real callable knows their sizes
            if key.startswith(f"{place}()"):
                builder.open_keys.setdefault(key, place)
        arrays = [leaf for leaf in jax.tree.leaves((args, kwargs)) if is_array(leaf)]
        return jax.tree.map(lambda leaf: _made_of(arrays, leaf) if is_array(leaf) else leaf, like)

    builder.stand_ins.append((stand_in, spec))
    return stand_in


def complains(error: BaseException | None) -> bool:
    """Whether an error is a stand-in's own, raised because the program called it with wrong shapes."""
    return isinstance(error, TypeError) and isinstance(error.__context__, Mismatch)


def _made_of(arrays: list[Any], like: Any) -> Any:
    """An array of a shape and dtype; each axis depends on the one axis of the same size in an argument, if any."""
    # A result that depends on no argument would have gradients of zero, and `vmap` would leave it unbatched.
    value = jnp.zeros(like.shape, like.dtype)
    if not jnp.issubdtype(like.dtype, jnp.number):
        return value
    for array in arrays if len(arrays) <= 4 else ():
        for axis, size in enumerate(like.shape):
            sources = [source for source, length in enumerate(array.shape) if is_same(length, size)]
            if len(sources) == 1 and jnp.issubdtype(array.dtype, jnp.number):
                summed = jnp.sum(array, axis=tuple(set(range(array.ndim)) - set(sources))).astype(like.dtype)
                value += jnp.expand_dims(summed, tuple(set(range(len(like.shape))) - {axis}))
    return value


def _scope_of_call(place: str, spec: CallableOf, args: tuple[Any, ...], scope: Scope) -> Scope:
    """The scope for a callable's result: names that only the callable's annotation uses are bound by the arguments.

    Raises:
        TypeError: if the program calls the stand-in with other shapes than the annotation says.
    """
    bindings = Bindings(Slot("argument", "", spec, spec), dict)
    bindings.sizes.update(scope.bound)
    bindings.variadics.update({name: Variadic(shape, broadcastable=False) for name, shape in scope.variadics.items()})
    for number, (annotation, value) in enumerate(zip(spec.parameters or (), args, strict=False)):
        check = check_of(annotation, PROOF)
        before = bindings.snapshot()
        if check is None:
            continue
        try:
            check(value, bindings)
        except Mismatch as mismatch:
            if mismatch.reason in ("rank", "size"):
                shape = ",".join(map(str, value.shape)) if is_array(value) else ""
                raise TypeError(
                    f"{place} takes {annotation} as argument {number + 1}, and is called with [{shape}]"
                ) from None
            bindings.restore(before)
        except AnnotationError:
            bindings.restore(before)
    variadics = {name: variadic.shape for name, variadic in bindings.variadics.items()}
    return dataclasses.replace(scope, bound={**bindings.sizes, **scope.bound}, variadics=variadics)


BUILDERS[CallableOf] = _callable
