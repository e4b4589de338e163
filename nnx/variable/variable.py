"""Variable: a mutable box with a value, metadata and a trace level.

The stored value, the *raw value*, is an array or any pytree; `variable[...]` reads and writes it through hooks. With
`ref=True` a Variable keeps its array in a JAX ref, which is mutated in place; with `hijax=True` it becomes a hijax box
(see `hijax`). A Variable may be written only at the trace level at which it was created.

All of a Variable is in three slots, so that transforms read and write thousands of Variables in loops in C:
`_raw_value`, `_trace_state` and `_nnx_metadata`, of which only the first changes in ordinary training.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any, Generic, TypeVar

import jax
import jax.tree_util as jtu
from weft.nnx.config import hijax_default, ref_default, using_eager_sharding
from weft.nnx.errors import MISSING, StructureError, TraceContextError
from weft.nnx.variable.has_metadata import HasMetadata, VariablePrinting
from weft.nnx.variable.metadata import (
    HOOKS,
    Metadata,
    VariableMetadata,
    current_name,
    freeze,
    run_hooks,
    warn_of_hooks,
    with_current_names,
)
from weft.nnx.variable.modes import VariableMeta, as_its_mode
from weft.nnx.variable.operators import install_operators
from weft.nnx.variable.refs import copy_containers, fits, is_array_ref, is_plain_array
from weft.nnx.variable.sharding import shard_value
from weft.nnx.variable.tracers import TraceState, current_trace_state, located
from weft.nnx.versions import structure_epoch

A = TypeVar("A")


# Every Variable type, for loops over graphs: `type(x) in VARIABLE_TYPES` is much faster than `isinstance`.
VARIABLE_TYPES: set[type] = set()
_store = object.__setattr__


class Variable(VariablePrinting, HasMetadata, Generic[A], metaclass=VariableMeta):
    """A mutable box: the base of all kinds of state.

    Args:
        value: an array or any pytree, or a `VariableMetadata` of one.
        hijax: whether it becomes a hijax box, which plain `jax.jit` takes; the default is that of `nnx.var_defaults`.
        ref: whether it keeps its value in a JAX ref; the default is that of `nnx.var_defaults`.
        eager_sharding: whether to put the value on the mesh at once, if there is an `out_sharding`.
        metadata: any further entries, such as `out_sharding=("data", None)`.

    Raises:
        ValueError: if the value is or contains a JAX ref.

    >>> import jax.numpy as jnp
    >>> count = Variable(jnp.array(1), note="steps")
    >>> count[...] += 2
    >>> int(count[...]), count.note
    (3, 'steps')
    """

    __slots__ = ("__weakref__", "_nnx_metadata", "_raw_value", "_trace_state")
    _raw_value: A
    _trace_state: TraceState
    _nnx_metadata: Metadata

    def __init__(
        self,
        value: A | VariableMetadata[A],
        *,
        hijax: bool | None = None,
        ref: bool | None = None,
        eager_sharding: bool | None = None,
        **metadata: Any,
    ):
        modes = {"hijax": hijax, "ref": ref, "eager_sharding": eager_sharding}
        if isinstance(value, VariableMetadata):
            joined = value.joined(
                {**metadata, **{mode: setting for mode, setting in modes.items() if setting is not None}}
            )
            modes = {mode: joined.pop(mode, None) for mode in modes}
            metadata, value = joined, value.raw_value
        hijax, ref, eager_sharding = modes.values()
        # A ref inside the value could be mutated without the Variable: no hook would run, no trace level would be
        # checked, and plans could not see the change.
        if not is_plain_array(value) and any(map(is_array_ref, jax.tree.leaves(value))):
            raise StructureError("Cannot pass a Ref to a Variable", fix="pass the array, `ref[...]`, and ref=True")
        metadata["hijax"] = hijax_default() if hijax is None else hijax
        metadata["ref"] = ref_default() if ref is None else ref
        metadata["eager_sharding"] = using_eager_sharding() if eager_sharding is None else eager_sharding
        # A subclass may define hooks as methods, as in flax; those passed to the constructor come first.
        for hook in HOOKS:
            if hook not in metadata and hasattr(type(self), hook):
                metadata[hook] = getattr(type(self), hook)
        if any(metadata.get(hook) for hook in HOOKS):
            warn_of_hooks()
        # Past `__setattr__`, which checks a trace level that the Variable does not have yet.
        _store(self, "_trace_state", current_trace_state())
        _store(self, "_nnx_metadata", freeze(with_current_names(metadata)))
        self._create(value)

    def _create(self, value: Any) -> None:
        metadata = self._nnx_metadata
        # Stored before the hooks run, because a hook may read the Variable that it is passed.
        _store(self, "_raw_value", value)
        if "on_create_value" in metadata:
            value = run_hooks(metadata["on_create_value"], self, value)
            _store(self, "_raw_value", value)
        value = self.create_value(value)
        if metadata["eager_sharding"] and "out_sharding" in metadata:
            value = shard_value(value, metadata["out_sharding"], metadata.get("sharding_rules"), metadata.get("mesh"))
        # A `ShapeDtypeStruct` (an abstract Variable) has no array for a ref.
        keeps_ref = metadata["ref"] and not isinstance(value, jax.ShapeDtypeStruct)
        _store(self, "_raw_value", jax.new_ref(value) if keeps_ref else value)

    @classmethod
    def _new(cls, value: Any, metadata: Any) -> Any:
        """Makes a Variable at the current level, without hooks and checks."""
        variable = object.__new__(cls)
        _store(variable, "_trace_state", current_trace_state())
        _store(variable, "_nnx_metadata", metadata if type(metadata) is Metadata else freeze(metadata))
        _store(variable, "_raw_value", value)
        return variable

    @classmethod
    def from_metadata(cls, value: A, attributes: dict[str, Any]) -> Any:
        """Makes a Variable from a raw value and its metadata, without running hooks.

        >>> import jax.numpy as jnp
        >>> Variable.from_metadata(jnp.ones(2), {"units": "m"}).units
        'm'
        """
        return as_its_mode(cls._new(value, {"hijax": False, "ref": False, "eager_sharding": True, **attributes}))

    # ------------------------------------------------------------------ modes and level

    @property
    def var_type(self) -> Any:
        return type(self)

    @property
    def type(self) -> Any:
        """The class of this Variable, which a hijax box reports too."""
        return type(self)

    @property
    def hijax(self) -> bool:
        return self._nnx_metadata["hijax"]

    @property
    def ref(self) -> bool:
        return self._nnx_metadata["ref"]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.get_value().shape

    @property
    def sharding_names(self) -> Any:
        return self.get_metadata(current_name("sharding_names"), None)

    @property
    def _can_update(self) -> bool:
        # JAX itself checks writes into a ref, and allows them from inside a transform that closes over it.
        return self._nnx_metadata["ref"] or self._trace_state.is_valid()

    def _check_can_update(self) -> None:
        if not self._can_update:
            raise TraceContextError(
                f"Cannot mutate {type(self).__name__} from a different trace level",
                at=located(self),
                fix="pass it to the transform as an argument, and return the new value",
            )

    # ------------------------------------------------------------------ value

    def create_value(self, value: A) -> A:
        """Maps the constructor's value to the one that is stored; for subclasses to override.

        >>> import jax.numpy as jnp
        >>> class Rounded(Variable):
        ...     def create_value(self, value):
        ...         return jnp.round(value)
        >>> Rounded(jnp.array(1.7))[...].item()
        2.0
        """
        return value

    def get_raw_value(self) -> A:
        """Returns the stored value, without hooks; for a ref Variable that is the ref."""
        return self._raw_value

    def set_raw_value(self, value: A, *, _unsafe_bypass_check: bool = False) -> None:
        """Stores a value, without hooks.

        Raises:
            TraceContextError: from another trace level.
        """
        if not _unsafe_bypass_check:
            self._check_can_update()
        _store(self, "_raw_value", value)
        if is_array_ref(value):
            structure_epoch.advance()  # plans of a Variable without a ref are outdated

    def get_value(self, *, index: Any = MISSING) -> Any:
        """Returns the value, or `value[index]`, mapped by the `on_get_value` hooks."""
        value: Any = self._raw_value
        if not is_plain_array(value):
            # A dict is copied: mutating it in place would bypass hooks and trace levels, and plans would not see it.
            value = copy_containers(value)
            if is_array_ref(value):
                value = value[... if index is MISSING else index]
            # `v[...]` of a tracer is the tracer; of any other value, `...` is an index like another.
            elif index is not MISSING and not (index is ... and isinstance(value, jax.Array)):
                value = value[index]
        elif index is not MISSING and index is not ...:
            value = value[index]
        if "on_get_value" in self._nnx_metadata:
            value = run_hooks(self._nnx_metadata["on_get_value"], self, value)
        return value

    def set_value(self, value: Any, *, index: Any = MISSING) -> None:
        """Replaces the value, or `value[index]`, by `value` mapped by the `on_set_value` hooks.

        Raises:
            TraceContextError: from another trace level, unless this is a ref Variable.
        """
        value = copy_containers(value)
        if "on_set_value" in self._nnx_metadata:
            value = run_hooks(self._nnx_metadata["on_set_value"], self, value)
        raw: Any = self._raw_value
        if is_array_ref(raw):
            # Without a check of the level here: JAX checks writes into a ref itself.
            raw[... if index is MISSING else index] = value
            return
        if index is not MISSING:
            if not isinstance(raw, jax.Array):
                # A container, or an array of NumPy: written by its own `__setitem__`.
                raw[index] = value
                return
            # `v[...] = x` keeps v's shape and dtype, as in flax; a fitting array is stored without a computation.
            if index is not ... or not fits(value, raw):
                value = raw.at[index].set(value)
        self._check_can_update()
        _store(self, "_raw_value", value)

    @property
    def raw_value(self) -> A:
        _warn_deprecated("raw_value", "get_raw_value()")
        return self._raw_value

    @raw_value.setter
    def raw_value(self, value: A) -> None:
        _warn_deprecated("raw_value", "set_raw_value(value)")
        self.set_raw_value(value)

    @property
    def value(self) -> A:
        _warn_deprecated("value", "[...], or get_value() where the value is no array")
        return self.get_value()

    @value.setter
    def value(self, value: A) -> None:
        _warn_deprecated("value", "[...] = value, or set_value(value) where the value is no array")
        self.set_value(value)

    # ------------------------------------------------------------------ copies

    def copy(self, value: Any = MISSING, *, _copy_ref: bool = True, **updates: Any) -> Any:
        """Copies this Variable, optionally with a new value and changed metadata; a ref is copied too.

        >>> import jax.numpy as jnp
        >>> weight = Variable(jnp.ones(2), units="m")
        >>> other = weight.copy(jnp.zeros(2), units="km")
        >>> weight[...].tolist(), other[...].tolist(), other.units
        ([1.0, 1.0], [0.0, 0.0], 'km')
        """
        if value is MISSING:
            value = self._raw_value
        metadata = freeze({**self._nnx_metadata, **updates}) if updates else self._nnx_metadata
        if _copy_ref:
            if is_array_ref(value):
                value = value[...]
            if metadata["ref"] and not isinstance(value, jax.ShapeDtypeStruct):
                value = jax.new_ref(value)
        return as_its_mode(self._new(copy_containers(value), metadata))

    replace = copy
    to_state = copy

    def copy_from(self, other: Variable[A]) -> None:
        """Copies value and metadata of another Variable of the same type into this one.

        Raises:
            ValueError: if the types differ.
        """
        if type(self) is not type(other):
            raise StructureError(f"a {type(self).__name__} cannot copy from a {type(other).__name__}")
        # Copying a Variable to itself would advance the epoch, and every plan in the process would be checked again.
        if self is not other:
            self.set_raw_value(other._raw_value)
            _store(self, "_nnx_metadata", other._nnx_metadata)
            structure_epoch.advance()

    def update_from_state(self, variable_state: Variable[A]) -> None:
        """Copies value and metadata of another Variable into this one, except the modes `hijax` and `ref`.

        Raises:
            TraceContextError: from another trace level.

        >>> import jax.numpy as jnp
        >>> weight = Variable(jnp.ones(2))
        >>> weight.update_from_state(Variable(jnp.zeros(2), units="m"))
        >>> weight[...].tolist(), weight.units
        ([0.0, 0.0], 'm')
        """
        self.set_raw_value(variable_state._raw_value)
        # The modes stay: they say how this Variable stores its value, and the other may store its own in another way.
        own_metadata, new_metadata = self._nnx_metadata, variable_state._nnx_metadata
        if own_metadata is not new_metadata and own_metadata != new_metadata:
            _store(
                self,
                "_nnx_metadata",
                freeze({**new_metadata, "hijax": own_metadata["hijax"], "ref": own_metadata["ref"]}),
            )
            structure_epoch.advance()

    # ------------------------------------------------------------------ attributes: metadata first, then the value's

    def __getattr__(self, name: str) -> Any:
        # By `object.__getattribute__`: on a Variable that is only half unpickled, `self._nnx_metadata` would call this
        # method again.
        metadata = object.__getattribute__(self, "_nnx_metadata")
        if name in metadata:
            return metadata[name]
        return getattr(object.__getattribute__(self, "_raw_value"), name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._check_can_update()
        # Only slots and properties can be set, so a misspelt `w.vaule = x` is an error and not a new attribute.
        if not hasattr(getattr(type(self), name, None), "__set__"):
            raise AttributeError(
                f"Cannot set attribute {name!r} of a {type(self).__name__}; "
                f"for metadata write variable.set_metadata({name}=value)"
            )
        _store(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._check_can_update()
        raise AttributeError(
            f"Cannot delete attribute {name!r} of a {type(self).__name__}; "
            f"for metadata write variable.del_metadata({name!r})"
        )

    # `==` compares values and returns an array, so no hash can agree with it; tables use `id`.
    __hash__ = None  # type: ignore[assignment]

    # ------------------------------------------------------------------ copies through Python's protocols

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # Without this, `copy.deepcopy` would find `__deepcopy__` on the value, through `__getattr__`, and return an
        # array.
        twin = memo[id(self)] = self._new(copy.deepcopy(self._raw_value, memo), self._nnx_metadata)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        # By flax's name for the metadata, `_var_metadata`, whose setter `__setstate__` calls.
        return {
            "_raw_value": self._raw_value,
            "_trace_state": self._trace_state,
            "_var_metadata": self._nnx_metadata,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            _store(self, name, value)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _register(cls)


def _warn_deprecated(name: str, instead: str) -> None:
    warnings.warn(f"'.{name}' of a Variable is deprecated, use {instead}", DeprecationWarning, stacklevel=3)


_VALUE_KEY = jtu.GetAttrKey("value")


def _register(cls: Any) -> None:
    VARIABLE_TYPES.add(cls)

    def unflatten(metadata: Metadata, children: Any) -> Any:
        # Like `_new`, written out: JAX calls this for every Variable of a model that it rebuilds.
        variable = object.__new__(cls)
        _set_raw_value(variable, *children)
        _set_metadata(variable, getattr(metadata, "_in_order", None) or metadata.in_order())
        _set_trace_state(variable, current_trace_state())
        return variable

    jtu.register_pytree_with_keys(
        cls,
        lambda variable: (((_VALUE_KEY, variable._raw_value),), variable._nnx_metadata),
        unflatten,
        lambda variable: ((variable._raw_value,), variable._nnx_metadata),
    )


_set_raw_value = Variable.__dict__["_raw_value"].__set__
_set_trace_state = Variable.__dict__["_trace_state"].__set__
_set_metadata = Variable.__dict__["_nnx_metadata"].__set__
install_operators(Variable, lambda other: other.get_value() if isinstance(other, Variable) else other)
_register(Variable)
VariableState = Variable
