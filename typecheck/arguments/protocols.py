"""Protocols: builds an object with exactly the members that a `Protocol` declares.

A protocol cannot be instantiated, and a class that satisfies it need not name it. The annotations say all that a
function may use: attributes and properties are built from theirs, and a method is a stand-in for a callable. The
dims of a protocol are those of the function that takes it, as for a plain record.
"""

from __future__ import annotations

import inspect
from typing import Any

from weft.core.caches import cached_by
from weft.typecheck.arguments.builder import Builder, Scope, Unbuildable
from weft.typecheck.language.annotations import Annotation, Anything, CallableOf
from weft.typecheck.language.signatures import attributes_of, signature_of


def is_protocol(cls: type) -> bool:
    """Whether a class is itself a protocol; a class that inherits from a protocol is not."""
    return bool(getattr(cls, "_is_protocol", False))


def protocol_object(builder: Builder, cls: type, place: str, scope: Scope) -> Any:
    """An object with the members of a protocol.

    Raises:
        Unbuildable: if a member's annotation does not say what the member is, or the protocol asks for itself.
    """
    if cls in builder.inside:
        raise Unbuildable(f"{place}: a {cls.__name__} has another {cls.__name__} as a member, without end")
    builder.inside = (*builder.inside, cls)
    shares = not (builder.assignment.names_per_record or scope.many)
    inner = Scope(f"{place}.", scope.contract if shares else f"{place}.", lead=scope.lead)
    members = _members(cls)
    try:
        for name, annotation in members.items():
            said = annotation.returns if isinstance(annotation, CallableOf) else annotation
            if isinstance(said, Anything):
                # A member that says nothing could be anything, and each verdict would be about what was made up for it.
                raise Unbuildable(f"{place}: {cls.__name__}.{name} has no type, or no return type")
        values = {name: builder.build(annotation, f"{place}.{name}", inner) for name, annotation in members.items()}
    finally:
        builder.inside = builder.inside[:-1]
    made = _stand_in(cls)()
    vars(made).update(values)
    return made


@cached_by("class")
def _stand_in(cls: type) -> type:
    """A class for the object to build. It does not inherit from the protocol, whose properties could not be set."""
    # Python looks `__call__` up in the class, and the members are in the object: so the class hands a call on to it.
    called = {"__call__": lambda self, *args, **kwargs: vars(self)["__call__"](*args, **kwargs)}
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (), {**names, **(called if "__call__" in _members(cls) else {})})


@cached_by("class")
def _members(cls: type) -> dict[str, Annotation]:
    """The annotations of a protocol's members: attributes first, then properties and methods in order."""
    members: dict[str, Annotation] = dict(attributes_of(cls))
    for base in cls.__mro__[::-1]:
        if not is_protocol(base):
            continue
        for name, value in vars(base).items():
            if isinstance(value, property) and value.fget is not None:
                members[name] = signature_of(value.fget, cls).returns
            elif inspect.isfunction(value) and (name == "__call__" or not name.startswith("_")):
                written = signature_of(value, cls)
                members[name] = CallableOf(
                    tuple(parameter.annotation for parameter in written.parameters[1:]), written.returns
                )
    return members
