"""Modes: training and inference.

A layer that behaves otherwise in training (BatchNorm, Dropout) has a static field `inference`. `inference_mode(model)`
and `training_mode(model)` set this field in every record of a tree. The two models share their arrays, so a switch
costs only the compilation of functions that are called with the new treedef.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
from weft.core.records.module import replaced

T = TypeVar("T")


def inference_mode(tree: T) -> T:
    """Returns the tree with every record in inference mode: no dropout, and running statistics in norms.

    >>> from weft.modules import Dropout
    >>> [layer.inference for layer in inference_mode([Dropout(0.5), Dropout(0.1)])]
    [True, True]
    """
    return set_mode(tree, inference=True)


def training_mode(tree: T) -> T:
    """Returns the tree with every record in training mode.

    >>> from weft.modules import Dropout
    >>> training_mode(inference_mode(Dropout(0.5))).inference
    False
    """
    return set_mode(tree, inference=False)


def set_mode(tree: T, *, inference: bool) -> T:
    """Returns the tree with `inference` set in every record that has this field, equinox's layers included."""
    children, treedef = jax.tree.flatten(tree, is_leaf=lambda node: node is not tree)
    # A leaf flattens to itself, and would recurse without end.
    if len(children) == 1 and children[0] is tree:
        return tree
    rebuilt = [set_mode(child, inference=inference) for child in children]
    # Parts without a mode stay the same objects, so that others can tell by identity that nothing changed.
    changed = any(new is not old for new, old in zip(rebuilt, children, strict=True))
    result: Any = treedef.unflatten(rebuilt) if changed else tree
    # Children come first: a record around them is rebuilt with the new children, and then gets its own mode.
    names = {field.name for field in dataclasses.fields(result)} if isinstance(result, eqx.Module) else ()
    if "inference" in names and cast(Any, result).inference != inference:
        result = replaced(result, {"inference": inference}, lenient=True)
    return cast(T, result)
