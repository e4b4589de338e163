"""Where something is that the user's code reached: for errors about objects of another trace level.

A Variable does not know its path. The user's functions do: one that closes over it holds the object that leads there.
This looks through their local, closed-over and global names; it runs only once something has failed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType, ModuleType
from typing import Any

import jax
from weft.core.callers import is_users, place_of
from weft.core.interpreter.rules import Body
from weft.core.paths import Path, format_path
from weft.nnx.graphs.nodes import is_node
from weft.nnx.graphs.walk import iter_graph
from weft.nnx.variable.tracers import LOCATORS
from weft.nnx.variable.variable import Variable

_JAX = os.path.join(os.path.dirname(os.path.abspath(str(jax.__file__))), "")
_TRANSFORMED = Body.__call__.__code__
# How much of one value's graph is looked through: a list of all that a program has loaded is a graph too.
_ENOUGH = 4_000


def find(thing: Any, done: str = "mutated") -> list[str]:
    """The path of an object or Variable from a name in the transformed function, and the line it was reached at.

    Args:
        thing: an object or a Variable.
        done: what was done there.

    Returns:
        One line; nothing if the user's code is not being run.
    """
    frames = [frame for frame in _inside_of_the_transform() if is_users(frame)]
    # The outermost function that can name it is the one that closes over it.
    for frame in reversed(frames):
        for name, value in _names(frame):
            try:
                path = _path_to(thing, value, frame.f_code.co_names)
            except Exception:
                continue  # no graph, such as a dict whose keys do not sort: it is not what the error is about
            if path is not None:
                return [f"{format_path(path, name)}, {done} in {place_of(frames[0])}"]
    return [f"{type(thing).__name__}, {done} in {place_of(frames[0])}"] if frames else []


def _inside_of_the_transform() -> Iterator[FrameType]:
    """The frames down to where a transform, weft's or JAX's, calls the function that it transforms.

    Each of JAX's transforms calls it from another file; the first frame of JAX's below one of the user's is there.
    """
    frame: FrameType | None = sys._getframe(1)
    met_users = False
    while frame is not None and frame.f_code is not _TRANSFORMED:
        if met_users and frame.f_code.co_filename.startswith(_JAX):
            return
        met_users = met_users or is_users(frame)
        yield frame
        frame = frame.f_back


def _names(frame: FrameType) -> Iterator[tuple[str, Any]]:
    yield from frame.f_locals.items()
    for name in frame.f_code.co_names:
        if name in frame.f_globals:
            yield name, frame.f_globals[name]


def _path_to(thing: Any, value: Any, named: tuple[str, ...]) -> Path | None:
    """Where a thing is below a value: itself, in its graph, or in the graph of one of its plain attributes."""
    if is_node(value) or isinstance(value, Variable):
        graph = islice(iter_graph(value, graph=True), _ENOUGH)
        return next((path for path, found in graph if found is thing), None)
    for name, attribute in _attributes(value, named):
        if is_node(attribute) or isinstance(attribute, Variable):
            path = _path_to(thing, attribute, named)
            if path is not None:
                return (name, *path)
    return None


def _attributes(value: Any, named: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The plain attributes of a value; of a module those that the code names.

    A module's other attributes are nothing that the code could have reached, and dicts are graphs too: `sys` alone
    leads to everything that the process has imported, which took seconds for each error.
    """
    if isinstance(value, type):
        return
    attributes = getattr(value, "__dict__", {})
    if isinstance(value, ModuleType):
        yield from ((name, attributes[name]) for name in named if name in attributes)
    else:
        yield from attributes.items()


LOCATORS.append(find)
