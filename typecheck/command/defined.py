"""Finds the public functions and classes of a module to judge, and the private ones to count."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from weft.typecheck.arguments.subclasses import is_abstract
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import Annotation, ArrayOf, BatchedOf, TreeOf, holds_arrays
from weft.typecheck.language.forms import form_of, has_own_dims, is_foreign_class
from weft.typecheck.language.signatures import fields_of, signature_of
from weft.typecheck.proofs.frames import place_of
from weft.typecheck.proofs.targets import (
    function_in,
    is_annotated,
    is_made,
    is_private,
    public_methods,
    unbound_methods,
)


def definitions(
    module: ModuleType, failed: dict[str, Exception] | None = None, *, private: bool = False
) -> Iterator[tuple[str, Any]]:
    """The public functions and classes that a module defines itself, in the order of its lines.

    Args:
        module: the module.
        failed: receives the errors of objects that cannot be examined, by name; without it they are raised.
        private: whether to include names that begin with an underscore.
    """
    selected: list[tuple[int, str, Any]] = []
    inner = {name: cls for name, cls in _classes(module) if "." in name}
    named = {**vars(module), **inner}
    if not private:
        named = {name: value for name, value in named.items() if not any(part[:1] == "_" for part in name.split("."))}
    # An alias shares the object, and the name under which the object was defined is the one to show.
    own = {id(value): name for name, value in named.items() if _own_name(value) == name}
    for name, value in named.items():
        if own.get(id(value), name) != name:
            continue  # an alias of a function that comes under its own name
        try:
            if _is_checkable(module, value):
                selected.append((place_of(value)[1], value.__qualname__ if isinstance(value, type) else name, value))
        except Exception as error:  # an object of the module's may compute its attributes, and raise anything
            if failed is None:
                raise
            failed[name] = error
    # In the order of the lines, so that reports read like the file.
    for _, name, value in sorted(selected, key=lambda place: place[0]):
        yield name, value


def _classes(module: ModuleType) -> Iterator[tuple[str, type]]:
    """The classes that a module defines, nested ones included, by qualified name."""
    pending = [*vars(module).values()]
    while pending:
        cls = pending.pop()
        if isinstance(cls, type) and cls.__module__ == module.__name__:
            yield cls.__qualname__, cls
            inside = ((f"{cls.__qualname__}.{name}", member) for name, member in vars(cls).items())
            pending += [member for name, member in inside if getattr(member, "__qualname__", None) == name]


# Constructors run, and are checked, whenever the methods of their class are judged.
_CONSTRUCTORS = ("__init__", "__new__", "__post_init__", "__check_init__")


def unjudged(module: ModuleType, judged: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The private annotated code of a module, whose contracts are checked where judged code calls it.

    Args:
        module: the module.
        judged: its public functions and classes, from `definitions`; a private function may be public under another
            name, as in `step = jax.jit(_step)`.
    """
    # A wrapper and the function inside are the same code, judged under the public name.
    public = {id(inspect.unwrap(thing)) for _, thing in judged}
    everything = definitions(module, {}, private=True)
    private = {name: thing for name, thing in everything if id(inspect.unwrap(thing)) not in public}
    yield from private.items()
    for owner, cls in sorted(_classes(module), key=lambda named: place_of(named[1])[1]):
        for name, value in vars(cls).items() if owner not in private else ():
            function = function_in(value)
            if function is None or name in _CONSTRUCTORS or not is_private(name):
                continue
            if function.__module__ == module.__name__ and is_annotated(function, cls):
                yield f"{owner}.{name}", function


def _own_name(value: Any) -> Any:
    try:
        return getattr(value, "__name__", None)
    except Exception:  # an object that computes its attributes is neither a function nor a class
        return None


def _is_checkable(module: ModuleType, value: Any) -> bool:
    """Whether a function or class is the module's own and has a contract about arrays."""
    if not isinstance(value, type) and not callable(value):
        return False
    # Imported functions belong to their own module, and are judged there.
    if getattr(inspect.unwrap(value), "__module__", None) != module.__name__:
        return False
    if not isinstance(value, type):
        return not has_own_dims(type(value)) and not is_foreign_class(type(value)) and is_annotated(value)
    if not is_made(value) and not is_foreign_class(value):
        return False
    methods, form = [*public_methods(value), *(function for function, _ in unbound_methods(value))], form_of(value)
    parts = (part for annotation in _annotations(value, methods) for part in annotation.walk())
    if form is not None and form.plain and not any(isinstance(part, ArrayOf | TreeOf | BatchedOf) for part in parts):
        return False  # options, or nodes of a parser's tree: without arrays there is no contract about shapes
    if methods:
        return True
    # A handwritten `__init__` may make the arrays for annotated fields. An abstract class is made by its subclasses,
    # whose own constructors are judged.
    code = getattr(vars(value).get("__init__"), "__code__", None)
    if code is None or code.co_filename.startswith("<") or not has_own_dims(value) or is_abstract(value):
        return False
    return any(holds_arrays(field.annotation) for field in fields_of(value))


def _annotations(cls: type, methods: list[Callable[..., Any]]) -> Iterator[Annotation]:
    """The annotations of a class's fields and methods, as far as they can be read."""
    with contextlib.suppress(AnnotationError):
        yield from (field.annotation for field in fields_of(cls))
        for method in methods:
            signature = signature_of(method, cls)
            yield from (signature.returns, *(parameter.annotation for parameter in signature.parameters))
