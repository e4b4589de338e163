"""equinox: lists the uses of names for which weft has a counterpart, with what to do by hand.

No use of equinox is rewritten. In equinox, Python numbers are static arguments of transforms and leaves of modules. In
weft, a number as an argument is traced, and a number in a field is configuration. So a name and its counterpart mean
the same only if no number is involved, which syntax does not show. Most of equinox works on weft's records and inside
weft's transforms, so each use can be changed on its own, after somebody has looked at it.
"""

from __future__ import annotations

import libcst as cst

from .findings import Finding, written
from .reading import Reader

_NUMBERS = "name the arguments that are numbers or strings in static_argnames"
_MAPPED = "an argument that is a number needs None in in_axes; axes by filter are weft.axes"
_FIRST = "its first argument must be arrays or a module: weft differentiates numbers, too"
_FILES = "which has a file format of its own"
# By the work that it is, what to do for each name of equinox with a counterpart in weft.
_REWRITE = {
    "Module": "weft.Module, where no field is a leaf that is a number or a function; annotations are contracts then",
    "tree_serialise_leaves": f"weft.save_checkpoint, {_FILES}",
    "tree_deserialise_leaves": f"weft.load_checkpoint, {_FILES}",
    "nn.make_with_state": "a layer of weft's, which returns its successor: y, layer = layer(x)",
}
_CHECK = {
    "filter_jit": f"weft.jit: {_NUMBERS}",
    "filter_grad": f"weft.grad: {_FIRST}",
    "filter_value_and_grad": f"weft.value_and_grad: {_FIRST}",
    "filter_vmap": f"weft.vmap: {_MAPPED}",
    "filter_pmap": f"weft.pmap: {_MAPPED}",
    "error_if": "weft.error_if, where weft.jit compiles it",
    "tree_at": "weft.at(model)....set(value), where it is one leaf",
    "partition": "weft.tree.split and weft.tree.merge",
}
_RENAME = {
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
    "tree_equal": "weft.tree.equal",
    "nn.inference_mode": "weft.inference_mode",
}
COUNTERPARTS = {
    name: (work, fix)
    for work, fixes in (("rewrite", _REWRITE), ("check", _CHECK), ("rename", _RENAME))
    for name, fix in fixes.items()
}


def findings_of(reader: Reader) -> list[Finding]:
    """Finds the uses of names with a counterpart in weft, each with what to do."""
    places: list[Finding] = []
    for node in reader.nodes:
        if not isinstance(node, (cst.Name, cst.Attribute)) or reader.in_import(node):
            continue
        names = {name.removeprefix("equinox.") for name in reader.imported(node) if name.startswith("equinox.")}
        # A base class. Elsewhere (`isinstance(x, eqx.Module)`) `eqx.Module` includes weft's records.
        above = reader.parent(node)
        is_base = isinstance(above, cst.Arg) and isinstance(reader.parent(above), cst.ClassDef)
        # `eqx.nn.Linear` is visited as `eqx.nn`, too, which has no entry in the table, so it is listed once.
        for name in sorted(names & COUNTERPARTS.keys()):
            if name != "Module" or is_base:
                why, (work, fix) = "it stays equinox's, and works together with weft's", COUNTERPARTS[name]
                places.append(Finding(reader.source.path, reader.line(node), written(node), why, fix, work=work))
    return places
