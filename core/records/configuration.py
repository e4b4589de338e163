"""Configuration: the values in a record's fields that are no arrays.

A Python number, a string, a function or a dtype in a field of a `weft.Module` is *configuration*: part of the treedef,
for weft's transforms as for plain JAX, optax and `jax.tree`. So an EMA does not average `heads`, halving a model does
not halve `eps`, and `jax.jit(f)(model)` does not trace a flag.

JAX flattens a record by code that equinox generates from the declared fields, before any value is known. So the *value*
brings its own flattening: when a record has been constructed, `stored` wraps each such value into a `Static`, a pytree
node without leaves, and `Module.__getattribute__` unwraps it when the field is read:

    model.eps                               1e-06                       what everybody reads
    model.__dict__["eps"]                   a `Static` of it           what JAX flattens: no leaf, compared by value

A container may hold both (`layers=(Linear(...), jax.nn.relu)`): it is stored as a `MixedContainer`, a node with the
container's own keys whose children are stored values. A container without configuration is stored as it is. Nodes of
other libraries and equinox's own modules are not changed: their leaves stay leaves.

A function that holds arrays is no configuration: it would hide them from transforms, optimizers and checkpoints. A
partial application or a bound method is stored as a pytree (`as_tree`), as weft's transforms return one for a record. A
closure cannot be one, and is refused, as is any other object with arrays in it that is no pytree.

A number that a tree function (`jax.tree.map(lambda _: 0, model)`, a tree of axes) or `replace` puts in the place of an
array is a leaf. Contracts refuse to call a method of such a record.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import equinox as eqx
import jax
import numpy as np
from jax.core import Tracer
from weft.core.edge import trees
from weft.core.edge.trees import PyTree, TreeDef, is_tuple, key_part
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.errors import StaticError
from weft.core.makeup import hidden_in
from weft.core.paths import Path, format_path
from weft.core.records.leaves import NUMBERS, is_array, is_dynamic, keeps_numbers, refuse_arrays, refuse_unhashable
from weft.core.records.storage import NamedInErrors, Static, fields_of

_UNKNOWN: Any = object()
# The containers whose elements are stored one by one. Nodes of other libraries may refuse anything but arrays.
_CONTAINERS = (tuple, list, dict)
# Examined again at each use, because the user may have changed them.
_MUTABLE = (list, dict)


class MixedContainer(metaclass=NamedInErrors):
    """A container that holds configuration, as a pytree node whose children are its stored elements.

    Attributes:
        value: the container, as the user sees it.
        children: its elements as `stored` returns them.
        definition: the treedef of the container, with a leaf for each element.
    """

    # `_seen` is the level of the container that `_children` were stored from, by which a change in place is told; None
    # until the container is built.
    __slots__ = ("_children", "_definition", "_seen", "_value")

    def __init__(self, value: PyTree, children: Sequence[PyTree], definition: TreeDef):
        self._value = value
        self._children = children
        self._definition = definition
        self._seen = None if value is _UNKNOWN else _level(value)

    @property
    def value(self) -> PyTree:
        # Built when it is first read: after a tree function the children may be anything, such as a mask's bools.
        if self._value is _UNKNOWN:
            self._value = self._definition.unflatten(map(opened, self._children))
            self._seen = _level(self._value)
        return self._value

    @property
    def children(self) -> Sequence[PyTree]:
        self._look_again()
        return self._children

    @property
    def definition(self) -> TreeDef:
        self._look_again()
        return self._definition

    def _look_again(self) -> None:
        """Stores the elements again if the user has changed the list or dict, so that JAX sees what the user reads."""
        if not isinstance(self._value, _MUTABLE):
            return
        container = cast(Any, self._value)
        level = _level(container)
        if self._seen is None or not level.is_same(self._seen):
            self._children = _stored_elements(container, "a container")
            self._definition, self._seen = _definition_of(container), level

    def keyed_children(self) -> list[tuple[object, PyTree]]:
        """Each child with its key in the container."""
        children = self.children
        keyed, _ = trees.flatten_one_level(self.definition.unflatten(children)) or ((), None)
        return [(key, child) for (key, _), child in zip(keyed, children, strict=True)]

    def __repr__(self) -> str:
        return repr(self.value)

    def __reduce__(self) -> tuple[Callable[[Any], Any], tuple[Any]]:
        # The stored elements, because each `Static` says how it is pickled.
        return _mixed, (self.definition.unflatten(self.children),)


MixedContainer.__name__ = "container of a record that holds configuration"
trees.register_node_with_keys(
    MixedContainer,
    lambda node: (node.keyed_children(), node.definition),
    lambda definition, children: MixedContainer(_UNKNOWN, tuple(children), definition),
    lambda node: (node.children, node.definition),
)


def _mixed(container: PyTree) -> MixedContainer:
    return MixedContainer(_UNKNOWN, tuple(_level(container).elements), _definition_of(container))


class StoredPartial(jax.tree_util.Partial):
    """A partial application as a pytree: function, arguments and keywords are stored like the fields of a record.

    `jax.tree_util.Partial` keeps its function in the treedef, which hides the arrays of a record, and traces numbers.
    """

    def __new__(cls, func: Callable[..., Any], /, *args: Any, **keywords: Any) -> StoredPartial:
        return functools.partial.__new__(cls, func, *args, **keywords)


def _applied(_: None, children: Iterable[PyTree]) -> StoredPartial:
    function, args, keywords = map(opened, children)
    return StoredPartial(function, *args, **keywords)


trees.register_node_with_keys(
    StoredPartial,
    lambda node: (
        [(jax.tree_util.GetAttrKey(name), stored(getattr(node, name))) for name in ("func", "args", "keywords")],
        None,
    ),
    _applied,
    lambda node: (tuple(map(stored, (node.func, node.args, node.keywords))), None),
)


def as_tree(function: Any) -> Any:
    """A function as a pytree that holds its arrays, if it is a method of a record, or a partial application with arrays
    among its parts; any other function as it is.

    >>> as_tree(len), jax.tree.leaves(as_tree(functools.partial(max, jax.numpy.ones(()), 2)))
    (<built-in function len>, [Array(1., dtype=float32)])
    """
    # Equinox does the same for methods, but not for `__call__` and other special methods.
    kind = cast("type[Any]", type(function))
    if kind is types.MethodType and isinstance(function.__self__, eqx.Module):
        return StoredPartial(function.__func__, function.__self__)
    # JAX's own `Partial` is a pytree already, but its function is in the treedef. Where that function is a tree itself,
    # its arrays would be hidden there, so the `Partial` is replaced, too.
    hides = kind is jax.tree_util.Partial and trees.children_of(as_tree(function.func)) is not None
    if hides or kind is functools.partial:
        parts = as_tree(function.func), function.args, function.keywords
        if any(map(_has_arrays, trees.flatten(parts, lambda node: not isinstance(node, _CONTAINERS))[0])):
            applied = StoredPartial(parts[0], *function.args, **function.keywords)
            # Flattened as a test: an argument without a hash is no configuration, and the function stays as it is.
            with contextlib.suppress(StaticError):
                trees.flatten(applied)
                return applied
    return function


def refuse_hidden_arrays(value: Any, where: str) -> None:
    """Refuses a value that is no pytree and holds arrays, or a record with arrays.

    Arrays that are being traced do not count: a record that is made inside a trace may use them there, and none leaves
    the trace unseen. Nor do NumPy arrays, which are constants.

    Raises:
        StaticError: naming the places.
    """
    hidden = hidden_in(value, _has_arrays)
    if hidden:
        is_array = isinstance(hidden[0][1], jax.Array)
        raise StaticError(
            f"a {type(value).__name__} that is no pytree hides "
            + ("an array" if is_array else f"a {type(hidden[0][1]).__name__} with arrays")
            + " from transforms, optimizers and checkpoints",
            at=where + hidden[0][0],
            fix="keep the arrays in fields and apply the function in a method; or transform a record by weft, "
            "weft.vmap(record), which is a pytree; or declare the field static, weft.static(), if they are constants",
        )


def _has_arrays(value: Any) -> bool:
    """Whether a value that is no container is an array, but no constant of NumPy's, or a tree with arrays."""
    if isinstance(value, _CONTAINERS) or trees.children_of(value) is None:
        return isinstance(value, jax.Array) and not isinstance(value, Tracer)
    return any(is_array(leaf) and not isinstance(leaf, Tracer) for leaf in trees.flatten(value)[0])


def stored(value: PyTree, where: str | None = None) -> PyTree:
    """A field's value as a record stores it: the value itself, or a node that makes it part of the treedef.

    Args:
        value: the value of the field.
        where: the field, for errors; without it, the value may hide arrays.

    Raises:
        StaticError: if the value is no array and cannot be hashed, or hides arrays.

    >>> stored(3).value, stored((1, "same")).value
    (3, (1, 'same'))
    >>> jax.tree.leaves(stored({"heads": 8, "scale": jax.numpy.ones(2)}))
    [Array([1., 1.], dtype=float32)]
    """
    # These are children of a tree already. Inner records have stored their own configuration.
    if value is None or is_stored(value) or isinstance(value, eqx.Module) or is_array(value):
        return value
    value = as_tree(value)
    if trees.children_of(value) is not None:
        if isinstance(value, _CONTAINERS):
            return _stored_container(value, where)
        if where is not None and callable(value):
            # The parts of a partial application, and the record that a transformed function holds.
            for name in ("func", "args", "keywords", "function"):
                stored(getattr(value, name, None), f"{where}.{name}")
            refuse_hidden_arrays(getattr(value, "definitions", None), f"{where}.definitions")
        return value
    refuse_unhashable(value, lambda: where or "")
    if where is not None:
        refuse_hidden_arrays(value, where)
    return Static(value)


def _stored_container(value: PyTree, where: str | None) -> PyTree:
    children = _stored_elements(value, where)
    # A container of arrays and records alone stays the plain container that JAX knows.
    if _are_same(children, _level(value).elements):
        return value
    # A tuple of configuration alone is one static value. A list is not, since it can be changed in place.
    if isinstance(value, tuple) and all(child is None or type(child) is Static for child in children):
        return Static(cast(object, value))
    return MixedContainer(value, children, _definition_of(value))


def stored_in_place(value: PyTree, old: PyTree, where: str = "") -> PyTree:
    """A field's new value as a record stores it, in the place of an old one.

    A number in the place of an array is a leaf, as if a tree function had put it there: as configuration it would be no
    child at all, and the two records would have different treedefs. `model.replace(weight=0)` makes a tree of axes so.

    Args:
        value: the new value of the field.
        old: the old value, as the record stored it.
        where: the field, for errors.

    >>> one = jax.numpy.ones(2)
    >>> type(stored_in_place(0, one)), type(stored_in_place(0, Static(1))), stored_in_place((0, None), (one, one))
    (<class 'int'>, configuration of a record, (0, None))
    """
    if type(value) in NUMBERS:
        return value if type(old) in NUMBERS or (old is not None and is_array(old)) else stored(value, where)
    kind = cast("type[Any]", type(value))
    if not issubclass(kind, _CONTAINERS) or type(opened(old)) is not kind or type(old) is Static:
        return stored(value, where)
    # Element by element, for containers of one type and the same keys: an axis in the place of an array deep in a tuple
    # of layers must be a leaf too.
    before, now = _level(opened(old)), _level(value)
    if len(before.elements) != len(now.elements) or before.data != now.data:
        return stored(value, where)
    old_children = old.children if type(old) is MixedContainer else before.elements
    places = [format_path((part,), where) for part, _ in trees.children_by_part(value)]
    children = [stored_in_place(*row) for row in zip(now.elements, old_children, places, strict=True)]
    if type(old) is MixedContainer:
        return MixedContainer(value, children, _definition_of(value))
    return value if _are_same(children, now.elements) else stored(value, where)


def _stored_elements(value: Any, where: str | None) -> list[Any]:
    """The elements of a container as a record stores them; `where` is the container, for errors, as in `stored`."""
    return [
        stored(element, None if where is None else format_path((part,), where))
        for part, element in trees.children_by_part(value)
    ]


class _Level(NamedTuple):
    """The elements of a container, and its auxiliary data as a pytree node (the keys of a dict)."""

    elements: list[Any]
    data: Any

    def is_same(self, before: _Level) -> bool:
        """Whether a container with these elements was not changed in place since it had those."""
        return self.data == before.data and _are_same(self.elements, before.elements)


def _level(value: Any) -> _Level:
    elements, data = cast(Any, trees.children_of(value))
    return _Level(list(elements), data)


def _are_same(elements: Sequence[Any], before: Sequence[Any]) -> bool:
    """Whether two sequences hold the same objects."""
    return len(elements) == len(before) and all(map(operator.is_, elements, before))


def _definition_of(value: Any) -> TreeDef:
    """The treedef of a container, with a leaf for each element."""
    return trees.structure(value, lambda node: node is not value)


_STORED = (Static, MixedContainer)


def opened(value: PyTree) -> PyTree:
    """The inverse of `stored`: the value as the user sees it."""
    return value.value if is_stored(value) else value


def is_stored(node: object) -> bool:
    """Whether a node of a tree wraps a field's value."""
    return type(node) in _STORED


def spelled_out(tree: PyTree, mark: Callable[[PyTree], object] = lambda leaf: leaf) -> PyTree:
    """A tree in which configuration is unwrapped, so that it is among the leaves.

    Args:
        tree: any tree.
        mark: gives the leaf for a configuration value.
    """

    def spell(node: PyTree) -> PyTree:
        if type(node) is Static:
            return jax.tree.map(mark, node.value)
        return node.definition.unflatten(map(spell_all, node.children)) if type(node) is MixedContainer else node

    def spell_all(tree: PyTree) -> PyTree:
        return jax.tree.map(spell, tree, is_leaf=is_stored)

    return spell_all(tree)


def stored_static(value: object, where: str) -> Static:
    """The value of a field that is declared static, as a record stores it.

    Raises:
        StaticError: if the value holds an array, or cannot be hashed; naming the field, and the path inside the value.
    """
    if type(value) is Static:
        return value
    refuse_arrays(value, lambda: where)
    refuse_unhashable(value, lambda: where)
    # A treedef holds the record itself, which would equal itself after a list in it was mutated.
    if isinstance(value, eqx.Module):
        for node in trees.flatten(value, lambda node: type(node) is MixedContainer)[0]:
            refuse_unhashable(node.value, lambda: where)
    return Static(_in_python(value))


def _in_python(value: Any) -> Any:
    """A static value with Python's numbers in the place of NumPy's, which equinox takes for arrays."""
    if is_tuple(value):
        return untyped_jax.tree.map(_in_python, value)
    return cast(Any, value).item() if isinstance(value, np.number | np.bool_) else value


def field_values(record: eqx.Module) -> dict[str, PyTree]:
    """The values of a record's fields that are set, by name, as the user sees them."""
    return {
        name: value.value if type(value) in _STORED else value  # `opened`, inlined: this runs at each call of a method
        for name, value in fields_of(record).items()
    }


def iter_configuration(tree: PyTree, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """The configuration of a tree, as (path, value), in the order of its fields.

    It lists every value in its records that is no array: numbers, strings, functions, dtypes, static fields; also in
    equinox's own modules. Outside of records it lists leaves that are no arrays, except numbers, which JAX traces
    there.

    >>> dict(iter_configuration({"layer": stored((4, "same")), "w": jax.numpy.ones(2), "act": len}, ("model",)))
    {('model', 'act'): <built-in function len>, ('model', 'layer'): (4, 'same')}
    """
    return _configuration(tree, path, in_record=False)


def _configuration(node: PyTree, path: Path, *, in_record: bool) -> Iterator[tuple[Path, object]]:
    # `in_record` as in `is_dynamic`: whether the innermost record around is equinox's own, in which numbers are static.
    if node is None:
        return
    if type(node) is Static:
        yield path, node.value
    elif isinstance(node, eqx.Module):
        in_record = not keeps_numbers(type(node))
        values = fields_of(node)
        # In the order of declaration: the order in which a constructor sets fields may differ between equal records.
        for name, field in node.__dataclass_fields__.items():
            if name in values and field.metadata.get("static", False):
                yield (*path, name), opened(values[name])
            elif name in values:
                yield from _configuration(values[name], (*path, name), in_record=in_record)
    else:
        level = trees.flatten_one_level(node)
        if level is not None:
            for key, child in level[0]:
                yield from _configuration(child, (*path, key_part(key)), in_record=in_record)
        elif not is_dynamic(node, in_record):
            yield path, node
