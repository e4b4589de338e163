"""The options of the transforms, for static checkers: what a function keeps its signature beside.

Each transform has two forms, `weft.vmap(f, **options)` and `@weft.vmap(**options)`, which take the same options. They
are written once here, and `nnx/transforms/keywords.py` adds its own; the transform itself says what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import jax

Numbers = int | Sequence[int]
Names = str | Sequence[str]


class JitKeywords(TypedDict, total=False):
    """The options of `jit`, those among them that go on to `jax.jit`."""

    in_shardings: Any
    out_shardings: Any
    static_argnums: Numbers | None
    static_argnames: Names | None
    donate_argnums: Numbers | None
    donate_argnames: Names | None
    keep_unused: bool
    device: Any
    backend: str | None
    inline: bool | jax.Inline


class CompilerKeywords(JitKeywords, total=False):
    """`jit`'s, and those of the compiler."""

    compiler_options: Mapping[str, Any] | None


class MapKeywords(TypedDict, total=False):
    """The options that `vmap` and `pmap` share."""

    in_axes: Any
    out_axes: Any
    axis_name: Any
    axis_size: int | None


class VmapKeywords(MapKeywords, total=False):
    """The options of `vmap`."""

    spmd_axis_name: Any


class PmapKeywords(MapKeywords, total=False):
    """The options of `pmap`."""

    devices: Any
    backend: str | None


class ShardMapKeywords(TypedDict, total=False):
    """The options of `shard_map` that go on to `jax.shard_map`."""

    axis_names: Any
    check_vma: bool


class ScanKeywords(TypedDict, total=False):
    """The options of `scan`."""

    in_axes: Any
    out_axes: Any
    length: int | None
    reverse: bool
    unroll: int | bool


class DiffKeywords(TypedDict, total=False):
    """The options that whole derivatives share."""

    wrt: Any
    argnums: Numbers
    has_aux: bool
    holomorphic: bool


class ReverseKeywords(DiffKeywords, total=False):
    """Those of reverse mode, which integers may pass."""

    allow_int: bool


class RematKeywords(TypedDict, total=False):
    """The options of `remat`."""

    policy: Any
    prevent_cse: bool
    static_argnums: Numbers | None
