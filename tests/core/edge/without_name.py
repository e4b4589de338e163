"""Runs weft without one name of JAX after another, each in a process of its own, and prints how each run ends.

    python without_name.py <<< '[["jax.interpreters.ad", "Zero"], ...]'

Prints a list in JSON: for each name, the error of what every user does and that of the features, as type and text, or
null. A process is forked after JAX is imported and before weft is: how weft is imported is what is tried. What the
first of them has compiled of weft's sources, the others load.
"""

import json
import multiprocessing
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import equinox  # noqa: F401 (imported once for all)
import jax
import jax.experimental.checkify
import jax.experimental.serialize_executable
import jax.numpy as jnp
from jaxtyping import Array, Float

Error = tuple[str, str] | None


def take_away(module: str, name: str) -> None:
    """Hides a name from weft: JAX goes on to use it where it has it itself."""
    hidden: Any = sys.modules[module]

    class Hiding(type(hidden)):
        def __getattribute__(self, asked: str) -> Any:
            if asked == name and "/site-packages/" not in sys._getframe(1).f_code.co_filename:
                raise AttributeError(f"module {module!r} has no attribute {name!r}")
            return super().__getattribute__(asked)

    hidden.__class__ = Hiding


def use_weft() -> None:
    """What every user does, whatever JAX lacks."""
    import weft

    x, model = jnp.ones((2, 3)), weft.Linear(3, 2, key=jax.random.key(0))
    weft.jit(model)(x)
    weft.vmap(model)(x)
    weft.grad(lambda model: model(x).sum())(model)


def use_features() -> None:
    """What needs names beyond those that JAX documents."""
    import weft
    from weft.typecheck import verify

    x, model = jnp.ones((2, 3)), weft.Linear(3, 2, key=jax.random.key(0))

    def sowing(x: Any) -> Any:
        return jax.lax.scan(lambda c, x: (weft.sow("h", jax.jit(jnp.sin)(c)), x), 0.0, x)

    weft.capture(jax.vmap(sowing))(x)
    weft.capture(jax.grad(lambda x: weft.sow("h", jax.checkpoint(jnp.sin)(x))))(1.0)
    assert verify(double).proved
    with weft.debug.debug_successors():
        weft.jit(lambda norm, x: weft.drop_successor(norm(x)[1]))(weft.BatchNorm(3), x)
    weft.tabulate(model, x)
    weft.jit(model).lower(x).compile()


def double(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return jnp.add(x, x)


def error_of(use: Callable[[], None]) -> Error:
    try:
        use()
    except BaseException as error:
        return type(error).__name__, str(error)
    return None


def run_without(module_and_name: tuple[str, str]) -> tuple[Error, Error]:
    take_away(*module_and_name)
    return error_of(use_weft), error_of(use_features)


if __name__ == "__main__":
    for module, _ in (names := json.load(sys.stdin)):
        __import__(module)
    with tempfile.TemporaryDirectory() as folder:
        sys.pycache_prefix, sys.dont_write_bytecode = folder, False
        with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
            print(json.dumps(pool.map(run_without, names, chunksize=1)))
