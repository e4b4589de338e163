"""Treescope: shows objects in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from weft.nnx.errors import MissingExtraError


def display(*args: Any) -> None:
    """Shows objects with treescope in a notebook, and prints them elsewhere.

    Raises:
        ImportError: in a notebook, if treescope is not installed.

    >>> display({"n": 2})
    {'n': 2}
    """
    ipython = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None:
        for value in args:
            print(value)
        return
    try:
        import treescope
    except ModuleNotFoundError as missing:
        raise MissingExtraError(
            "nnx.display needs treescope, which is not installed",
            fix="pip install 'weft-jax[display]' (treescope, rich), or print the object",
        ) from missing
    for value in args:
        # An object whose own rendering raises is shown all the same.
        treescope.display(value, ignore_exceptions=True, autovisualize=True)


def render_object_constructor(
    object_type: type,
    attributes: Mapping[str, Any],
    path: str | None,
    subtree_renderer: Any,
    color: str | None = None,
    comment: str | None = None,
) -> Any:
    """Renders an object for treescope like `<Foo(bar=1)>`, with an optional comment after the first line."""
    from treescope import rendering_parts as parts

    prefix = parts.siblings(
        parts.roundtrip_condition(roundtrip=parts.text("<")), parts.maybe_qualified_type_name(object_type), "("
    )
    suffix = parts.siblings(")", parts.roundtrip_condition(roundtrip=parts.text(">")))
    last = len(attributes) - 1
    children = [
        parts.siblings_with_annotations(
            f"{name}=",
            subtree_renderer(value, path=None if path is None else f"{path}.{name}"),
            "," if i < last else parts.fold_condition(expanded=parts.text(",")),
            *(() if i == last else (parts.fold_condition(collapsed=parts.text(" ")),)),
        )
        for i, (name, value) in enumerate(attributes.items())
    ]
    return parts.build_foldable_tree_node_from_children(
        prefix=prefix,
        children=children,
        suffix=suffix,
        path=path,
        background_color=color,
        background_pattern=None,
        first_line_annotation=parts.comment_color(parts.text(comment)) if comment else None,
    )
