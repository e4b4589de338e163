"""`%load_ext weft` in a shell of IPython, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

SESSION = '''
import weft
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance(colors="nocolor")

def cell(text):
    print("-- " + text.strip().splitlines()[0])
    result = shell.run_cell(text, store_history=True)
    print("error:", type(result.error_in_exec or result.error_before_exec).__name__)

cell("""import weft, jax, jax.numpy as jnp
from jaxtyping import Array, Float
from weft.typecheck import current_mode""")
before = (shell.custom_exceptions, weft.typecheck.current_mode())
LOSES = """@weft.jit
def loses(counter):
    y, _ = counter()
    return y
class Counter(weft.Module):
    count: Array
    def __call__(self):
        return self.count, self.replace(count=self.count + 1)
loses(Counter(jnp.array(1)))"""
WRONG = """@weft.jit
def double(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x[None] * 2
double(jnp.ones(3))"""
cell(WRONG)
cell("%load_ext weft")
cell("%load_ext weft")
print(weft.typecheck.current_mode())
cell(WRONG)
cell(LOSES)
cell(LOSES.replace("y, _ = counter()", "y, counter = counter()").replace("return y", "return y, counter"))
cell(WRONG.replace("[None]", ""))
cell(WRONG.replace("[None]", "").replace("* 2", "* 3"))
cell("%unload_ext weft")
print((shell.custom_exceptions, weft.typecheck.current_mode()) == before)
cell(WRONG)
cell(LOSES)
'''


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("IPython") is None, reason="IPython is not installed")
def test_a_notebook_says_mistakes_while_the_extension_is_loaded(tmp_path):
    environment = {**os.environ, "WEFT_TYPECHECK": "off", "IPYTHONDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", SESSION], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, *loaded, wrong, loses, mended, again, redefined, unloaded, last, lost = done.stdout.split("-- ")[2:]
    assert first.endswith("error: NoneType\n")
    assert loaded[-1].endswith("on\n")
    assert wrong.endswith("error: ContractError\n")
    assert "should be f32[n=3], and is f32[1,3]" in wrong
    assert "double(jnp.ones(3))" in wrong
    # Frames of cells only.
    assert [text for text in ("site-packages", "core/", "skipping hidden", "JAX_TRACEBACK") if text in wrong] == []
    assert loses.endswith("error: SuccessorError\n")
    assert "a successor is lost" in loses
    # Cells that are run again, changed, are new functions and classes.
    assert [cell.endswith("error: NoneType\n") for cell in (mended, again, redefined)] == [True] * 3
    assert unloaded.endswith("True\n")
    assert [cell.endswith("error: NoneType\n") for cell in (last, lost)] == [True] * 2
