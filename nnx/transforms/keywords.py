"""The options of the transforms as TypedDicts, so that type checkers know them and the function's own signature.

They extend those of `weft.transforms.keywords` by the options that NNX adds.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypedDict

from weft.nnx.crossing.rides import DiffState
from weft.transforms import keywords
from weft.transforms.keywords import Numbers


class ModeKeywords(TypedDict, total=False):
    """The options of every transform."""

    graph: bool | None
    graph_updates: bool | None


class JitKeywords(keywords.JitKeywords, ModeKeywords, total=False):
    """The options of `jit`."""


class ShardMapKeywords(keywords.ShardMapKeywords, ModeKeywords, total=False):
    """The options of `shard_map` that may be left out."""


class AxesKeywords(ModeKeywords, total=False):
    """The option that `vmap`, `pmap` and `scan` share."""

    transform_metadata: Mapping[str, Any]


class VmapKeywords(keywords.VmapKeywords, AxesKeywords, total=False):
    """The options of `vmap`."""


class PmapKeywords(keywords.PmapKeywords, AxesKeywords, total=False):
    """The options of `pmap`."""

    static_broadcasted_argnums: Numbers
    donate_argnums: Numbers


class ScanKeywords(keywords.ScanKeywords, AxesKeywords, total=False):
    """The options of `scan`."""

    _split_transpose: bool


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


class PullbackKeywords(ModeKeywords, total=False):
    """The options of `vjp` without `has_aux`, which has overloads because the output's type depends on it."""

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
