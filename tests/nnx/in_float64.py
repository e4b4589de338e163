"""Runs programs of flax.nnx one after the other, in float64: `python in_float64.py flax|weft SCRIPT...`.

Two libraries compile one program differently, so they round differently, and training makes that grow: after ten steps
of a GAN in float32, two right runs differ in the second digit, on one processor and not on another. In float64 what
grows begins nine digits further down. Layers ask for float32 by name, as a default, so the name has to mean float64
before they are imported; the programs themselves stay as they are.

Prints a JSON object: of each script what it printed, and the traceback if it raised.
"""

import contextlib
import io
import json
import runpy
import sys
import traceback

import jax
import jax.numpy as jnp


def main(library: str, scripts: list[str]) -> None:
    """Runs the scripts; the process, and with it what JAX has compiled, is theirs together."""
    jax.config.update("jax_enable_x64", True)
    jnp.float32 = jnp.float64
    if library == "weft":
        from weft.nnx.__main__ import main as run
    else:

        def run(arguments):
            return runpy.run_path(arguments[0], run_name="__main__")

    results = {}
    for script in scripts:
        printed, error = io.StringIO(), ""
        with contextlib.redirect_stdout(printed):
            try:
                run([script])
            except Exception:
                error = traceback.format_exc()
        results[script] = {"printed": printed.getvalue(), "error": error}
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
