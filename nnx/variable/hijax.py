"""Hijax Variables (`hijax=True`): Variables that plain `jax.jit` and other JAX transforms take as values.

A hijax *box* holds a Variable's leaves, and primitives of JAX make and read boxes. Every method of a box reads the
Variable out of it, calls the Variable's method, and writes the Variable back if that changed it. JAX up to 0.10 has
mutable hijax values: a box that is written inside a trace comes back mutated. JAX 0.12 has only immutable ones, and
such a write is an error. The box of a ref Variable is never written, on either version: its ref is.

Importing this file makes `isinstance(box, nnx.Param)` true. It is imported when the first hijax Variable is made.
"""

# JAX annotates these interfaces loosely, and renames their parameters from release to release.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import Tracer
from weft.core.caches import cached_by
from weft.core.edge.hijax import CHANGING, aval_method, aval_property, register_hitype
from weft.nnx.errors import ModeError
from weft.nnx.printing.reprlib import Representable
from weft.nnx.variable.modes import VariableMeta
from weft.nnx.variable.operators import OPERATORS

# By name, because each module needs parts of JAX that only its versions have.
# floor: the boxes that change are those of JAX up to 0.10.
boxes: Any = importlib.import_module(f"weft.nnx.variable.{'changing' if CHANGING else 'fixed'}_boxes")

# ---------------------------------------------------------------------- boxes and Variables


def to_hijax(variable: Any) -> Any:
    """Puts a Variable into a new box."""
    leaves, treedef = jax.tree.flatten(variable)
    kind = AbstractVariable(type(variable), treedef, tuple(map(jax.typeof, leaves)), ref=variable.ref)
    return boxes.make_box(kind, leaves, treedef)


def read_box(box: Any) -> Any:
    """Rebuilds the Variable in a box, or in the tracer of a box."""
    leaves, treedef = boxes.read_leaves(box)
    return jax.tree.unflatten(treedef, leaves)


def write_box(box: Any, variable: Any) -> None:
    """Writes the leaves of a Variable into a box."""
    boxes.write_leaves(box, *jax.tree.flatten(variable))


def _through(box: Any, act: Callable[[Any], Any]) -> Any:
    """Calls `act` on the Variable in a box, and writes the Variable back if that changed it."""
    variable = read_box(box)
    before, definition = jax.tree.flatten(variable)
    out = act(variable)
    after, now = jax.tree.flatten(variable)
    # Reading must not write: a write is an effect in the jaxpr on JAX 0.10, and an error inside a trace on JAX 0.12.
    if now != definition or any(new is not old for new, old in zip(after, before, strict=True)):
        write_box(box, variable)
    return out


def _method(name: str) -> Callable[..., Any]:
    def method(box: Any, *args: Any, **kwargs: Any) -> Any:
        return _through(box, lambda variable: getattr(variable, name)(*args, **kwargs))

    method.__name__ = name
    return method


def _attribute(name: str) -> property:
    return property(lambda box: _through(box, lambda variable: getattr(variable, name)))


def _content(value: Any) -> Any:
    return read_box(value) if isinstance(value, HijaxVariable) else value


class _BoxMeta(type):
    """Makes `isinstance(tracer, HijaxVariable)` true for a tracer of a box."""

    def __instancecheck__(cls, instance: Any) -> bool:
        if type.__instancecheck__(cls, instance):
            return True
        return isinstance(instance, Tracer) and isinstance(jax.typeof(instance), AbstractVariable)


METHODS = (
    "_check_can_update", "__getattr__", "__setattr__", "__delattr__", "get_metadata", "set_metadata", "has_metadata",
    "del_metadata", "get_raw_value", "set_raw_value", "set_value", "get_value", "create_value", "add_axis",
    "remove_axis", "copy", "replace", "to_state", "__nnx_repr__", "__treescope_repr__", "__jax_array__", "__getitem__",
    "__setitem__", "__delitem__", "__call__", "__len__", "__iter__", "__contains__", "__round__", *OPERATORS,
)  # fmt: skip


class HijaxVariable(Representable, metaclass=_BoxMeta):
    """A box: JAX's value for a hijax Variable. Its methods are those of the Variable in it."""

    __slots__ = ("__weakref__", "_leaves", "_treedef", "changes", "ref", "var_type")
    _can_update = True

    type = _attribute("type")
    hijax = _attribute("hijax")
    _trace_state = _attribute("_trace_state")
    _nnx_metadata = _attribute("_nnx_metadata")
    _var_metadata = _attribute("_var_metadata")

    @property
    def _raw_value(self) -> Any:
        return read_box(self).get_raw_value()

    def _no_value(self, *_: Any) -> Any:
        raise ModeError("a hijax Variable has no `.value`", fix="use variable[...], get_value() and set_value()")

    value = property(_no_value, _no_value)

    def copy_from(self, other: Any) -> None:
        """Copies value and metadata of another Variable into this one."""
        _through(self, lambda variable: variable.copy_from(_content(other)))

    def update_from_state(self, variable_state: Any) -> None:
        """Copies value and metadata of another Variable into this one, except `hijax` and `ref`."""
        _through(self, lambda variable: variable.update_from_state(_content(variable_state)))

    def cur_qdd(self) -> Any:
        return self.type_state()

    # floor: only a box that changes has a type state.
    def type_state(self) -> Any:
        """The types of the box's current leaves, which JAX up to 0.10 asks for when it traces a concrete box."""
        return boxes.VariableQDD(tuple(map(jax.typeof, self._leaves)), self._treedef)

    # As for `Variable`: `==` compares values.
    __hash__ = None  # type: ignore[assignment]


for _name in METHODS:
    setattr(HijaxVariable, _name, _method(_name))


@cached_by("name", most=256)
def _attribute_of_type(name: str) -> Any:
    """An attribute of boxes that is one of the Variable; the same object for a name, as JAX compares those of types."""
    return aval_property(fget=lambda box: _through(box, lambda variable: getattr(variable, name)))


class AbstractVariable(boxes.BoxType):
    """The type of a box. JAX looks up attributes of a tracer on it, so it has the methods of Variables."""

    hijax = True
    _can_update = True

    def __getattr__(self, name: str) -> Any:
        # JAX asks every type for these names, and takes an answer for that of an array type.
        if name.startswith("_") or name in ("dtype", "ndim", "size", "shape", "cur_qdd"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return _attribute_of_type(name)

    def str_short(self, short_dtypes: bool = False, **_: Any) -> str:
        return f"{self.var_type.__name__}()"

    def box(self, leaves: Sequence[Any]) -> HijaxVariable:
        return self.new(leaves, self._treedef, self.var_type, self.ref)

    @classmethod
    def new(cls, leaves: Sequence[Any], treedef: Any, var_type: type, ref: bool) -> HijaxVariable:
        """Makes a concrete box from leaves."""
        box = object.__new__(HijaxVariable)
        slots = {"_leaves": tuple(leaves), "_treedef": treedef, "var_type": var_type, "ref": ref}
        # Past `__setattr__`, which would set the attribute of the Variable inside.
        for name, value in {**slots, "changes": CHANGING and not ref}.items():
            object.__setattr__(box, name, value)
        return box


# A tracer looks up a method under its name on its type, and an operator without dunders: `__add__` as `_add`.
for _name in (*METHODS, "copy_from", "update_from_state"):
    if not _name.startswith("__") or _name == "__jax_array__":
        setattr(AbstractVariable, _name, aval_method(getattr(HijaxVariable, _name)))
for _name in ("_nnx_metadata", "_var_metadata", "_trace_state", "_raw_value", "type"):
    setattr(AbstractVariable, _name, aval_property(fget=vars(HijaxVariable)[_name].fget))
for _name in ("__getitem__", "__setitem__", "__len__", "__iter__", "__round__", *OPERATORS):
    setattr(AbstractVariable, f"_{_name.strip('_')}", staticmethod(_method(_name)))


register_hitype(HijaxVariable, AbstractVariable.of)


def _is_instance(cls: type, instance: Any) -> bool:
    if type.__instancecheck__(cls, instance):
        return True
    if type(instance) is HijaxVariable:
        return issubclass(instance.var_type, cls)
    if isinstance(instance, Tracer):
        kind = jax.typeof(instance)
        return isinstance(kind, AbstractVariable) and issubclass(kind.var_type, cls)
    return False


VariableMeta.__instancecheck__ = _is_instance
