"""Warnings about a contract that holds: lints of axes, and arrays whose dtypes drift.

`axis_lints` warns of axes that are not what their names say, from one trace; a lint is what several traces show.

An array of a model's state *drifts* if it leaves a step with another dtype than it entered it with. `(y, successor)` is
called again and again, and so is an object that a call changes. If an array of it is a float32 where it was a bfloat16,
the next call compiles anew and computes in another precision, and a `scan` that carries it refuses it. No shape shows
that, and at float32, which proofs use, nothing drifts. So a contract that holds is traced again. Once all floats are in
bfloat16, as after a cast of the whole model; once all arrays outside of records are, as in mixed precision. A program
that names bfloat16 itself casts back to it, so it is traced in float16, too.

JAX promotes a bfloat16 state that meets float32 inputs, by rule and by nobody's mistake, so that is not tried. Nor is
there a warning where JAX refuses a loop of the program's own because its carry drifts: noise drawn in float32 suffices
for that, in programs that nobody means to cast.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from weft.core.edge.equations import iter_equations
from weft.core.records.leaves import is_array
from weft.typecheck.arguments.builder import Builder, Unbuildable
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language import forms
from weft.typecheck.language.forms import TYPEDDICT, form_of_value, is_object
from weft.typecheck.proofs.axis_lints import Atoms, Lint, Warning_
from weft.typecheck.proofs.tracing import Call, Target, run_trial, shapes_of
from weft.typecheck.proofs.trial import Trial


def lint(
    trials: Iterable[tuple[Any, Mapping[str, int]]], own: frozenset[str], products: Sequence[Sequence[str]] = ()
) -> list[Warning_]:
    """The warnings that all of several traces show.

    In one trace a size may happen to be a multiple of another and suggest a merge that is none; not in every trace.

    Args:
        trials: closed jaxprs, each with the sizes that it was traced at; they may be made as they are asked for.
        own: files that count as the user's.
        products: the annotations' products of dims, in their order: `["h", "c"]` for `h*c`.
    """
    first: dict[Any, Warning_] | None = None
    for closed, sizes in trials:
        warnings = Lint(declared_atoms(sizes, products), own).run(closed)
        places = {(warning.rule, warning.file, warning.line): warning for warning in reversed(warnings)}
        first = places if first is None else {place: warning for place, warning in first.items() if place in places}
        if not first:
            break  # no further trace can bring a warning back, and each would have to be made
    return [warning for _, warning in sorted((first or {}).items())]


def declared_atoms(sizes: Mapping[str, int], products: Sequence[Sequence[str]]) -> dict[int, Atoms]:
    """The atoms of an axis by its size: a dim's name, or the names in a product that an annotation writes."""
    atoms: dict[int, Atoms] = {}
    for name, size in sizes.items():
        if size > 1:
            # An axis of an array without a shape has no name, and the lints warn of named axes only.
            atoms.setdefault(size, (("" if "..." in name else name, size),))
    for product in products:
        if all(sizes.get(name, 1) > 1 for name in product):
            atoms.setdefault(math.prod(sizes[name] for name in product), tuple((name, sizes[name]) for name in product))
    return atoms


def drifts(target: Target, trial: Trial, dims: Mapping[str, Any]) -> list[str]:
    """Sentences about the arrays of a state that a program returns with another dtype than they had before the call."""
    if trial.is_plain:
        return []  # a program that is given neither a record nor an object has no state that could drift
    lows = (jnp.bfloat16, jnp.float16) if _speaks_of(jnp.bfloat16, trial.jaxpr.jaxpr) else (jnp.bfloat16,)
    for low, in_records in itertools.product(lows, (True, False)):
        sentences: list[str] = []
        prepare = _lowered(target.prepare, sentences, jnp.dtype(low), in_records=in_records)
        try:
            again = run_trial(dataclasses.replace(target, prepare=prepare, made={}), trial.assignment, dims)
        except (Unbuildable, AnnotationError):
            continue
        # A trial that fails says nothing: an annotation asks for another dtype, or JAX refuses a carry that drifts.
        if sentences and again.ok:
            return sentences
    return []


def _speaks_of(dtype: Any, jaxpr: Any) -> bool:
    """Whether an operation of a jaxpr results in an array of a dtype."""
    # Not read off the jaxpr's text: a package that binds JAX's primitives itself may leave out parameters that printing
    # them needs, and its programs could not be judged.
    return any(getattr(var.aval, "dtype", None) == dtype for eqn in iter_equations(jaxpr.eqns) for var in eqn.outvars)


def _lowered(
    prepare: Callable[[Builder], Call], sentences: list[str], low: Any, *, in_records: bool
) -> Callable[[Builder], Call]:
    """Makes the target's arguments in a low precision; its function then adds a sentence for each array that drifts."""

    def lowered(builder: Builder) -> Call:
        function, args, kwargs = prepare(builder)

        def noting(*args: Any, **kwargs: Any) -> Any:
            before = list(_records((args, kwargs)))
            dtypes = [_dtypes(record_before) for record_before in before]
            variables = _dtypes_of_variables(args, kwargs)
            out = function(*args, **kwargs)
            for record, old in zip(before, dtypes, strict=True):
                successors = [_dtypes(successor) for successor in _of_class(out, type(record))]
                # If one of the records has the old dtypes, it is the successor, and the rest of its class, such as
                # points that a function returns next to it, are something else.
                if old not in successors:
                    sentences.extend(text for new in successors for text in _changes(type(record).__name__, old, new))
            sentences.extend(_changes("", variables, _dtypes_of_variables(args, kwargs)))
            return out

        return noting, *_cast((args, kwargs), low, in_records=in_records)

    return lowered


def _cast(tree: Any, low: Any, *, in_records: bool) -> Any:
    def cast(leaf: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct) and leaf.dtype == jnp.result_type(float):
            return jax.ShapeDtypeStruct(leaf.shape, low)
        return leaf

    if in_records:  # opened, since an object may hold itself, and `jax.tree.map` would not end
        return forms.closed(jax.tree.map(cast, forms.opened(tree)))
    return jax.tree.map(lambda leaf: leaf if _is_whole(leaf) else cast(leaf), tree, is_leaf=_is_whole)


def _is_whole(value: Any) -> bool:
    return is_object(value) or _is_record(value)


def _is_record(value: Any) -> bool:
    return (
        not is_object(value) and form_of_value(value) not in (None, TYPEDDICT) and not jax.tree_util.all_leaves([value])
    )


def _records(tree: Any) -> Iterator[Any]:
    return filter(_is_record, jax.tree.leaves(tree, is_leaf=_is_whole))


def _of_class(tree: Any, cls: type) -> Iterator[Any]:
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: type(node) is cls or is_object(node))
    return (node for node in leaves if type(node) is cls)


def _dtypes(record: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(record, is_leaf=is_object)
    return {jax.tree_util.keystr(path).lstrip("."): leaf.dtype for path, leaf in leaves if is_array(leaf)}


def _dtypes_of_variables(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The dtypes of the variables in objects of the program's own classes: a user can mend no layer of a library."""
    inside = forms.objects_in({**dict(enumerate(args)), **kwargs})
    own = {path for path, inner in inside if not forms.is_library(type(inner))}
    shapes = shapes_of(args, kwargs).items()
    return {variable: aval.dtype for path, (variable, aval) in shapes if path.rpartition(".")[0] in own}


def _changes(of: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each array of a successor whose dtype is not its predecessor's, if both have the same arrays."""
    # A record with other arrays is no successor: it compiles anew whatever its dtypes are.
    if before.keys() == after.keys():
        for path, old in before.items():
            if after[path] != old:
                name = f"{of} {path}".strip()
                yield f"{name} goes in as {old} and comes out as {after[path]}: the next call compiles anew"
