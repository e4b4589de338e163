"""Conversions between stateful NNX modules and immutable weft records, and pure functions from stateful models.

A record made by `to_record` mirrors a module: it has a field for each attribute with Variables or arrays, records for
submodules, and raw arrays as leaves. The kind of a leaf is its Variable's type, so weft's filters apply. Everything
else (classes, static attributes, metadata, sharing) is the record's static structure, from which `from_record` makes an
equal module. A Variable with several paths is in the record once, at its first path: tied weights stay tied, and have
one gradient.

    record = nnx.to_record(model)
    apply = nnx.functional(model)                   # (record, *args) -> (out, updates)
    out, updates = weft.jit(apply)(record, x)
    record = weft.tree.update(record, updates)
    out, record = record(x)                         # the same, as weft's own stateful layers do it
    model = nnx.from_record(record)
"""

from __future__ import annotations

import functools
import keyword
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from weft.core.caches import cached_by
from weft.core.paths import Path, format_path
from weft.core.records import kinds, partition
from weft.core.records.leaves import NUMBERS
from weft.core.records.module import Module, static
from weft.nnx.errors import StructureError
from weft.nnx.foreign import refuse_foreign
from weft.nnx.graphs.definitions import GraphDef
from weft.nnx.graphs.nodes import child_items, is_graph_node
from weft.nnx.graphs.plan import is_object
from weft.nnx.graphs.splitting import flatten, unflatten
from weft.nnx.variable.refs import is_array_ref
from weft.nnx.variable.variable import Variable
from weft.transforms.transformed import named_like


class VariableKind(kinds.Kind):
    """The kind of a plain `nnx.Variable`, and the base of the kinds of Variable types that are no kinds themselves."""


@cached_by("class")
def kind_of(variable_type: type) -> type[kinds.Kind]:
    """Returns the kind of a Variable type: the type itself if it is a kind, else a new kind of that name."""
    if issubclass(variable_type, kinds.Kind):
        return variable_type
    if variable_type is Variable:
        return VariableKind
    # With the kinds of the bases, so that a filter by the base of a Variable type matches here, too.
    bases = tuple(kind_of(base) for base in variable_type.__bases__ if issubclass(base, Variable))
    return type(variable_type.__name__, bases, {})


class RecordStructure:
    """The static part of a record: the module's graph structure, and the path of each leaf."""

    __slots__ = ("graphdef", "paths")

    def __init__(self, graphdef: GraphDef[Any], paths: tuple[Path, ...]):
        self.graphdef = graphdef
        self.paths = paths

    def __eq__(self, other: object) -> bool:
        # The paths follow from the structure, so they need no comparison.
        return self is other or (isinstance(other, RecordStructure) and self.graphdef == other.graphdef)

    def __hash__(self) -> int:
        return hash(self.graphdef)

    def __repr__(self) -> str:
        return f"RecordStructure({len(self.paths)} leaves)"


class RecordNode(Module):
    """An object or container inside a record. Its items are the children, under the names of the attributes."""

    _names: ClassVar[dict[Any, str]] = {}

    def __getitem__(self, key: Any) -> Any:
        try:
            return getattr(self, self._names[key])
        except KeyError:
            raise KeyError(key) from None

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._names)


class GraphRecord(RecordNode):
    """A stateful module as a record, made by `to_record`."""

    record_structure: RecordStructure = static(kw_only=True)

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, GraphRecord]:
        """Calls the module. Returns its output, and this record with the updates that the call made."""
        out, updates = _call(operator.call, self, args, kwargs)
        return out, partition.update(self, updates)

    def __reduce__(self) -> Any:
        # Record classes are created at run time, so pickle could not import them by name.
        return to_record, (from_record(self),)


def to_record(module: Any) -> Any:
    """Converts a stateful module to an immutable record.

    Args:
        module: an `nnx.Module` or another object; put several that share Variables into an `nnx.Dict`.

    Returns:
        A record of a class that mirrors the module's. Python numbers in Variables become arrays.

    Raises:
        TypeError: if `module` is no object, or has unhashable static attributes.
        ValueError: for Variables whose value is a JAX ref.

    >>> import jax.numpy as jnp
    >>> from weft.nnx.variable.kinds import BatchStat, Param
    >>> from weft.nnx.modules.containers import Dict
    >>> record = to_record(Dict(w=Param(jnp.ones(2)), mean=BatchStat(jnp.zeros(2))))
    >>> record.w.shape, kinds.field_roles(type(record))["mean"].kind.__name__
    ((2,), 'BatchStat')
    """
    refuse_foreign(module)
    if not is_object(module):
        raise TypeError(
            f"to_record takes a Module or another object, got {type(module).__name__}"
            "\n  fix: put several objects into an nnx.Dict, which preserves their sharing"
        )
    graphdef, flat = flatten(module, graph=True)
    structure = RecordStructure(graphdef, tuple(flat.paths))
    return _node(module, list(flat), structure, ())


def _node(node: Any, leaves: Sequence[tuple[Path, Any]], structure: RecordStructure | None, at: Path) -> Any:
    """Makes the record of a node, from the leaves below it with their paths from it."""
    below: dict[Any, list[tuple[Path, Any]]] = {}
    for path, leaf in leaves:
        below.setdefault(path[0], []).append((path[1:], leaf))
    children = dict(child_items(node))
    values: list[Any] = []
    labels: list[tuple[Any, type | None]] = []
    for key, inside in below.items():
        if inside[0][0] == ():
            leaf = inside[0][1]
            labels.append((key, kind_of(type(leaf)) if isinstance(leaf, Variable) else kinds.Buffer))
            values.append(_value(leaf, (*at, key)))
        else:
            labels.append((key, None))
            values.append(_node(children[key], inside, None, (*at, key)))
    cls = _record_class(type(node), tuple(labels), structure is not None)
    fields = dict(zip(cls._names.values(), values, strict=True))
    return cls(**fields) if structure is None else cls(**fields, record_structure=structure)


def _value(leaf: Any, path: Path) -> Any:
    value = leaf.get_raw_value() if isinstance(leaf, Variable) else leaf
    if is_array_ref(value):
        raise StructureError(
            "a Variable whose value is a JAX ref cannot be part of a record",
            at=format_path(path),
            fix="copy the module first: nnx.with_vars(module, ref=False)",
        )
    return jnp.asarray(value) if type(value) in NUMBERS else value


@cached_by("class and attributes")
def _record_class(node_type: type, labels: tuple[tuple[Any, type | None], ...], is_root: bool) -> Any:
    """Makes the class of records with these fields; cached, so that equal modules have records of the same class."""
    base: Any = GraphRecord if is_root else RecordNode
    used_names: set[str] = set()
    names = {key: _field_name(key, base, used_names) for key, _ in labels}
    annotations = {names[key]: Any if kind is None else Annotated[Any, kind] for key, kind in labels}
    namespace = {
        "__annotations__": {**annotations, "_names": ClassVar[dict[Any, str]]},
        "__module__": __name__,
        "__qualname__": node_type.__qualname__,
        "__doc__": f"A record of {node_type.__qualname__}.",
        "_names": names,
    }
    return type(base)(node_type.__name__, (base,), namespace)


def _field_name(key: Any, base: type, used_names: set[str]) -> str:
    is_name = isinstance(key, str) and key.isidentifier() and not keyword.iskeyword(key) and not key.startswith("__")
    name = key if is_name else f"item_{key}" if isinstance(key, int) else f"item_{len(used_names)}"
    # An attribute with the name of a record's own attribute or method would shadow it.
    while hasattr(base, name) or name in used_names or name == "record_structure":
        name += "_"
    used_names.add(name)
    return name


def from_record(record: Any) -> Any:
    """Converts a record back to a stateful module, around the record's arrays.

    Args:
        record: a result of `to_record`, possibly with new leaves.

    Returns:
        A new object, with the sharing of the original.

    Raises:
        TypeError: if the record was not made by `to_record`.
        ValueError: if leaves are missing, as in a part of `weft.tree.split`.

    >>> import jax.numpy as jnp
    >>> from weft.nnx.modules.containers import Dict
    >>> from weft.nnx.variable.kinds import Param
    >>> from_record(to_record(Dict(w=Param(jnp.ones(2))))).w.shape
    (2,)
    """
    if not isinstance(record, GraphRecord):
        raise TypeError(f"from_record takes a result of to_record, got {type(record).__name__}")
    structure = record.record_structure
    values = [functools.reduce(operator.getitem, path, record) for path in structure.paths]
    missing = [path for path, value in zip(structure.paths, values, strict=True) if value is None]
    if missing:
        raise StructureError(
            "cannot make a module of a record that lacks leaves",
            at=[format_path(path, type(record).__name__) for path in missing],
            fix="weft.tree.merge its parts first",
        )
    return unflatten(structure.graphdef, values)


def functional(model_or_function: Any) -> Callable[..., tuple[Any, Any]]:
    """Converts a stateful model, or a function of a model, to a pure function.

    Args:
        model_or_function: a callable object, a bound method of an object, or a function whose first argument is one.

    Returns:
        A function `(record, *args) -> (out, updates)`. `record` is a result of `to_record`, and `updates` a sparse
        record of the changed leaves, for `weft.tree.update`. Objects in the output become records, Variables their
        values.

    Raises:
        TypeError: if the argument is not callable.
        ValueError: from a call that changes attributes, static values or metadata, and not only values of Variables.

    >>> import jax.numpy as jnp
    >>> from weft.nnx.modules.containers import Dict
    >>> from weft.nnx.variable.variable import Variable
    >>> def count(model, n):
    ...     model.total[...] += n
    ...     return model.total[...] * 2
    >>> record = to_record(Dict(total=Variable(jnp.array(1))))
    >>> out, updates = functional(count)(record, 4)
    >>> int(out), int(updates.total), int(record.total)
    (10, 5, 1)
    """
    owner = getattr(model_or_function, "__self__", None)
    if is_object(model_or_function):
        function: Callable[..., Any] = operator.call
        named = type(model_or_function).__call__
    elif is_object(owner):
        function = named = model_or_function.__func__
    else:
        function = named = model_or_function
    if not callable(named):
        raise TypeError(f"functional takes a model or a function, got {type(model_or_function).__name__}")

    def pure(record: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return _call(function, record, args, kwargs)

    return named_like(named, pure)


def _call(function: Callable[..., Any], record: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    # A new module for each call, so that its mutations reach this call only.
    module = from_record(record)
    out = function(module, *args, **kwargs)
    after = to_record(module)
    # Updates are leaves of a fixed structure, so a new attribute could not be returned.
    if after.record_structure != record.record_structure:
        _refuse_structure(record.record_structure, after.record_structure)
    updates = partition.changes(record, after)
    # The output may contain the module's Variables or objects: a pure function returns their values, and records.
    return jax.tree.map(_as_record, out, is_leaf=is_graph_node), updates


def _as_record(value: Any) -> Any:
    if isinstance(value, Variable):
        return value.get_value()
    return to_record(value) if is_object(value) else value


def _refuse_structure(before: RecordStructure, after: RecordStructure) -> None:
    new = [f"{format_path(path)}: new" for path in after.paths if path not in before.paths]
    gone = [f"{format_path(path)}: gone" for path in before.paths if path not in after.paths]
    raise StructureError(
        "the call changed the structure of its module, but a record's structure is fixed",
        at=new + gone or "static attributes, metadata or sharing",
        fix="make such changes on the module, before to_record; collect what is sown with nnx.capture",
    )
