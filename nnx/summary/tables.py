"""tabulate: draws the table of a model's calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from weft.modules.summary.texts import as_text, drawn, rich_modules
from weft.nnx.errors import StructureError
from weft.nnx.graphs.nodes import child_items, is_graph_node
from weft.nnx.graphs.walk import iter_graph
from weft.nnx.modules.pytree import Pytree
from weft.nnx.printing.reprlib import SizeBytes
from weft.nnx.streams.rngs import RngStream
from weft.nnx.summary.calls import CallInfo, record, recorded_nodes
from weft.nnx.variable.kinds import RngState
from weft.nnx.variable.variable import Variable

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def filter_rng_streams(row: CallInfo) -> bool:
    """Whether a row is not a call of a random stream."""
    return not issubclass(row.type, RngStream)


def tabulate(
    obj: Any,
    *input_args: Any,
    depth: int | None = None,
    method: str = "__call__",
    row_filter: Callable[[CallInfo], bool] = filter_rng_streams,
    table_kwargs: Mapping[str, Any] = _NOTHING,
    column_kwargs: Mapping[str, Any] = _NOTHING,
    console_kwargs: Mapping[str, Any] = _NOTHING,
    compute_flops: bool = False,
    compute_vjp_flops: bool = False,
    **input_kwargs: Any,
) -> str:
    """Makes a table of the calls that a method of an object makes, and of the objects' Variables.

    The method is traced once, with a copy of the object: nothing is computed, and the object is not changed.

    Args:
        obj: an `nnx.Module`, or any other object.
        input_args, input_kwargs: the method's arguments; arrays may be `jax.ShapeDtypeStruct`s.
        depth: the maximal length of the paths of the calls to show.
        method: the method's name.
        row_filter: a filter for the calls to show; by default all but those of random streams.
        table_kwargs: options of `rich.table.Table`.
        column_kwargs: options of its `add_column`.
        console_kwargs: options of `rich.console.Console`, such as `width` and `no_color`.
        compute_flops: whether to add a column of each call's floating point operations, as XLA estimates them.
        compute_vjp_flops: the same for the call together with its derivative.

    Returns:
        The table, with a row for each call: its path, type, inputs and outputs, and for each Variable type the object's
        own Variables and the size of all Variables below it.

    Raises:
        ValueError: if `obj` is no NNX object.
        AttributeError: if `obj` has no such method.
        ModuleNotFoundError: without rich.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> plain = {"force_terminal": False, "no_color": True, "width": 100}
    >>> table = tabulate(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), jnp.ones((1, 2)), console_kwargs=plain)
    >>> print(table.strip().splitlines()[-1].strip())
    Total Parameters: 9 (36 B)
    """
    rich = rich_modules()
    if not isinstance(obj, Pytree):
        raise StructureError(
            f"Expected a graph node: tabulate takes an NNX object, got a {type(obj).__name__}",
            fix="pass an nnx.Module",
        )
    calls = record(obj, method, input_args, input_kwargs, flops=compute_flops, vjp_flops=compute_vjp_flops)
    rows = [call for call in calls if (depth is None or len(call.path) <= depth) and row_filter(call)]
    nodes = recorded_nodes(obj)
    # Sorted, because the order of a set of classes differs from process to process.
    kinds = sorted({_kind(variable) for variable in _variables(obj)}, key=lambda kind: kind.__name__)
    costs = [name for name, asked in (("flops", compute_flops), ("vjp_flops", compute_vjp_flops)) if asked]
    heads = ["path", "type", "inputs", "outputs", *costs]

    look = {"show_header": True, "show_lines": True, "show_footer": False, "title": f"{type(obj).__name__} Summary"}
    table = rich.table.Table(**{**look, **table_kwargs})
    for head in (*heads, *(kind.__name__ for kind in kinds)):
        table.add_column(head, **column_kwargs)
    for call in rows:
        table.add_row(
            "/".join(map(str, call.path)),
            call.type.__name__,
            call.inputs_repr,
            call.outputs,
            *(str(getattr(call, cost)) for cost in costs),
            *(_variables_text(nodes[call.object_id][1], kind) for kind in kinds),
        )
    total = rich.text.Text("Total", style="bold", justify="right")
    table.add_row(*[""] * (len(heads) - 1), total, *(_size_text(_size(obj, kind)) for kind in kinds))
    table.caption_style = "bold"
    table.caption = f"\nTotal Parameters: {_size_text(_size(obj)) or '0 [dim](0 B)[/dim]'}"
    # Into a string, for which rich would leave out colours and bold text by itself.
    return drawn(rich, table, {"force_terminal": True, **console_kwargs})


def _kind(variable: Variable[Any]) -> type:
    """The column of a Variable: its type, but one column for the keys and counts of random streams."""
    return RngState if isinstance(variable, RngState) else type(variable)


def _variables(node: Any) -> list[Variable[Any]]:
    return [value for _, value in iter_graph(node, graph=True) if isinstance(value, Variable)]


def _size(node: Any, kind: type | None = None) -> SizeBytes:
    variables = [variable for variable in _variables(node) if kind is None or _kind(variable) is kind]
    return sum((SizeBytes.from_any(variable.get_raw_value()) for variable in variables), SizeBytes())


def _variables_text(node: Any, kind: type) -> str:
    """The text of a cell: an object's own Variables of a kind, and the size of all of that kind below it."""
    own = {
        key: _as_tree(child)
        for key, child in child_items(node)
        if isinstance(child, Variable) and _kind(child) is kind and hasattr(child.get_raw_value(), "shape")
    }
    size = _size_text(_size(node, kind))
    return f"{as_text(own, is_graph_node)}\n\n{size}" if own else size


def _as_tree(variable: Variable[Any]) -> Any:
    """Returns a Variable's value, or a dict of its metadata and its value if it has metadata."""
    metadata = {key: entry for key, entry in variable.get_metadata(exclude_required=True).items() if entry is not None}
    value = variable.get_raw_value()
    return {**metadata, "value": value} if metadata else value


def _size_text(size: SizeBytes) -> str:
    """The text of a size, with the number in bold; empty for size 0."""
    if not size:
        return ""
    number, _, rest = repr(size).partition(" ")
    return f"[bold]{number} [dim]{rest}[/dim][/bold]"
