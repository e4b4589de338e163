"""What one file changes of its process changes no verdict of another file, in whichever order they are judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

JUDGED = """
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

def added(x: Float[Array, "a b"], y: Float[Array, "b"]) -> Float[Array, "a b"]:
    return x + y

def scaled(x: Float32[Array, "a"]) -> Float32[Array, "a"]:
    return x + jnp.arange(x.shape[0]) * jnp.linspace(0, 1, x.shape[0])

def total(x: Float[Array, "a"]) -> Float[Array, ""]:
    return jnp.sum(x)
"""

CHANGES = {
    "x64": "import jax; jax.config.update('jax_enable_x64', True)",
    "patched": "import jax.numpy as jnp; old = jnp.sum; jnp.sum = lambda x, **k: old(x, keepdims=True)",
    "ranks": "import jax; jax.config.update('jax_numpy_rank_promotion', 'raise')",
    "dtypes": "import jax; jax.config.update('jax_numpy_dtype_promotion', 'strict')",
    "transform": "import jax; jax.eval_shape = None",
    "seterr": "import numpy; numpy.seterr(all='raise')",
    "warnings": "import warnings; warnings.simplefilter('error')",
    "environment": "import os; os.environ['WEFT_TYPECHECK'] = 'strict'",
    "folder": "import os; os.chdir('/')",
    "path": "import sys; sys.path.insert(0, '/nowhere'); sys.path.reverse()",
    "recursion": "import sys; sys.setrecursionlimit(60)",
    "limits": "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
}


def printed(folder: Path, files: list[str], *options: str) -> str:
    """What one worker says of some files, judged in this order."""
    command = [sys.executable, "-m", "weft.typecheck", "check", "-j", "1", *options, *files]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def changing_and_judged(folder: Path, names: list[str]) -> tuple[list[str], str]:
    """Files that change their process, each before one that is judged; and what is to be said of them."""
    files: list[str] = []
    for number, name in enumerate(names):
        (folder / f"{name}.py").write_text(CHANGES[name])
        (folder / f"judged{number}.py").write_text(JUDGED)
        files += [f"{name}.py", f"judged{number}.py"]
    count = 3 * len(names)
    return files, f"{count} contracts: {count} proved, 0 hold, 0 fail\n"


@pytest.mark.slow
def test_settings_and_patches_of_one_file_change_no_verdict_in_whichever_order(tmp_path: Path):
    files, expected = changing_and_judged(tmp_path, ["x64", "patched"])
    assert printed(tmp_path, files[::-1], "--no-cache") == expected


@pytest.mark.slow
def test_nothing_that_a_file_changes_of_its_process_changes_another_verdict(tmp_path: Path):
    files, expected = changing_and_judged(tmp_path, [*CHANGES])
    assert printed(tmp_path, files) == expected
    assert printed(tmp_path, files) == expected  # from the cache


def test_random_numbers_at_import_are_those_of_a_file_alone(tmp_path: Path):
    code = "import random, numpy\nprint(random.random(), numpy.random.rand())\n"
    for name in ("a", "b"):
        (tmp_path / f"{name}.py").write_text(code)
    command = [sys.executable, "-m", "weft.typecheck", "check", "-j", "1", "--no-cache", "a.py", "b.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    first, second = ran.stderr.splitlines()
    assert first == second
