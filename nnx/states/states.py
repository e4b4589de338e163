"""State and FlatState: the values of a graph, by path.

A `State` is a nested mapping from attribute names to Variables, arrays or States; a `FlatState` is a sequence of
(path, value) pairs, sorted by path. Both are pytrees.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, ClassVar, TypeVar

import jax.tree_util as jtu
from weft.core.edge._nodes import register_dispatched_node
from weft.core.paths import Path, format_path
from weft.core.records.leaves import refuse_unsorted
from weft.nnx.errors import FilterError, StructureError
from weft.nnx.printing.reprlib import Attr, Object, Representable, SequenceReprMixin
from weft.nnx.states.filters import Filter, filters_to_predicates
from weft.nnx.states.packed import PackedLeaves, pack_state, unpack_state
from weft.nnx.states.traversals import flatten_mapping, flatten_to_sequence, unflatten_mapping
from weft.nnx.variable.packed import Packing, pack

V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])


class FlatState(Sequence[tuple[Path, V]], SequenceReprMixin):
    """(path, value) pairs, sorted by path.

    Args:
        items: the pairs.
        sort: whether to sort them.

    >>> FlatState([(("b", "x"), 1), (("a",), 2)], sort=True).paths
    (('a',), ('b', 'x'))
    """

    __slots__ = ("_keys", "_values")

    def __init__(self, items: Iterable[tuple[Path, V]], /, *, sort: bool):
        pairs = list(items)
        if sort:
            # Sorting mixed keys would raise a TypeError of Python that names no path.
            refuse_unsorted(dict.fromkeys(path for path, _ in pairs))
            pairs.sort(key=operator.itemgetter(0))
        self._keys: tuple[Path, ...] = tuple(path for path, _ in pairs)
        self._values: list[V] = [value for _, value in pairs]

    @staticmethod
    def from_sorted_keys_values(keys: tuple[Path, ...], values: list[Any], /) -> FlatState[Any]:
        """Makes a `FlatState` of sorted paths and their values, without copying them."""
        # Past the constructor, which would sort: each `flatten` of an object with a plan comes here with sorted paths.
        flat = object.__new__(FlatState)
        flat._keys, flat._values = keys, values
        return flat

    @property
    def paths(self) -> tuple[Path, ...]:
        return self._keys

    @property
    def leaves(self) -> list[V]:
        return self._values

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return FlatState.from_sorted_keys_values(self._keys[index], self._values[index])
        return self._keys[index], self._values[index]

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[tuple[Path, V]]:
        return iter(zip(self._keys, self._values, strict=True))

    def to_nested_state(self) -> Any:
        """Converts the pairs to a `State`."""
        return from_flat_state(self)

    def split(self, first: Filter, /, *filters: Filter) -> Any:
        """Splits the pairs by filters, one of which must match each pair. See `split_state`."""
        return single(_exhaustive(self, (first, *filters)))

    def filter(self, first: Filter, /, *filters: Filter) -> Any:
        """Splits the pairs by filters, and drops pairs that no filter matches."""
        return single(sort_flat(self, (first, *filters))[:-1])

    @staticmethod
    def merge(flat_state: Iterable[tuple[Path, Any]], /, *flat_states: Iterable[tuple[Path, Any]]) -> FlatState[Any]:
        """Joins the pairs of several flat states, sorted."""
        if not flat_states and isinstance(flat_state, FlatState):
            return flat_state
        return FlatState((pair for flat in (flat_state, *flat_states) for pair in flat), sort=True)


jtu.register_pytree_node(
    FlatState,
    lambda flat: (flat._values, flat._keys),
    lambda keys, values: FlatState.from_sorted_keys_values(keys, list(values)),
)


class State(MutableMapping[Any, Any], Representable):
    """A nested mapping from names to values, which is a pytree; its items can be read as attributes.

    Args:
        mapping: a mapping or an iterable of pairs; inner mappings are not copied.

    >>> state = State({"a": {"b": 1}})
    >>> state.a.b, state["a"]
    (1, State({
      'b': 1
    }))
    """

    def __init__(self, mapping: Any, /, *, _copy: bool = True):
        if not _copy and not isinstance(mapping, dict):
            raise StructureError(f"a State without a copy needs a dict, got {type(mapping).__name__}")
        object.__setattr__(self, "_mapping", dict(mapping) if _copy else mapping)

    _mapping: dict[Any, Any]
    # Deprecated methods, which `state_dicts` defines.
    to_pure_dict: ClassVar[Callable[..., dict[Any, Any]]]
    replace_by_pure_dict: ClassVar[Callable[..., None]]

    @property
    def raw_mapping(self) -> dict[Any, Any]:
        return self._mapping

    def __contains__(self, key: object) -> bool:
        return key in self._mapping

    def __getitem__(self, key: Any) -> Any:
        value = self._mapping[key]
        # Around the same dict, so that `state["layer"]["kernel"] = value` changes this State.
        return type(self)(value, _copy=False) if isinstance(value, dict) else value

    def __getattr__(self, key: str) -> Any:
        # `_mapping` is missing while the State is packed, and Python then calls this method for it.
        if key == "_mapping":
            return self._unpack()
        if key not in self._mapping:
            raise AttributeError(f"No attribute {key!r} in State")
        return self[key]

    def _unpack(self) -> dict[Any, Any]:
        # A State that a compiled call returned builds its dicts at the first read (see `packed`).
        known = vars(self)
        packed = known.get("_packed")
        if packed is None:
            # Another thread may have unpacked the State since Python found no mapping here.
            if "_mapping" in known:
                return known["_mapping"]
            raise AttributeError("this State has no mapping: its __init__ did not run")
        # `setdefault` is atomic: of two threads that read a packed State at once, both must get the same dicts.
        mapping = known.setdefault("_mapping", packed.unpack())
        if type(packed) is PackedLeaves:
            known.pop("_packed", None)
        return mapping

    def __getstate__(self) -> dict[str, Any]:
        # Reading the mapping unpacks a packed State, whose other attributes belong to this process.
        return {"_mapping": self._mapping}

    def __setitem__(self, key: Any, value: Any) -> None:
        if key == "__orig_class__":  # Python sets this attribute for `State[...](...)`
            object.__setattr__(self, key, value)
        else:
            self._mapping[key] = value._mapping if isinstance(value, State) else value

    __setattr__ = __setitem__

    def __delitem__(self, key: Any) -> None:
        del self._mapping[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mapping)

    def __len__(self) -> int:
        return len(self._mapping)

    def __nnx_repr__(self):
        yield Object(type(self), kv_sep=": ", start="({", end="})")
        yield from _parts(self)

    def __treescope_repr__(self, path: Any, subtree_renderer: Any) -> Any:
        import treescope

        return treescope.repr_lib.render_dictionary_wrapper(
            object_type=type(self), wrapped_dict=self._mapping, path=path, subtree_renderer=subtree_renderer
        )

    def map(self, f: Callable[[Path, Any], Any]) -> Any:
        return instead(map_state)(f, self)

    def flat_state(self) -> Any:
        return instead(to_flat_state)(self)

    @classmethod
    def from_flat_path(cls, flat_state: Any, /) -> Any:
        return instead(from_flat_state)(flat_state, cls=cls)

    def split(self, first: Filter, /, *filters: Filter) -> Any:
        return instead(split_state)(self, first, *filters)

    def filter(self, first: Filter, /, *filters: Filter) -> Any:
        return instead(filter_state)(self, first, *filters)

    @classmethod
    def merge(cls, state: Mapping[Any, Any], /, *states: Mapping[Any, Any]) -> Any:
        return instead(merge_state)(state, *states)

    def __or__(self, state: Any) -> Any:
        return merge_state(self, state) if state else self

    def __sub__(self, state: Any) -> Any:
        return instead(diff)(self, state)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _register(cls)


def instead(function: F) -> F:
    """Returns `function`, after a warning that the method which calls it is deprecated.

    The warning is for a line of this file, as in flax. Python shows DeprecationWarnings for a program's own lines by
    default, so with a larger `stacklevel` programs would print warnings that they do not print under flax.
    """
    warnings.warn(
        f"methods of State are deprecated, because State will be a plain dict; use nnx.{function.__name__}",
        DeprecationWarning,
        stacklevel=2,
    )
    return function


class _Nested(Representable):
    """Prints a State inside a State like a dict."""

    def __init__(self, state: State):
        self.state = state

    def __nnx_repr__(self):
        yield Object("", kv_sep=": ", start="{", end="}")
        yield from _parts(self.state)


def _parts(state: State) -> Iterator[Attr]:
    for key, value in state.items():
        yield Attr(repr(key), _Nested(value) if isinstance(value, State) else value)


def flatten_state(state: State) -> tuple[list[Any], tuple[Any, ...]]:
    """Returns a State's values, sorted by key, and the keys."""
    # Sorted, as JAX sorts the keys of dicts: States with the same items have the same treedef, whatever their order.
    keys = tuple(sorted(state._mapping))
    return [state._mapping[key] for key in keys], keys


def flatten_state_with_keys(state: State) -> tuple[list[Any], tuple[Any, ...]]:
    """Returns pairs of a JAX key and a value, sorted by key, and the keys."""
    values, keys = flatten_state(state)
    return [(jtu.DictKey(key), value) for key, value in zip(keys, values, strict=True)], keys


def unflatten_state(cls: type, keys: tuple[Any, ...], values: Iterable[Any]) -> Any:
    """Makes a State from sorted keys and values."""
    return cls(dict(zip(keys, values, strict=True)), _copy=False)


def _register(cls: type) -> None:
    unflatten = functools.partial(unflatten_state, cls)
    # A subclass with its own constructor or attribute access might read `_mapping` without going through `_unpack`, so
    # it is never packed.
    plain = cls.__init__ is State.__init__ and cls.__getattr__ is State.__getattr__
    packed = (pack_state, unpack_state) if plain else (pack, Packing.unpack)
    register_dispatched_node(cls, flatten_state, unflatten, flatten_state_with_keys, *packed)


_register(State)

# ---------------------------------------------------------------------- functions


def to_flat_state(state: Any) -> FlatState[Any]:
    """Converts a State to a `FlatState`.

    Raises:
        TypeError: if `state` is no mapping.

    >>> to_flat_state(State({"b": {"x": 1}, "a": 2})).paths
    (('a',), ('b', 'x'))
    """
    return FlatState(flatten_to_sequence(getattr(state, "_mapping", state)), sort=True)


def from_flat_state(flat_state: Any, *, cls: type = State) -> Any:
    """Makes a State from a mapping or pairs of path and value.

    Raises:
        TypeError: if `flat_state` is neither.

    >>> from_flat_state({("b", "x"): 1, ("a",): 2})["b"]["x"]
    1
    """
    return cls(unflatten_mapping(flat_state))


def map_state(f: Callable[[Path, Any], Any], state: Any) -> State:
    """Returns a State with `f(path, value)` in place of each value.

    Raises:
        TypeError: if `state` is no mapping.

    >>> dict(map_state(lambda path, value: (path, 2 * value), State({"a": 1})))
    {'a': (('a',), 2)}
    """
    return from_flat_state([(path, f(path, value)) for path, value in to_flat_state(state)])


def sort_flat(flat_state: Iterable[tuple[Path, Any]], filters: Sequence[Filter]) -> list[FlatState[Any]]:
    """Groups pairs by the first filter that matches; the last group has the pairs that none matches."""
    predicates = filters_to_predicates(filters)
    parts: list[list[tuple[Path, Any]]] = [[] for _ in range(len(predicates) + 1)]
    for pair in flat_state:
        path, value = pair
        place = next((i for i, test in enumerate(predicates) if test(path, value)), -1)
        parts[place].append(pair)
    return [FlatState(part, sort=False) for part in parts]


def _exhaustive(flat_state: Iterable[tuple[Path, Any]], filters: Sequence[Filter]) -> list[FlatState[Any]]:
    *parts, rest = sort_flat(flat_state, filters)
    if rest:
        raise FilterError(
            "Non-exhaustive filters, got a non-empty remainder: no filter matches these",
            at=[f"{format_path(path)}: {type(value).__name__}" for path, value in rest],
            fix="add filters for them, or end with `...` for the rest",
        )
    return parts


def single(parts: Sequence[Any]) -> Any:
    """The result of functions with several filters: a tuple, or a single part by itself."""
    return parts[0] if len(parts) == 1 else tuple(parts)


def split_flat(flat_state: FlatState[Any], filters: Sequence[Filter]) -> list[FlatState[Any]]:
    """Splits pairs by filters, one of which must match each pair; without filters there is one part."""
    return _exhaustive(flat_state, filters) if filters else [flat_state]


def split_state(state: Any, first: Filter, /, *filters: Filter) -> Any:
    """Splits a State by filters, tried in order.

    Returns:
        One State for one filter, else a tuple of States.

    Raises:
        ValueError: naming the paths that no filter matches.

    >>> small, rest = split_state(State({"a": 1, "b": 2}), lambda path, value: value < 2, ...)
    >>> dict(small), dict(rest)
    ({'a': 1}, {'b': 2})
    """
    return single([part.to_nested_state() for part in _exhaustive(to_flat_state(state), (first, *filters))])


def filter_state(state: Any, first: Filter, /, *filters: Filter) -> Any:
    """Splits a State by filters, and drops values that no filter matches. See `split_state`.

    Raises:
        TypeError: for a value that is no filter.
        ValueError: if `...` comes before another filter.

    >>> dict(filter_state(State({"a": 1, "b": 2}), lambda path, value: value < 2))
    {'a': 1}
    """
    return single([part.to_nested_state() for part in sort_flat(to_flat_state(state), (first, *filters))[:-1]])


def merge_state(state: Mapping[Any, Any], /, *states: Mapping[Any, Any], cls: type = State) -> Any:
    """Merges States; for a path in several of them, the last value counts.

    Raises:
        TypeError: if an argument is no mapping.

    >>> dict(merge_state(State({"a": 1, "b": 2}), State({"b": 3})))
    {'a': 1, 'b': 3}
    """
    if not states:
        return state if isinstance(state, cls) else cls(state)
    flat: dict[Path, Any] = {}
    for part in (state, *states):
        flat.update(flatten_mapping(part))
    return from_flat_state(flat, cls=cls)


def diff(state: Any, other: Any) -> Any:
    """Returns a State without the paths of `other`."""
    if not other:
        return state
    known = set(to_flat_state(other).paths)
    return from_flat_state([(path, value) for path, value in to_flat_state(state) if path not in known])
