"""The text of a Variable: its type, value, size in bytes, and metadata."""

from __future__ import annotations

from typing import Any

from weft.nnx.config import config
from weft.nnx.printing.reprlib import Attr, Object, Representable, SizeBytes
from weft.nnx.variable.metadata import Metadata
from weft.nnx.variable.operators import ValueProtocols


class Shown(ValueProtocols, Representable):
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
