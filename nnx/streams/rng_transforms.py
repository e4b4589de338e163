"""Functions that split, fork and reseed the random streams inside a graph.

In graph mode with graph updates, a function changes the streams in place and returns backups, which `restore_rngs` or
the end of a `with` block restores. In other modes it returns a copy of the graph with new streams. Called without a
graph, it returns a decorator that does this to a function's arguments.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import random
from weft.core.paths import Path, format_path
from weft.nnx.config import graph_mode, graph_updates_mode
from weft.nnx.errors import MISSING, ArgumentKindError, AxisError, FilterError, ModeError, StructureError
from weft.nnx.graphs.walk import iter_graph, recursive_map
from weft.nnx.states.filters import Filter, Predicate, to_predicate
from weft.nnx.streams.rngs import Rngs, RngStream, Shape, rules_of

StreamBackup = tuple[RngStream, jax.Array, jax.Array] | tuple[RngStream, jax.Array]


@jtu.register_dataclass
@dataclasses.dataclass(frozen=True)
class SplitBackups:
    """The former keys and counts of streams; as a context manager, restores them at the end of the block."""

    backups: list[StreamBackup]

    def __iter__(self) -> Iterator[StreamBackup]:
        return iter(self.backups)

    def __enter__(self) -> SplitBackups:
        return self

    def __exit__(self, *exception: Any) -> None:
        restore_rngs(self)


def restore_rngs(backups: Iterable[StreamBackup], /) -> None:
    """Restores the keys and counts of streams from backups.

    Raises:
        TypeError: if these are no backups; then no stream is restored.

    >>> rngs = Rngs(params=0)
    >>> backups = split_rngs(rngs, splits=2)
    >>> restore_rngs(backups)
    >>> rngs.params.key.shape
    ()
    """
    rows: list[Any] = list(backups) if isinstance(backups, Iterable) else [backups]
    if not all(isinstance(row, tuple) and len(row) in (2, 3) and isinstance(row[0], RngStream) for row in rows):
        raise ArgumentKindError(
            f"restore_rngs takes the backups of streams, not {backups!r:.80}",
            fix="pass what split_rngs, fork_rngs or backup_keys returned",
        )
    # `backup_keys` stores keys alone, `split_rngs` and `fork_rngs` also counts.
    for stream, key, *count in rows:
        stream.key.set_value(key)
        if count:
            stream.count.set_value(count[0])


def backup_keys(node: Any, /, *, graph: bool | None = None) -> list[StreamBackup]:
    """Returns the keys, without counts, of all streams in a graph."""
    return [(value, value.key[...]) for _, value in iter_graph(node, graph=graph) if isinstance(value, RngStream)]


def _selects(test: Predicate, path: Path, stream: RngStream) -> bool:
    # Filters are written for Variables, and a stream has two: it is selected if both match, as in flax.
    return test((*path, "key"), stream.key) and test((*path, "count"), stream.count)


def _decorator(transform: Callable[..., Any], *, in_place: bool, **options: Any) -> Callable[..., Any]:
    """Makes a decorator that applies `transform`, a function of this module, to a function's arguments."""

    def decorate(f: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(f)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            changed = transform((args, kwargs), graph_updates=in_place, **options)
            if in_place:
                # Restores keys and counts after the call, and after an error in it.
                with changed:
                    return f(*args, **kwargs)
            args, kwargs = changed
            return f(*args, **kwargs)

        return wrapper

    return decorate


def _with_successors(
    node: Any, successor: Callable[[Path, RngStream], RngStream | None], in_place: bool, graph: bool | None
) -> Any:
    """Replaces streams by `successor(path, stream)`, unless that is None; returns `SplitBackups`, or a copy."""
    if not in_place:

        def renew(path: Path, value: Any) -> Any:
            if isinstance(value, RngStream) and (renewed := successor(path, value)) is not None:
                # `recursive_map` passes the objects of a copy, so the caller's streams stay as they are.
                value.key, value.count = renewed.key, renewed.count
            return value

        return recursive_map(renew, node, graph=graph)
    # In place means graph mode, in which `iter_graph` visits a shared stream once: its keys are split once.
    backups: list[StreamBackup] = []
    for path, value in iter_graph(node, graph=True):
        if isinstance(value, RngStream) and (renewed := successor(path, value)) is not None:
            backups.append((value, value.key[...], value.count[...]))
            value.key.set_value(renewed.key.get_value())
            value.count.set_value(renewed.count.get_value())
    return SplitBackups(backups)


def split_rngs(
    node: Any = MISSING,
    /,
    *,
    splits: Shape,
    only: Filter = ...,
    squeeze: bool = False,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Splits the keys of streams, for a `vmap` or `scan` over them.

    Args:
        node: the graph; without it, a decorator is returned.
        splits: the shape of the array of new keys.
        only: a filter for the streams; it must match both key and count.
        squeeze: with `splits=1`, whether to drop the axis of size 1.
        graph, graph_updates: if both are true, streams are changed in place; else in a copy.

    Returns:
        `SplitBackups`, or the copy.

    Raises:
        ValueError: for `squeeze` with other splits than 1.

    >>> rngs = Rngs(params=0, dropout=1)
    >>> split_rngs(rngs, splits=5, only="params", graph_updates=False).params.key.shape
    (5,)
    """
    in_place = graph_mode(graph) and graph_updates_mode(graph_updates)
    if node is MISSING:
        return _decorator(
            split_rngs, in_place=in_place, splits=splits, only=only, squeeze=squeeze, graph=graph_mode(graph)
        )
    if squeeze and splits != 1:
        raise AxisError(f"squeeze=True drops an axis of size 1, but splits={splits}", fix="pass splits=1")
    test = to_predicate(only)

    def split(path: Path, stream: RngStream) -> RngStream | None:
        if not _selects(test, path, stream):
            return None
        # By `random.split` and not `fork`, whose key would be another one than that of `splits=1` without `squeeze`.
        return RngStream(random.split(stream(), 1)[0], tag=stream.tag) if squeeze else stream.split(splits)

    return _with_successors(node, split, in_place, graph)


def fork_rngs(
    node: Any = MISSING,
    /,
    *,
    split: Mapping[Filter, Shape | None] | Shape | None = None,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Gives streams new keys, so that draws from them do not advance the original streams.

    Args:
        node: the graph; without it, a decorator is returned.
        split: the shape of arrays of new keys, for all streams or by filter.
        graph, graph_updates: if both are true, streams are changed in place; else in a copy.

    Returns:
        `SplitBackups`, or the copy.

    Raises:
        TypeError: for a value that is no filter.
        ValueError: in tree mode, for a shared node.

    >>> rngs = Rngs(params=0)
    >>> forked = fork_rngs(rngs, graph_updates=False)
    >>> bool(forked.params() == rngs.params())
    False
    """
    in_place = graph_mode(graph) and graph_updates_mode(graph_updates)
    if node is MISSING:
        return _decorator(fork_rngs, in_place=in_place, split=split, graph=graph_mode(graph))
    tests = [(to_predicate(filter), shape) for filter, shape in rules_of(split).items()]

    def fork(path: Path, stream: RngStream) -> RngStream | None:
        shapes = [shape for test, shape in tests if _selects(test, path, stream)]
        # The first filter that matches counts, as everywhere.
        return None if not shapes else stream.fork() if shapes[0] is None else stream.split(shapes[0])

    return _with_successors(node, fork, in_place, graph)


def with_rngs(
    node: Any = MISSING,
    /,
    *,
    split: Mapping[Filter, Shape] | Shape | None = None,
    fork: Filter | Sequence[Filter] | None = None,
    broadcast: Mapping[Filter, Shape] | Shape | None = None,
    only: Filter = True,
    graph: bool | None = None,
    graph_updates: bool | None = None,
) -> Any:
    """Copies a graph, with some of its streams split, broadcast or forked.

    Args:
        node: the graph; without it, a decorator is returned.
        split: the shape of arrays of new keys, for all streams or by filter.
        fork: a filter, or several, for the streams that get a single new key.
        broadcast: the shape to which one new key is repeated, for all streams or by filter.
        only: a filter for the streams that may be changed.
        graph: whether to work on a graph or a tree.
        graph_updates: must be False in graph mode, because this function always copies.

    Raises:
        NotImplementedError: in graph mode with graph updates.
        ValueError: if a stream matches two of the three options.

    >>> rngs = with_rngs(Rngs(params=0, dropout=1), split={"params": 4}, fork="dropout", graph=False)
    >>> rngs.params.key.shape, rngs.dropout.key.shape
    ((4,), ())
    """
    if graph_mode(graph) and graph_updates_mode(graph_updates):
        raise ModeError(
            "graph updates are not supported for with_rngs, which returns a copy",
            fix="pass graph=False or graph_updates=False, or use split_rngs",
        )
    if node is MISSING:
        options = {"split": split, "fork": fork, "broadcast": broadcast, "only": only}
        return _decorator(with_rngs, in_place=False, **options, graph=graph_mode(graph))
    forks = () if fork is None else fork if isinstance(fork, list | tuple) else (fork,)
    rules = [
        _Rule(option, filter, to_predicate(filter), functools.partial(act, k=shape))
        for option, shapes, act in (("split", split, RngStream.split), ("broadcast", broadcast, RngStream.broadcast))
        if shapes is not None
        for filter, shape in rules_of(shapes).items()
    ]
    rules += [_Rule("fork", filter, to_predicate(filter), RngStream.fork) for filter in forks]
    considered = to_predicate(only)

    def apply(path: Path, value: Any) -> Any:
        return _by_rules(rules, path, value) if isinstance(value, RngStream) and considered(path, value) else value

    return recursive_map(apply, node, graph=graph)


class _Rule(NamedTuple):
    """A filter of an option of `with_rngs`, and what the option does with a stream that the filter matches."""

    option: str
    filter: Filter
    test: Predicate
    act: Callable[[RngStream], RngStream]


def _by_rules(rules: Iterable[_Rule], path: Path, stream: RngStream) -> RngStream:
    """Applies the option (split, broadcast or fork) with a filter that matches a stream; without one, returns it."""
    by_option: dict[str, _Rule] = {}
    for rule in rules:
        if rule.option not in by_option and rule.test(path, stream):
            by_option[rule.option] = rule
    matches = list(by_option.values())
    # `...` and True may overlap with other filters. The first option that matches then counts, as in flax.
    if sum(rule.filter is not ... and rule.filter is not True for rule in matches) > 1:
        raise FilterError(
            f"a stream matches multiple rules: {', '.join(f'{rule.option} by {rule.filter!r}' for rule in matches)}",
            at=format_path(path),
            fix="make the filters exclude each other",
        )
    return matches[0].act(stream) if matches else stream


def _scalars_only(path: Path, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    if shape:
        raise AxisError(
            f"Cannot reseed a stream with keys of shape {shape} by one key",
            at=format_path(path),
            fix='pass policy="match_shape" if all its keys differ, or a policy function',
        )
    return key


def _match_shape(path: Path, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return random.split(key, shape) if shape else key


_POLICIES = {"scalars_only": _scalars_only, "match_shape": _match_shape}


def reseed(
    node: Any,
    /,
    *,
    graph: bool | None = None,
    policy: str | Callable[[Path, jax.Array, tuple[int, ...]], jax.Array] = "scalars_only",
    **stream_keys: Any,
) -> None:
    """Gives streams new keys in place, and sets their counts to zero.

    Args:
        node: the graph.
        graph: whether to walk a graph or a tree.
        policy: what to do with streams over arrays of keys: refuse (`"scalars_only"`), split the new key
            (`"match_shape"`), or a function of path, new key and shape that returns the keys.
        stream_keys: seeds or keys by the name of the stream.

    Raises:
        ValueError: for an unknown policy, or an array of keys under `"scalars_only"`; no stream is changed then.

    >>> rngs = Rngs(dropout=0)
    >>> key = rngs.dropout()
    >>> reseed(rngs, dropout=1)
    >>> rngs.dropout.count.get_value().item()
    0
    """
    # Resolved before any key is drawn, so that an unknown policy changes nothing.
    decide = policy if callable(policy) else _POLICIES.get(policy)
    if decide is None:
        raise StructureError(f'policy must be "scalars_only", "match_shape" or a function, got {policy!r}')
    rngs = Rngs(**stream_keys)
    new_keys: list[tuple[RngStream, jax.Array]] = []
    for path, value in iter_graph(node, graph=graph):
        if isinstance(value, RngStream) and value.key.tag in stream_keys:
            new_keys.append((value, decide(path, rngs[value.key.tag](), value.key.shape)))
    # Written after all keys are computed, so that a policy that raises leaves every stream unchanged.
    for stream, key in new_keys:
        stream.key.set_value(key)
        stream.count.set_value(jnp.zeros(key.shape, dtype=jnp.uint32))
