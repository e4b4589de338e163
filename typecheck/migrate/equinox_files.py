"""What a file of equinox has that says how the files around it may be moved."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import libcst as cst

from .making import Making
from .reading import Reader, dotted

# What keeps state beside the model, or raises from inside of a compiled function: equinox's transforms know of it.
_STATEFUL = ("State", "StateIndex", "make_with_state", "BatchNorm", "SpectralNorm", "StatefulLayer", "Shared")
_RAISING = ("error_if", "branched_error_if", "EquinoxRuntimeError", "internal")


@dataclass(frozen=True)
class Around:
    """What is in the files that a file is imported with.

    Attributes:
        tied: what needs equinox's own transforms; empty for nothing.
        kinds: whether there may be kinds of weft's.
        stacks: whether modules may be stacked.
        numpy: the names that are called in files that have NumPy's arrays, with the file of each.
        bases: names of classes that others derive from.
    """

    tied: str = ""
    kinds: bool = False
    stacks: bool = False
    numpy: Mapping[str, str] = field(default_factory=dict[str, str])
    bases: Collection[str] = ()


def hazards(reader: Reader) -> list[str]:
    """What a file has that ties the files around it to equinox's own transforms."""
    found: set[str] = set()
    for node in reader.nodes:
        if not isinstance(node, (cst.Name, cst.Attribute)):
            continue
        for name in reader.imported(node):
            last = name.split(".")
            if is_plain_error_if(reader, node):
                continue
            if last[0] == "equinox" and (set(last[1:3]) & set(_STATEFUL) or set(last[1:2]) & set(_RAISING)):
                found.add(name.replace("equinox.", "eqx.", 1))
    return sorted(found)


def has_kinds(reader: Reader) -> bool:
    """Whether a file may declare kinds of weft's: there the two mean other leaves by a gradient."""
    return any(name == "typing.Annotated" for node in reader.nodes for name in reader.imported(node)) and any(
        name.split(".")[0] == "weft" for node in reader.nodes for name in reader.imported(node)
    )


def stacks(known: Making) -> bool:
    """Whether a file may stack modules: a class as an annotation is one module to a contract, and no stack of them."""
    reader = known.reader
    for node in reader.nodes:
        if not isinstance(node, cst.Call):
            continue
        if not isinstance(node.func, (cst.Name, cst.Attribute)):
            continue  # `vmap(f)(g)`, of which g is an argument
        name = reader.means(node.func) or ""
        if name in ("jax.numpy.stack", "jax.numpy.concatenate") and any(
            isinstance(one, cst.Lambda) for one in reader.around(node)
        ):
            return True
        if (
            name in ("jax.vmap", "equinox.filter_vmap", "weft.vmap")
            and node.args
            and known.makes_modules(node.args[0].value)
        ):
            return True
    return any(
        known.gives_modules(node)
        for node in known.functions.values()
        for one in node.decorators
        if (reader.means(called(one.decorator)) or "").rpartition(".")[2] in ("filter_vmap", "vmap")
    )


def called_beside_numpy(reader: Reader) -> set[str]:
    """What a file that has arrays of NumPy calls: a class, with an array that no field annotated with `Array` takes."""
    if not any(name.split(".")[0] == "numpy" for node in reader.nodes for name in reader.imported(node)):
        return set()
    return {dotted(node.func).rpartition(".")[2] for node in reader.nodes if isinstance(node, cst.Call)}


def is_plain_error_if(reader: Reader, node: cst.CSTNode) -> bool:
    """Whether a use of `equinox.error_if` is a call with a value, a condition and a message, as weft's takes them."""
    call = reader.parent(node)
    if not isinstance(call, cst.Call) or call.func is not node or reader.means(node) != "equinox.error_if":
        return False
    return len(call.args) == 3 and not any(one.keyword or one.star for one in call.args)


def bases_in(reader: Reader) -> set[str]:
    """The names of classes that a file derives others from."""
    classes = [node for node in reader.nodes if isinstance(node, cst.ClassDef)]
    return {dotted(base.value).rpartition(".")[2] for node in classes for base in node.bases}


def called(decorator: cst.BaseExpression) -> cst.BaseExpression:
    return decorator.func if isinstance(decorator, cst.Call) else decorator
