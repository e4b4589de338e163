"""Constructors of records: what they are refused, and the fields that they compute.

- Arguments that a constructor does not take are an error that lists its parameters, and the nearest of them.
- A record that contains itself could not be flattened by JAX. A frozen record can be put into itself while its
  constructor runs, or through a mutable value: a list, a dict, an object in a static field. JAX's flattening of such a
  tree ended in a RecursionError that named no field.
- `replace` has to know what to do with a field that the constructor computes (`field(init=False)`).
  `dataclasses.replace` calls the constructor, which computes such a field again. But a record may have changed since it
  was constructed: a field that the constructor initialised may have been trained, and its value would be lost. So the
  field is computed twice here, from the old fields and from the new ones, and the results are compared:

| | the field |
|---|---|
| both results are equal | does not depend on the replaced fields: it keeps its value |
| the record holds the first result | is derived from the replaced fields: it gets the second result |
| anything else, tracers above all | may be either: an error |
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Iterable, Mapping
from inspect import Parameter
from types import ModuleType
from typing import Any, cast, get_args, is_typeddict

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from weft.core.caches import kept_with_class
from weft.core.edge import trees
from weft.core.edge.trees import PyTree
from weft.core.errors import StructureError, WeftError
from weft.core.paths import Path, format_path
from weft.core.records.configuration import opened
from weft.core.records.leaves import is_array


class ArgumentError(WeftError, TypeError):
    """The constructor of a record is called with arguments that it does not take, or without one that it needs."""


def refused_arguments(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ArgumentError | None:
    """Returns the error for a call of a constructor, or None if its signature takes the arguments.

    It is asked after a constructor raised: to bind a signature takes longer than to make a small layer.

    >>> from weft.modules import Dropout
    >>> print(refused_arguments(Dropout, (0.5,), {"brodcast_dims": 2}))
    Dropout() got an unexpected keyword argument 'brodcast_dims'
      fix: broadcast_dims=; Dropout takes (rate, *, broadcast_dims, inference)
    """
    init = cls.__init__
    # Layers made of layers take the options of these by `**options: Unpack[LinearOptions]`, whose fields are names. In
    # a user's class the name of the type may be known to type checkers only.
    try:
        signature = inspect.signature(init, eval_str=True)
    except NameError:
        signature = inspect.signature(init)
    names = {p.name: p for p in list(signature.parameters.values())[1:]}
    last = next(reversed(names.values()), None)
    if last is not None and last.kind is Parameter.VAR_KEYWORD:
        for options in filter(is_typeddict, get_args(last.annotation)):
            del names[last.name]
            names |= {name: Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in options.__annotations__}
    signature = signature.replace(parameters=list(names.values()), return_annotation=Parameter.empty)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        wrong = next((name for name in kwargs if name not in names), "")
        nearest = "".join(f"{name}=; " for name in difflib.get_close_matches(wrong, names, 1))
        bare = [p.replace(annotation=Parameter.empty, default=Parameter.empty) for p in names.values()]
        takes = f"{cls.__qualname__} takes {signature.replace(parameters=bare)}"
        return ArgumentError(f"{cls.__qualname__}() {error}", fix=nearest + takes)
    return None


# --- records that contain themselves ----------------------------------------------------------------------------------

# Types whose values hold no other values, which are most.
_ENDS = {str, bytes, bool, int, float, complex, type(None), type}
# The search ends after this many objects: an object that leads to more belongs to the program, not to a model.
_MOST = 1_000


def refuse_cycles(record: eqx.Module, values: dict[str, Any]) -> None:
    """Refuses a record that its fields lead back to. Inner records are not searched: they were when they were made.

    Raises:
        StructureError: with the path back to it.
    """
    done: set[int] = set()
    for field, value in values.items():
        path = _way_back(record, opened(value), (field,), done)
        if path is not None:
            name = type(record).__qualname__
            raise StructureError(
                f"a {name} contains itself",
                at=format_path(path, name),
                fix="a record is a tree: hold a copy, a key or an index in its place",
            )


def _way_back(record: eqx.Module, value: Any, path: Path, done: set[int]) -> Path | None:
    """The path from a value to the record that holds it; None if the value does not lead there."""
    if value is record:
        return path
    if type(value) in _ENDS or is_array(value) or isinstance(value, eqx.Module) or id(value) in done:
        return None
    if len(done) < _MOST:
        done.add(id(value))
        for part, child in _children(value):
            path_back = _way_back(record, child, (*path, part), done)
            if path_back is not None:
                return path_back
    return None


def _children(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value).items()
    if isinstance(value, list | tuple | set | frozenset):
        return enumerate(cast("list[Any]", value))
    return () if callable(value) or isinstance(value, ModuleType) else getattr(value, "__dict__", {}).items()


# --- fields that a constructor computes -------------------------------------------------------------------------------


@kept_with_class
def computed_fields(cls: type[Any]) -> tuple[str, ...]:
    """The fields of a class of records that its constructor computes."""
    return tuple(field.name for field in dataclasses.fields(cls) if not field.init)


def computed_again(record: Any, changes: Mapping[str, Any]) -> dict[str, PyTree]:
    """The new values of a record's computed fields, when other fields are replaced.

    Args:
        record: the record before.
        changes: values for some of its fields. A computed field that is named here gets the value here.

    Returns:
        The computed fields that change, with their values as the user sees them.

    Raises:
        StructureError: if a field may be either (see the module), or the constructor cannot be called with the fields.
    """
    cls = cast("type[Any]", type(record))
    computed = [name for name in computed_fields(cls) if name not in changes and hasattr(record, name)]
    fields = {field.name: getattr(record, field.name, None) for field in dataclasses.fields(cls) if field.init}
    if not computed or not any(name in fields for name in changes):
        return {}
    try:
        before = cls(**fields)
        after = cls(**{**fields, **{name: value for name, value in changes.items() if name in fields}})
    except Exception as error:  # the constructor is the user's, and may refuse its own fields by any error
        raise _undecided(cls, computed, changes) from error
    moved = {name: getattr(after, name, None) for name in computed if not _same(getattr(before, name), after, name)}
    if unclear := [name for name in moved if not _same(getattr(before, name), record, name)]:
        raise _undecided(cls, unclear, changes)
    return moved


def _same(value: PyTree, record: Any, name: str) -> bool:
    """Whether a record's field surely holds a value; False for two tracers, whose values are unknown."""
    (leaves, treedef), (field_leaves, field_treedef) = map(trees.flatten, (value, getattr(record, name, None)))
    return treedef == field_treedef and all(map(_same_leaf, leaves, field_leaves))


def _same_leaf(a: Any, b: Any) -> bool:
    """Whether two leaves surely hold the same values; nan equals itself."""
    if a is b:
        return True
    if isinstance(a, Tracer) or isinstance(b, Tracer):
        return False
    if isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    a, b = cast(Any, np.asarray(a)), cast(Any, np.asarray(b))
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    same: Any = (a == b) | ((a != a) & (b != b))
    return bool(same.all())


def _undecided(cls: type[Any], names: Iterable[str], changes: Iterable[str]) -> StructureError:
    names, changed = list(names), ", ".join(f"{name}=..." for name in changes)
    return StructureError(
        f"the constructor of {cls.__qualname__} computes {', '.join(names)}, and it is unknown whether "
        f"{'its value depends' if len(names) == 1 else 'their values depend'} on {', '.join(changes)}",
        at=[f"{cls.__qualname__}.{name}: field(init=False)" for name in names],
        fix=f"name {'it' if len(names) == 1 else 'them'} too, "
        f"replace({changed}, {', '.join(f'{name}=...' for name in names)}), or make a new {cls.__name__}",
    )
