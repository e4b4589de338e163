"""equinox: where a code base uses what weft has too, and what to do there by hand.

Nothing of equinox's is rewritten. equinox keeps Python's numbers out of its transforms and makes them leaves of its
modules, where weft traces a number that is an argument and takes one in a field for configuration; so a name means the
same only where no number is, which syntax cannot tell. Most of equinox works on weft's records and in weft's
transforms, so that each place moves by itself, when somebody has looked at it.
"""

from __future__ import annotations

import libcst as cst

from .findings import Left, written
from .reading import Reader

_NUMBERS = "what is a number or a string among its arguments goes into static_argnames"
_MAPPED = "a number among its arguments gets None in in_axes; axes by filter are weft.axes"
_FIRST = "its first argument must be arrays or a module: weft differentiates numbers, too"
_FILES = "which reads and writes other files than equinox's"
# What to do, for each name of equinox's that weft has a counterpart for.
COUNTERPARTS = {
    "Module": "weft.Module, where no field is a leaf that is a number or a function; annotations are contracts then",
    "filter_jit": f"weft.jit: {_NUMBERS}",
    "filter_grad": f"weft.grad: {_FIRST}",
    "filter_value_and_grad": f"weft.value_and_grad: {_FIRST}",
    "filter_vmap": f"weft.vmap: {_MAPPED}",
    "filter_pmap": f"weft.pmap: {_MAPPED}",
    "filter_vjp": "weft.vjp",
    "filter_jvp": "weft.jvp",
    "filter_jacfwd": "weft.jacfwd",
    "filter_jacrev": "weft.jacrev",
    "filter_hessian": "weft.hessian",
    "filter_custom_vjp": "weft.custom_vjp",
    "filter_custom_jvp": "weft.custom_jvp",
    "filter_checkpoint": "weft.remat",
    "filter_eval_shape": "weft.eval_shape",
    "filter_make_jaxpr": "weft.make_jaxpr",
    "filter_shard": "weft.shard",
    "error_if": "weft.error_if, where weft.jit compiles it",
    "tree_at": "weft.at(model)....set(value), where it is one leaf",
    "tree_equal": "weft.tree.equal",
    "partition": "weft.tree.split and weft.tree.merge",
    "tree_serialise_leaves": f"weft.save_checkpoint, {_FILES}",
    "tree_deserialise_leaves": f"weft.load_checkpoint, {_FILES}",
    "nn.make_with_state": "a layer of weft's, which returns its successor: y, layer = layer(x)",
    "nn.inference_mode": "weft.inference_mode",
}


def findings_of(reader: Reader) -> list[Left]:
    """The places in a file that use what weft has a counterpart for, each with what to do there."""
    places: list[Left] = []
    for node in reader.nodes:
        if not isinstance(node, (cst.Name, cst.Attribute)) or _is_import(reader, node):
            continue
        names = {name.removeprefix("equinox.") for name in reader.imported(node) if name.startswith("equinox.")}
        # `eqx.nn` of `eqx.nn.Linear` has no entry, so a longer name is told once.
        for name in sorted(names & COUNTERPARTS.keys()):
            if name != "Module" or _is_base(reader, node):
                why = "it stays equinox's, and works beside weft's"
                places.append(Left(reader.source.path, reader.line(node), written(node), why, COUNTERPARTS[name]))
    return places


def _is_import(reader: Reader, node: cst.CSTNode) -> bool:
    return any(isinstance(above, (cst.Import, cst.ImportFrom)) for above in reader.around(node)[:6])


def _is_base(reader: Reader, node: cst.CSTNode) -> bool:
    """Whether a class derives from what a name means: elsewhere `eqx.Module` takes weft's records as they are."""
    above = reader.parent(node)
    return isinstance(above, cst.Arg) and isinstance(reader.parent(above), cst.ClassDef)
