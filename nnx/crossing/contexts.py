"""Split and merge contexts: flax's own way to pass graphs through a pure function and update the same objects after.

A *split context* flattens several graphs with one numbering, so that sharing between them survives; a *merge context*
rebuilds several graphs with one numbering. An *update context* joins four of them: split outside (1), merge inside (2),
split inside (3), merge outside (4). The numbers of (1) are the outer indexes in (3), so (4) writes into the objects of
(1) instead of making new ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import jax
import jax.tree_util as jtu
from weft.core.records.agree import changes_of_parts, lines
from weft.nnx.config import graph_mode, graph_updates_mode
from weft.nnx.crossing.described import Identity, picture
from weft.nnx.errors import StructureError
from weft.nnx.graphs.definitions import GraphDef, IndexMap, RefMap
from weft.nnx.graphs.nodes import is_graph_node
from weft.nnx.graphs.plan import Plan
from weft.nnx.graphs.splitting import flatten, nested_or_leaf, sorted_leaves_of, unflatten
from weft.nnx.graphs.walk import iter_graph
from weft.nnx.states.states import FlatState, split_flat
from weft.nnx.variable.variable import Variable


@jtu.register_static
@dataclasses.dataclass(eq=False)
class UpdateContext:
    """The numbers that the four steps share. All contexts are equal, so a context in a treedef never causes a retrace.

    >>> with update_context("example") as context:
    ...     context.tag
    'example'
    """

    tag: Hashable
    outer_ref_outer_index: RefMap | None = None
    outer_index_inner_ref: IndexMap | None = None
    outer_index_outer_ref: IndexMap | None = None
    inner_ref_outer_index: RefMap | None = None
    static_cache: Any = None

    def __hash__(self) -> int:
        # `register_static` makes it a part of treedefs, where a hash by identity would miss jit's cache at each call.
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UpdateContext)

    def flatten_end(self, ref_index: RefMap) -> None:
        """After step (1), stores the outer objects with their numbers; after step (3), drops the inner objects."""
        if self.outer_ref_outer_index is None:
            self.outer_ref_outer_index = ref_index
            self.outer_index_outer_ref = IndexMap.from_refmap(ref_index)
        else:
            self.outer_index_inner_ref = self.inner_ref_outer_index = None

    def unflatten_end(self, index_ref: IndexMap, inner_merge: bool) -> None:
        """After step (2), stores the inner objects with their numbers."""
        if inner_merge:
            self.outer_index_inner_ref = index_ref
            self.inner_ref_outer_index = RefMap.from_indexmap(index_ref)


class _Contexts(threading.local):
    # A stack for each thread: two threads that trace with one tag would otherwise read each other's numbers.
    def __init__(self) -> None:
        self.update: dict[Hashable, list[UpdateContext]] = {}


_contexts = _Contexts()


@dataclasses.dataclass
class UpdateContextManager(contextlib.ContextDecorator):
    """Opens an `UpdateContext` for a `with` block, or for the calls of a function that it decorates."""

    tag: Hashable

    def __enter__(self) -> UpdateContext:
        context = UpdateContext(self.tag)
        _contexts.update.setdefault(self.tag, []).append(context)
        return context

    def __exit__(self, *exception: Any) -> None:
        stack = _contexts.update[self.tag]
        context = stack.pop()
        # JAX may keep the context in a cached treedef for long: it must not keep the user's models alive with it.
        context.outer_ref_outer_index = context.outer_index_outer_ref = None
        context.outer_index_inner_ref = context.inner_ref_outer_index = None
        if not stack:
            del _contexts.update[self.tag]


def update_context(tag: Hashable) -> UpdateContextManager:
    """Opens an update context; the module's docstring says when it is used.

    Args:
        tag: the context's name, by which split and merge contexts find it; libraries use tags of their own.

    >>> from weft.nnx.modules.module import Module
    >>> class Foo(Module):
    ...     pass
    >>> outer = Foo()
    >>> @jax.jit
    ... def f(graphdef, state):
    ...     with merge_context("example", inner=True) as context:
    ...         inner = context.merge(graphdef, state)
    ...     inner.a, inner.me = 1, inner
    ...     with split_context("example") as context:
    ...         return context.split(inner)
    >>> with update_context("example"):
    ...     with split_context("example") as context:
    ...         graphdef, state = context.split(outer)
    ...     graphdef, state = f(graphdef, state)
    ...     with merge_context("example", inner=False) as context:
    ...         same = context.merge(graphdef, state)
    >>> same is outer, outer.a, outer.me is outer
    (True, 1, True)
    """
    return UpdateContextManager(tag)


def current_update_context(tag: Hashable) -> UpdateContext:
    """Returns the innermost open update context of a tag.

    Raises:
        ValueError: if there is none.

    >>> with update_context("example") as context:
    ...     current_update_context("example") is context
    True
    """
    stack = _contexts.update.get(tag)
    if not stack:
        raise StructureError(
            f"No update context found for tag {tag!r}",
            fix="open it: `with nnx.update_context(tag):`",
        )
    return stack[-1]


def _context_of(tag: Hashable | None) -> UpdateContext | None:
    return None if tag is None else current_update_context(tag)


@dataclasses.dataclass
class SplitContext:
    """Flattens several graphs with one numbering, so that a Variable of two graphs is a leaf of the first alone.

    >>> from weft import nnx
    >>> w = nnx.Param(1.0)
    >>> with split_context() as context:
    ...     [context.flatten(part)[1].paths for part in (nnx.Dict(w=w), nnx.Dict(w=w))]
    [(('w',),), ()]
    """

    ctxtag: Hashable | None
    ref_index: RefMap
    is_inner: bool | None

    def split(self, node: Any, *filters: Any) -> tuple[Any, ...]:
        """Like `nnx.split`, but refers to nodes of an earlier graph of this context by number, without a leaf."""
        graphdef, *parts = self.flatten(node, *filters)
        return graphdef, *map(nested_or_leaf, parts)

    def flatten(self, node: Any, *filters: Any, with_paths: bool = True) -> tuple[Any, ...]:
        """Like `nnx.flatten`, with a flat state for each filter instead of one."""
        if filters and not with_paths:
            raise StructureError("filters need paths, but with_paths=False was passed", fix="leave with_paths=True")
        context = _context_of(self.ctxtag)
        outer = context.inner_ref_outer_index if context is not None else None
        graphdef, flat = flatten(
            node, ref_index=self.ref_index, ref_outer_index=outer or None, with_paths=with_paths, graph=True
        )
        return (graphdef, *split_flat(flat, filters)) if with_paths else (graphdef, flat)


@dataclasses.dataclass
class MergeContext:
    """Rebuilds several graphs with one numbering, so that an object that several of them share is one object again.

    >>> from weft import nnx
    >>> with split_context() as context:
    ...     parts = [context.flatten(part) for part in [nnx.Dict(w=nnx.Param(1.0))] * 2]
    >>> with merge_context() as context:
    ...     first, second = (context.unflatten(*part) for part in parts)
    >>> first is second
    True
    """

    ctxtag: Hashable | None
    index_ref: IndexMap
    is_inner: bool | None

    def _unflatten(self, graphdef: GraphDef[Any], leaves: Any, *, copy_variables: bool) -> Any:
        """Rebuilds one graph; in step (4) of an update context it writes into the objects of step (1).

        The same call makes new objects in step (2): only the structures of step (3) have outer indexes.
        """
        context = _context_of(self.ctxtag)
        outer = context.outer_index_outer_ref if context is not None else None
        return unflatten(
            graphdef,
            leaves,
            index_ref=self.index_ref,
            outer_index_outer_ref=outer or None,
            copy_variables=copy_variables,
        )

    def merge(self, graphdef: GraphDef[Any], state: Any, /, *states: Any) -> Any:
        """Like `nnx.merge`; the Variables of the states are copied, and not used themselves."""
        return self._unflatten(graphdef, sorted_leaves_of((state, *states)), copy_variables=True)

    def unflatten(self, graphdef: GraphDef[Any], flat_state: Any, /, *flat_states: Any) -> Any:
        """Like `nnx.unflatten`, from several flat states, or from one list of leaves."""
        if not isinstance(flat_state, list):
            flat_state = FlatState.merge(flat_state, *flat_states)
        elif flat_states:
            raise StructureError(
                "a list of leaves cannot be combined with further flat states", fix="pass one list, or flat states"
            )
        return self._unflatten(graphdef, flat_state, copy_variables=False)


@contextlib.contextmanager
def split_context(ctxtag: Hashable | None = None) -> Iterator[SplitContext]:
    """Opens a context in which several graphs are flattened under one numbering.

    >>> from weft import nnx
    >>> w = nnx.Param(1.0)
    >>> with split_context() as context:
    ...     [len(context.split(part)[1]) for part in (nnx.Dict(w=w), nnx.Dict(w=w))]
    [1, 0]
    """
    context = _context_of(ctxtag)
    inner = None if context is None else context.outer_ref_outer_index is not None
    split = SplitContext(ctxtag, RefMap(), inner)
    try:
        yield split
    finally:
        if context is not None:
            context.flatten_end(split.ref_index)
        # A split after the block would number objects that the update context no longer knows: it fails instead.
        del split.ref_index, split.ctxtag


@contextlib.contextmanager
def merge_context(ctxtag: Hashable | None = None, inner: bool | None = None) -> Iterator[MergeContext]:
    """Opens a context in which several graphs are rebuilt under one numbering.

    Args:
        ctxtag: the tag of an update context.
        inner: with `ctxtag`, whether this is the merge inside the pure function (step 2) or outside (step 4).

    Raises:
        ValueError: if `ctxtag` is passed without `inner`.

    >>> from weft import nnx
    >>> w = nnx.Param(1.0)
    >>> with split_context() as context:
    ...     parts = [context.split(part) for part in (nnx.Dict(w=w), nnx.Dict(w=w))]
    >>> with merge_context() as context:
    ...     first, second = (context.merge(*part) for part in parts)
    >>> first.w is second.w
    True
    """
    merge = MergeContext(ctxtag, IndexMap(), inner)
    try:
        yield merge
    finally:
        if ctxtag is not None:
            if inner is None:
                raise StructureError("under an update context, say whether this merge is the inner one (inner=...)")
            current_update_context(ctxtag).unflatten_end(merge.index_ref, inner)
        del merge.index_ref, merge.ctxtag  # as above: a merge after the block fails


def _structure_and_identities(node: Any) -> tuple[GraphDef[Any], list[Identity]]:
    """A graph's structure, and its objects and Variables in the order of their numbers."""
    numbers = RefMap()
    graphdef, _ = flatten(node, ref_index=numbers, with_paths=False, graph=True)
    return graphdef, list(map(Identity, numbers))


def cached_partial(
    f: Callable[..., Any], *cached_args: Any, graph: bool | None = None, graph_updates: bool | None = None
) -> Callable[..., Any]:
    """`functools.partial` for a transformed function and objects whose structure does not change between calls.

    The objects are cloned once, around the same Variables. No code outside can change the structure of the clones, so
    each call finds their plan again at once, and that makes it cheap.

    Args:
        f: a transformed function.
        cached_args: its first arguments.
        graph, graph_updates: must both hold.

    Raises:
        ValueError: in other modes; from a call, if the function has changed the structure of a cached object.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> forward = cached_partial(nnx.jit(lambda model, x: model(x)), nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    >>> forward(jnp.ones((4, 2))).shape
    (4, 3)
    """
    if not (graph_mode(graph) and graph_updates_mode(graph_updates)):
        raise StructureError("cached_partial needs graph mode with graph updates", fix="pass graph=True")
    numbers, outer_nodes = RefMap(), IndexMap()

    def cached(value: Any) -> Any:
        if not is_graph_node(value):
            return value
        graphdef, leaves = flatten(value, ref_index=numbers, graph=True)
        return unflatten(graphdef, leaves, index_ref=outer_nodes)

    own_args = jax.tree.map(cached, cached_args, is_leaf=is_graph_node)
    nodes = [leaf for leaf in jax.tree.leaves(own_args, is_leaf=is_graph_node) if is_graph_node(leaf)]
    expected = list(map(_structure_and_identities, nodes))
    # Made here and not looked up: it must stay valid for the clones, whatever plans the function's own calls store.
    plan = Plan(nodes)
    variables = [node for _, node in iter_graph(nodes, graph=True) if isinstance(node, Variable)]

    @functools.wraps(f)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # Restored if the function changed the structure: the call is then refused, and must leave no trace.
        before = [(variable, variable.get_raw_value(), variable._nnx_metadata) for variable in variables]
        out = f(*own_args, *args, **kwargs)
        # The usual answer costs one comparison of version numbers. A function may also add an attribute and delete it
        # again: versions differ then, though the structure does not, so an invalid plan leads to a full comparison.
        # `statics=False`, because entering the call has just checked the static attributes.
        if plan.is_valid(statics=False):
            return out
        for i, (node, expected_structure) in enumerate(zip(nodes, expected, strict=True)):
            now = _structure_and_identities(node)
            if now != expected_structure:
                _restore(before)
                raise _mutated(node, i, expected_structure, now)
        return out

    return wrapper


def _mutated(node: Any, position: int, *structures: tuple[GraphDef[Any], list[Identity]]) -> StructureError:
    """Makes the error for a cached object whose structure changed, from its structures before and after the call."""
    parts = (
        picture(graphdef, [(position,)], identities=dict(enumerate(identities))).parts
        for graphdef, identities in structures
    )
    return StructureError(
        f"The graph structure of a {type(node).__name__} added to cached_partial was mutated inside",
        at=lines(changes_of_parts(*parts), "cached_args"),
        fix="undo the changes before the function returns, with nnx.pop for sown values",
    )


def _restore(before: list[tuple[Any, Any, Any]]) -> None:
    """Sets values and metadata of Variables back to those of (variable, value, metadata) triples."""
    # After donation the old buffers are deleted: only the values that the call wrote can be read any more.
    if any(isinstance(value, jax.Array) and value.is_deleted() for _, value, _ in before):
        return
    for variable, value, metadata in before:
        variable.set_raw_value(value)
        if variable._nnx_metadata is not metadata:
            variable.set_metadata(dict(metadata))
