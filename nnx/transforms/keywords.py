"""The options of the transforms, for static checkers: what a function keeps its signature beside.

Each transform has two forms, `nnx.vmap(f, **options)` and `@nnx.vmap(**options)`, which take the same options. They are
written once here; the transform itself says what they mean.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypedDict

from weft.nnx.crossing.rides import DiffState

Numbers = int | Sequence[int]
Names = str | Sequence[str]


class ModeKeywords(TypedDict, total=False):
    """The options of every transform."""

    graph: bool | None
    graph_updates: bool | None


class JitKeywords(ModeKeywords, total=False):
    """The options of `jit`."""

    in_shardings: Any
    out_shardings: Any
    static_argnums: Numbers | None
    static_argnames: Names | None
    donate_argnums: Numbers | None
    donate_argnames: Names | None
    keep_unused: bool
    device: Any
    backend: str | None
    inline: bool


class ShardMapKeywords(ModeKeywords, total=False):
    """The options of `shard_map` that may be left out."""

    axis_names: Any
    check_vma: bool


class AxesKeywords(ModeKeywords, total=False):
    """The option that `vmap`, `pmap` and `scan` share."""

    transform_metadata: Mapping[str, Any]


class MapKeywords(AxesKeywords, total=False):
    """The options that `vmap` and `pmap` share."""

    in_axes: int | Sequence[Any] | None
    out_axes: Any
    axis_name: Any
    axis_size: int | None


class VmapKeywords(MapKeywords, total=False):
    """The options of `vmap`."""

    spmd_axis_name: Any


class PmapKeywords(MapKeywords, total=False):
    """The options of `pmap`."""

    static_broadcasted_argnums: Numbers
    devices: Any
    backend: str | None
    donate_argnums: Numbers


class ScanKeywords(AxesKeywords, total=False):
    """The options of `scan`."""

    length: int | None
    reverse: bool
    unroll: int | bool
    _split_transpose: bool
    in_axes: Any
    out_axes: Any


class MetadataKeywords(TypedDict, total=False):
    """The options of `transform_metadata`."""

    in_axes: Any
    out_axes: Any
    partition: str | None
    graph: bool | None


class ReverseKeywords(ModeKeywords, total=False):
    """The options of `grad` and `value_and_grad`."""

    argnums: int | DiffState | Sequence[int | DiffState]
    has_aux: bool
    holomorphic: bool
    allow_int: bool
    reduce_axes: Sequence[Hashable]


class RematKeywords(ModeKeywords, total=False):
    """The options of `remat`."""

    prevent_cse: bool
    static_argnums: int | tuple[int, ...]
    policy: Callable[..., bool] | None


class CustomVjpKeywords(ModeKeywords, total=False):
    """The options of `custom_vjp`."""

    nondiff_argnums: tuple[int | DiffState, ...]


class JaxprKeywords(ModeKeywords, total=False):
    """The options of `make_jaxpr`."""

    static_argnums: Numbers
