"""The options of the transforms as TypedDicts, for the overloads that type checkers read.

Each transform has two forms, `weft.vmap(f, **options)` and `@weft.vmap(**options)`, which take the same options. They
are written once here, and `nnx/transforms/keywords.py` adds its own; the docstring of a transform explains them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import jax

Numbers = int | Sequence[int]
Names = str | Sequence[str]


class JitKeywords(TypedDict, total=False):
    """The options of `jit`, including those that it passes on to `jax.jit`."""

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
    """The options of `jit`, and those of the compiler."""

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
    """The options of `shard_map` that it passes on to `jax.shard_map`."""

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
    """The options that all derivatives share."""

    wrt: Any
    argnums: Numbers
    has_aux: bool
    holomorphic: bool


class ReverseKeywords(DiffKeywords, total=False):
    """The options of reverse mode, which has one for integers."""

    allow_int: bool


class RematKeywords(TypedDict, total=False):
    """The options of `remat`."""

    policy: Any
    prevent_cse: bool
    static_argnums: Numbers | None
