"""What a Variable carries beside its value: modes, sharding, hooks, and whatever else its maker names.

Metadata is an immutable, hashable mapping that is replaced as a whole, so that graph definitions share it with their
Variables instead of copying it, and two are equal at a glance when they are the same. Three keys are always there:
`hijax`, `ref` and `eager_sharding`.

A *hook* is metadata too, a function or a tuple of them under one of the names in `HOOKS`, and each is called with the
Variable first: `on_create_value`, `on_get_value` and `on_set_value` map the value, `on_add_axis` and `on_remove_axis`
are told of an axis that a transform adds or takes.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from weft.nnx.errors import StructureError

A = TypeVar("A")
F = TypeVar("F", bound=Callable[..., Any])

HOOKS = ("on_get_value", "on_set_value", "on_create_value", "on_add_axis", "on_remove_axis")
REQUIRED = frozenset(("hijax", "ref", "eager_sharding"))
_OLD_NAMES = ("sharding", "sharding_names")


class Metadata(dict[str, Any]):
    """An immutable mapping with a hash.

    >>> Metadata(a=1) == {"a": 1}, hash(Metadata(a=1, b=2)) == hash(Metadata(b=2, a=1))
    (True, True)
    """

    __slots__ = ("_hash", "_in_order")

    def __hash__(self) -> int:  # type: ignore[override]
        try:
            return self._hash
        except AttributeError:
            self._hash = hash(frozenset(self.items()))
            return self._hash

    def in_order(self) -> Metadata:
        """The same, sorted by name: what a Variable has after JAX rebuilt it."""
        try:
            return self._in_order
        except AttributeError:
            names = sorted(self)
            is_sorted = len(self) == len(REQUIRED) or names == list(self)
            self._in_order = self if is_sorted else Metadata({name: self[name] for name in names})
            return self._in_order

    def _immutable(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("metadata of a Variable is replaced as a whole; use Variable.set_metadata or del_metadata")

    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = __ior__ = _immutable

    def __reduce__(self) -> Any:
        return (Metadata, (dict(self),))

    def without(self, *names: str) -> dict[str, Any]:
        """The rest, as an ordinary dict."""
        return {name: value for name, value in self.items() if name not in names}


# Nearly all Variables of a program have one of these, so that comparing theirs is comparing identities.
_common = {
    (hijax, ref, eager): Metadata(hijax=hijax, ref=ref, eager_sharding=eager)
    for hijax in (False, True)
    for ref in (False, True)
    for eager in (False, True)
}


def freeze(metadata: Mapping[str, Any]) -> Metadata:
    """A mapping as metadata; the common ones are shared."""
    if type(metadata) is Metadata:
        return metadata
    if len(metadata) == 3 and metadata.keys() == REQUIRED:
        common = _common.get((metadata["hijax"], metadata["ref"], metadata["eager_sharding"]))
        if common is not None:
            return common
    return Metadata(metadata)


def current_name(name: str, stacklevel: int = 3) -> str:
    """`out_sharding` for its two old names, with a warning; any other name as it is."""
    if name in _OLD_NAMES:
        warnings.warn(f"'{name}' is deprecated, use 'out_sharding'", DeprecationWarning, stacklevel=stacklevel)
        return "out_sharding"
    return name


def with_current_names(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata under today's names."""
    if not any(name in metadata for name in _OLD_NAMES):
        return dict(metadata)
    renamed = {current_name(name, stacklevel=4): value for name, value in metadata.items() if name in _OLD_NAMES}
    return {**{name: value for name, value in metadata.items() if name not in _OLD_NAMES}, **renamed}


def run_hooks(hooks: Any, *args: Any) -> Any:
    """Maps the last argument through hooks, each called with all of them."""
    *context, value = args
    for hook in hooks if isinstance(hooks, tuple) else (hooks,):
        value = hook(*context, value)
    return value


def call_hooks(hooks: Any, *args: Any) -> None:
    """Calls hooks for their effect."""
    for hook in hooks if isinstance(hooks, tuple) else (hooks,):
        hook(*args)


def warn_of_hooks() -> None:
    warnings.warn(
        "hooks of Variables are deprecated: make your own Variable type, and override get_value and set_value",
        stacklevel=4,
    )


@dataclasses.dataclass
class VariableMetadata(Generic[A]):
    """A value with the metadata that the Variable made of it shall have; what `with_metadata` returns.

    >>> from weft import nnx
    >>> w = nnx.Param(nnx.VariableMetadata(1.0, metadata={"role": "scale"}))
    >>> w.get_value(), w.role
    (1.0, 'scale')
    """

    raw_value: A
    on_set_value: tuple[Callable[..., Any], ...] = ()
    on_get_value: tuple[Callable[..., Any], ...] = ()
    on_create_value: tuple[Callable[..., Any], ...] = ()
    on_add_axis: tuple[Callable[..., Any], ...] = ()
    on_remove_axis: tuple[Callable[..., Any], ...] = ()
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def joined(self, given: dict[str, Any]) -> dict[str, Any]:
        """All metadata for the constructor: its own arguments, then this, then this one's hooks.

        Raises:
            StructureError: if a mode is given in both places, differently.
        """
        for mode in REQUIRED & self.metadata.keys():
            if given.get(mode) is not None and given[mode] != self.metadata[mode]:
                raise StructureError(
                    f"{mode} is {given[mode]} by the constructor, {self.metadata[mode]} by the VariableMetadata",
                    fix="give it once",
                )
        hooks = {name: hooks for name in HOOKS if (hooks := getattr(self, name))}
        return {**given, **self.metadata, **{name: hook for name, hook in hooks.items() if name not in given}}


def with_metadata(
    initializer: F,
    on_set_value: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    on_get_value: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    on_create_value: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    on_add_axis: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    on_remove_axis: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    **metadata: Any,
) -> F:
    """An initializer whose values carry metadata into the Variables that are made of them.

    Args:
        initializer: a function that makes a value.
        on_set_value, on_get_value, on_create_value, on_add_axis, on_remove_axis: hooks, one or several.
        metadata: anything else.

    Returns:
        A function of the same arguments that returns a `VariableMetadata`.

    >>> import jax, jax.numpy as jnp
    >>> make = with_metadata(jax.nn.initializers.zeros, note="first")
    >>> make(jax.random.key(0), (2,), jnp.float32).metadata
    {'note': 'first'}
    """
    given = dict(zip(HOOKS, (on_get_value, on_set_value, on_create_value, on_add_axis, on_remove_axis), strict=True))
    hooks = {name: (hook,) if callable(hook) else tuple(hook) for name, hook in given.items()}
    if any(hooks.values()):
        warn_of_hooks()

    @functools.wraps(initializer)
    def wrapper(*args: Any) -> VariableMetadata[Any]:
        return VariableMetadata(initializer(*args), metadata=metadata, **hooks)

    return wrapper  # type: ignore[return-value]
