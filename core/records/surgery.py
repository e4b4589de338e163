"""Surgery: replaces parts of a model, which are selected by a path or by a filter.

    model = at(model).blocks[2:5].attn.cache.set(cache)
    model = at(model).head.replace(dropout=0.0)
    model = at(model, InstanceOf(Linear)).apply(lambda linear: lora(linear))
    model = at(model, BatchStat).apply(jnp.zeros_like)

`at` returns a *selection*: the places of some parts. They are looked up when they are named, so that a missing field is
an error at once. Fields, keys, indices and slices lead from a selection to a smaller one, for all of its places; `set`,
`apply` or `replace` return the new model, which shares everything else with the old one. Contracts are checked once,
when all parts are replaced, so that two fields that must fit each other may be replaced one after the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import equinox as eqx
from jax.tree_util import GetAttrKey
from weft.core import hooks
from weft.core.donations import explain_deleted
from weft.core.edge import trees
from weft.core.edge.trees import PyTree, key_part
from weft.core.edge.untyped import jnp
from weft.core.errors import FilterError, SurgeryError, WeftError
from weft.core.paths import Path, format_path
from weft.core.records.configuration import field_values
from weft.core.records.filters import Any as AnyOf
from weft.core.records.filters import (
    Filter,
    Inside,
    InstanceOf,
    Maybe,
    format_filter,
    may_match_none,
)
from weft.core.records.kinds import Kind
from weft.core.records.leaves import is_array, iter_leaves
from weft.core.records.module import with_fields
from weft.core.records.sorting import sort_leaves
from weft.core.tracebacks import cutting

M = TypeVar("M")
Edit = Callable[[Any], Any]


@cutting
def at(model: M, filter: Filter = None, among: Filter = ..., /) -> At[M]:
    """Selects parts of a model, to be replaced: `at(model).blocks[2:5].attn.cache.set(cache)`.

    Args:
        model: a record, or any tree of records, containers and arrays.
        filter: the parts to select. `InstanceOf(Linear)`, or the class alone, selects the records of that class, nested
            ones too; `Inside("encoder.layers[0]")` the part at that path; any other filter selects arrays. None selects
            the model itself.
        among: selects among these parts those that have arrays, all of which match this filter:
            `at(model, Linear, PathContains("decoder"))`.

    Returns:
        A selection. Fields, keys, indices and slices lead on from it; `["name"]` is for a field with the name of one of
        its methods; an array takes an index, too. Then:

        - `set(value)` puts a value in each place;
        - `apply(f)` puts `f(part)` in the place of each part, inner ones first;
        - `replace(field=value, ...)` sets fields of each record.

    Raises:
        FilterError: if a filter matches nothing (and is no `Maybe`).
        SurgeryError: if there is no such field, key or index, naming the path.
        ContractError: at the end, if the new fields of a record break its contract, naming its path.

    >>> import jax, jax.numpy as jnp
    >>> from weft import Linear, Param, Sequential
    >>> model = Sequential(Linear(2, 3, key=jax.random.key(0)), jax.nn.relu, Linear(3, 2, key=jax.random.key(1)))
    >>> at(model).layers[0].bias.set(jnp.ones(3)).layers[0].bias.tolist()
    [1.0, 1.0, 1.0]
    >>> halved = at(model, InstanceOf(Linear)).kernel.apply(lambda kernel: kernel / 2)
    >>> bool((halved.layers[2].kernel == model.layers[2].kernel / 2).all())
    True
    """
    if filter is None:
        return At(model, (Place(),))
    places = _places(model, filter)
    if not places and not may_match_none(filter):
        sort_leaves(list(iter_leaves(model)), [filter], require_all=False)  # raises an error that lists the leaves
        raise FilterError(
            f"no part of this {type(model).__name__} matches {filter!r}", fix="check the filter, or use Maybe"
        )
    if places and among is not ...:
        places = _among(model, places, among)
        if not places and not (may_match_none(filter) or may_match_none(among)):
            raise FilterError(
                f"no part of this {type(model).__name__} matches {format_filter(filter)} and has arrays that all match "
                f"{format_filter(among)}",
                fix="check the filters, or use Maybe",
            )
    return At(model, tuple(map(Place, places)))


@dataclass(frozen=True)
class Place:
    """A part of a model.

    Attributes:
        path: the path of the part.
        index: a tuple with an index into the array at that path; empty for the whole part.
    """

    path: Path = ()
    index: tuple[Any, ...] = ()


class At(Generic[M]):
    """Some parts of a model, to be replaced; see `at`."""

    __slots__ = ("_model", "_places")

    def __init__(self, model: M, places: tuple[Place, ...]):
        self._model = model
        self._places = places

    @cutting
    def __getattr__(self, name: str) -> At[M]:
        return self._on(lambda place, part: [(_named(part, name, lambda: self._written(place)),)])

    @cutting
    def __getitem__(self, key: Any) -> At[M]:
        return self._on(lambda place, part: _keyed(part, key, lambda: self._written(place)), index=key)

    def __repr__(self) -> str:
        return f"<at {', '.join(map(self._written, self._places)) or 'nothing'}>"

    @cutting
    def set(self, value: PyTree) -> M:
        """The model with a value in each place."""
        return self.apply(lambda _: value)

    @cutting
    def apply(self, function: Edit, /) -> M:
        """The model with `function(part)` in the place of each part; of nested parts the inner ones come first."""
        edits = _Edits()
        for place in self._places:
            edits.add(place, function)
        done: list[tuple[Path, Any]] = []
        try:
            result = _edited(self._model, (), edits, done)
        except Exception as error:
            explain_deleted(error, self._model, ())
            raise
        for path, record in done:
            self._check(path, record)
        return cast(M, result)

    @cutting
    def replace(self, **fields: PyTree) -> M:
        """The model with other values in fields of each record."""
        for place in self._places:
            part = part_at(self._model, place.path)
            for name in fields:
                _named(part, name, lambda place=place: self._written(place))
        return self.apply(lambda record: with_fields(record, fields))

    def _on(self, step: Callable[[Place, Any], Iterable[Path]], index: Any = None) -> At[M]:
        """The selection to which a step leads from each place; an `index` stays at an array, as a part of it."""
        places: list[Place] = []
        for place in self._places:
            part = part_at(self._model, place.path)
            if index is not None and is_array(part) and not place.index:
                places.append(Place(place.path, (index,)))
            else:
                part = part if not place.index else part[place.index[0]]
                places += [Place((*place.path, *path)) for path in step(place, part)]
        if self._places and not places:
            raise SurgeryError(
                f"nothing is selected by [{index!r}]", at=map(self._written, self._places), fix="correct the slice"
            )
        return At(self._model, tuple(places))

    def _written(self, place: Place) -> str:
        text = format_path(place.path, type(self._model).__name__)
        return f"{text}[{place.index[0]!r}]" if place.index else text

    def _check(self, path: Path, record: Any) -> None:
        contracts = hooks.installed
        if contracts is None:
            return
        try:
            contracts.replaced(record)
        except WeftError as error:
            if path:
                error.also_at(f"in {format_path(path, type(self._model).__name__)}")
            raise


# --- the places of parts ---------------------------------------------------------------------------------------------


def _places(model: PyTree, filter: Filter) -> list[Path]:
    """The paths of the records or arrays that a filter selects."""
    if _is_class(filter):
        filter = InstanceOf(cast("type[Any]", filter))
    alternatives = _alternatives(filter)
    if alternatives:
        return list(dict.fromkeys(path for alternative in alternatives for path in _places(model, alternative)))
    if isinstance(filter, InstanceOf):
        classes = filter.classes
        return [path for path, part in _parts(model, ()) if isinstance(part, classes)]
    if isinstance(filter, Inside):
        with contextlib.suppress(KeyError):
            part_at(model, filter.path)
            return [filter.path]
        return []
    leaves = [leaf for leaf in iter_leaves(model) if leaf.dynamic]
    matches = sort_leaves(leaves, (filter,), require_all=False, require_used=False)
    return [leaf.path for leaf, match in zip(leaves, matches, strict=True) if match is not None]


def _among(model: PyTree, places: Sequence[Path], filter: Filter) -> list[Path]:
    """The places of parts with arrays, all of which match a filter."""
    leaves = [leaf for leaf in iter_leaves(model) if leaf.dynamic]
    matches = sort_leaves(leaves, (filter,), require_all=False)
    matched = {leaf.path: match is not None for leaf, match in zip(leaves, matches, strict=True)}
    inside = {place: [ok for path, ok in matched.items() if path[: len(place)] == place] for place in places}
    return [place for place in places if inside[place] and all(inside[place])]


def _alternatives(filter: Filter) -> Sequence[Filter]:
    """The filters inside of `Any`, `Maybe` or a list, if each of them selects whole parts; else none."""
    filters: Sequence[Filter] = ()
    if type(filter) in (AnyOf, Maybe):
        filters = cast(AnyOf, filter).filters
    elif isinstance(filter, (list, tuple)):
        filters = cast("Sequence[Filter]", filter)
    select_parts = all(isinstance(inner, InstanceOf | Inside) or _is_class(inner) for inner in filters)
    return filters if select_parts else ()


def _is_class(filter: Filter) -> bool:
    return isinstance(filter, type) and not issubclass(filter, Kind)


def _parts(node: PyTree, path: Path) -> Iterator[tuple[Path, PyTree]]:
    """A tree's nodes and leaves, each with its path."""
    yield path, node
    for part, child in _children(node).items():
        yield from _parts(child, (*path, part))


def _children(node: Any) -> dict[Hashable, Any]:
    """The children of a node as the user sees them, by field name, key or index; none for a leaf."""
    if isinstance(node, eqx.Module):
        return {name: value for name, value in field_values(node).items() if name in node.__dataclass_fields__}
    return {} if node is None else dict(trees.children_by_part(node))


def part_at(node: PyTree, path: Path) -> PyTree:
    """The part at a path.

    Raises:
        KeyError: if there is none.
    """
    for part in path:
        node = node[part] if type(part) is _Item else _children(node)[part]
    return node


def _has_names(part: Any) -> bool:
    """Whether the children of a node are its attributes: those of a record, or of a record that was transformed."""
    if part is None or isinstance(part, eqx.Module):
        return part is not None
    keyed, _ = trees.flatten_one_level(part) or ((), None)
    return any(isinstance(key, GetAttrKey) for key, _ in keyed)


def _named(part: Any, name: str, where: Callable[[], str]) -> Hashable:
    """The name of a field, if a part has it; raises an error that says what the part has instead."""
    by_name = _has_names(part)
    names = _children(part) if by_name else {}
    if name in names:
        return name
    kind = type(part).__name__
    if by_name and hasattr(cast("type[Any]", type(part)), name):
        fix = f"it is no field: .apply(lambda part: part.{name}(...)) replaces the part by the result of the method"
    elif by_name:
        fix = f"its fields are {', '.join(map(str, names)) or 'none'}"
    else:
        fix = "go on by index, slice or key: at(model).blocks[0]" if _children(part) else "nothing is below it"
    raise SurgeryError(f"a {kind} has no field {name!r}", at=where(), fix=fix)


class _Item(int):
    """The index of one layer of a stack, in a path: the layer that the record's `__getitem__` returns."""


def _keyed(part: Any, key: Any, where: Callable[[], str]) -> list[Path]:
    """The paths of what a key selects in a part."""
    children = _children(part)
    if isinstance(key, str) and _has_names(part):
        return [(_named(part, key, where),)]
    has_items = isinstance(part, eqx.Module) and hasattr(type(part), "__getitem__")
    if isinstance(part, list | tuple) or has_items:
        # The children of a namedtuple are called by names, but a user may count them, too.
        places: Any = list(range(len(cast(Any, part))) if has_items else children)
        try:
            selected: list[Any] = places[key] if isinstance(key, slice) else [places[key]]
        except (IndexError, TypeError):
            kind = type(cast(Any, part)).__name__
            raise SurgeryError(f"no part {key!r} in a {kind} of {len(places)}", at=where()) from None
        return [_item(part, place, where) if has_items else (place,) for place in selected]
    if key == slice(None) and children:
        return [(child,) for child in children]
    if key not in children:
        keys = ", ".join(map(repr, children)) or "none"
        raise SurgeryError(f"a {type(part).__name__} has no part {key!r}", at=where(), fix=f"its parts are {keys}")
    return [(key,)]


def _item(record: Any, number: int, where: Callable[[], str]) -> Path:
    """The path of what a record's own `__getitem__` reads: that of a field's part, or one layer of a stack."""
    value = record[number]
    for name, content in _children(record).items():
        if isinstance(content, list | tuple) and len(cast(Any, content)) == len(record) and content[number] is value:
            return (name, number)
    if not hasattr(record, "__with_items__"):
        fix = "select a field: " + ", ".join(map(str, _children(record)))
        raise SurgeryError(f"[{number}] of a {type(record).__name__} is no part of it", at=where(), fix=fix)
    return (_Item(number),)


def with_parts(tree: M, values: Mapping[Path, PyTree]) -> M:
    """A tree with other values at some paths; no contract checks its records."""
    edits = _Edits()
    for path, value in values.items():
        edits.add(Place(path), lambda _, value=value: value)
    return cast(M, _edited(tree, (), edits, None))


# --- replacing parts -------------------------------------------------------------------------------------------------


@dataclass
class _Edits:
    """The edits of a part, and of the parts below it, which are done first."""

    own: list[tuple[tuple[Any, ...], Edit]] = field(default_factory=list[tuple[tuple[Any, ...], Edit]])
    below: dict[Hashable, _Edits] = field(default_factory=dict[Hashable, "_Edits"])

    def add(self, place: Place, edit: Edit) -> None:
        node = self
        for part in place.path:
            node = node.below.setdefault(part, _Edits())
        node.own.append((place.index, edit))


def _edited(node: Any, path: Path, edits: _Edits, done: list[tuple[Path, Any]] | None) -> Any:
    """A tree after edits; `done` takes the records that were edited or rebuilt, inner ones first; None if weft makes
    the edits."""
    if edits.below:
        changes = {
            part: _edited(part_at(node, (part,)), (*path, part), below, done) for part, below in edits.below.items()
        }
        node = _rebuilt(node, changes, lenient=done is None)
    for index, edit in edits.own:
        node = jnp.asarray(node).at[index[0]].set(edit(node[index[0]])) if index else edit(node)
    if isinstance(node, eqx.Module) and done is not None:
        done.append((path, node))
    return node


def _rebuilt(node: Any, changes: dict[Hashable, Any], lenient: bool) -> Any:
    """A node with other children, by field name, key or index; layers of a stack are given by `_Item`s."""
    if isinstance(node, eqx.Module):
        items = {part: changes.pop(part) for part in list(changes) if type(part) is _Item}
        node = cast(Any, node).__with_items__(items) if items else node
        return with_fields(node, cast("dict[str, Any]", changes), lenient=lenient)
    level = trees.flatten_one_level(node)
    assert level is not None
    children = [changes.get(key_part(key), child) for key, child in level[0]]
    return trees.structure(node, lambda child: child is not node).unflatten(children)
