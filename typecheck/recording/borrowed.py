"""Borrowed instances: what was recorded of a class, given to functions that nobody recorded with it.

That a test calls one method of an object shows how such objects are made, which its other methods need as much. Only
one argument is borrowed, the object of a method or the first that fits: two that were never seen together need not
fit. All others are built from their annotations, as where nothing is recorded.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from weft.typecheck.arguments.uses import is_stub
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import Annotation, Instance, RecordOf, members_of
from weft.typecheck.language.signatures import Parameter, signature_of
from weft.typecheck.recording.recorder import MOST_CALLS
from weft.typecheck.recording.structures import Decoder, Node

Instances = Mapping[str, Sequence[Node]]

_BUILT = {"opaque": "it is built from its annotation"}
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def instances_in(calls: Mapping[str, Sequence[Node]]) -> dict[str, list[Node]]:
    """The structures of instances in all calls, a few of each class, by the class's name."""
    found: dict[str, list[Node]] = {}
    for node in _objects(list(calls.values())):
        known = found.setdefault(node["of"], [])
        if len(known) < MOST_CALLS and node not in known:
            known.append(node)
    return found


def _objects(node: Node) -> Iterator[Node]:
    """The objects in a structure, outermost first."""
    if isinstance(node, dict):
        if "of" in node:
            yield node
        for one in node.values():
            yield from _objects(one)
    elif isinstance(node, list):
        for one in node:
            yield from _objects(one)


def calls_with(
    function: Callable[..., Any], owner: type | None, instances: Instances, decoder: Decoder
) -> tuple[str, list[Node]]:
    """Calls of a function with one argument borrowed, and that argument's name; none if none fits.

    Args:
        function: a function, or what a class has for a method.
        owner: the class that it is a method of.
        instances: the recorded structures, by the names of their classes.
        decoder: finds what these name.
    """
    plain = inspect.unwrap(function)
    try:
        parameters = signature_of(plain, owner).parameters
    except (AnnotationError, TypeError, ValueError):
        return "", []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    if is_stub(plain) or any(one.kind not in (*named, *_VARIADIC) for one in parameters[1:]):
        return "", []
    for i, parameter in enumerate(parameters[:1] if owner is not None else parameters):
        if parameter.kind in _VARIADIC:
            continue
        wanted = [owner] if owner is not None else list(_classes(parameter.annotation))
        found = [one for name, nodes in instances.items() if _is_one(name, wanted, decoder) for one in nodes]
        if found:
            return parameter.name, [_call(parameters, i, one) for one in found[:MOST_CALLS]]
    return "", []


def _classes(annotation: Annotation) -> Iterator[type]:
    return (one.cls for one in members_of(annotation) if isinstance(one, Instance | RecordOf))


def _is_one(name: str, wanted: Sequence[type], decoder: Decoder) -> bool:
    """Whether a class, by its name, is one of some classes."""
    try:
        cls = decoder.named(name) if wanted else None
        return isinstance(cls, type) and any(one is not object and issubclass(cls, one) for one in wanted)
    except Exception:  # not there any more, its import raises, or a protocol that does not look at classes
        return False


def _call(parameters: Sequence[Parameter], borrowed: int, node: Node) -> Node:
    """A call with one structure; what else there is comes by name, so that its place does not matter."""
    if borrowed == 0:
        args, rest = [node], parameters[1:]
    else:
        args, rest = [], parameters
    kwargs = {one.name: _BUILT for one in rest if one.kind not in _VARIADIC}
    return {"args": args, "kwargs": kwargs if borrowed == 0 else kwargs | {parameters[borrowed].name: node}}
