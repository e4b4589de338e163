"""What a program did, in terms that flax.nnx and weft.nnx share, and whether two programs did the same.

An observation is plain data: outputs, state by path, metadata and identity. What was met before is `Same(path)`, so two
observations are equal only if the same paths share the same objects.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import flax
import jax
import numpy as np
import pytest

# The release of flax whose behaviour weft.nnx has. An older one is the peer where it is all that installs.
IS_FOLLOWED = tuple(map(int, flax.__version__.split(".")[:3])) >= (0, 12, 12)
followed = pytest.mark.skipif(not IS_FOLLOWED, reason="weft.nnx follows flax 0.12.12, and this older flax differs here")

BOOKKEEPING = {"_pytree__nodes", "_pytree__state", "_pytree__plans", "_pytree__version", "_pytree__exposed"}


@dataclasses.dataclass(frozen=True)
class Same:
    """What was met before, at another path."""

    path: str


# How far rounding may take two compilations of a few operations apart: relatively, and near zero.
ROUNDING = {"float64": (1e-9, 1e-10), "complex128": (1e-9, 1e-10)}
OF_FLOAT32 = (1e-4, 1e-5)


@dataclasses.dataclass(eq=False)
class Values:
    """An array's type and values, equal up to rounding."""

    shape: tuple[int, ...]
    dtype: str
    values: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Values) or (self.shape, self.dtype) != (other.shape, other.dtype):
            return False
        if self.values is None or other.values is None:
            return self.values is other.values
        if not jax.numpy.issubdtype(self.values.dtype, jax.numpy.inexact):
            return np.array_equal(self.values, other.values)
        rtol, atol = ROUNDING.get(self.dtype, OF_FLOAT32)
        return bool(np.allclose(self.values, other.values, rtol=rtol, atol=atol, equal_nan=True))

    __hash__ = None  # type: ignore[assignment]


class Observer:
    """One observation of several values, in which identities are told apart."""

    def __init__(self, nnx: Any):
        self.nnx = nnx
        self._met: dict[int, tuple[Any, str]] = {}

    def __call__(self, value: Any, path: str = "") -> Any:
        nnx = self.nnx
        if isinstance(value, nnx.Variable | nnx.Pytree | jax.Ref):
            if id(value) in self._met:
                return Same(self._met[id(value)][1])
            self._met[id(value)] = (value, path)  # kept, so that its identity stays its own
        if isinstance(value, nnx.Variable):
            raw = value.get_value()
            metadata = value.get_metadata(exclude_required=True)
            kind = value.var_type.__name__
            return kind, self(raw, f"{path}.value"), {k: self(v, f"{path}:{k}") for k, v in sorted(metadata.items())}
        if isinstance(value, nnx.State | nnx.GraphState):
            leaves = sorted(nnx.to_flat_state(value), key=lambda pair: tuple(map(str, pair[0])))
            return "State", {"/".join(map(str, p)): self(v, f"{path}/{p}") for p, v in leaves}
        if isinstance(value, nnx.Pytree):
            attributes = {
                k: v for k, v in sorted(vars(value).items(), key=lambda kv: str(kv[0])) if k not in BOOKKEEPING
            }
            return type(value).__name__, {str(k): self(v, f"{path}.{k}") for k, v in attributes.items()}
        if isinstance(value, Mapping):  # of any class, in any order: flax gives back sorted what weft leaves alone
            pairs = sorted(value.items(), key=lambda pair: str(pair[0]))
            return {key: self(inner, f"{path}[{key!r}]") for key, inner in pairs}
        if isinstance(value, list | tuple):
            kind = "list" if isinstance(value, list) else "tuple"
            return kind, *(self(inner, f"{path}[{i}]") for i, inner in enumerate(value))
        return self._leaf(value)

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, jax.ShapeDtypeStruct):
            return Values(value.shape, str(value.dtype), None)
        if isinstance(value, jax.Ref):
            return "ref", self._leaf(value[...])
        # `jax.checkpoint` outside of jit returns a number as JAX's own `TypedInt`, which has a dtype as arrays have.
        if isinstance(value, jax.Array | np.ndarray | np.generic) or hasattr(value, "dtype"):
            if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
                value = jax.random.key_data(value)
            array = np.asarray(value)
            numeric = array.dtype != jax.dtypes.float0
            return Values(array.shape, str(array.dtype), array if numeric else None)
        if isinstance(value, type):
            return value.__name__
        if isinstance(value, int | float | complex | str | bool | None.__class__ | enum.Enum):
            return value
        return str(value) if isinstance(value, jax.sharding.PartitionSpec) else type(value).__name__


def observe(value: Any, nnx: Any) -> Any:
    """A value in terms that both libraries share."""
    return Observer(nnx)(value)


def members(nnx: Any, *roots: Any) -> list[Any]:
    """The objects and Variables in some roots, each once: what must still be the same objects afterwards."""
    members_by_id: dict[int, Any] = {}

    def visit(value: Any) -> None:
        if id(value) in members_by_id:
            return
        if isinstance(value, nnx.Variable):
            members_by_id[id(value)] = value
        elif isinstance(value, nnx.Pytree):
            members_by_id[id(value)] = value
            for name, inner in sorted(vars(value).items(), key=lambda pair: str(pair[0])):
                if name not in BOOKKEEPING:
                    visit(inner)
        elif isinstance(value, dict):
            for inner in value.values():
                visit(inner)
        elif isinstance(value, list | tuple):
            for inner in value:
                visit(inner)

    for root in roots:
        visit(root)
    return list(members_by_id.values())


def builtin_bases(error: BaseException) -> set[type]:
    """The builtin exceptions that an error is, less those that every error is."""
    bases = {base for base in type(error).__mro__ if base.__module__ == builtins.__name__}
    return bases - {object, BaseException, Exception}


def run(program: Callable[[Any], Any], nnx: Any) -> Any:
    """What a program returns, observed; or the exception that it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return observe(program(nnx), nnx)
        except Exception as error:
            return error


def difference(theirs: Any, ours: Any) -> str | None:
    """How two runs differ, or None if they agree."""
    if isinstance(theirs, Exception) and isinstance(ours, Exception):
        if builtin_bases(theirs) & builtin_bases(ours) or type(theirs).__name__ == type(ours).__name__:
            return None
        return f"another exception: {_short(theirs)} became {_short(ours)}"
    if isinstance(theirs, Exception):
        return f"only flax raises {_short(theirs)}"
    if isinstance(ours, Exception):
        return f"only weft raises {_short(ours)}"
    return _first_difference(theirs, ours, "")


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def _first_difference(theirs: Any, ours: Any, path: str) -> str | None:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        if list(theirs) != list(ours):
            return f"{path or '.'}: keys {list(theirs)} became {list(ours)}"
        pairs = [(f"{path}.{key}", theirs[key], ours[key]) for key in theirs]
    elif isinstance(theirs, tuple) and isinstance(ours, tuple) and len(theirs) == len(ours):
        pairs = [(f"{path}[{i}]", a, b) for i, (a, b) in enumerate(zip(theirs, ours, strict=True))]
    else:
        return None if theirs == ours else f"{path or '.'}: {theirs!r} became {ours!r}"
    return next((found for at, a, b in pairs if (found := _first_difference(a, b, at)) is not None), None)
