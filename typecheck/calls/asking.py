"""What a running call has bound, for code that asks jaxtyping: `isinstance(y, Float[Array, "a b"])` in its body.

jaxtyping keeps the dims of a call in a context of its own. While a function runs that asks, such a context is open and
has been told what the arguments bound; what the body binds there has to agree with the result. All by jaxtyping's
public means: a context binds what an `isinstance` in it meets, and a shape without an array is enough to meet.
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

# To a type checker these make types; here they make what `isinstance` asks.
_Shaped: Any = Shaped
_PyTree: Any = PyTree


def asks(function: Any) -> bool:
    """Whether a function's text asks jaxtyping anything: it names `isinstance`, and something of jaxtyping's.

    Most `isinstance` in a body are about other classes, and a context of jaxtyping's costs some 45 µs an eager call.
    """
    names = _names(function.__code__)
    if "print_bindings" in names:
        return True
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    known = {**function.__globals__, **{name: getattr(cell, "cell_contents", None) for name, cell in cells}}
    return "isinstance" in names and any(_is_jaxtypings(known.get(name)) for name in names)


def _names(code: CodeType) -> set[str]:
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return {*code.co_names, *code.co_freevars, *(name for one in inner for name in _names(one))}


def _is_jaxtypings(value: Any) -> bool:
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return any(str(one).partition(".")[0] == "jaxtyping" for one in (home, type(value).__module__))


@contextmanager
def told(bindings: Bindings) -> Iterator[None]:
    """A context of jaxtyping's that knows what is bound; at its end, what the result has bound must agree.

    Raises:
        ContractError: if a dim has one size in the body and another in the result.
    """
    __tracebackhide__ = True
    with jaxtyping.jaxtyped("context"):  # pyright: ignore[reportGeneralTypeIssues, reportArgumentType]
        before = _sizes(bindings)
        for name, shape in before.items():
            _meets(name, shape)
        for name, structure in bindings.structures.items():
            isinstance(structure.unflatten([0] * structure.num_leaves), _PyTree[Any, name])
        yield
        for name, shape in _sizes(bindings).items():
            if name not in before and not _meets(name, shape):
                raise ContractError(
                    f"{name} is {', '.join(map(str, shape))} in what is returned, and another in the body",
                    at=f"an isinstance in {getattr(bindings.slot.owner, '__qualname__', 'the function')}",
                )


def _sizes(bindings: Bindings) -> Mapping[str, tuple[int, ...]]:
    """The names that stand for sizes, as jaxtyping writes them, each with its axes; not those of one leaf of a tree."""
    single = {name: (size,) for name, size in bindings.sizes.items() if name.isidentifier()}
    variadics = bindings.variadics.items()
    several = {f"*{name}": one.shape for name, one in variadics if name.isidentifier() and not one.broadcastable}
    return {name: shape for name, shape in {**single, **several}.items() if all(type(size) is int for size in shape)}


def _meets(name: str, shape: tuple[int, ...]) -> bool:
    return isinstance(jax.ShapeDtypeStruct(shape, np.float32), _Shaped[jax.ShapeDtypeStruct, name])


__all__ = ["asks", "told"]
