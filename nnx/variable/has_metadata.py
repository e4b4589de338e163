"""The methods of a Variable that read and change its metadata (`HasMetadata`), and that print it (`VariablePrinting`).

The text of a Variable has its type, value, size in bytes, and metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

from weft.nnx.config import config
from weft.nnx.errors import MISSING, StructureError
from weft.nnx.printing.reprlib import Attr, Object, Representable, SizeBytes
from weft.nnx.variable.metadata import REQUIRED, Metadata, call_hooks, current_name, freeze, with_current_names
from weft.nnx.variable.operators import ValueProtocols
from weft.nnx.versions import structure_epoch

_store = object.__setattr__


def _write(variable: Any, metadata: Mapping[str, Any]) -> None:
    # Not by `setattr`: a user's `__setattr__` that stores metadata would call this function again.
    _store(variable, "_nnx_metadata", freeze(dict(metadata)))
    structure_epoch.advance()


class MetadataView(MutableMapping[str, Any]):
    """A mutable view of a Variable's metadata; each write stores a new immutable record.

    >>> from weft import nnx
    >>> w = nnx.Param(1.0)
    >>> w._var_metadata["note"] = "a"
    >>> w.note, len(w._var_metadata)
    ('a', 4)
    """

    __slots__ = ("_variable",)

    def __init__(self, variable: HasMetadata):
        self._variable = variable

    def __getitem__(self, name: str) -> Any:
        return self._variable._nnx_metadata[name]

    def __setitem__(self, name: str, value: Any) -> None:
        _write(self._variable, {**self._variable._nnx_metadata, name: value})

    def __delitem__(self, name: str) -> None:
        self._variable._nnx_metadata[name]  # raises KeyError, as `del` of a dict does
        _write(self._variable, self._variable._nnx_metadata.without(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._variable._nnx_metadata)

    def __len__(self) -> int:
        return len(self._variable._nnx_metadata)

    def copy(self) -> dict[str, Any]:
        return dict(self)

    def __repr__(self) -> str:
        return repr(dict(self))


class HasMetadata:
    """The methods of `Variable` that read and change metadata."""

    __slots__ = ()
    _nnx_metadata: Metadata
    required_metadata = REQUIRED

    @property
    def _var_metadata(self) -> MutableMapping[str, Any]:
        """The metadata, mutable: in flax it is a dict under this private name, and other code writes into it."""
        return MetadataView(self)

    @_var_metadata.setter
    def _var_metadata(self, metadata: Mapping[str, Any]) -> None:
        _write(self, metadata)

    def _check_can_update(self) -> None:
        raise AssertionError("Variable overrides _check_can_update")

    def get_metadata(
        self, name: str | None = None, default: Any = MISSING, *, exclude_required: bool | None = None
    ) -> Any:
        """Returns one entry of the metadata, or all of it as a new dict.

        Args:
            name: the entry; None for all of them.
            default: the result for a missing entry.
            exclude_required: whether to leave out `hijax`, `ref` and `eager_sharding`; only without `name`.

        Raises:
            KeyError: for a missing entry without a default.
        """
        if name is not None:
            if exclude_required is not None:
                raise TypeError("Cannot specify both a name and exclude_required, which applies to all metadata")
            if default is not MISSING:
                return self._nnx_metadata.get(name, default)
            return self._nnx_metadata[name]
        if default is not MISSING:
            raise TypeError(f"Cannot provide a default value without a name; got default={default!r}")
        return self._nnx_metadata.without(*(self.required_metadata if exclude_required else ()))

    def set_metadata(self, *args: Any, **kwargs: Any) -> None:
        """Changes metadata: `set_metadata(name, value)`, `set_metadata(name=value, ...)`, or `set_metadata(mapping)`,
        which replaces all of it but the modes.

        Raises:
            ValueError: if `hijax`, `ref` or `eager_sharding` would change.
        """
        self._check_can_update()
        match args, bool(kwargs):
            case (mapping,), False:
                modes = {mode: self._nnx_metadata[mode] for mode in REQUIRED & self._nnx_metadata.keys()}
                self._replace_metadata({**modes, **with_current_names(mapping)})
            case (name, value), False:
                self._replace_metadata({**self._nnx_metadata, current_name(name): value})
            case (), True:
                self._replace_metadata({**self._nnx_metadata, **with_current_names(kwargs)})
            case _:
                raise TypeError(
                    "Cannot mix arguments in set_metadata, which takes a mapping, a name and a value, or keywords; "
                    f"got {args!r} and {kwargs!r}"
                )

    def _replace_metadata(self, metadata: dict[str, Any]) -> None:
        # A Variable with another mode would need another class (a box) or another value (a ref), so modes are fixed at
        # creation.
        for mode in REQUIRED & self._nnx_metadata.keys():
            if metadata[mode] != self._nnx_metadata[mode]:
                raise StructureError(
                    f"Cannot change `{mode}` metadata from {self._nnx_metadata[mode]} to {metadata[mode]}",
                    fix=f"make a new Variable: variable.copy({mode}=...)",
                )
        _write(self, metadata)

    def has_metadata(self, name: str) -> bool:
        """Whether the metadata has an entry of this name."""
        return name in self._nnx_metadata

    def del_metadata(self, name: str) -> None:
        """Deletes an entry of the metadata.

        Raises:
            KeyError: if there is no such entry.
            StructureError: for `hijax` and `ref`.
        """
        self._check_can_update()
        if name in ("hijax", "ref"):
            raise StructureError(f"Cannot delete `{name}` metadata: every Variable has it")
        self._nnx_metadata[name]  # raises KeyError
        _write(self, self._nnx_metadata.without(name))

    def add_axis(self, axis_index: int, axis_name: str | None) -> None:
        """Calls the `on_add_axis` hooks, because a transform has added an axis to the value."""
        call_hooks(self._nnx_metadata.get("on_add_axis", ()), self, axis_index, axis_name)

    def remove_axis(self, axis_index: int, axis_name: str | None) -> None:
        """Calls the `on_remove_axis` hooks, because a transform has removed an axis of the value."""
        call_hooks(self._nnx_metadata.get("on_remove_axis", ()), self, axis_index, axis_name)


class VariablePrinting(ValueProtocols, Representable):
    """The methods of `Variable` that print it, as text and in treescope."""

    __slots__ = ()

    _raw_value: Any
    _nnx_metadata: Metadata

    def _shown(self) -> dict[str, Any]:
        return {"value": self.get_value(), **shown_metadata(self._nnx_metadata)}

    def __nnx_repr__(self):
        size = SizeBytes.from_any(self._raw_value)
        yield Object(type(self), comment=f" # {size}" if size else "")
        for name, value in self._shown().items():
            yield Attr(name, value)

    def __treescope_repr__(self, path: Any, subtree_renderer: Any) -> Any:
        from weft.nnx.printing.visualization import render_object_constructor

        size = SizeBytes.from_any(self.get_value())
        comment = f" # {size}" if size else None
        return render_object_constructor(type(self), self._shown(), path, subtree_renderer, comment=comment)


def shown_metadata(metadata: Metadata) -> dict[str, Any]:
    """The metadata that the text shows: all but modes with their default value."""
    # The defaults are read now and not at import: a program may change them by `config.update`.
    usual = {"hijax": config.flax_hijax_variable, "ref": False, "eager_sharding": config.flax_always_shard_variable}
    return {name: value for name, value in metadata.items() if name not in usual or usual[name] != value}
