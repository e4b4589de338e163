"""Finds a path to an object or Variable from the user's code, for errors about objects of another trace level.

A Variable does not know its path. But a function that closes over it has a name from which a path leads to it. `find`
searches the local, closed-over and global names of the user's functions on the stack; it runs only for an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import islice
from types import FrameType, ModuleType
from typing import Any

import jax
from weft.core.frames import is_users, place_of
from weft.core.interpreter.rules import Body
from weft.core.paths import Path, format_path
from weft.nnx.graphs.nodes import is_node
from weft.nnx.graphs.walk import iter_graph
from weft.nnx.variable.tracers import LOCATORS
from weft.nnx.variable.variable import Variable

_JAX = os.path.join(os.path.dirname(os.path.abspath(str(jax.__file__))), "")
_TRANSFORMED = Body.__call__.__code__
# How many nodes below one name are searched: a global list of everything that a program has loaded is a graph too.
_ENOUGH = 4_000


def find(node: Any, done: str = "mutated") -> list[str]:
    """Returns a line with the path to an object from a name in the transformed function, and the source line.

    Args:
        node: an object or a Variable.
        done: what the source line did with it ("mutated"), for the error.

    Returns:
        A list of one line; empty if no code of the user is on the stack.
    """
    frames = [frame for frame in _inside_of_the_transform() if is_users(frame)]
    # From the outermost frame in: a function nearer to the transform closes over the object, inner ones are passed it.
    for frame in reversed(frames):
        for name, value in _names(frame):
            try:
                path = _path_to(node, value, frame.f_code.co_names)
            except Exception:
                continue  # a global need be no valid graph (unsortable keys), and the error is not about it
            if path is not None:
                return [f"{format_path(path, name)}, {done} in {place_of(frames[0])}"]
    return [f"{type(node).__name__}, {done} in {place_of(frames[0])}"] if frames else []


def _inside_of_the_transform() -> Iterator[FrameType]:
    """The frames from here out to the transform (weft's or JAX's) that called the user's function.

    JAX's transforms call it from several files, so the first frame of JAX outside a frame of the user counts.
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
    # Locals include closed-over names. Of the globals only those that the code uses are searched, not the whole
    # module.
    yield from frame.f_locals.items()
    for name in frame.f_code.co_names:
        if name in frame.f_globals:
            yield name, frame.f_globals[name]


def _path_to(node: Any, value: Any, named: tuple[str, ...]) -> Path | None:
    """The path from `value` to `node`: through its graph, or through the graph of one of its plain attributes."""
    if is_node(value) or isinstance(value, Variable):
        graph = islice(iter_graph(value, graph=True), _ENOUGH)
        return next((path for path, member in graph if member is node), None)
    for name, attribute in _attributes(value, named):
        if is_node(attribute) or isinstance(attribute, Variable):
            path = _path_to(node, attribute, named)
            if path is not None:
                return (name, *path)
    return None


def _attributes(value: Any, named: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Returns the plain attributes of a value; of a module only the attributes that the code names.

    The code cannot have reached a module's other attributes. They must not be searched, because dicts are graphs:
    `sys.modules` leads to everything that the process has imported, which took seconds for each error.
    """
    if isinstance(value, type):
        return
    attributes = getattr(value, "__dict__", {})
    if isinstance(value, ModuleType):
        yield from ((name, attributes[name]) for name in named if name in attributes)
    else:
        yield from attributes.items()


LOCATORS.append(find)
