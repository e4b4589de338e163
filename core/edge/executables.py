"""JAX's cache of executables on disk, and how to compile beside it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import jax
from weft.core.edge.moved import Names

_config: Any = jax.config
_cache = Names("jax.experimental.compilation_cache.compilation_cache", "`Compiled.save`", "reset_cache")
serialization = Names("jax.experimental.serialize_executable", "`Compiled.save`", "serialize", "deserialize_and_load")


def keeps_executables() -> bool:
    """Whether JAX reads and writes executables on disk (`jax_compilation_cache_dir`)."""
    return bool(_config.jax_compilation_cache_dir and _config.jax_enable_compilation_cache)


@contextlib.contextmanager
def compiling_anew() -> Generator[None]:
    """Compiles within it, in any thread, without that cache."""
    # JAX asks once for a process whether there is one, so it has to be told to ask again.
    _config.update("jax_enable_compilation_cache", False)
    _cache.reset_cache()
    try:
        yield
    finally:
        _config.update("jax_enable_compilation_cache", True)
        _cache.reset_cache()
