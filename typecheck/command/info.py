"""`weft info`: prints versions, devices, modes and caches for a bug report, without anything private.

If a section cannot be read, the report says why in its place, because it is needed most where something fails to start.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = (
    "weft", "jax", "jaxlib", "equinox", "jaxtyping", "beartype", "optax", "numpy", "flax", "orbax-checkpoint",
    "libcst",
)  # fmt: skip
# JAX's options that change what a program computes or where.
_OPTIONS = (
    "enable_x64", "default_matmul_precision", "numpy_dtype_promotion", "numpy_rank_promotion", "disable_jit",
    "debug_nans", "debug_infs", "check_tracer_leaks", "transfer_guard", "threefry_partitionable",
    "default_prng_impl",
)  # fmt: skip
# Values are shown for these variables only, because others may hold a token.
_VARIABLES = (
    "WEFT_TYPECHECK", "WEFT_TYPECHECK_VERBOSE", "WEFT_DEBUG_SUCCESSORS", "WEFT_DEBUG_KEYS", "WEFT_OP_BY_OP",
    "WEFT_NNX_INSTALL", "JAX_PLATFORMS", "JAX_ENABLE_X64", "JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the report and returns the exit code 0."""
    parser = argparse.ArgumentParser(
        "weft info", description="Prints what a bug report needs to say about this machine."
    )
    parser.add_argument("--format", choices=["text", "json"], default="text", help="how to print (default: text)")
    options = parser.parse_args(argv)
    report = dict[str, dict[str, Any]]()
    for name, section in _SECTIONS.items():
        try:
            report[name] = section()
        # A broken driver makes `jax.devices()` fail, which is what such a report is about.
        except Exception as error:
            report[name] = {name: f"failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    if options.format == "json":
        text = json.dumps(report, indent=2, default=str)
    else:
        text = "\n".join(
            line
            for name, entries in report.items()
            for line in (name, *(f"  {key}: {value}".rstrip() for key, value in entries.items()))
        )
    # The home folder often contains the user's name.
    home = os.path.expanduser("~").rstrip("/")
    print(text.replace(home, "~") if len(home) > 1 else text)
    return 0


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> dict[str, Any]:
    import jax

    devices = jax.devices()
    kinds = ", ".join(dict.fromkeys(device.device_kind for device in devices))
    processes = {"processes": jax.process_count(), "process": jax.process_index()}
    return {"backend": jax.default_backend(), "devices": len(devices), "kinds": kinds, **processes}


def _modes() -> dict[str, Any]:
    import jax
    from weft.typecheck.modes import current_mode

    options = {name: getattr(jax.config, f"jax_{name}", "not there") for name in _OPTIONS}
    return {"contracts": current_mode(), **options}


def _environment() -> dict[str, Any]:
    # A variable that weft does not read is often a misspelt one.
    others = (name for name in os.environ if name.startswith("WEFT_") and name not in _VARIABLES)
    return {
        **{name: os.environ[name] for name in _VARIABLES if name in os.environ},
        **dict.fromkeys(others, "(weft does not read it)"),
    }


def _caches() -> dict[str, Any]:
    from weft.core.caches import tables

    files = [file.stat().st_size for file in Path(".weft/cache").rglob("*") if file.is_file()]
    sizes = {table.name: f"{table.size()} of {table.most or 'any number'}" for table in tables() if table.size()}
    return {".weft/cache": f"{len(files)} files, {sum(files) / 1e6:.1f} MB", **sizes}


_SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "versions": lambda: {name: _version(name) for name in _PACKAGES},
    "platform": lambda: {
        "python": f"{sys.version.split()[0]} ({platform.python_implementation()})",
        "system": f"{platform.platform()}, {os.cpu_count()} cores",
        "weft": str(Path(__file__).resolve().parents[2]),
        "executable": sys.executable,
    },
    "devices": _devices,
    "modes": _modes,
    "environment": _environment,
    "caches": _caches,
}
