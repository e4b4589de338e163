"""Views: copies of a graph with other attributes around the same Variables; `with_vars` copies Variables, too."""

from __future__ import annotations

import inspect
import re
from textwrap import dedent, indent
from typing import Any

from weft.core.paths import Path, format_path
from weft.nnx.errors import AliasError, StructureError
from weft.nnx.graphs.splitting import map as map_graph
from weft.nnx.graphs.walk import find_duplicates, iter_graph, recursive_map
from weft.nnx.modules.containers import accepted_keywords
from weft.nnx.modules.module import set_where_found
from weft.nnx.states.filters import All, Filter, to_predicate
from weft.nnx.variable.variable import Variable


def view(
    node: Any,
    /,
    *,
    only: Filter = ...,
    raise_if_not_found: bool = True,
    graph: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Copies a graph and calls `set_view` of the copy's Modules, for another mode around the same Variables.

    Args:
        node: the graph.
        only: a filter for the Modules to change.
        raise_if_not_found: whether a keyword that no Module takes is an error.
        graph: whether to work on a graph or a tree.
        kwargs: keyword arguments of `set_view`; each Module gets those that its `set_view` has.

    Raises:
        ValueError: naming the keywords that no Module takes.

    >>> from weft import nnx
    >>> model = nnx.Sequential(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
    >>> frozen = nnx.view(model, deterministic=True)
    >>> frozen.layers[1].deterministic, model.layers[1].deterministic
    (True, False)
    """
    test = to_predicate(only)
    unused = set(kwargs)

    def set_view(path: Path, value: Any) -> Any:
        # Looked up on the class first: `Rngs` answer any attribute name with a random stream.
        method = getattr(type(value), "set_view", None) and getattr(value, "set_view", None)
        if method is not None and test(path, value):
            accepted = accepted_keywords(method, 0, kwargs)
            method(**accepted)
            unused.difference_update(accepted)
        return value

    out = recursive_map(set_view, node, graph=graph)
    # A misspelt keyword would otherwise return an unchanged copy without a word.
    if unused and raise_if_not_found:
        raise StructureError(
            f"Unused keys found in nnx.view: {sorted(unused)}",
            fix="nnx.view_info(node) lists the keywords that its Modules take",
        )
    return out


def with_attributes(
    node: Any,
    /,
    *,
    only: Filter = ...,
    raise_if_not_found: bool = True,
    graph: bool | None = None,
    **attributes: Any,
) -> Any:
    """Copies a graph and sets attributes of the copy's Modules, where they exist already.

    Args:
        node: the graph.
        only: a filter for the Modules to change.
        raise_if_not_found: whether an attribute that no Module has is an error.
        graph: whether to work on a graph or a tree.
        attributes: names and values.

    Raises:
        ValueError: naming the attributes that no Module has.

    >>> from weft import nnx
    >>> model = nnx.Sequential(nnx.Dropout(0.5, rngs=nnx.Rngs(0)))
    >>> nnx.with_attributes(model, rate=0.1).layers[0].rate, model.layers[0].rate
    (0.1, 0.5)
    """
    # Copies the objects around the same Variables, so that the attributes of the original stay as they are.
    out = recursive_map(lambda path, value: value, node, graph=graph)
    set_where_found(out, only, attributes, raise_if_not_found, graph)
    return out


def with_vars(
    node: Any,
    /,
    *,
    hijax: bool | None = None,
    ref: bool | None = None,
    mutable: bool | None = None,
    only: Filter = ...,
    allow_duplicates: bool = False,
) -> Any:
    """Copies a graph with Variables in another mode: hijax, or with their value in a JAX ref.

    Args:
        node: the graph.
        hijax, ref, mutable: the new modes; None leaves a mode unchanged.
        only: a filter for the Variables to copy.
        allow_duplicates: whether a changed Variable may have several paths.

    Raises:
        ValueError: for a changed Variable with several paths, naming them.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> model = nnx.Dict(w=nnx.Param(jnp.array(1.0)))
    >>> nnx.with_vars(model, ref=True).w.ref, model.w.ref
    (True, False)
    """
    modes = {"hijax": hijax, "ref": ref, "mutable": mutable}
    modes = {mode: value for mode, value in modes.items() if value is not None}

    def differs(path: Path, value: Any) -> bool:
        return isinstance(value, Variable) and any(getattr(value, mode) != wanted for mode, wanted in modes.items())

    # Variables that already have the mode are shared with the copy, and may have several paths.
    test = All(differs, only)
    if not allow_duplicates and (groups := find_duplicates(node, only=test)):
        raise AliasError(
            "Found duplicate at paths: Variables that would no longer be shared",
            at=[" = ".join(format_path(path) for path in group) for group in groups],
            fix="pass allow_duplicates=True, or exclude them with `only`",
        )
    return map_graph(
        lambda path, value: value.copy(**modes) if test(path, value) else value, node, recreate_variables=False
    )


def view_info(node: Any, /, *, only: Filter = ..., graph: bool | None = None) -> str:
    """Describes the keywords that `view` takes for a graph: those of each class's `set_view`, with their docstrings.

    Raises:
        TypeError: for a value that is no filter.
        ValueError: in tree mode, for a shared node.

    >>> from weft import nnx
    >>> print(nnx.view_info(nnx.Dropout(0.5, rngs=nnx.Rngs(0))).splitlines()[0])
    Dropout:
    """
    test = to_predicate(only)
    classes = {
        type(value)
        for path, value in iter_graph(node, graph=graph)
        if hasattr(type(value), "set_view") and test(path, value)
    }
    return "\n".join(line for kind in sorted(classes, key=lambda kind: kind.__qualname__) for line in _describe(kind))


def _describe(kind: Any) -> list[str]:
    signature, text = inspect.signature(kind.set_view), inspect.getdoc(kind.set_view)
    lines = [f"{kind.__qualname__}:"]
    if text is None:
        return [*lines, f"  set_view{signature}"]
    described = _described_arguments(text)
    for name, parameter in signature.parameters.items():
        if name in ("self", "args", "kwargs"):
            continue
        default = "" if parameter.default is parameter.empty else f" = {parameter.default}"
        lines.append(f"  {name}: {parameter.annotation}{default}")
        lines.extend(described.get(name, ()))
    return lines


def _described_arguments(text: str) -> dict[str, list[str]]:
    """Parses the `Args:` section of a docstring into lines by argument."""
    lines_by_name: dict[str, list[str]] = {}
    current: list[str] = []
    # The section ends at the first line that is not indented.
    section = re.split(r"^\S", text.partition("Args:\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    # Indented by two spaces in the result, whatever the docstring has.
    for line in indent(dedent(section), "  ").rstrip("\n").split("\n"):
        if line.startswith("  ") and not line.startswith("    "):
            name, _, rest = line.partition(":")
            current = lines_by_name[name.split()[0]] = [f"    {rest.strip()}"]
        else:
            current.append(line)
    return lines_by_name
