"""Leaves of a tree of records: which of them are *dynamic*, and which are the same array.

A leaf is **dynamic** if JAX can trace it: arrays, tracers, `ShapeDtypeStruct`s, refs, and Python numbers. Any other
leaf (a function, a string, a dtype) is **static**: it belongs to the structure, must be hashable, and another value of
it is another structure.

The values in a `weft.Module` that are no arrays are no leaves: they are configuration, in the treedef (see
`configuration`). In equinox's own modules numbers are leaves, and count as static.

One array, or one whole record, in two places of a tree is an *alias*. Sharing costs nothing while a tree is only read.
But JAX treats each place as a leaf of its own, so an update gives the two places different values: tied weights are
tied no longer, and nobody says so. `refuse_aliases` is called wherever an update would do that.

Weft recognises an alias by the identity of the array. Inside of a transform identities differ, because JAX gives each
leaf a tracer of its own. So the positions of leaves that are the same array (`repeats_of`) are part of the crossing,
the cache key of the trace, and while the function runs weft knows which tracers stand for the same array
(`known_as_one`). It does not replace them by one tracer: a loop's carry may begin as one array in two places and
continue as two arrays.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from weft.core.caches import kept_in
from weft.core.edge import trees
from weft.core.edge.trees import PyTree, key_part
from weft.core.errors import AliasError, StaticError, StructureError
from weft.core.paths import Path, format_path
from weft.core.records.kinds import NO_ROLE, Kind, Role, field_roles
from weft.core.records.storage import fields_of, make_of_static

NUMBERS = (bool, int, float, complex)
MISSING = object()

# Entries are never removed. Two threads that add a type at once add the same answer.
_dynamic_types: dict[type, bool] = {bool: False, int: False, float: False, complex: False, str: False}
kept_in("weft.core.records.leaves", "type", _dynamic_types)
_array_types: set[type] = {jax.ShapeDtypeStruct, np.ndarray}


# Classes that stand for Python numbers while something is proved. JAX takes them for scalars, so asking it would make
# an array of each `size: int` of a record, and the record's methods could no longer use it as a size.
_stand_ins: set[type] = set()


def stand_for_numbers(*classes: type) -> None:
    """Makes the instances of some classes leaves like Python's numbers, and no arrays."""
    _stand_ins.update(classes)


def array_types() -> set[type]:
    """The array types known so far: one set for the whole process, to which `is_array` adds."""
    return _array_types


def is_array(value: object) -> bool:
    """Whether JAX can trace a value as it is; Python numbers do not count.

    >>> is_array(np.zeros(2)), is_array(1.0), is_array("relu")
    (True, False, False)
    """
    answer = _dynamic_types.get(type(value))
    if answer is not None:
        return answer
    return _learn_type(value)


def _learn_type(value: object) -> bool:
    # Whether a value is an array follows from its type, so that each type is examined once.
    if type(value) in _stand_ins:
        return False
    answer = isinstance(value, jax.Array | jax.ShapeDtypeStruct | jax.Ref | np.ndarray | np.number | np.bool_)
    # Not for a record: JAX prints the value that it refuses in its message, which would be the whole model.
    if not answer and not isinstance(value, type | eqx.Module):
        try:
            jax.typeof(value)
            answer = True
        except (TypeError, ValueError):  # a ValueError for a value with `__jax_array__`
            answer = hasattr(type(value), "__jax_array__")
    if answer:
        _array_types.add(type(value))
    _dynamic_types[type(value)] = answer
    return answer


def is_dynamic(value: object, in_record: bool) -> bool:
    """Whether a leaf is dynamic; `in_record` says whether it lies in a record of equinox's own, where numbers are
    leaves and static."""
    return is_array(value) or (not in_record and type(value) in NUMBERS)


def keeps_numbers(cls: type) -> bool:
    """Whether the records of a class have their numbers in the treedef, as those of `weft.Module`."""
    return getattr(cls, "_keeps_configuration", False)


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf: its path, what its field declares, its value, and the records around it.

    Attributes:
        path: the path, which starts with the name of the tree (a call's argument).
        role: the kind and the tags that its field declares.
        value: the leaf itself.
        dynamic: whether JAX can trace it.
        owners: the classes of the records around it, outermost first.
        root: the number of parts of the path that name the tree.
    """

    path: Path
    role: Role
    value: Any
    dynamic: bool
    owners: tuple[type, ...] = ()
    root: int = 0

    @property
    def place(self) -> Path:
        """The path without the name of the tree: filters see this one."""
        return self.path[self.root :]

    @property
    def kind(self) -> type[Kind]:
        return self.role.kind_of(self.value)

    @property
    def tags(self) -> frozenset[str]:
        return self.role.tags


def iter_leaves(tree: PyTree, path: Path = (), *, fields: list[Any] | None = None) -> Iterator[Leaf]:
    """The leaves of a tree with path and role, in the order of `jax.tree.leaves`.

    Args:
        tree: any tree.
        path: a prefix for all paths.
        fields: takes the types in each static field of equinox's own records. Treedefs compare such fields by `==`, for
            which 1, 1.0 and True are equal; the fields of weft's records are in nodes that tell these apart.
    """
    # A list, because a generator for each node would pass each leaf through all the generators above it.
    leaves: list[Leaf] = []
    _visit(leaves, tree, path, NO_ROLE, (), len(path), [] if fields is None else fields)
    return iter(leaves)


def _visit(
    leaves: list[Leaf], node: Any, path: Path, role: Role, owners: tuple[type, ...], root: int, fields: list[Any]
) -> None:
    """Adds the leaves of a node to `leaves`; `role` and `owners` are those of the fields and records around it."""
    if node is None:
        return
    if isinstance(node, eqx.Module):
        roles = field_roles(type(node))
        if not keeps_numbers(cls := cast("type[Any]", type(node))):
            fields += _makes_of_fields(node, path)
        inside = (*owners, cls)
        for name, child in record_children(node):
            _visit(leaves, child, (*path, name), roles[name].inside(role), inside, root, fields)
        return
    try:
        children = trees.flatten_one_level(node)
    except ValueError:
        refuse_unsorted(node, path)
        raise
    if children is None:
        in_record = bool(owners) and not keeps_numbers(owners[-1])
        leaves.append(Leaf(path, role, node, is_dynamic(node, in_record), owners, root))
        return
    for key, child in children[0]:
        _visit(leaves, child, (*path, key_part(key)), role, owners, root, fields)


def _makes_of_fields(record: eqx.Module, path: Path) -> Iterator[Any]:
    # Mutable values are refused: a list that was changed in place still equals itself, so that `jit` ran the program
    # that it had compiled for the old list.
    values = fields_of(record)
    for field in record.__dataclass_fields__.values():
        if field.metadata.get("static", False) and field.name in values:
            refuse_unhashable(values[field.name], lambda field=field: format_path((*path, field.name)))
            yield make_of_static(values[field.name])


def refuse_unsorted(node: object, path: Path = ()) -> None:
    """Refuses a dict whose keys cannot be sorted. JAX refuses it too, without saying which dict, or where.

    Raises:
        StructureError: naming its path.
    """
    if isinstance(node, Mapping):
        keys = list(cast("Mapping[Any, Any]", node))
        try:
            sorted(keys)
        except TypeError:
            raise StructureError(
                f"a dict in a tree must have keys that can be sorted, and these cannot be: {keys!r:.200}",
                at=format_path(path),
                fix="use keys of one type, such as strings; a dict from kinds or filters is no tree",
            ) from None


def type_of(value: Any) -> str:
    """The type of an array as JAX writes it; also of a `ShapeDtypeStruct`, and of an array with a dtype that JAX has
    not.

    >>> type_of(np.zeros(2)), type_of(jax.ShapeDtypeStruct((2, 3), "float32")), type_of(np.array(["a"]))
    ('float32[2]', 'float32[2,3]', '<U1[1]')
    """
    if not isinstance(value, jax.ShapeDtypeStruct):
        with suppress(TypeError):
            return str(jax.typeof(value))
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def refuse_unhashable(value: object, where: Callable[[], str], *, is_argument: bool = False) -> None:
    """Refuses a static value that cannot be hashed.

    Args:
        value: a static field, or an argument that is static as a whole.
        where: returns the path of the field or argument.
        is_argument: whether it is an argument.

    Raises:
        StaticError: naming the path.
    """
    try:
        hash(value)
    except TypeError:
        refuse_arrays(value, where, is_argument=is_argument)
        raise StaticError(
            f"a static value must be hashable, but this {type(value).__name__} is not: {value!r}",
            at=where(),
            fix="use a tuple for a list, a frozenset for a set, a frozen dataclass or a tuple of pairs for a dict",
        ) from None


def refuse_arrays(value: PyTree, where: Callable[[], str], *, is_argument: bool = False) -> None:
    """Refuses a static value that is or holds an array; the arguments are those of `refuse_unhashable`.

    Raises:
        StaticError: naming the array's path.
    """
    owner = "argument" if is_argument else "field"
    try:
        leaves = trees.flatten_with_path(value)[0]
    except ValueError:  # a dict from kinds, whose keys cannot be sorted
        return
    for path, leaf in leaves:
        if isinstance(leaf, jax.Array | np.ndarray):
            kind = "a traced array" if isinstance(leaf, Tracer) else "an array"
            fix = "make it an ordinary field (static fields are part of the structure, and are compared by ==)"
            if is_argument:
                fix = "leave the argument out of static_argnums and static_argnames"
            if not isinstance(leaf, Tracer):
                fix += ", or give numbers: x.item(), or a tuple of x.tolist()"
            elif is_argument:
                fix += ", or make the value static in the transform around this call, too"
            raise StaticError(
                f"{kind} in a static {owner}: {jax.typeof(leaf)}",
                at=format_path(tuple(map(key_part, path)), where()),
                fix=fix,
            ) from None


def record_children(record: eqx.Module) -> list[tuple[str, PyTree]]:
    """The dynamic fields of a record that are set, as (name, value), in field order."""
    values = fields_of(record)
    return [
        (name, values[name])
        for name, field in record.__dataclass_fields__.items()
        if name in values and not field.metadata.get("static", False)
    ]


def part_of(parent: PyTree, part: Any) -> PyTree:
    """One step along a path: a record's field, or a container's item."""
    # The items of a namedtuple have names in paths.
    if isinstance(parent, eqx.Module) or (isinstance(part, str) and hasattr(parent, "_fields")):
        return getattr(cast(Any, parent), part)
    return parent[part]


# --- aliases ----------------------------------------------------------------------------------------------------------

# From the id of a tracer to the id of an earlier tracer that stands for the same array. A trace may depend on this,
# because the crossings of the calls around, from which it follows, are part of the trace's cache key.
known: ContextVar[Mapping[int, int]] = ContextVar("weft_known_aliases", default=MappingProxyType({}))

Repeats = tuple[int, ...]


def repeats_of(values: Sequence[PyTree]) -> Repeats:
    """For each leaf the position of the first leaf that is the same array; empty if no two leaves are the same.

    >>> import jax.numpy as jnp
    >>> x, y = jnp.ones(2), jnp.ones(2)
    >>> repeats_of([x, y, x]), repeats_of([x, y, 0.5, 0.5])
    ((0, 1, 0), ())
    """
    same = known.get()
    identities = [same.get(id(value), id(value)) for value in values] if same else [*map(id, values)]
    if len(set(identities)) == len(identities):
        return ()
    first: dict[int, int] = {}
    # Only arrays: Python has one object for each small number.
    places = [first.setdefault(key, i) if is_array(values[i]) else i for i, key in enumerate(identities)]
    return () if places == [*range(len(places))] else tuple(places)


@contextlib.contextmanager
def known_as_one(repeats: Repeats, values: Sequence[PyTree]) -> Generator[None]:
    """While open, tracers whose arrays are the same count as the same; `values` are the tracers of the call, in
    order."""
    # Added to what outer transforms know: the tracers of an outer one are visible here through closures.
    same = {id(values[i]): id(values[place]) for i, place in enumerate(repeats) if place != i}
    if not same:
        yield
        return
    token = known.set({**known.get(), **same})
    try:
        yield
    finally:
        known.reset(token)


def refuse_aliases(tree: PyTree, leaves: Iterable[Leaf], root: Path, updater: str) -> None:
    """Refuses leaves that are the same array in two places.

    Args:
        tree: the tree of the leaves.
        leaves: the leaves that an update would give new values.
        root: the name of the tree in errors; the leaves' paths may start with it or not.
        updater: the function that would update them, for the error.

    Raises:
        AliasError: naming both paths, of the array or of the largest record that is the same in both places.
    """
    first: dict[int, Leaf] = {}
    same = known.get()
    shared: dict[tuple[Path, Path], None] = {}
    for leaf in leaves:
        if not is_array(leaf.value):
            continue
        earlier = first.setdefault(same.get(id(leaf.value), id(leaf.value)), leaf)
        if earlier is not leaf:
            path, alias = earlier.path[earlier.root :], leaf.path[leaf.root :]
            # The error names the largest record that is the same object at both.
            while path and alias and path[-1] == alias[-1] and _at(tree, path[:-1]) is _at(tree, alias[:-1]):
                path, alias = path[:-1], alias[:-1]
            shared[path, alias] = None
    if shared:
        raise AliasError(
            f"{updater} would give one array in two places two different values",
            at=[_described(tree, root, path, alias) for path, alias in shared],
            fix="keep it in one place, and say where else it is used: weft.Shared(model); "
            "or give each place its own: weft.tree.copy(model)",
        )


def _described(tree: PyTree, root: Path, path: Path, alias: Path) -> str:
    part = _at(tree, path)
    name = type(part).__name__ if isinstance(part, eqx.Module) else "array"
    return f"{format_path((*root, *alias))}: the same {name} as {format_path((*root, *path))}"


def _at(tree: Any, path: Path) -> Any:
    return functools.reduce(part_of, path, tree)
