"""The command `weft info`: what a bug report needs to say of a machine, and nothing that it must not.

Whatever cannot be found out says why, in its place: a report is needed most where something does not start.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = (
    "jax",
    "jaxlib",
    "equinox",
    "jaxtyping",
    "beartype",
    "optax",
    "numpy",
    "flax",
    "orbax-checkpoint",
    "libcst",
)
# Switches of JAX that change what a program computes, or where.
_JAX = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_disable_jit",
    "jax_debug_nans",
    "jax_debug_infs",
    "jax_check_tracer_leaks",
    "jax_transfer_guard",
    "jax_threefry_partitionable",
    "jax_default_prng_impl",
)
# Variables whose values are shown; of others that begin as weft's do, the name alone.
_READ = (
    "WEFT_TYPECHECK",
    "WEFT_TYPECHECK_VERBOSE",
    "WEFT_DEBUG_SUCCESSORS",
    "WEFT_DEBUG_KEYS",
    "WEFT_OP_BY_OP",
    "WEFT_NNX_INSTALL",
    "JAX_PLATFORMS",
    "JAX_ENABLE_X64",
    "JAX_COMPILATION_CACHE_DIR",
    "XLA_FLAGS",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "CUDA_VISIBLE_DEVICES",
)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        "weft info", description="Versions, devices, modes and caches, for a bug report: no secrets, no home folder."
    )
    top.add_argument("--format", choices=("text", "json"), default="text", help="how to print (default: text)")
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code, which is 0."""
    options = parser().parse_args(argv)
    found = shortened(report())
    print(json.dumps(found, indent=2) if options.format == "json" else as_text(found))
    return 0


def report() -> dict[str, dict[str, Any]]:
    """What there is to say, by section."""
    return {
        "versions": {"weft": _or_why(_weft), **{name: _version(name) for name in _PACKAGES}},
        "platform": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "weft": str(Path(__file__).resolve().parents[2]),
            "executable": sys.executable,
        },
        "devices": _or_why(_devices, "devices"),
        "modes": {**_or_why(_jax_modes, "jax"), **_weft_modes()},
        "environment": {
            **{name: os.environ[name] for name in _READ if name in os.environ},
            **{
                name: "(weft does not read it)" for name in os.environ if name.startswith("WEFT_") and name not in _READ
            },
        },
        "caches": {
            "compilation": _or_why(_compilation_cache),
            ".weft/cache": _folder(Path(".weft/cache")),
            **_tables(),
        },
    }


def _or_why(find: Callable[[], Any], name: str | None = None) -> Any:
    """What was found; or the error in its place, in one line, under a name if what is found has names."""
    try:
        return find()
    except Exception as error:
        said = f"failed: {type(error).__name__}: {(str(error).splitlines() or ['no more is said'])[0]}"
        return said if name is None else {name: said}


def _weft() -> str:
    return importlib.import_module("weft").__version__


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> dict[str, Any]:
    import jax

    found = jax.devices()
    kinds = dict.fromkeys(one.device_kind for one in found)
    return {
        "backend": jax.default_backend(),
        "devices": len(found),
        "kinds": ", ".join(kinds),
        "processes": jax.process_count(),
        "process": jax.process_index(),
    }


def _jax_modes() -> dict[str, Any]:
    import jax

    return {name.removeprefix("jax_"): getattr(jax.config, name) for name in _JAX if hasattr(jax.config, name)}


def _weft_modes() -> dict[str, Any]:
    from weft.core.switches import is_on
    from weft.typecheck.modes import current_mode

    switches = ("WEFT_TYPECHECK_VERBOSE", "WEFT_DEBUG_SUCCESSORS", "WEFT_DEBUG_KEYS", "WEFT_OP_BY_OP")
    return {
        "contracts": _or_why(current_mode),
        **{name.removeprefix("WEFT_").removeprefix("TYPECHECK_").lower(): is_on(name) for name in switches},
    }


def _compilation_cache() -> str:
    import jax

    folder: str | None = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    return _folder(Path(folder)) if folder and "://" not in folder else folder.partition("://")[0] if folder else "off"


def _folder(folder: Path) -> str:
    """A folder with its size."""
    if not folder.is_dir():
        return f"{folder}: not there"
    sizes = [one.stat().st_size for one in folder.rglob("*") if one.is_file()]
    return f"{folder}: {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB"


def _tables() -> dict[str, str]:
    """The tables of weft's that hold something in this process."""
    from weft.core.caches import tables

    return {one.name: f"{one.size()} of {one.most or 'any number'}" for one in tables() if one.size()}


def shortened(found: Any) -> Any:
    """The same, with `~` for the home folder wherever it stands."""
    home = os.path.expanduser("~").rstrip("/")
    if isinstance(found, dict):
        return {key: shortened(value) for key, value in found.items()}
    return found.replace(home, "~") if isinstance(found, str) and len(home) > 1 else found


def as_text(found: dict[str, dict[str, Any]]) -> str:
    """A section a paragraph, a line each."""
    lines: list[str] = []
    for section, entries in found.items():
        lines += [section, *(f"  {name}: {value}" for name, value in entries.items() or [("none", "")])]
    return "\n".join(line.rstrip() for line in lines)
