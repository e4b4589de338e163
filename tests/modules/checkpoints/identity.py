"""Writes every public class and activation, and reads what was written before, in a process that has used all names of
packages (`mention`) or none.

    python tests/modules/checkpoints/identity.py FOLDER [mention]

`lazily`, a package in FOLDER, imports what it offers when it is first used.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import weft
from weft import core, modules, transforms

PACKAGES = (core, transforms, modules)
HOMES = {name: home for package in PACKAGES for home, names in package._HOMES.items() for name in names.split()}
PACKAGE = """
def __getattr__(name):
    if name not in ("Net", "double"):
        raise AttributeError(name)
    from lazily import nets
    globals()[name] = getattr(nets, name)
    return globals()[name]
"""
NETS = """
import jax, weft
class Net(weft.Module):
    w: jax.Array
def double(x):
    return 2 * x
"""


class Holder(weft.Module):
    values: dict[str, Any]
    net: Any
    w: jax.Array

    def __call__(self, x: Any) -> Any:
        return self.w * x


def public() -> dict[str, Any]:
    """Every public object, read where it is defined, so that no package has been asked for it."""
    eager = {name: vars(package)[name] for package in PACKAGES for name in package.__all__ if name not in HOMES}
    modules_of = {name: importlib.import_module(home) for name, home in HOMES.items() if "=" not in name}
    return eager | {name: getattr(module, name) for name, module in modules_of.items() if name in weft.__all__}


def main(folder: str, *mention: str) -> None:
    for file, text in {"__init__": PACKAGE, "nets": NETS}.items():
        Path(folder, "lazily").mkdir(exist_ok=True)
        Path(folder, "lazily", f"{file}.py").write_text(text)
    sys.path.insert(0, folder)
    nets = importlib.import_module("lazily.nets")
    if mention:
        for package in (weft, *PACKAGES):
            for name in package.__all__:
                getattr(package, name)
        weft.nnx, importlib.import_module("lazily").Net, importlib.import_module("lazily").double
    values = public() | {name: getattr(jax.nn, name) for name in jax.nn.__dict__ if name[0] != "_"}
    linear = HOMES["Linear"] + ":Linear"
    layer = importlib.import_module(linear.partition(":")[0]).Linear(2, 2, key=jax.random.key(0))
    holder = Holder(values | {"double": nets.double}, [nets.Net(jnp.ones(2)), layer], jnp.ones(3))
    write(Path(folder, "mentioned" if mention else "plain"), holder)
    for place in sorted(Path(folder).glob("*.safetensors")):
        weft.load_checkpoint(place, holder)
        weft.Checkpoints(place.with_suffix("")).restore(holder)
        weft.load_exported(place.with_suffix(".exported").read_bytes()).call(holder, jnp.ones(3))
        print(len(holder.values), "values of", place.stem)


def write(place: Path, holder: Holder) -> None:
    weft.save_checkpoint(place.with_suffix(".safetensors"), holder)
    with weft.Checkpoints(place) as checkpoints:
        checkpoints.save(len(checkpoints.steps), holder)
    exported = weft.export(lambda holder, x: (holder(x), holder))(holder, jnp.ones(3))
    place.with_suffix(".exported").write_bytes(exported.serialize())


if __name__ == "__main__":
    main(*sys.argv[1:])
