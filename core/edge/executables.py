"""JAX's cache of executables on disk: compiles without it, saves an executable, and compiles for absent devices."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from weft.core.edge.moved import Names
from weft.core.edge.patches import patched
from weft.core.edge.untyped import jax as untyped_jax

_config: Any = jax.config
_cache = Names("jax._src.compilation_cache", "`Compiled.save`", "is_cache_used")
serialization = Names("jax.experimental.serialize_executable", "`Compiled.save`", "serialize", "deserialize_and_load")


def keeps_executables() -> bool:
    """Whether JAX reads and writes executables on disk (`jax_compilation_cache_dir`)."""
    return bool(_config.jax_compilation_cache_dir and _config.jax_enable_compilation_cache)


def compiling_anew() -> AbstractContextManager[None]:
    """While open, JAX compiles without that cache."""
    # JAX's own setting is of the whole process, and read once in it.

    def never(is_used: Any, backend: Any) -> bool:
        return False

    return patched((_cache.module, "is_cache_used", never))


_xla = Names("jaxlib.xla_client", "`weft.plan`", "CompileOptions", "DeviceAssignment", "DeviceList")


def compile_module(module: bytes, count: int, open_outputs: list[bool]) -> tuple[str, dict[str, int]]:
    """Compiles a StableHLO module for some devices of this process; returns its HLO text, and XLA's memory statistics.

    JAX has no public way to compile a module here that was lowered in another process, without these devices.

    Args:
        module: the module as MLIR bytecode.
        count: the number of devices; partition i of the program runs on device i.
        open_outputs: for each output, whether XLA chooses its sharding, as JAX lets it for outputs without one.
    """
    options: Any = _xla.CompileOptions()
    build = options.executable_build_options
    options.num_replicas = build.num_replicas = 1
    options.num_partitions = build.num_partitions = count
    build.use_spmd_partitioning = build.use_shardy_partitioner = True
    build.allow_spmd_sharding_propagation_to_output = open_outputs
    assignment = _xla.DeviceAssignment.create(np.arange(count).reshape(1, count))
    options.device_assignment = build.device_assignment = assignment
    devices: list[Any] = untyped_jax.devices()[:count]
    executable: Any = devices[0].client.compile_and_load(module, _xla.DeviceList(tuple(devices)), options)
    stats: Any = executable.get_compiled_memory_stats()
    names = ("argument", "output", "alias", "temp")
    memory = {name: int(getattr(stats, f"{name}_size_in_bytes")) for name in names}
    return executable.hlo_modules()[0].to_string(), memory
