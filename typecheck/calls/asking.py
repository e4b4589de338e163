"""Tells jaxtyping the dims of a running call, for `isinstance(y, Float[Array, "a b"])` in the function's body.

jaxtyping stores the dims of a call in a context of its own. While a function that asks jaxtyping runs, such a context
is open and knows the dims of the arguments; dims that the body binds in it must agree with the result. Only public
means are used: an `isinstance` binds its dims in the open context, and needs only an object with a shape, no array.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import Any

import jax
import jaxtyping
import numpy as np
from jaxtyping import PyTree, Shaped
from weft.typecheck.errors import ContractError
from weft.typecheck.matching.bindings import Bindings

# Static type checkers read these as types; here they are indexed at run time for `isinstance`.
_Shaped: Any = Shaped
_PyTree: Any = PyTree


def asks(function: Any) -> bool:
    """Whether a function's code may ask jaxtyping about dims: it uses `isinstance` and a name from jaxtyping.

    Most uses of `isinstance` are about other classes, and a jaxtyping context costs some 45 µs for each eager call.
    """
    names = _names(function.__code__)
    if "print_bindings" in names:
        return True
    if "isinstance" not in names:
        return False
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    known = {**function.__globals__, **{name: getattr(cell, "cell_contents", None) for name, cell in cells}}
    values = [known.get(name) for name in names]
    # `jaxtyping` itself, an annotation class or an alias such as `Scalar = Float[Array, ""]` all lead to the package.
    modules = [
        value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) for value in values
    ]
    modules += [type(value).__module__ for value in values]
    return any(str(module).partition(".")[0] == "jaxtyping" for module in modules)


def _names(code: CodeType) -> set[str]:
    # Nested functions count, because they run inside the call and ask about its dims.
    nested = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return {*code.co_names, *code.co_freevars}.union(*map(_names, nested))


@contextmanager
def sharing_dims(bindings: Bindings) -> Iterator[None]:
    """A jaxtyping context in which the call's dims are bound; at its end the dims of the result must agree.

    Raises:
        ContractError: if a dim has one size in the body and another in the result.
    """
    __tracebackhide__ = True
    with jaxtyping.jaxtyped("context"):  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
        before = _sizes(bindings)
        # Asking about a shape binds its name: jaxtyping has no public function that sets a dim.
        for name, shape in before.items():
            _meets(name, shape)
        for name, structure in bindings.structures.items():
            isinstance(structure.unflatten([0] * structure.num_leaves), _PyTree[Any, name])
        yield
        for name, shape in _sizes(bindings).items():
            if name not in before and not _meets(name, shape):
                raise ContractError(
                    f"{name} is {', '.join(map(str, shape))} in the returned value, and has another size in the body",
                    at=f"an isinstance in {getattr(bindings.slot.owner, '__qualname__', 'the function')}",
                )


def _sizes(bindings: Bindings) -> Mapping[str, tuple[int, ...]]:
    """The names with known sizes, as jaxtyping writes them, with their axes; names of single leaves are left out."""
    single = {name: (size,) for name, size in bindings.sizes.items() if name.isidentifier()}
    variadics = bindings.variadics.items()
    several = {f"*{name}": axes.shape for name, axes in variadics if name.isidentifier() and not axes.broadcastable}
    # A size that a proof or an export leaves symbolic cannot be a shape of `ShapeDtypeStruct` for jaxtyping.
    return {name: shape for name, shape in {**single, **several}.items() if all(type(size) is int for size in shape)}


def _meets(name: str, shape: tuple[int, ...]) -> bool:
    return isinstance(jax.ShapeDtypeStruct(shape, np.float32), _Shaped[jax.ShapeDtypeStruct, name])
