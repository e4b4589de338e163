"""Dtypes that drift: a successor whose array comes out with another dtype than it went in with.

`(y, successor)` is called again and again. If an array of the successor is a float32 where it was a bfloat16, the next
call compiles anew and computes in another precision, and a `scan` that carries it refuses it. No shape shows that, and
at float32, which proofs use, nothing drifts. So a contract that holds is traced twice more: all in bfloat16, as after
a cast of the whole model; and with bfloat16 for what is not in a record, as in mixed precision.

Objects of NNX are left as they are: they may hold themselves, and JAX's tree functions would not come to an end.

That a bfloat16 state which meets float32 inputs is promoted is JAX's rule, and nobody's mistake: it is not tried.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from weft.core.records.leaves import is_array
from weft.typecheck.arguments.builder import Builder, Unbuildable
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.forms import TYPEDDICT, form_of_value
from weft.typecheck.language.objects import is_object
from weft.typecheck.proofs.trial import Call, Target, Trial, run_trial

_LOW = jnp.bfloat16


def drifts(target: Target, trial: Trial, dims: Mapping[str, Any]) -> list[str]:
    """What comes out of a trial that holds with another dtype than it went in with, in words."""
    for in_records in (True, False):
        found: list[str] = []
        lowered = dataclasses.replace(target, prepare=_lowered(target.prepare, found, in_records=in_records), made={})
        try:
            again = run_trial(lowered, trial.assignment, dims)
        except (Unbuildable, AnnotationError):
            continue
        # A violation: an annotation asks for another dtype. An error: a carry of the program's own, and JAX says so.
        if found and again.ok:
            return found
    return []


def _lowered(prepare: Callable[[Builder], Call], found: list[str], *, in_records: bool) -> Callable[[Builder], Call]:
    """Arguments in bfloat16, and a function that notes what drifts."""

    def lowered(builder: Builder) -> Call:
        function, args, kwargs = prepare(builder)

        def noting(*args: Any, **kwargs: Any) -> Any:
            before = list(_records((args, kwargs)))
            dtypes = [_dtypes(one) for one in before]
            out = function(*args, **kwargs)
            for record, old in zip(before, dtypes, strict=True):
                for successor in _of_class(out, type(record)):
                    found.extend(_changes(record, old, _dtypes(successor)))
            return out

        args, kwargs = jax.tree.map(
            lambda one: one if _is_record(one) and not in_records else jax.tree.map(_low, one, is_leaf=is_object),
            (args, kwargs),
            is_leaf=_is_whole,
        )
        return noting, args, kwargs

    return lowered


def _low(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.dtype == jnp.float32:
        return jax.ShapeDtypeStruct(leaf.shape, _LOW)
    return leaf


def _is_whole(value: Any) -> bool:
    return is_object(value) or _is_record(value)


def _is_record(value: Any) -> bool:
    return (
        not is_object(value) and form_of_value(value) not in (None, TYPEDDICT) and not jax.tree_util.all_leaves([value])
    )


def _records(tree: Any) -> Iterator[Any]:
    return filter(_is_record, jax.tree.leaves(tree, is_leaf=_is_whole))


def _of_class(tree: Any, cls: type) -> Iterator[Any]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda one: type(one) is cls or is_object(one))
    return (one for one in leaves if type(one) is cls)


def _dtypes(record: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(record, is_leaf=is_object)
    return {jax.tree_util.keystr(path).lstrip("."): leaf.dtype for path, leaf in leaves if is_array(leaf)}


def _changes(record: Any, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Of a successor with the same arrays as its predecessor, those of another dtype."""
    if before.keys() == after.keys():
        for path, old in before.items():
            if after[path] != old:
                name = f"{type(record).__name__} {path}".strip()
                yield f"{name} goes in as {old} and comes out as {after[path]}: the next call compiles anew"
