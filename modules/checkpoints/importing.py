"""import_weights: loads the arrays of another library's model into a record.

Other libraries have other names and layouts for the same parameters. A *rename table* says to which layer a name
belongs; a *layout* says for a class of layers how its parameters are named there, and how their axes are ordered.
`TORCH` is the layout of torch's own layers.

Words: a *place* is where one array of the other model goes: an array of the record, or one layer's part of it in a
`Stack`, whose arrays hold all layers. Its path is written as one would in Python: `blocks[3].mlp.layers[0].kernel`.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp
import numpy as np
from weft.core.paths import Path as PathInTree
from weft.core.paths import format_path, parse_path
from weft.core.records.leaves import is_array
from weft.core.records.partition import take_apart
from weft.core.records.successors import records_in
from weft.core.tracebacks import cutting
from weft.modules.attention.positions import LearnedPositions
from weft.modules.checkpoints import format as form
from weft.modules.checkpoints.fitting import LoadReport
from weft.modules.checkpoints.format import CheckpointError, Entry, Target, brief, dtype_of
from weft.modules.checkpoints.leaves import placement, show_type
from weft.modules.checkpoints.names import check_rename
from weft.modules.combinators.stack import Stack
from weft.modules.convolutions.conv import Conv
from weft.modules.dense.linear import Embed, Linear
from weft.modules.norms.norm import BatchNorm, LayerNorm, RMSNorm

T = TypeVar("T")
Permute = Callable[[Any], Any]
# For a class of layers: from a parameter's name elsewhere to the field here, and how its axes are put in order.
Layout = Mapping[type, Mapping[str, tuple[str, Permute | None]]]
Renamed = str | Sequence[str] | None
Rename = Mapping[str, Renamed] | Callable[[str], Renamed]
Weights = Mapping[str, Any] | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
# torch writes the third of a sequence as `layers.2`.
_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=[.\[]|$)")
_NORM = {"weight": ("scale", None)}


TORCH: Layout = {
    # The class decides on transposition, because a square kernel does not show it.
    Linear: {"weight": ("kernel", np.transpose)},
    Conv: {"weight": ("kernel", lambda kernel: np.moveaxis(kernel, (1, 0), (-2, -1)))},  # the window comes first here
    Embed: {"weight": ("embedding", None)},
    LearnedPositions: {"weight": ("embedding", None)},
    LayerNorm: _NORM,
    RMSNorm: _NORM,
    BatchNorm: {**_NORM, "running_mean": ("mean", None), "running_var": ("var", None)},
}


class ImportOptions(TypedDict, total=False):
    """The keyword arguments of `import_weights`, except `strict`, which decides what it returns."""

    rename: Rename | None
    layout: Layout | None


@overload
def import_weights(
    model: T, weights: Weights, *, strict: Literal[True] = True, **options: Unpack[ImportOptions]
) -> T: ...
@overload
def import_weights(
    model: T, weights: Weights, *, strict: Literal[False], **options: Unpack[ImportOptions]
) -> tuple[T, LoadReport]: ...
@cutting
def import_weights(  # weft: skip(of any leaf)
    model: T, weights: Weights, *, rename: Rename | None = None, layout: Layout | None = None, strict: bool = True
) -> T | tuple[T, LoadReport]:
    """Returns a model with the weights of another library: of a torch state dict, or a Hugging Face safetensors file.

    Args:
        model: records; arrays may be `jax.ShapeDtypeStruct`s, as `weft.init(..., abstract=True)` makes them.
        weights: NumPy, JAX or torch arrays by name, or one or several safetensors files.
        rename: maps names to layers. The keys of a mapping are names or beginnings of names up to a dot; a `*` matches
            one part of a name and is replaced by it in the path: `{"h.*.mlp.c_fc": "blocks[*].mlp.layers[0]"}`. The
            longest key that matches is used. With several paths the array is divided among them along the last axis of
            weft's layout, as for fused queries, keys and values; with None it is left out. A function is called with
            each name.
        layout: for a class of layers, maps a parameter's name to the field and a function that permutes its axes, as in
            `{weft.Linear: {"weight": ("kernel", None)}}` if the kernels have weft's layout. It comes before torch's
            layout. A name without an entry is the name of a field.
        strict: refuses weights without an array, and arrays without a weight. With False both are reported.

    Returns:
        The model, with floats in its own dtypes; with `strict=False` the model and a `LoadReport`.

    Raises:
        CheckpointError: if the weights do not fit, naming all names and paths, or an argument is malformed; nothing is
            imported.

    >>> import jax
    >>> from weft.modules import MLP
    >>> mlp = MLP(2, 3, 1, key=jax.random.key(0))
    >>> weights = {f"net.{i}.{n}": np.ones(s) for i, n, s in
    ...            [(0, "weight", (3, 2)), (0, "bias", 3), (2, "weight", (1, 3)), (2, "bias", 1)]}
    >>> import_weights(mlp, weights, rename={"net": "layers"})(jnp.ones(2)).tolist()
    [10.0]
    """
    arrays = dict(weights) if isinstance(weights, Mapping) else _read_files(weights)
    _check_names(arrays)
    check_rename(rename)
    _check_layout(layout)
    structure, leaves = take_apart(model)
    like = {leaf.path: leaf.value for leaf in leaves}
    goals = _TargetPlaces(model, like, {**TORCH, **(layout or {})})
    paths, unused = _renamed(rename, arrays)
    filling = _Assignments(goals)
    for name, renamed in paths.items():
        if renamed is not None:
            filling.add(name, renamed, arrays[name])
    wrong = [f"rename: {pattern} fits no name" for pattern in unused] + filling.wrong
    incomplete = filling.missing_in_abstract_stacks(like)
    wrong += [f"{format_path(path)}: missing in an abstract stack, {goals.show(path)}" for path in incomplete]
    rest: list[str] = []
    if strict:
        rest += [f"{name}: left over, and rename gives {paths[name]}" for name in filling.left_over]
        rest += [
            f"{format_path(path)}: missing, {goals.show(path)}" for path in filling.missing() if path not in incomplete
        ]
    if wrong or rest:
        fix = "name their layers in rename=, with None for what is left out, and in layout= how they are stored"
        raise CheckpointError(
            "these weights do not fit the model",
            at=map(brief, wrong + rest),
            # `strict=False` reports names and arrays without a partner, and no other misfit.
            fix=fix if wrong else f"{fix}; or strict=False reports what is left over and missing",
        )
    filled = filling.arrays(like)
    made = structure.build([filled.get(leaf.path, leaf.value) for leaf in leaves])
    if strict:
        return made
    left_over = tuple(name for name in arrays if paths[name] is None or name in filling.left_over)
    return made, LoadReport(tuple(map(format_path, filling.missing())), left_over)


def _check_names(names: Iterable[Any]) -> None:
    wrong = [f"weights: {name!r:.80}" for name in names if not isinstance(name, str)]
    if wrong:
        raise CheckpointError(
            "a name of an array must be a string", at=wrong, fix="name arrays as torch does: {'layers.0.weight': array}"
        )


def _check_layout(layout: Any) -> None:
    rows = layout.items() if isinstance(layout, Mapping) else [] if layout is None else [("layout", layout)]
    wrong: list[str] = []
    for cls, by_name in rows:
        pairs = by_name.values() if isinstance(by_name, Mapping) else [by_name]
        shaped = [pair for pair in pairs if isinstance(pair, tuple) and len(pair) == 2]
        are_fields = all(isinstance(field, str) and (permute is None or callable(permute)) for field, permute in shaped)
        if not isinstance(cls, type) or len(shaped) < len(pairs) or not are_fields:
            wrong.append(f"layout: {cls!r}: {by_name!r:.80}")
    if wrong:
        raise CheckpointError(
            "a layout maps a class to names, and each name to a pair: a field, and a function of an array or None",
            at=wrong,
            fix='write layout={weft.Linear: {"weight": ("kernel", numpy.transpose)}}',
        )


# --- where arrays go -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The place of one array in the model: a leaf, and for a leaf of a stack the index of the layer."""

    leaf: PathInTree
    copy: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: Any


class _TargetPlaces:
    """The places of a model, and the classes of its layers, by path; each layer of a stack has a path of its own."""

    def __init__(self, model: Any, like: Mapping[PathInTree, Any], layouts: Layout):
        records = dict(records_in(model))
        self._stacks = {path: record.n for path, record in records.items() if isinstance(record, Stack)}
        self._layouts = layouts
        self._classes = {place: type(record) for path, record in records.items() for place, _ in self._copies(path)}
        self.places = {
            place: Place(path, copy, tuple(value.shape[len(copy) :]), value.dtype)
            for path, value in like.items()
            if is_array(value)
            for place, copy in self._copies(path)
        }

    def _copies(self, path: PathInTree) -> list[tuple[PathInTree, tuple[int, ...]]]:
        """Returns for each layer of a stack the path of a leaf in it, with a number for `layers`, and its index."""
        # The places in the path where a stack's `layers` are, and the stack's size; stacks may be in stacks.
        sizes = {k: n for k in range(len(path)) if path[k] == "layers" and (n := self._stacks.get(path[:k]))}
        copies: list[tuple[PathInTree, tuple[int, ...]]] = []
        for index in itertools.product(*map(range, sizes.values())):
            numbers = dict(zip(sizes, index, strict=True))
            copies.append((tuple(numbers.get(k, part) for k, part in enumerate(path)), index))
        return copies

    def find(self, text: str) -> tuple[PathInTree, Permute | None] | None:
        """Returns the place for a renamed name, and the function that transposes its array; None without a place."""
        try:
            path = parse_path(_NUMBER.sub(r"[\1]", text))
        except ValueError:
            return None
        *layer, name = path
        # Along the bases, so that a user's subclass of `Linear` has the layout of `Linear`.
        for cls in self._classes.get(tuple(layer), object).__mro__:
            field, permute = self._layouts.get(cls, {}).get(str(name), (None, None))
            if field is not None and (*layer, field) in self.places:
                return (*layer, field), permute
        return (path, None) if path in self.places else None

    def show(self, path: PathInTree) -> str:
        place = self.places[path]
        return show_type(str(place.dtype), place.shape)


class _Assignments:
    """The arrays that were assigned to places so far, and those that do not fit."""

    def __init__(self, goals: _TargetPlaces):
        self.goals = goals
        self.pieces: dict[PathInTree, np.ndarray[Any, Any]] = {}
        self.left_over: list[str] = []
        self.wrong: list[str] = []
        self._names: dict[PathInTree, str] = {}

    def add(self, name: str, paths: Sequence[str], weight: Any) -> None:
        """Assigns an array to its places; an array with several places is divided among them."""
        targets = [place for path in paths if (place := self.goals.find(path)) is not None]
        if len(targets) < len(paths):
            self.left_over.append(name)
            return
        array = _on_host(weight)
        permute = targets[0][1]
        array = array if permute is None else np.asarray(permute(array))
        places = [self.goals.places[path] for path, _ in targets]
        shape = places[0].shape
        # A fused array, such as torch's `c_attn`, is divided along its last axis, which is that of output features
        # here.
        fits = True
        if len(places) > 1:
            # A scalar has no axis along which it could be a part.
            fits = all(place.shape and place.shape[:-1] == shape[:-1] for place in places)
            shape = (*shape[:-1], sum(place.shape[-1] for place in places if place.shape))
        if not fits or array.shape != shape:
            wanted = " and ".join(f"{format_path(path)}: {self.goals.show(path)}" for path, _ in targets)
            self.wrong.append(f"{name}: {show_type(str(array.dtype), array.shape)} as stored here, not {wanted}")
            return
        ends = list(itertools.accumulate(place.shape[-1] for place in places[:-1]))
        # `np.split` refuses a scalar, also where nothing is divided.
        pieces = np.split(array, ends, -1) if ends else [array]
        for (path, _), place, piece in zip(targets, places, pieces, strict=True):
            # Two names may be renamed to one place; the second would silently replace the first.
            if path in self.pieces:
                self.wrong.append(f"{format_path(path)}: both {self._names[path]} and {name} are renamed to it")
            elif piece.dtype != place.dtype and not all(
                jnp.issubdtype(dtype, jnp.floating) for dtype in (piece.dtype, place.dtype)
            ):
                self.wrong.append(f"{name}: {piece.dtype}, not {format_path(path)}: {self.goals.show(path)}")
            self.pieces[path], self._names[path] = piece, name

    def missing(self) -> list[PathInTree]:
        """Returns the places without an array."""
        return [path for path in self.goals.places if path not in self.pieces]

    def missing_in_abstract_stacks(self, like: Mapping[PathInTree, Any]) -> list[PathInTree]:
        """Returns the missing places in abstract stacks of which other layers get arrays: they would have no values."""
        some = {self.goals.places[path].leaf for path in self.pieces}
        leaves = ((path, self.goals.places[path].leaf) for path in self.missing())
        return [path for path, leaf in leaves if leaf in some and _is_abstract(like[leaf])]

    def arrays(self, like: Mapping[PathInTree, Any]) -> dict[PathInTree, Any]:
        """Returns whole leaves: each leaf with an array for at least one of its places."""
        whole: dict[PathInTree, np.ndarray[Any, Any]] = {}
        for path, piece in self.pieces.items():
            place = self.goals.places[path]
            old = like[place.leaf]
            if place.leaf not in whole:
                # A stack's array may get some layers only, and the other layers keep their numbers.
                keeps_old = place.copy and not _is_abstract(old)
                whole[place.leaf] = np.array(old) if keeps_old else np.empty(old.shape, old.dtype)
            whole[place.leaf][place.copy] = piece
        return {
            path: array if isinstance(like[path], np.ndarray) else jax.device_put(array, placement(like[path]))
            for path, array in whole.items()
        }


def _is_abstract(value: Any) -> bool:
    return isinstance(value, jax.ShapeDtypeStruct)


def _on_host(value: Any) -> np.ndarray[Any, Any]:
    """Returns a NumPy, JAX or torch array as a NumPy array in host memory."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        # torch's `numpy()` refuses bfloat16, because NumPy itself has none. float32 holds every bfloat16 exactly.
        value = (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()
    return np.asarray(value)


def _read_files(files: Any) -> dict[str, Any]:
    arrays: dict[str, Any] = {}
    paths = [files] if isinstance(files, str | os.PathLike) or not isinstance(files, Iterable) else [*files]
    if not all(isinstance(file, str | os.PathLike) for file in paths):
        raise CheckpointError(
            f"weights are arrays by name, or paths of safetensors files, not {files!r:.80}",
            fix="pass model.state_dict(), or the path of a file",
        )
    for file in paths:
        with form.opened(Path(file)) as source:
            for target, array in source.read([_weight(entry) for entry in source.entries]):
                if target.entry.name in arrays:
                    raise CheckpointError(
                        "two files hold an array of this name", at=target.entry.name, fix="pass each file once"
                    )
                arrays[target.entry.name] = array
    return arrays


def _weight(entry: Entry) -> Target:
    dtype = None if entry.is_number else dtype_of(entry.kind)
    if dtype is None:
        raise CheckpointError(
            f"this is a {entry.kind:.40}, not a weight", at=entry.name, fix="load weft's own files with load_checkpoint"
        )
    return Target(entry, entry.shape, dtype)


# --- renaming --------------------------------------------------------------------------------------------------------


def _renamed(rename: Any, names: Iterable[str]) -> tuple[dict[str, Sequence[str] | None], list[str]]:
    """Returns the paths for each name, None for names that are left out, and the patterns that match no name."""
    if rename is None or not isinstance(rename, Mapping):
        return {name: _several(name if rename is None else rename(name)) for name in names}, []
    patterns = [(_pattern(start), start, to) for start, to in rename.items()]
    used: set[str] = set()
    paths: dict[str, Sequence[str] | None] = {}
    for name in names:
        fits = [(match, start, to) for pattern, start, to in patterns if (match := pattern.fullmatch(name))]
        if not fits:
            # A name that no rule matches may already be the path.
            paths[name] = (name,)
            continue
        # The longest match wins: the one with the shortest rest, and of those the one with the fewest `*`.
        match, start, to = min(fits, key=lambda fit: (len(fit[0]["rest"]), fit[1].count("*")))
        used.add(start)
        several = _several(to)
        paths[name] = several and tuple(_filled(path, match) for path in several)
    return paths, [start for start in rename if start not in used]


def _pattern(start: str) -> re.Pattern[str]:
    spelled = "([^.]+)".join(map(re.escape, start.split("*")))
    return re.compile(rf"{spelled}(?P<rest>|\..*)" if start else r"(?P<rest>.*)")


def _several(to: Renamed) -> Sequence[str] | None:
    paths = (to,) if isinstance(to, str) else to
    if not (paths is None or (isinstance(paths, Sequence) and all(isinstance(path, str) for path in paths))):
        raise CheckpointError(
            f"rename maps a name to a path, several paths, or None, and not to {to!r:.80}",
            fix='write the path as an error prints it: "layers[0].kernel"',
        )
    return paths


def _filled(path: str, match: re.Match[str]) -> str:
    *stars, rest = match.groups()
    parts = path.split("*")
    if len(parts) != len(stars) + 1:
        raise CheckpointError(
            "a name and its path in rename must have the same number of `*`",
            at=f"{match.re.pattern}: {path}",
            fix="write one `*` for each number",
        )
    filled = "".join(itertools.chain(*itertools.zip_longest(parts, stars, fillvalue="")))
    return f"{filled}{rest}" if filled else rest.removeprefix(".")
