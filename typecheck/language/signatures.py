"""Signatures: the annotations of a function's parameters and result, and of a class's fields, and the dims they name.

String annotations (`from __future__ import annotations`, forward references) are resolved one by one, so that a name
which exists only for the type checker does not hide the others. Names are looked up in the function's closure, the
class's namespace, the module's globals, and, for definitions inside a function that is still running, in that
function's locals. Annotations under `typing.no_type_check` are ignored.

Where nothing but a parameter's name shows a random key, as in `key: jax.Array` or `key`, `with_keys` annotates it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any, Literal

import jax
from weft.core.caches import cached_by, kept_with_class
from weft.core.makeup import closed_over
from weft.core.records.leaves import keeps_numbers
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import (
    ANY_DTYPE,
    ANYTHING,
    NONE,
    Annotation,
    Anything,
    ArrayOf,
    BatchedOf,
    Dtypes,
    OneOf,
    RecordOf,
    Unresolved,
    members_of,
)
from weft.typecheck.language.dims import ANY_SHAPE, NamedDim, Shape, SymbolicDim, VariadicDim
from weft.typecheck.language.forms import form_of, layer_of
from weft.typecheck.language.reading import Scope, read


@dataclass(frozen=True)
class Parameter:
    """One parameter; for `*args` and `**kwargs`, `annotation` is that of each single value."""

    name: str
    annotation: Annotation
    kind: inspect._ParameterKind
    default: Any = inspect.Parameter.empty

    @functools.cached_property
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
        return not all(isinstance(annotation, Anything) for annotation in self.annotations)

    # These are asked for in each trial of a proof.

    @functools.cached_property
    def annotations(self) -> tuple[Annotation, ...]:
        """The annotations of the result and of the parameters."""
        return (self.returns, *(parameter.annotation for parameter in self.parameters))

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """The dims that the annotations name, those of records among the arguments included."""
        return frozenset().union(*map(names_in, self.annotations))

    @functools.cached_property
    def variadics(self) -> frozenset[str]:
        """The `*name`s that the annotations write; unlike a record's, they are promises to the caller."""
        dims = (dim for annotation in self.annotations for shape in shapes_in(annotation) for dim in shape.dims)
        return frozenset(dim.name for dim in dims if isinstance(dim, VariadicDim) and dim.name)

    @functools.cached_property
    def read_by_holes(self) -> frozenset[str]:
        """The parameters that expressions in the annotations of other parameters read: `"{shape[0]} d"`."""
        annotations = self.annotations[1:]
        dims = (dim for annotation in annotations for shape in shapes_in(annotation) for dim in shape.dims)
        arguments = (dim.arguments for dim in dims if isinstance(dim, SymbolicDim))
        return fields_in_holes(annotations).union(*arguments)

    @functools.cached_property
    def with_keys(self) -> tuple[Parameter, ...]:
        """The parameters, of which those that only their names show to be random keys have the annotation `KEY`."""
        return with_keys(self.parameters)


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
    """The names that string annotations of a function may use besides the globals, the nearest first."""
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
                # floor: before Python 3.13 the frame keeps this snapshot, and all arrays in it, alive while it runs.
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
    fields: list[Field] = []
    for name, static, required, default in form.fields(cls):
        if name in declared:
            owner, hint = declared[name]
            annotation = _read_field(cls, name, owner, hint)
            # A record's field is held to its annotation as it is written: a method computes with the array.
            annotation = annotation if keeps_numbers(cls) else _or_none(annotation, default)
            fields.append(Field(name, annotation, owner, static, required))
    return tuple(fields)


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
    """The annotation of a field of a class, which `base` declares, with the names that are visible there."""
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


def fields_in_holes(annotations: Iterable[Annotation]) -> frozenset[str]:
    """The fields that expressions in annotations read, such as `width` in `{self.width}`."""
    dims = (dim for annotation in annotations for shape in shapes_in(annotation) for dim in shape.dims)
    return frozenset().union(*(dim.fields for dim in dims if isinstance(dim, SymbolicDim)))


def shapes_in(
    annotation: Annotation, enters: Callable[[RecordOf], bool] = lambda _: False, seen: frozenset[type] = frozenset()
) -> Iterator[Shape]:
    """The shapes in an annotation, leading axes included, and in the fields of records for which `enters` is true."""
    for part in annotation.walk():
        match part:
            case ArrayOf(shape=shape) | BatchedOf(axes=shape):
                yield shape
            # `seen` ends recursive types, such as a tree node with fields of its own class.
            case RecordOf(cls=cls) if cls not in seen and enters(part):
                for field in fields_of(cls):
                    yield from shapes_in(field.annotation, enters, seen | {cls})
            case _:
                pass


def names_in(annotation: Annotation, of_records: bool = True) -> frozenset[str]:
    """The dims that an annotation names; with `of_records`, also those of plain records, which share the scope."""
    return frozenset().union(*_names_of_arrays(annotation, of_records))


def _names_of_arrays(annotation: Annotation, of_records: bool = True) -> Iterator[frozenset[str]]:
    """For each shape in an annotation, the dims that it names."""
    for shape in shapes_in(annotation, lambda record: of_records and record.form.plain):
        names = set[str]()
        for dim in shape.dims:
            if isinstance(dim, NamedDim):
                names.add(dim.name)
            elif isinstance(dim, VariadicDim) and dim.name:
                names.add("*" + dim.name)
            elif isinstance(dim, SymbolicDim):
                names |= dim.names
        yield frozenset(names)


def name_groups(signature: Signature) -> tuple[frozenset[str], ...]:
    """The sets of dims that one array names: a set for each array with several, of a function and its class."""
    annotations = _annotations_of(signature)
    return tuple(dict.fromkeys(names for a in annotations for names in _names_of_arrays(a) if len(names) > 1))


def _annotations_of(signature: Signature) -> tuple[Annotation, ...]:
    """The annotations of a function's result and parameters, and of the fields of its class."""
    owner = signature.owner
    fields = fields_of(owner) if owner is not None and form_of(owner) is not None else ()
    return (*signature.annotations, *(field.annotation for field in fields))


@cached_by("class")
def names_of_fields(cls: type) -> frozenset[str]:
    """The dims that the fields of a class name."""
    return frozenset().union(*(names_in(field.annotation) for field in fields_of(cls)))


@cached_by("class")
def names_of_class(cls: type) -> frozenset[str]:
    """The dims that the fields and methods of a class name, without those of base classes of NNX."""
    layer = layer_of(cls)
    own = [base for base in cls.__mro__ if layer is None or not base.__module__.startswith(layer.package)]
    functions = [inspect.unwrap(value) for base in own for value in vars(base).values() if callable(value)]
    names = frozenset() if form_of(cls) is None else names_of_fields(cls)
    for function in functions:
        if isinstance(function, FunctionType) and function.__annotations__:
            # A method with an unreadable annotation is reported when the method itself is checked.
            with contextlib.suppress(AnnotationError):
                names |= signature_of(function, cls).names
    return names


def products_in(signature: Signature) -> tuple[tuple[str, ...], ...]:
    """The dims of a signature that are products of names, such as `h*c`, each as a tuple of the names in order."""
    annotations = _annotations_of(signature)
    shapes = (shape for annotation in annotations for shape in shapes_in(annotation, lambda _: True))
    split = dict.fromkeys(
        tuple(dim.text.split("*")) for shape in shapes for dim in shape.dims if isinstance(dim, SymbolicDim)
    )
    orders = [names for names in split if all(name.isidentifier() for name in names)]
    # A program with `h*w` in one place and `w*h` in another uses both orders, so neither is the right one.
    return tuple(names for names in orders if sum(sorted(names) == sorted(order) for order in orders) == 1)


KEY = ArrayOf(jax.Array, Dtypes("Key", ("prng_key",)), Shape.parse(""))
# Proofs need keys of the right dtype: `jax.random` refuses a float array, which would be no fault of the program.
_KEY_NAME = re.compile(r"(.+_)?(key|rng|prng)_?\d*|k\d")
# The names of parameters that make a `key` the key of an attention or of a mapping.
_WITH_OTHER_KEYS = {"query", "queries", "q", "value", "values", "v"}


def with_keys(parameters: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """The parameters, of which those that only their names show to be random keys have the annotation `KEY`.

    A caller may also pass a generator of keys for these.
    """
    # Next to `query` or `value`, `key` is an array of attention: as a random key it could not be traced.
    if _WITH_OTHER_KEYS & {parameter.name for parameter in parameters}:
        return parameters
    # Annotations that say at most that the value is an array, without dtype and shape.
    unsaid = (Anything(), NONE, ArrayOf(jax.Array, ANY_DTYPE, ANY_SHAPE))
    return tuple(
        dataclasses.replace(parameter, annotation=KEY)
        if _KEY_NAME.fullmatch(parameter.name)
        and parameter.annotation != NONE
        and all(member in unsaid for member in members_of(parameter.annotation))
        else parameter
        for parameter in parameters
    )
