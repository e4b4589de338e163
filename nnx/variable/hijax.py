"""Hijax Variables: Variables that JAX itself knows as mutable values (`hijax=True`).

Such a Variable goes into `jax.jit` and comes back mutated, without any help: a hijax *box* holds a Variable's leaves,
and three primitives make, read and write boxes. Inside of a trace a box is a tracer whose current leaves JAX keeps
track of (its *qdd*, a quasi-dynamic type). Whatever is asked of a box reads the Variable out of it, asks that, and
writes it back if it changed. A ref Variable's box never changes: its ref does.

Importing this file makes `isinstance(box, nnx.Param)` true; without hijax Variables nothing of it is ever loaded.
"""

# JAX annotates these interfaces loosely, and renames their parameters from release to release.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.core import Tracer
from jax.experimental import cur_qdd, hijax
from jax.extend.core import Effect
from weft.nnx.errors import ImmutableVariableError, ModeError, WeftError
from weft.nnx.printing.reprlib import Representable
from weft.nnx.variable.modes import VariableMeta
from weft.nnx.variable.operators import OPERATORS


@dataclasses.dataclass(frozen=True)
class VariableQDD:
    """What a box holds at some point of a trace: types of leaves, and the Variable's definition."""

    leaf_avals: tuple[Any, ...]
    treedef: Any
    var_type: type

    def to_tangent_qdd(self) -> VariableQDD:
        return VariableQDD(tuple(aval.to_tangent_aval() for aval in self.leaf_avals), self.treedef, self.var_type)

    def normalize(self) -> VariableQDD:
        return VariableQDD(tuple(aval.normalize() for aval in self.leaf_avals), self.treedef, self.var_type)


class VariableEffect(Effect):
    """Reading or writing a box."""


variable_effect = VariableEffect()
hijax.control_flow_allowed_effects.add_type(VariableEffect)


class DifferentiatedBoxError(WeftError, NotImplementedError):
    """A derivative through reading or writing a box that changes."""


def _refuse_to_differentiate(what: str, has_qdd: bool) -> None:
    if has_qdd:
        raise DifferentiatedBoxError(
            f"{what} a hijax Variable cannot be differentiated",
            fix="differentiate with respect to its value, variable[...], or use a ref Variable",
        )


# ---------------------------------------------------------------------- primitives


def _new_box(*leaves: Any, treedef: Any, var_type: type, has_qdd: bool, ref: bool) -> Any:
    leaves = tuple(map(hijax.instantiate_zeros, leaves))
    return new_variable_p.bind(*leaves, treedef=treedef, var_type=var_type, has_qdd=has_qdd, ref=ref)


class NewVariable(hijax.HiPrimitive):
    def is_high(self, *leaves: Any, **params: Any) -> bool:
        return True

    def impl(self, *leaves: Any, **params: Any) -> Any:
        return HijaxVariable._box(leaves, **params)

    to_lojax = impl

    def abstract_eval(self, *leaves: Any, treedef: Any, var_type: type, has_qdd: bool, ref: bool) -> Any:
        aval = AbstractVariable(var_type, treedef, leaves, has_qdd, ref=ref)
        if not has_qdd:
            return aval, set()
        held: Any = VariableQDD(tuple(leaves), treedef, var_type)
        return hijax.AvalQDD(aval, held), {variable_effect}

    def jvp(self, primals: Any, tangents: Any, *, has_qdd: bool, **params: Any) -> Any:
        _refuse_to_differentiate("making", has_qdd)
        return _new_box(*primals, has_qdd=has_qdd, **params), _new_box(*tangents, has_qdd=has_qdd, **params)

    def transpose(self, out: Any, *leaves: Any, treedef: Any, var_type: type, has_qdd: bool, ref: bool) -> Any:
        _refuse_to_differentiate("making", has_qdd)
        avals = tuple(leaf.aval if hijax.is_undefined_primal(leaf) else jax.typeof(leaf) for leaf in leaves)
        return get_variable_p.bind(out, treedef=treedef, avals=avals, var_type=var_type, has_qdd=has_qdd)


class SetVariable(hijax.HiPrimitive):
    multiple_results = True

    def is_high(self, *leaves: Any, **params: Any) -> bool:
        return True

    def impl(self, box: Any, *leaves: Any, treedef: Any, var_type: type) -> list[Any]:
        _check_mutable(box)
        object.__setattr__(box, "_leaves", leaves)
        object.__setattr__(box, "_treedef", treedef)
        return []

    def to_lojax(self, box: Any, *leaves: Any, **params: Any) -> Any:
        return self.impl(box, *leaves, **params)

    def abstract_eval(self, box: Any, *leaves: Any, treedef: Any, var_type: type) -> Any:
        _check_mutable(box.aval)
        box.mutable_qdd.update(VariableQDD(leaves, treedef, var_type))
        return [], {variable_effect}

    def jvp(self, primals: Any, tangents: Any, *, treedef: Any, var_type: type) -> Any:
        for box, *leaves in (primals, tangents):
            set_variable_p.bind(box, *leaves, treedef=treedef, var_type=var_type)
        return [], []

    def transpose(self, *args: Any, **params: Any) -> Any:
        _refuse_to_differentiate("writing", True)


class GetVariable(hijax.HiPrimitive):
    multiple_results = True

    def impl(self, box: Any, **params: Any) -> Any:
        return box._leaves

    to_lojax = impl

    def abstract_eval(self, box: Any, *, treedef: Any, avals: Any, var_type: type, has_qdd: bool) -> Any:
        return avals, {variable_effect} if has_qdd else set()

    def jvp(self, primals: Any, tangents: Any, *, avals: Any, has_qdd: bool, **params: Any) -> Any:
        _refuse_to_differentiate("reading", has_qdd)
        dots = tuple(aval.to_tangent_aval() for aval in avals)
        (box,), (dot,) = primals, tangents
        return (
            get_variable_p.bind(box, avals=avals, has_qdd=has_qdd, **params),
            get_variable_p.bind(dot, avals=dots, has_qdd=has_qdd, **params),
        )

    def transpose(self, out: Any, box: Any, *, treedef: Any, avals: Any, var_type: type, has_qdd: bool) -> Any:
        _refuse_to_differentiate("reading", has_qdd)
        aval = box.aval if hijax.is_undefined_primal(box) else jax.typeof(box)
        return (_new_box(*out, treedef=aval._treedef, var_type=var_type, has_qdd=has_qdd, ref=aval.ref),)


new_variable_p = NewVariable("new_variable")
set_variable_p = SetVariable("set_variable")
get_variable_p = GetVariable("get_variable")


def _check_mutable(box: Any) -> None:
    if not box.has_qdd:
        raise ImmutableVariableError("a hijax ref Variable's box does not change; write through its ref")


# ---------------------------------------------------------------------- boxes and Variables


def to_hijax(variable: Any) -> Any:
    """A box with a Variable in it."""
    leaves, treedef = jax.tree.flatten(variable)
    return _new_box(*leaves, treedef=treedef, var_type=type(variable), has_qdd=not variable.ref, ref=variable.ref)


def read_box(box: Any) -> Any:
    """The Variable in a box, or in a tracer of one."""
    if box.has_qdd:
        held = cur_qdd(box)
        treedef, avals = held.treedef, tuple(held.leaf_avals)
    else:
        treedef, leaves = box._treedef, box._leaves
        avals = leaves if isinstance(box, Tracer) else tuple(map(jax.typeof, leaves))
    leaves = get_variable_p.bind(box, treedef=treedef, avals=avals, var_type=box.var_type, has_qdd=box.has_qdd)
    return jax.tree.unflatten(treedef, leaves)


def write_box(box: Any, variable: Any) -> None:
    """Puts a Variable into a box."""
    leaves, treedef = jax.tree.flatten(variable)
    set_variable_p.bind(box, *leaves, treedef=treedef, var_type=type(variable))


def _through(box: Any, act: Callable[[Any], Any]) -> Any:
    """Acts on the Variable in a box, and writes it back if that changed it."""
    variable = read_box(box)
    before, definition = jax.tree.flatten(variable)
    out = act(variable)
    after, now = jax.tree.flatten(variable)
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


def _content(other: Any) -> Any:
    return read_box(other) if isinstance(other, HijaxVariable) else other


class _BoxMeta(type):
    """A tracer of a box is a box."""

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
    """A box. It does whatever the Variable in it does."""

    __slots__ = ("__weakref__", "_leaves", "_treedef", "has_qdd", "ref", "var_type")
    _can_update = True

    @classmethod
    def _box(cls, leaves: Sequence[Any], *, treedef: Any, var_type: type, has_qdd: bool, ref: bool) -> HijaxVariable:
        box = object.__new__(cls)
        for name, value in (
            ("_leaves", tuple(leaves)), ("_treedef", treedef), ("var_type", var_type), ("has_qdd", has_qdd),
            ("ref", ref),
        ):  # fmt: skip
            object.__setattr__(box, name, value)
        return box

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
        """Takes over value and metadata of a Variable."""
        _through(self, lambda variable: variable.copy_from(_content(other)))

    def update_from_state(self, variable_state: Any) -> None:
        """Takes over value and metadata of a Variable, except the modes."""
        _through(self, lambda variable: variable.update_from_state(_content(variable_state)))

    def cur_qdd(self) -> VariableQDD:
        return self.type_state()

    def type_state(self) -> VariableQDD:
        return VariableQDD(tuple(map(jax.typeof, self._leaves)), self._treedef, self.var_type)

    __hash__ = None  # type: ignore[assignment]


for _name in METHODS:
    setattr(HijaxVariable, _name, _method(_name))


class AbstractVariable(hijax.MutableHiType):
    """The type of a box. Boxes that change keep what they hold out of it."""

    hijax = True
    _can_update = True

    def __init__(self, var_type: type, treedef: Any, leaves: Any, has_qdd: bool, *, ref: bool = False):
        self.var_type, self.ref = var_type, ref
        object.__setattr__(self, "has_qdd", has_qdd)
        self._treedef, self._leaves = treedef, leaves

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in ("dtype", "ndim", "size", "shape", "cur_qdd"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return hijax.aval_property(fget=lambda box: _through(box, lambda variable: getattr(variable, name)))

    def _held(self) -> Any:
        return (self.var_type, None if self.has_qdd else (self._treedef, self._leaves))

    def __hash__(self) -> int:
        return hash((AbstractVariable, self._held()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AbstractVariable) and self.var_type == other.var_type

    def str_short(self, short_dtypes: bool = False, **_: Any) -> str:
        return f"{self.var_type.__name__}()"

    def __repr__(self) -> str:
        return self.str_short()

    __str__ = __repr__

    # ------------------------------------------------------------------ lowering: a box is its leaves

    def lo_ty_qdd(self, held: VariableQDD) -> list[Any]:
        return [low for aval in held.leaf_avals for low in aval.lo_ty()]

    def _raise(self, held: VariableQDD, low: Sequence[Any]) -> list[Any]:
        rest = iter(low)
        return [aval.raise_val(*itertools.islice(rest, len(aval.lo_ty()))) for aval in held.leaf_avals]

    def new_from_loval(self, held: VariableQDD, *low: Any) -> HijaxVariable:
        return HijaxVariable._box(
            self._raise(held, low), treedef=held.treedef, var_type=self.var_type, has_qdd=self.has_qdd, ref=self.ref
        )

    def read_loval(self, held: VariableQDD, box: Any) -> list[Any]:
        leaves = jax.tree.leaves(read_box(box))
        return [low for aval, leaf in zip(held.leaf_avals, leaves, strict=True) for low in aval.lower_val(leaf)]

    def update_from_loval(self, held: VariableQDD, box: Any, *low: Any) -> None:
        write_box(box, jax.tree.unflatten(held.treedef, self._raise(held, low)))

    def to_tangent_aval(self) -> AbstractVariable:
        return AbstractVariable(self.var_type, self._treedef, self._leaves, self.has_qdd, ref=self.ref)


# Tracers look for methods by name on their type, and for operators under names of their own.
for _name in (*METHODS, "copy_from", "update_from_state"):
    if not _name.startswith("__") or _name == "__jax_array__":
        setattr(AbstractVariable, _name, hijax.aval_method(getattr(HijaxVariable, _name)))
for _name in ("_nnx_metadata", "_var_metadata", "_trace_state", "_raw_value", "type"):
    setattr(AbstractVariable, _name, hijax.aval_property(fget=vars(HijaxVariable)[_name].fget))
for _name in ("__getitem__", "__setitem__", "__len__", "__iter__", "__round__", *OPERATORS):
    if not _name.startswith("__i") or _name in ("__int__", "__index__", "__invert__", "__iter__"):
        setattr(AbstractVariable, f"_{_name.strip('_')}", staticmethod(_method(_name)))


def _type_of_box(box: HijaxVariable) -> AbstractVariable:
    treedef, leaves = (None, None) if box.has_qdd else (box._treedef, tuple(map(jax.typeof, box._leaves)))
    return AbstractVariable(box.var_type, treedef, leaves, box.has_qdd, ref=box.ref)


hijax.register_hitype(HijaxVariable, _type_of_box)


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
