"""Proof targets from recorded calls: arguments of the recorded structure, at all sizes that annotations allow.

The recorded arguments bind the names in the annotations, as a check would; a call that does not fit the annotations
cannot be used. Each name then takes any size: arrays get the shapes that their annotation gives them, records become
abstract copies of themselves (`abstract_copies`), and an integer named like a dim is that dim. Sizes that no annotation
names stay as recorded, and an argument without a structure is built from its annotation.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from weft.core.records.leaves import is_array
from weft.typecheck.arguments.abstract_copies import abstract_copy
from weft.typecheck.arguments.builder import Builder, Scope
from weft.typecheck.arguments.generalise import generalise
from weft.typecheck.arguments.new_shapes import new_shape
from weft.typecheck.arguments.parameters import build_arguments
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import Annotation, Anything, ArrayOf, Instance
from weft.typecheck.language.dims import NamedDim, VariadicDim
from weft.typecheck.language.forms import form_of_value, has_own_dims
from weft.typecheck.language.names import names_of_signature
from weft.typecheck.language.signatures import Parameter, Signature, fields_of, signature_of
from weft.typecheck.matching.arrays import settle
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot
from weft.typecheck.matching.compiling import check_of
from weft.typecheck.matching.policies import PROOF
from weft.typecheck.matching.records import dims_of_instance
from weft.typecheck.proofs.passing import is_transformed
from weft.typecheck.proofs.targets import with_names
from weft.typecheck.proofs.trial import Call, Target
from weft.typecheck.proofs.whose import place_of
from weft.typecheck.recording.structures import Decoder, Node, Opaque, Unresolved, is_plain_object


class Unusable(Exception):
    """A recorded call from which nothing can be proved; the message is the reason."""


def recorded_target(
    function: Callable[..., Any], call: Node, decoder: Decoder, owner: type | None = None, name: str = ""
) -> Target:
    """The proof target for a function with arguments as in a recorded call.

    Args:
        function: the function as it is called.
        call: the structure of its arguments, from a recorder.
        decoder: finds the classes and functions that the structure names.
        owner: the class whose method it is; the first argument is then the instance.
        name: the target's name; by default the qualified name.

    Raises:
        Unusable: if the call does not fit the annotations, or names a class or function that no longer exists.
        AnnotationError: if an annotation cannot be read.
    """
    plain = inspect.unwrap(function)
    recorded = _Recorded(plain, call, decoder, owner)
    file, line = place_of(plain)
    arguments = recorded.arguments()
    for parameter in recorded.signature.parameters:
        if _takes_any_size(parameter.annotation):
            # Other arguments keep their recorded sizes, because the program may depend on these numbers.
            arguments.pop(parameter.name, None)
    constants = {
        size for value in arguments.values() for leaf in jax.tree.leaves(value) for size in getattr(leaf, "shape", ())
    }
    constants |= {*_configured(list(recorded.nodes.values()))}
    sizes = frozenset(size for size in constants if isinstance(size, int))
    name = name or plain.__qualname__
    target = Target(name, file, line, recorded.prepare, frozenset({file}), sizes, transformed=is_transformed(function))
    return with_names(target, recorded.signature)


def _takes_any_size(annotation: Annotation) -> bool:
    """Whether an annotation is one array whose axes all have names."""
    return isinstance(annotation, ArrayOf) and all(
        isinstance(dim, NamedDim) or (isinstance(dim, VariadicDim) and dim.name) for dim in annotation.shape.dims
    )


def _configured(node: Node) -> Iterator[int]:
    """The numbers that stay the same at all sizes: lengths of tuples and lists, and the integers in them."""
    if isinstance(node, dict):
        yield from (len(node[kind]) for kind in ("tuple", "list") if kind in node)
        yield from (item for kind in ("tuple", "list") for item in node.get(kind, ()) if type(item) is int)
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _configured(part)


class _Recorded:
    """One recorded call, whose arguments can be made any number of times."""

    def __init__(self, function: Callable[..., Any], call: Node, decoder: Decoder, owner: type | None):
        self.function, self.call, self.decoder = function, call, decoder
        written = signature_of(function, owner)
        self.is_method = owner is not None and bool(written.parameters)
        self.first = written.parameters[0].name if self.is_method else ""
        parameters = written.parameters[1:] if self.is_method else written.parameters
        self.signature = Signature(written.function, parameters, written.returns, written.flavour, owner)
        self.nodes = self._by_name()
        self.retyped: dict[str, Any] = {}
        self.dims = self._bound(self.arguments())

    def _by_name(self) -> dict[str, Node]:
        """The structures of the arguments by parameter; `*args` as a tuple and `**kwargs` as a dict."""
        try:
            bound = inspect.signature(self.function).bind(*self.call["args"], **self.call["kwargs"])
        except (TypeError, KeyError) as error:
            raise Unusable(f"the recorded arguments do not fit the function's parameters: {error}") from None
        numbers = {p.name for p in self.signature.parameters if p.annotation in _NUMBERS}
        return {
            name: {"opaque": "it is an array, not a number"} if name in numbers and _is_array(node) else node
            for name, node in bound.arguments.items()
        }

    def arguments(self) -> dict[str, Any]:
        """The recorded arguments as new abstract values at their recorded sizes."""
        kinds = {parameter.name: parameter.kind for parameter in self.signature.parameters}
        values: dict[str, Any] = {}
        for name, node in self.nodes.items():
            try:
                if kinds.get(name) is inspect.Parameter.VAR_POSITIONAL:
                    values[name] = tuple(map(self.decoder.value, node))
                elif kinds.get(name) is inspect.Parameter.VAR_KEYWORD:
                    values[name] = {key: self.decoder.value(item) for key, item in node.items()}
                else:
                    values[name] = self.decoder.value(node)
            except Opaque as reason:
                # Without its instance a method cannot be called; any other argument can be built from its annotation.
                if name == self.first:
                    raise Unusable(f"{name}: {reason}") from None
            except Unresolved as reason:
                raise Unusable(str(reason)) from None
        return values

    def _bound(self, arguments: Mapping[str, Any]) -> dict[str, int]:
        """The sizes to which the recorded arguments bind names."""
        bindings = Bindings(Slot("argument", "", self.function, Anything()), lambda: arguments)
        if self.is_method and has_own_dims(type(arguments[self.first])):
            own = dims_of_instance(arguments[self.first], PROOF)
            bindings.sizes.update(own.sizes)
            bindings.variadics.update(own.variadics)
        bindings.numpy = True
        for parameter in self.signature.parameters:
            check = check_of(parameter.annotation, PROOF)
            # An argument left at its default is not part of the contract: `None` may stand where an array is annotated.
            if check is None or parameter.name not in arguments or arguments[parameter.name] is parameter.default:
                continue
            several = parameter.kind is inspect.Parameter.VAR_POSITIONAL
            for value in arguments[parameter.name] if several else (arguments[parameter.name],):
                if not _binds(check, value, bindings) and (several or not self._retypes(parameter, value, bindings)):
                    raise Unusable(f"the recorded argument {parameter.name} does not fit its annotation")
        return {name: size for name, size in bindings.sizes.items() if isinstance(size, int)}

    def _retypes(self, parameter: Parameter, value: Any, bindings: Bindings) -> bool:
        """Whether an array fits its annotation except for its dtype; if so, notes the array with the annotated dtype.

        Tests often pass floats for integers; the shape of such an array is as good as that of one with the right dtype.
        """
        # The annotation may name a class of dtypes, so usual ones are tried until one fits.
        check = check_of(parameter.annotation, PROOF)
        for dtype in _DTYPES if isinstance(value, jax.ShapeDtypeStruct) and check is not None else ():
            self.retyped[parameter.name] = jax.ShapeDtypeStruct(value.shape, dtype)
            if _binds(check, self.retyped[parameter.name], bindings):
                return True
        self.retyped.pop(parameter.name, None)
        return False

    def prepare(self, builder: Builder) -> Call:
        """The function and its arguments under the builder's assignment."""
        arguments, scope = {**self.arguments(), **self.retyped}, Scope()
        if self.is_method:
            arguments[self.first] = self._instance(builder, arguments[self.first], scope)
        names = names_of_signature(self.signature)
        # The dims of the instance come first: a method's `d` is the `d` of its record.
        for name, size in self.dims.items():
            if name not in scope.bound:
                scope.bound[name] = builder.keyed(name, name, scope, original=size)
        for parameter in self.signature.parameters:
            if parameter.name in arguments:
                value = arguments[parameter.name]
                if type(value) is int and parameter.name in names and parameter.name in scope.bound:
                    value = scope.bound[parameter.name]
                else:
                    value = _generalised(builder, parameter.annotation, value, parameter.name, scope)
                arguments[parameter.name] = scope.values[parameter.name] = value
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        # A parameter that the call left at its default stays there.
        passed = (p for p in self.signature.parameters if p.required or p.name in arguments.keys() | self.nodes.keys())
        passed = tuple(parameter for parameter in passed if parameter.kind not in variadic)
        signature = dataclasses.replace(self.signature, parameters=passed)
        args, kwargs = build_arguments(builder, signature, scope, arguments)
        for parameter in self.signature.parameters:
            if parameter.name in arguments and parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                # `*args` follow the other positional arguments, which `build_arguments` has put in order.
                args += arguments[parameter.name]
            elif parameter.name in arguments and parameter.kind is inspect.Parameter.VAR_KEYWORD:
                kwargs |= arguments[parameter.name]
        if self.is_method:
            args = (arguments[self.first], *args)
        return _opened_call(self.function, args, kwargs)

    def _instance(self, builder: Builder, instance: Any, scope: Scope) -> Any:
        if not has_own_dims(type(instance)):
            scope.values[self.first] = instance
            return instance
        record = generalise(instance)(builder)
        own = dims_of_instance(record, PROOF)
        scope.bound |= own.sizes
        scope.variadics |= {name: variadic.shape for name, variadic in own.variadics.items()}
        scope.values["self"] = record
        # The dims of the record and of the method are one scope, so a size of one is noted as used by the other.
        for size in own.sizes.values():
            builder.used(size, scope)
        builder.names |= own.sizes.keys()
        builder.names_outside |= own.sizes.keys() & names_of_signature(self.signature)
        return record


# A caller may pass an array where a number is annotated. That argument is opaque then, and the others are used.
_NUMBERS = (Instance(int), Instance(float), Instance(bool), Instance(complex))


def _is_array(node: Node) -> bool:
    return isinstance(node, dict) and "array" in node


_DTYPES = tuple(map(jnp.dtype, ("float32", "int32", "complex64", "bool")))


def _binds(check: Any, value: Any, bindings: Bindings) -> bool:
    """Whether a value fits its annotation; if it does not, nothing is bound."""
    before = bindings.snapshot()
    try:
        check(value, bindings)
        settle(bindings, finally_=False)
    except (Mismatch, AnnotationError):
        bindings.restore(before)
        return False
    return True


def _generalised(builder: Builder, annotation: Annotation, value: Any, place: str, scope: Scope) -> Any:
    """A recorded value with the shapes that its annotation gives it at the sizes of the assignment."""

    def ends(node: Any) -> bool:
        return form_of_value(node) is not None or is_array(node)

    def changed(keys: Any, leaf: Any) -> Any:
        where = place + jax.tree_util.keystr(keys)
        if has_own_dims(type(leaf)):
            # A record inside has dims of its own, as each layer of a list has.
            return abstract_copy(builder, leaf, where)
        form = form_of_value(leaf)
        if form is not None:
            annotations = _annotations(type(leaf))
            return form.make(
                type(leaf),
                {
                    name: _generalised(builder, annotations.get(name, Anything()), field, f"{where}.{name}", scope)
                    for name, field in form.values(leaf).items()
                },
            )
        if not is_array(leaf):
            return leaf
        return jax.ShapeDtypeStruct(new_shape(builder, annotation, leaf, where, scope), leaf.dtype)

    return jax.tree_util.tree_map_with_path(changed, value, is_leaf=ends)


def _annotations(cls: type) -> dict[str, Annotation]:
    # The recorded shapes stay where a class cannot be read; its own check reports the annotation.
    try:
        return {one.name: one.annotation for one in fields_of(cls)}
    except (AnnotationError, TypeError):
        return {}


def _opened_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """A call in which JAX sees all arrays: those in attributes of plain objects become further arguments."""
    objects: list[tuple[Any, str]] = []

    def look(value: Any) -> None:
        if is_plain_object(value) and not any(value is known for known, _ in objects):
            for name, attribute in vars(value).items():
                if any(map(is_array, jax.tree.leaves(attribute))):
                    objects.append((value, name))
                look_in(attribute)

    def look_in(tree: Any) -> None:
        for leaf in jax.tree.leaves(tree):
            look(leaf)

    look_in((args, kwargs))
    if not objects:
        return function, args, kwargs
    before = [vars(instance)[name] for instance, name in objects]

    # The arrays of this trace are put into the objects for the length of the call; left there, they would leak.
    def call(arrays: list[Any], *args: Any, **kwargs: Any) -> Any:
        for (instance, name), value in zip(objects, arrays, strict=True):
            object.__setattr__(instance, name, value)
        try:
            return function(*args, **kwargs)
        finally:
            for (instance, name), value in zip(objects, before, strict=True):
                object.__setattr__(instance, name, value)

    return call, (before, *args), kwargs
