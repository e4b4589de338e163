"""The metadata of a Variable: modes, sharding, hooks, and any further keyword of its constructor.

Metadata is an immutable, hashable mapping, and a change stores a new one. Graph definitions can therefore share it with
their Variables instead of copying it, and comparing two starts with their identity. Three keys are the *modes*:
`hijax`, `ref` and `eager_sharding`. Every Variable is made with all three; of these only `eager_sharding` may be
deleted.

A *hook* is an entry of the metadata, too: a function, or a tuple of functions, under a name of `HOOKS`, called with the
Variable first. `on_create_value`, `on_get_value` and `on_set_value` map the value; transforms call `on_add_axis` and
`on_remove_axis` when they add or remove an axis of the value.
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
    """An immutable, hashable dict.

    >>> Metadata(a=1) == {"a": 1}, hash(Metadata(a=1, b=2)) == hash(Metadata(b=2, a=1))
    (True, True)
    """

    __slots__ = ("_hash", "_in_order")

    def __hash__(self) -> int:  # type: ignore[override]
        try:
            return self._hash
        except AttributeError:
            # At the first use only: metadata is part of every structure, and those are hashed at each call.
            self._hash = hash(frozenset(self.items()))
            return self._hash

    def in_order(self) -> Metadata:
        """This metadata sorted by name, as flax gives it to a Variable that JAX has unflattened.

        Metadata with the modes alone is returned as it is.
        """
        try:
            return self._in_order
        except AttributeError:
            names = sorted(self)
            # With the modes alone the record is one of the shared eight, which must stay the same object.
            keeps_order = self.keys() == REQUIRED or names == list(self)
            self._in_order = self if keeps_order else Metadata({name: self[name] for name in names})
            return self._in_order

    # Graph definitions and plans compare metadata by identity, so they would not see a write in place.
    def _immutable(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("metadata of a Variable is immutable; use Variable.set_metadata or del_metadata")

    if not TYPE_CHECKING:
        __setitem__ = __delitem__ = update = pop = popitem = clear = setdefault = __ior__ = _immutable

    def __reduce__(self) -> Any:
        return (Metadata, (dict(self),))

    def without(self, *names: str) -> dict[str, Any]:
        """The other entries, as an ordinary dict."""
        return {name: value for name, value in self.items() if name not in names}


# Nearly all Variables of a program have one of these eight records, which then compare by identity.
_common = {
    (hijax, ref, eager): Metadata(hijax=hijax, ref=ref, eager_sharding=eager)
    for hijax in (False, True)
    for ref in (False, True)
    for eager in (False, True)
}


def freeze(metadata: Mapping[str, Any]) -> Metadata:
    """Converts a mapping to metadata; a mapping of the three modes alone becomes one of eight shared records."""
    if type(metadata) is Metadata:
        return metadata
    if len(metadata) == 3 and metadata.keys() == REQUIRED:
        common = _common.get((metadata["hijax"], metadata["ref"], metadata["eager_sharding"]))
        if common is not None:
            return common
    return Metadata(metadata)


def current_name(name: str, stacklevel: int = 3) -> str:
    """Renames `sharding` and `sharding_names` to `out_sharding`, with a warning; returns any other name unchanged."""
    if name in _OLD_NAMES:
        warnings.warn(f"'{name}' is deprecated, use 'out_sharding'", DeprecationWarning, stacklevel=stacklevel)
        return "out_sharding"
    return name


def with_current_names(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata with `out_sharding` instead of its two deprecated names."""
    if not any(name in metadata for name in _OLD_NAMES):
        return dict(metadata)
    renamed = {current_name(name, stacklevel=4): value for name, value in metadata.items() if name in _OLD_NAMES}
    return {**{name: value for name, value in metadata.items() if name not in _OLD_NAMES}, **renamed}


def run_hooks(hooks: Any, *args: Any) -> Any:
    """Passes the last argument through hooks in turn; each is also called with the arguments before it."""
    *context, value = args
    for hook in hooks if isinstance(hooks, tuple) else (hooks,):
        value = hook(*context, value)
    return value


def call_hooks(hooks: Any, *args: Any) -> None:
    """Calls each hook with the arguments, and ignores the results."""
    for hook in hooks if isinstance(hooks, tuple) else (hooks,):
        hook(*args)


def warn_of_hooks() -> None:
    warnings.warn(
        "hooks of Variables are deprecated: make your own Variable type, and override get_value and set_value",
        stacklevel=4,
    )


@dataclasses.dataclass
class VariableMetadata(Generic[A]):
    """A value together with metadata for the Variable that will hold it; an initializer of `with_metadata` returns one.

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

    def joined(self, own: dict[str, Any]) -> dict[str, Any]:
        """Joins `own`, the metadata that a constructor got as keywords, with this.

        An entry of `metadata` overrides that of `own`; a hook of `own` overrides the field of its name.

        Raises:
            StructureError: if a mode has two different values.
        """
        for mode in REQUIRED & self.metadata.keys():
            if own.get(mode) is not None and own[mode] != self.metadata[mode]:
                raise StructureError(
                    f"the constructor got {mode}={own[mode]}, but the VariableMetadata {mode}={self.metadata[mode]}",
                    fix=f"pass {mode} to one of the two",
                )
        hooks = {name: hook for name in HOOKS if name not in own and (hook := getattr(self, name))}
        return {**own, **self.metadata, **hooks}


def with_metadata(
    initializer: F,
    on_set_value: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    on_get_value: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    on_create_value: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    on_add_axis: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    on_remove_axis: Callable[..., Any] | Sequence[Callable[..., Any]] = (),
    **metadata: Any,
) -> F:
    """Wraps an initializer, so that Variables made from its values get metadata.

    Args:
        initializer: a function that makes a value.
        on_set_value, on_get_value, on_create_value, on_add_axis, on_remove_axis: a hook or a sequence of hooks.
        metadata: any further entries.

    Returns:
        A function with the initializer's arguments that returns a `VariableMetadata`.

    >>> import jax, jax.numpy as jnp
    >>> make = with_metadata(jax.nn.initializers.zeros, note="first")
    >>> make(jax.random.key(0), (2,), jnp.float32).metadata
    {'note': 'first'}
    """
    by_name = dict(zip(HOOKS, (on_get_value, on_set_value, on_create_value, on_add_axis, on_remove_axis), strict=True))
    hooks = {name: (hook,) if callable(hook) else tuple(hook) for name, hook in by_name.items()}
    # flax deprecates hooks in favour of subclasses that override `get_value` and `set_value`.
    if any(hooks.values()):
        warn_of_hooks()

    @functools.wraps(initializer)
    def wrapper(*args: Any) -> VariableMetadata[Any]:
        return VariableMetadata(initializer(*args), metadata=metadata, **hooks)

    return wrapper  # type: ignore[return-value]
