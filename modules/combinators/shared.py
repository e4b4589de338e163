"""Shared: one record, or one array, in several places of a model.

A record is a tree, and no leaf of a tree has two paths: JAX sees an array in two places as two leaves, and an optimizer
would give them different values. `Shared` stores the model with each shared array in *one* place, the source. The other
places are `None`, as in any sparse record, and *ties* map them to sources. A call of `Shared` fills these places:

    model = Shared(GPT(...), {"head.kernel": ("embed.embedding", jnp.transpose)})
    logits = model(tokens)         # calls the GPT; the kernel of its head is the transposed embedding

For JAX, optax and checkpoints the model has one leaf for each source: the gradients of its places are added, an
optimizer has one moment, and a file has one array.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar, cast

import equinox as eqx
import jax
from weft.core.errors import AliasError, StructureError, SuccessorError, SurgeryError
from weft.core.paths import Path, format_path
from weft.core.records.agree import describe, differences
from weft.core.records.filters import Inside
from weft.core.records.leaves import is_array, iter_leaves
from weft.core.records.module import Module, static
from weft.core.records.partition import with_leaves
from weft.core.records.surgery import at, part_at, with_parts

M = TypeVar("M", bound=eqx.Module)

Where = str | tuple[Hashable, ...]
Source = Where | tuple[Where, Callable[[Any], Any]]


@dataclass(frozen=True)
class Tie:
    """A place and its source: the place gets the array at `source`, or `function` of that array."""

    place: Path
    source: Path
    function: Callable[[Any], Any] | None = None

    def value(self, source: Any) -> Any:
        """Returns the value of the place, from the value of the source."""
        return source if self.function is None or source is None else self.function(source)


class Shared(Module, Generic[M]):
    """A model with one array or record in several places: `Shared(model, {"head.kernel": "embed.embedding"})`.

    It is called like the model, and has the model's attributes and methods. For a stateful model the call returns
    `(y, successor)`, and the successor is a `Shared`.

    Args:
        model: the record.
        ties: maps each further place to its source, or to a pair of the source and a function of it, such as
            `jnp.transpose`. Places and sources are paths (`"blocks[0].attn"`, or a tuple of the parts) of arrays, or of
            whole records of equal structure. Without ties, arrays that are the same object in several places are tied
            to the first of these places.

    Attributes:
        model: the model, with `None` in the further places.
        ties: the ties of all arrays.

    Raises:
        AliasError: if `ties` is left out and no array of the model is in two places.
        StructureError: if a place does not exist or is tied twice, or the source does not fit it.

    >>> import jax, jax.numpy as jnp
    >>> encoder, decoder = Linear(2, 3, key=jax.random.key(0)), Linear(3, 2, key=jax.random.key(1))
    >>> model = Shared(Sequential(encoder, decoder), {"layers[1].kernel": ("layers[0].kernel", jnp.transpose)})
    >>> gradient = grad(lambda model, x: model(x).sum())(model, jnp.ones(2))
    >>> [leaf.shape for leaf in jax.tree.leaves(gradient)]
    [(2, 3), (3,), (2,)]

    Source: Press and Wolf, "Using the Output Embedding to Improve Language Models", 2017.
    """

    model: Any
    ties: tuple[Tie, ...] = static()

    def __init__(self, model: M, ties: Mapping[Where, Source] | None = None):
        self.ties = _aliases(model) if ties is None else _read(model, ties)
        self.model = _without(model, self.ties)

    @property
    def value(self) -> M:
        """The model with an array in every place."""
        sources = {tie.source: part_at(self.model, tie.source) for tie in self.ties}
        return with_parts(self.model, {tie.place: tie.value(sources[tie.source]) for tie in self.ties})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the model.

        Raises:
            SuccessorError: if a shared array has two different successors.
        """
        return self._call("__call__", *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        # Called for attributes that this class lacks, which are the model's. Its own fields are missing too while
        # `__init__` runs: to look them up in the model would recurse without end.
        if name in ("model", "ties", "value") or (name.startswith("__") and name.endswith("__")):
            raise AttributeError(name)
        value = getattr(self.value, name)
        is_method = callable(value) and name not in type(self.model).__dataclass_fields__
        return functools.partial(self._call, name) if is_method else value

    def _call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        model = self.value
        result = getattr(model, name)(*args, **kwargs)
        if type(result) is type(model):
            return self._successor(model, result)
        if isinstance(result, tuple) and result and type(result[-1]) is type(model):
            return (*result[:-1], self._successor(model, result[-1]))
        return result

    def _successor(self, before: M, after: M) -> Self:
        """Returns the successor of this record, from the successor of the model."""
        # Compared by identity, because arrays under a trace cannot be compared by value.
        if after is before:
            return self
        changes: dict[Path, dict[Path, Any]] = {}
        for tie in self.ties:
            for path in (tie.source, tie.place):
                now = part_at(after, path)
                if now is not part_at(before, path):
                    changes.setdefault(tie.source, {})[path] = now
        # A change at any one place is a change of the shared array. Changes at two places would be two arrays for one
        # leaf.
        for source, changed in changes.items():
            if len(changed) > 1:
                raise SuccessorError(
                    "a shared record has a different successor in each of these places, and can only have one",
                    at=[format_path(path, type(after).__name__) for path in changed],
                    fix="hold the stateful record in one field, and call that field twice",
                )
            path, now = next(iter(changed.items()))
            if path != source:
                if any(tie.place == path and tie.function is not None for tie in self.ties):
                    raise SuccessorError(
                        "a value that a tie's function computes from a shared array was changed, and the array was not",
                        at=format_path(path, type(after).__name__),
                        fix=f"change the array itself, at {format_path(source)}",
                    )
                after = with_parts(after, {source: now})
        return self.replace(model=_without(after, self.ties))


def _without(model: Any, ties: tuple[Tie, ...]) -> Any:
    return with_leaves(model, dict.fromkeys((tie.place for tie in ties), None))


def _aliases(model: Any) -> tuple[Tie, ...]:
    first: dict[int, Path] = {}
    ties: list[Tie] = []
    # By identity: equal arrays, such as two biases of zeros, are not shared for that.
    for leaf in iter_leaves(model):
        if is_array(leaf.value):
            source = first.setdefault(id(leaf.value), leaf.path)
            if source is not leaf.path:
                ties.append(Tie(leaf.path, source))
    if not ties:
        raise AliasError(
            f"no array of this {type(model).__name__} is in two places",
            fix="tie them by name: Shared(model, {place: path of the array that it shares})",
        )
    return tuple(ties)


def _read(model: Any, ties: Mapping[Where, Source]) -> tuple[Tie, ...]:
    tied: list[Tie] = []
    for place, source in ties.items():
        function: Any = None
        if isinstance(source, tuple) and len(source) == 2 and callable(source[1]):
            source, function = cast(Any, source)
        tied += _leaf_ties(model, _path(place), _path(cast(Where, source)), function)
    places = [tie.place for tie in tied]
    wrong = [f"{format_path(path)} is tied twice" for path in dict.fromkeys(places) if places.count(path) > 1]
    wrong += [f"{format_path(tie.source)} is a source, but tied itself" for tie in tied if tie.source in places]
    if wrong:
        raise StructureError(
            "these ties contradict each other", at=wrong, fix="tie each place once, to a place that is not tied"
        )
    return tuple(tied)


def _path(where: Where) -> Path:
    return Inside(*where).path if isinstance(where, tuple) else Inside(where).path


def _leaf_ties(model: Any, place: Path, source: Path, function: Callable[[Any], Any] | None) -> list[Tie]:
    try:
        there, here = part_at(model, place), part_at(model, source)
    except KeyError as error:
        # The error of `at` for a missing path is the better one: it lists what is there.
        for path in (place, source):
            try:
                functools.reduce(operator.getitem, path, at(model))
            except SurgeryError as missing:
                raise StructureError(missing.what, at=missing.at, fix=missing.fix) from None
        raise StructureError(
            f"nothing is at {error.args[0]!r}",
            at=f"{format_path(place)}: {format_path(source)}",
            fix="give paths of this model, as errors write them: 'blocks[0].attn.kernel'",
        ) from None
    if function is not None:
        here = jax.eval_shape(function, here)
    wrong = differences(describe(there, ""), describe(here, ""), root=format_path(place))
    if wrong:
        transposed = function is None and is_array(there) and is_array(here) and there.shape == here.shape[::-1]
        raise StructureError(
            f"the value at {format_path(source)} does not fit the place that is tied to it",
            at=wrong,
            fix=f'pass a function that transposes: {{"{format_path(place)}": ("{format_path(source)}", jnp.transpose)}}'
            if transposed
            else "tie values of equal structure and shapes, or give a function that converts the source",
        )
    return [Tie((*place, *leaf.path), (*source, *leaf.path), function) for leaf in iter_leaves(there) if leaf.dynamic]
