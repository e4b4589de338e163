"""Signatures: the annotations of a function's parameters and result, and of a class's fields.

String annotations (`from __future__ import annotations`, forward references) are resolved one by one, so that a name
which exists only for the type checker does not hide the others. Names are looked up in the function's closure, the
class's namespace, the module's globals, and, for definitions inside a function that is still running, in that
function's locals.

Annotations under `typing.no_type_check` are ignored.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any, Literal

from weft.core.caches import kept_with_class
from weft.core.makeup import closed_over
from weft.core.records.leaves import keeps_numbers
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import ANYTHING, NONE, Annotation, Anything, OneOf, Unresolved, members_of
from weft.typecheck.language.forms import form_of
from weft.typecheck.language.reading import Scope, read


@dataclass(frozen=True)
class Parameter:
    """One parameter; for `*args` and `**kwargs`, `annotation` is that of each single value."""

    name: str
    annotation: Annotation
    kind: inspect._ParameterKind
    default: Any = inspect.Parameter.empty

    @property
    def required(self) -> bool:
        """Whether every call must pass a value."""
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return self.default is inspect.Parameter.empty and self.kind not in variadic


@dataclass(frozen=True)
class Signature:
    """The annotations of a function.

    Attributes:
        function: the function, without its wrappers.
        parameters: in order, `self` included.
        returns: the result; the whole `StreamOf` for a generator, the awaited result for a coroutine function.
        flavour: whether it is a plain function, a generator, a coroutine function or an async generator.
        owner: for a method, the class that `Self` and the first parameter stand for.
    """

    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    returns: Annotation
    flavour: Literal["function", "generator", "coroutine", "async generator"] = "function"
    owner: type | None = None

    @property
    def annotated(self) -> bool:
        """Whether any parameter or the result has an annotation."""
        return not all(isinstance(a, Anything) for a in (self.returns, *(p.annotation for p in self.parameters)))


@dataclass(frozen=True)
class Field:
    """One annotated field of a class.

    Attributes:
        name: its name.
        annotation: the annotation of its value.
        owner: the class in the hierarchy that declares it.
        static: whether the field is part of the treedef.
        required: whether the constructor needs a value for it.
    """

    name: str
    annotation: Annotation
    owner: type
    static: bool = False
    required: bool = True


def signature_of(
    function: Callable[..., Any], owner: type | None = None, names: Mapping[str, Any] | None = None
) -> Signature:
    """The annotations of a function, read and resolved.

    Args:
        function: a function, method, partial application, or an object with `__call__`.
        owner: the class that it is a method of.
        names: names that string annotations look up first, such as the locals of the defining function.

    Raises:
        AnnotationError: in one line, naming the function and the parameter.
        ValueError: if the function has no signature, like some functions written in C.
    """
    target = inspect.unwrap(function)
    if isinstance(target, functools.partial):
        target = inspect.unwrap(target.func)
    if inspect.ismethod(target):
        receiver = target.__self__
        owner, target = owner or (receiver if isinstance(receiver, type) else type(receiver)), target.__func__
    elif not inspect.isfunction(target) and not inspect.isbuiltin(target) and not isinstance(target, type):
        owner, target = owner or type(target), inspect.unwrap(type(target).__call__)
    scope = Scope(getattr(target, "__globals__", {}), _names_of_function(target, owner, names), owner)
    written = inspect.signature(target, follow_wrapped=False)
    if _opts_out(function, target, owner):
        bare = (Parameter(p.name, ANYTHING, p.kind, p.default) for p in written.parameters.values())
        return Signature(target, tuple(bare), ANYTHING, _flavour(target), owner)
    parameters = tuple(
        Parameter(
            p.name, _or_none(_read_at(_own(p, target, owner), scope, target, p.name), p.default), p.kind, p.default
        )
        for p in written.parameters.values()
    )
    returns = _read_at(written.return_annotation, scope, target, "return")
    return Signature(target, parameters, returns, _flavour(target), owner)


def _opts_out(function: Any, target: Any, owner: type | None) -> bool:
    """Whether `typing.no_type_check` decorates a function, one of its wrappers, or the class that defines it."""
    classes = (base for base in getattr(owner, "__mro__", ()) if vars(base).get("__no_type_check__"))
    written_in = getattr(target, "__qualname__", "").rpartition(".")[0]
    if getattr(target, "__no_type_check__", False) or any(base.__qualname__ == written_in for base in classes):
        return True
    # A wrapper may carry the mark while the function inside does not, so the chain of wrappers is followed.
    while function is not target and (inner := getattr(function, "__wrapped__", None)) is not None:
        if getattr(function, "__no_type_check__", False):
            return True
        function = inner
    return False


def _own(parameter: inspect.Parameter, function: Any, owner: type | None) -> Any:
    """The hint that the author wrote for a parameter.

    Equinox replaces the hint of a field with a converter by the converter's own hint. The dims in that hint belong to
    the converter: those of two converters would share one scope, and would be compared.
    """
    if getattr(function, "__name__", "") == "__init__" and has_converter(owner, parameter.name):
        return inspect.Parameter.empty
    return parameter.annotation


def has_converter(cls: type | None, name: str) -> bool:
    """Whether a class passes the values of a field through a converter that has annotations."""
    known = getattr(cls, "__dataclass_fields__", {}).get(name)
    converter = None if known is None else known.metadata.get("converter")
    return bool(getattr(converter, "__annotations__", None))


def _or_none(annotation: Annotation, default: Any) -> Annotation:
    """The annotation with `None` added if the default is None: `x: Array = None` is commonly written."""
    # An unresolved string may mean a union with None already.
    if default is not None or annotation == NONE or isinstance(annotation, Anything | Unresolved):
        return annotation
    return OneOf(tuple(dict.fromkeys((*members_of(annotation), NONE))))


def _flavour(function: Any) -> Literal["function", "generator", "coroutine", "async generator"]:
    if inspect.iscoroutinefunction(function):
        return "coroutine"
    if inspect.isasyncgenfunction(function):
        return "async generator"
    return "generator" if inspect.isgeneratorfunction(function) else "function"


def _read_at(hint: Any, scope: Scope, target: Any, name: str) -> Annotation:
    if hint is inspect.Parameter.empty:
        return ANYTHING
    try:
        return read(hint, scope)
    except AnnotationError as error:
        problem = f"{getattr(target, '__qualname__', target)}, {name}: {error.what}"
        raise AnnotationError(problem) from None


def _names_of_function(function: Any, owner: type | None, names: Mapping[str, Any] | None) -> Mapping[str, Any]:
    # Without annotations no name is looked up, and collecting the namespaces takes time.
    if not getattr(function, "__annotations__", None):
        return {}
    maps: list[Mapping[str, Any]] = [dict(names)] if names else []
    maps.append(closed_over(function) if isinstance(function, FunctionType) else {})
    maps.append(_type_parameters(function))
    if owner is not None:
        maps.append(_type_parameters(owner))
        maps += [{owner.__name__: owner}, vars(owner)]
    maps += _enclosing_locals(getattr(function, "__qualname__", ""), getattr(function, "__module__", ""))
    return ChainMap(*map(dict, maps))


def _type_parameters(definition: Any) -> Mapping[str, Any]:
    """The names in the brackets of `def f[T](...)` or `class C[T]`, which no scope contains at run time."""
    return {parameter.__name__: parameter for parameter in getattr(definition, "__type_params__", ())}


def _enclosing_locals(qualname: str, module: str) -> list[Mapping[str, Any]]:
    """The locals of the running function in which something was defined; nothing if that function has returned."""
    outer, separator, _ = qualname.rpartition(".<locals>.")
    if not separator:
        return []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_qualname == outer and frame.f_globals.get("__name__") == module:
            snapshot = frame.f_locals
            names = dict(snapshot)
            if sys.version_info < (3, 13):
                # Before Python 3.13 the frame keeps this snapshot, and all arrays in it, alive for as long as it runs.
                snapshot.clear()
            return [names]
        frame = frame.f_back
    return []


@kept_with_class
def fields_of(cls: type) -> tuple[Field, ...]:
    """The annotated fields of a Module, dataclass, NamedTuple or TypedDict, in order.

    Raises:
        AnnotationError: in one line, naming the class and the field.
        TypeError: if the class is none of these.
    """
    form = form_of(cls)
    if form is None:
        raise TypeError(f"{cls.__qualname__} is not a Module, dataclass, NamedTuple or TypedDict")
    # A TypedDict has the annotations of its bases, so its bases are not visited.
    declared = {
        name: (base, hint)
        for base in (cls.__mro__[::-1] if form.inherits else (cls,))
        for name, hint in vars(base).get("__annotations__", {}).items()
    }
    return tuple(
        Field(
            name,
            # A record's field is held to its annotation as it is written: a method computes with the array.
            _or_none(_read_field(cls, name, *declared[name]), ... if keeps_numbers(cls) else default),
            declared[name][0],
            static,
            required,
        )
        for name, static, required, default in form.fields(cls)
        if name in declared
    )


@kept_with_class
def attributes_of(cls: type) -> dict[str, Annotation]:
    """The annotations in the body of a class and of its bases, by name.

    Raises:
        AnnotationError: in one line, naming the class and the attribute.
    """
    return {
        name: _read_field(cls, name, base, hint)
        # From the most general class down, so that a subclass's annotation of the same name wins.
        for base in cls.__mro__[::-1]
        for name, hint in vars(base).get("__annotations__", {}).items()
    }


def _read_field(cls: type, name: str, base: type, hint: Any) -> Annotation:
    if vars(base).get("__no_type_check__"):
        return ANYTHING
    names: list[Mapping[str, Any]] = [{base.__name__: base, cls.__name__: cls}, dict(vars(base))]
    names.append(_type_parameters(base))
    methods = [inspect.unwrap(value) for value in vars(base).values() if inspect.isfunction(value)]
    # A field's annotation may use names of the function around the class; its methods have closed over them.
    names += [closed_over(method) for method in methods if isinstance(method, FunctionType)]
    names += _enclosing_locals(base.__qualname__, base.__module__)
    module = sys.modules.get(base.__module__)
    scope = Scope(vars(module) if module else {}, ChainMap(*map(dict, names)), cls)
    try:
        return read(hint, scope)
    except AnnotationError as error:
        raise AnnotationError(f"{cls.__qualname__}.{name}: {error.what}") from None
