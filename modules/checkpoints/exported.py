"""Exported functions: programs that take and give flat dicts of arrays, keyed by path.

`jax.export` stores the treedefs of a function's arguments and output. A treedef with records in it could only be read
where weft is installed and the records' classes are defined, and a serving process has neither. So the exported
function takes one dict and returns one dict, whose keys are the paths that errors print:

    {"model.layers[0].weight": ..., "x": ...}  ->  {"loss": ..., "model.layers[0].weight": ...}

A process with JAX alone can read and call this function. `Exported` calls it with records: it flattens the caller's
arguments, compares their configuration with that of the arguments at export, and rebuilds the output. For this it has
*notes* (JSON): the parameters' names, the configuration by path (as in checkpoints), the random keys of the output, and
its *outline*: containers, names of arrays, and which records have the structure of which argument. The notes are
appended to JAX's bytes, which JAX reads only up to their own end. Only containers are built from the notes.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec

import jax
import jax.export as jax_export
import numpy as np
from weft.core.edge import trees
from weft.core.edge._jax import key_impl_of
from weft.core.edge.trees import key_part
from weft.core.errors import AliasError, StaticError, StructureError
from weft.core.interpreter.boundary import parameter_names
from weft.core.paths import Path, format_path, parse_path
from weft.core.records.leaves import iter_leaves, type_of
from weft.core.records.partition import Structure, take_apart
from weft.core.records.storage import Static
from weft.core.tracebacks import cutting
from weft.modules.checkpoints.configuration import configuration
from weft.modules.checkpoints.fitting import differing_configuration
from weft.modules.checkpoints.leaves import data_type
from weft.modules.construct import is_key
from weft.transforms.compilation import JitFunction, jit

P = ParamSpec("P")

_MAGIC = b"weft exported 1\n"
_LENGTH = struct.Struct("<Q")


def export(
    function: Callable[P, Any],
    /,
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[jax_export.DisabledSafetyCheck] = (),
) -> Callable[P, Exported]:
    """Exports a function as a program, for processes that have neither the function nor weft.

    Args:
        function: a function of records, NNX objects and arrays: a result of `weft.jit` or `nnx.jit`, or a function that
            is then compiled by `weft.jit`. If it is a record, its arrays become constants of the program.
        platforms: for example `("cpu", "tpu")`; by default the platform of this process.
        disabled_checks: as in `jax.export.export`.

    Returns:
        A function of the arguments to export for: arrays or `jax.ShapeDtypeStruct`s, whose sizes may be symbolic. It
        returns an `Exported`, which, as in JAX, is called without the static arguments.

    Raises:
        StaticError: if the function returns a static value outside of a record.
        StructureError: if the function writes into objects that it does not return.
        AliasError: if its arguments are objects that share a Variable.

    >>> import jax.numpy as jnp
    >>> exported = export(lambda model, x: {"y": model["w"] * x})({"w": jnp.ones(2), "name": "scale"}, 3.0)
    >>> exported.call({"w": jnp.ones(2), "name": "scale"}, 2.0)
    {'y': Array([2., 2.], dtype=float32)}
    >>> jax.export.deserialize(exported.serialize()).call({"model.w": np.ones(2, "float32"), "x": np.float32(2)})
    {'y': Array([2., 2.], dtype=float32)}

    Source: `jax.export.export`.
    """
    jitted: Any = function if isinstance(function, JitFunction) else jit(function)

    @cutting
    def exporting(*args: P.args, **kwargs: P.kwargs) -> Exported:
        # The errors of the function itself come from here, with the arguments as they are: in the program each path
        # has an array of its own, even where one array stands in two places.
        jitted.trace(*args, **kwargs)
        statics = jitted.static_arguments(args, kwargs)
        parameters = [name for i, name in enumerate(parameter_names(jitted)) if i not in statics.by_number]
        args, kwargs = statics.left_out(args, kwargs)
        arguments = _by_name(parameters, args, kwargs)
        structure, flat, keys = _flattened(arguments)
        if jitted.writes_into_arguments:
            _refuse_shared(flat)
        names, notes = list(flat), {"parameters": parameters, "configuration": configuration(arguments, flat)}

        def run(flat: Mapping[str, Any]) -> dict[str, Any]:
            # While JAX traces this function, it also adds to `notes` what only a trace can know: how to rebuild the
            # output, and which of its arrays are keys.
            arguments = structure.build([_wrapped(flat[name], keys.get(name)) for name in names])
            # Reversed, so that of several arguments with one treedef the first one counts.
            nodes = {node: i for i, node in reversed(list(enumerate(_nodes(arguments))))}
            before = jax.tree.leaves(arguments)
            by_position, by_name = statics.complete(*_as_passed(parameters, len(args), arguments))
            out = jitted(*by_position, **by_name)
            # JAX's export drops writes into the arguments' objects without a word: the serving process would keep stale
            # objects.
            _refuse_writes(before, arguments, out)
            _refuse_statics(out)
            notes["output"] = _outline(out, (), nodes)
            _, out, notes["keys"] = _flattened(out)
            return out

        run.__name__ = run.__qualname__ = getattr(jitted, "__name__", "exported")
        program = jax_export.export(jax.jit(run), platforms=platforms, disabled_checks=disabled_checks)(flat)
        return Exported(program, notes)

    return exporting


class Exported:
    """An exported function, which takes and returns records; see `export`.

    Attributes:
        program: JAX's own `jax.export.Exported`, which takes and returns flat dicts. A random key is in them as its
            data, as `jax.random.key_data` returns it.
    """

    def __init__(self, program: jax_export.Exported, notes: Mapping[str, Any], out: Structure | None = None):
        self.program = program
        self._notes = notes
        self._out = out
        self._call = jax.jit(program.call)  # `program.call` by itself is compiled at each call
        self._known: tuple[Structure, list[Structure]] | None = None

    @cutting
    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program.

        Args:
            args: of the function, with the configuration and the shapes that it was exported for.
            kwargs: likewise.

        Returns:
            The output of the function. A record, NNX object or state with the structure of one of the arguments is
            rebuilt as a successor of that argument, with its configuration. Other records come as dicts of their arrays
            by field, unless `load_exported` was called with `out`.

        Raises:
            StructureError: if the arguments differ in more than their arrays, naming paths.
        """
        arguments = _by_name(self._notes["parameters"], args, kwargs)
        structure, flat, _ = _flattened(arguments)
        known = self._known
        # To compare configuration takes far longer than a call, so it is done once for each treedef.
        if known is None or known[0] != structure:
            self._compare(flat, configuration(arguments, flat))
            known = self._known = (structure, list(_nodes(arguments)))
        keys = self._notes["keys"]
        out = {name: _wrapped(value, keys.get(name)) for name, value in self._call(flat).items()}
        if self._out is not None:
            return self._out.build([out[_name(path)] for path in self._out.paths])
        return _built(self._notes["output"], out, known[1])

    def flatten(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Returns the arguments in the form that the program takes: a dict of arrays by path, which NumPy can save.

        >>> import jax.numpy as jnp
        >>> export(lambda model, x: model["w"] * x)({"w": jnp.ones(2)}, 3.0).flatten({"w": jnp.ones(2)}, 4.0)
        {'model.w': Array([1., 1.], dtype=float32), 'x': 4.0}
        """
        return _flattened(_by_name(self._notes["parameters"], args, kwargs))[1]

    def serialize(self, *, vjp_order: int = 0) -> bytes:
        """Returns the program as bytes, for `jax.export.deserialize` in any process, or `load_exported` with weft.

        Args:
            vjp_order: how often the program can be differentiated in reverse once it is loaded.
        """
        notes = json.dumps(self._notes).encode()
        program = bytes(self.program.serialize(vjp_order=vjp_order))
        return b"".join((program, notes, _LENGTH.pack(len(notes)), _MAGIC))

    def _compare(self, flat: Mapping[str, Any], here: Mapping[str, Any]) -> None:
        # Where only one side has an array at a path, and the other has configuration or nothing, the array's type is
        # compared with that: so one error names everything that differs.
        (wanted,), _ = jax.tree.unflatten(self.program.in_tree, self.program.in_avals)
        saved = {**self._notes["configuration"], **{path: _type(wanted[path]) for path in wanted.keys() - flat.keys()}}
        here = {**here, **{path: _type(flat[path]) for path in flat.keys() - wanted.keys()}}
        if lines := differing_configuration(saved, here, {path: path for path in saved}, only_common=False):
            raise StructureError(
                "the arguments differ from those that this function was exported for",
                at=lines,
                fix="make them as the process did that exported it, or export the function for these",
            )


def load_exported(data: bytes, *, out: Any = None) -> Exported:  # weft: skip(it reads bytes)
    """Reads an exported function; its arguments' classes need to be defined once it is called.

    Args:
        data: the bytes of `Exported.serialize`. A program can do whatever JAX can: load only programs that you trust.
        out: a tree of the output's structure, of arrays or `jax.ShapeDtypeStruct`s. It is needed if the function
            returns records with other treedefs than its arguments have.

    Raises:
        StructureError: if the bytes are something else or truncated, or `out` has not the output's leaves.

    >>> import jax.numpy as jnp
    >>> data = export(lambda x: (x, x + 1))(jnp.ones(2)).serialize()
    >>> load_exported(data).call(jnp.zeros(2))
    (Array([0., 0.], dtype=float32), Array([1., 1.], dtype=float32))
    """
    if not data.endswith(_MAGIC):
        raise StructureError(
            "these bytes are not a function that weft exported, or they are truncated",
            fix="pass the bytes of weft.export(...)(...).serialize(); jax.export.deserialize reads those of JAX",
        )
    end = len(data) - len(_MAGIC) - _LENGTH.size
    start = end - _LENGTH.unpack_from(data, end)[0]
    # The notes are cut off before JAX reads the bytes, although its flatbuffer would ignore them.
    program = jax_export.deserialize(bytearray(data[:start]))
    like = None if out is None else take_apart(out)[0]
    returned = jax.tree.unflatten(program.out_tree, program.out_avals)
    if like is not None and (unmatched := returned.keys() ^ set(map(_name, like.paths))):
        raise StructureError(
            "`out` must have the leaves of the function's output: these are in only one of the two",
            at=sorted(unmatched),
            fix="pass a tree of the output's structure",
        )
    return Exported(program, json.loads(data[start:end]), like)


# ---- trees and flat dicts -------------------------------------------------------------------------------------------


def _by_name(parameters: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Joins the arguments to one tree, whose paths begin with the names of parameters."""
    rest = {"args": tuple(args[len(parameters) :])} if len(args) > len(parameters) else {}
    return dict(**dict(zip(parameters, args, strict=False)), **rest, **kwargs)


def _as_passed(parameters: Sequence[str], count: int, arguments: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The inverse of `_by_name`, for `count` arguments by position."""
    kwargs = dict(arguments)
    args = [kwargs.pop(name) for name in parameters[:count]]
    return (*args, *(kwargs.pop("args") if count > len(parameters) else ())), kwargs


def _name(path: Path) -> str:
    return format_path(path) if path else "output"


def _flattened(tree: Any) -> tuple[Structure, dict[str, Any], dict[str, str]]:
    """Returns a tree's structure, its arrays by path (for a key its data), and the implementation of each key."""
    structure, leaves = take_apart(tree)
    names = [_name(leaf.path) for leaf in leaves]
    # Two paths may print alike, since keys of dicts may. The program would lose one of the arrays.
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise StructureError("two arrays have the same path", at=twice, fix="rename a key")
    flat = {name: leaf.value for name, leaf in zip(names, leaves, strict=True)}
    keys = {name: key_impl_of(value.dtype) for name, value in flat.items() if is_key(value)}
    for name in keys:
        is_abstract = isinstance(flat[name], jax.ShapeDtypeStruct)
        flat[name] = data_type(flat[name]) if is_abstract else jax.random.key_data(flat[name])
    return structure, flat, keys


def _type(value: Any) -> str:
    return type_of(jax.eval_shape(lambda value: value, value))


def _wrapped(value: Any, impl: str | None) -> Any:
    return value if impl is None else jax.random.wrap_key_data(value, impl=impl)


# ---- the output -----------------------------------------------------------------------------------------------------


def _children(node: Any) -> list[tuple[Any, Any]] | None:
    """Returns the children of a node that may hold arrays, by key; None if the node is a leaf."""
    level = trees.flatten_one_level(node)
    return None if level is None else [(key_part(key), child) for key, child in level[0] if type(child) is not Static]


def _is_container(node: Any) -> bool:
    return type(node) in (tuple, list, dict)


def _nodes(tree: Any) -> Iterator[Structure]:
    """Yields the structures of the records, states and objects in the arguments, outermost first.

    An output of the same structure is rebuilt as such a record: it is a successor of the argument.
    """
    children = _children(tree)
    if children is not None and not _is_container(tree):
        yield take_apart(tree)[0]
    for _, child in children or ():
        yield from _nodes(child)


def _outline(node: Any, path: Path, nodes: Mapping[Structure, int]) -> Any:
    """Describes as JSON how to rebuild an output from a flat dict: array names, containers, and numbers of `nodes`."""
    if node is None:
        return None
    children = _children(node)
    if children is None:
        return _name(path)
    if not _is_container(node):
        structure, leaves = take_apart(node)
        if structure in nodes:
            return ["like", nodes[structure], [_name((*path, *leaf.path)) for leaf in leaves]]
    parts = [[repr(key), _outline(child, (*path, key), nodes)] for key, child in children]
    return [type(node).__name__ if type(node) in (tuple, list) else "dict", parts]


def _built(outline: Any, flat: Mapping[str, Any], nodes: Sequence[Structure]) -> Any:
    """Rebuilds the output that an outline describes."""
    if outline is None:
        return None
    if isinstance(outline, str):
        return flat[outline]
    kind, *parts = outline
    if kind == "like":
        number, names = parts
        return nodes[number].build([flat[name] for name in names])
    built = {_key(text): _built(part, flat, nodes) for text, part in parts[0]}
    return built if kind == "dict" else {"tuple": tuple, "list": list}[kind](built.values())


def _key(text: str) -> Any:
    with contextlib.suppress(ValueError):
        return parse_path(f"[{text}]")[0]
    return text


# ---- what cannot be exported ----------------------------------------------------------------------------------------


def _refuse_shared(flat: Mapping[str, Any]) -> None:
    """Refuses objects that share a Variable: in the program each path would be a Variable of its own."""
    names: dict[int, list[str]] = {}  # by the id of an array, which `flat` keeps alive
    for name, value in flat.items():
        if isinstance(value, jax.Array | np.ndarray):
            names.setdefault(id(value), []).append(name)
    if shared := [" and ".join(several) for several in names.values() if len(several) > 1]:
        raise AliasError(
            "a function of objects that share a Variable cannot be exported",
            at=shared,
            fix="split them before, which keeps one of each: graphdef, state = nnx.split(model)",
        )


def _refuse_writes(before: Sequence[Any], arguments: Any, out: Any) -> None:
    """Refuses a function that writes into its arguments what it does not return.

    A program has no objects of a caller to write into, so such a change would be lost. A step that merges a state,
    writes into its Variables and returns the state loses nothing.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(arguments)
    returned = set(map(id, jax.tree.leaves(out)))
    rows = zip(leaves, before, strict=False)
    written = [path for (path, leaf), old in rows if leaf is not old and id(leaf) not in returned]
    if written or len(leaves) != len(before):
        raise StructureError(
            "a function that changes its arguments' objects cannot be exported",
            at=[format_path(tuple(map(key_part, path))) for path in written],
            fix="split them, and return the state: merge inside, and return nnx.state(model)",
        )


def _refuse_statics(out: Any) -> None:
    statics = [leaf for leaf in iter_leaves(out, ("output",)) if not leaf.dynamic]
    if statics:
        raise StaticError(
            "a function that returns a static value outside of a Module cannot be exported",
            at=[f"{format_path(leaf.path)}: {leaf.value!r:.80}" for leaf in statics],
            fix="return it in a Module, or not at all",
        )
