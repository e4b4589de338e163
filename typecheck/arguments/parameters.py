"""The arguments for a call of a signature, in order: each by its annotation, its default, its name or its uses.

Where an annotation says only `str` or `dict[str, ...]`, the function's source shows the values that callers pass: the
strings and numbers that it compares a parameter with, and the keys that it reads. A function without source shows
nothing.
"""

from __future__ import annotations

import ast
import dis
import enum
import inspect
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

from weft.core.caches import cached_by
from weft.typecheck.arguments.builder import ITEMS, Builder, Scope, Unbuildable
from weft.typecheck.arguments.concolic import OTHER
from weft.typecheck.arguments.values import BY_NAME, holds_objects, integer, is_last
from weft.typecheck.language.annotations import (
    NONE,
    Annotation,
    Anything,
    Instance,
    LiteralOf,
    OneOf,
    Variable,
    holds_arrays,
    members_of,
)
from weft.typecheck.language.forms import OBJECT, form_of
from weft.typecheck.language.signatures import (
    KEY,
    Parameter,
    Signature,
    names_of_class,
    names_of_fields,
)


def string_of(builder: Builder, place: str, scope: Scope) -> Any:
    """A string that the body compares the parameter with, or a made-up one if the body compares it with no string."""
    known = strings_compared(scope.function, place.removeprefix(scope.path))
    if not known and not builder.makes_up:
        raise Unbuildable(f"{place}: its annotation allows any str, and the body compares it with no string")
    return _text(builder, place, scope, known)


def _text(builder: Builder, place: str, scope: Scope, usual: tuple[Any, ...]) -> Any:
    """A text that notes what is asked of it: one of the usual ones, if there are any, or a made-up one."""
    # The parameter's name, so that a dict of results shows which argument a made-up string came from.
    made_up = re.sub(r"\W+", "_", place.removeprefix(scope.path)).strip("_")
    text = builder.value(place, *(usual if any(usual) else (*usual, made_up)))
    if text is not None and str.__str__(text) in {OTHER, made_up}.difference(usual):
        builder.texts[place] = str.__str__(text)
    return text


def _listed(default: Any, members: Sequence[Annotation]) -> list[Any]:
    """The values that an annotation lists, or that its classes list; nothing where it allows more than these."""
    if isinstance(default, bool):
        return [True, False]
    listed = list[Any]()
    # In `ArrayLike` the bool is one kind of number among others, and no flag.
    is_flag = default is None and Instance(float) not in members
    for member in members:
        cls = member.cls if isinstance(member, Instance) else None
        if isinstance(member, LiteralOf):
            listed += member.values
        elif isinstance(cls, type) and issubclass(cls, enum.Enum):
            listed += cls
        elif cls is bool and is_flag:
            listed += (False, True)
    return [*listed, *(member for member in (None,) if listed and NONE in members)]


def build_arguments(
    builder: Builder, signature: Signature, scope: Scope, passed: Mapping[str, Any] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments for a call of a signature; the arguments in `passed` are used as they are.

    Raises:
        Unbuildable: naming the first argument that its annotation does not determine.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    scope.function, scope.owner = signature.function, signature.owner
    # Expressions in braces may read parameters that are built later, or that stay at their default.
    for parameter in signature.parameters:
        if not parameter.required and parameter.default is not inspect.Parameter.empty:
            scope.values.setdefault(parameter.name, parameter.default)
    dims, owner = signature.names, signature.owner
    if not scope.path:
        builder.written |= signature.variadics
    elif owner is not None and (form := form_of(owner)) is not None:
        dims |= names_of_class(owner) if form is OBJECT else names_of_fields(owner)
    # The annotation of a field reads another field as `{self.width}`, before there is a record.
    fields = scope.values.setdefault("self", types.SimpleNamespace()) if signature.owner is not None else None
    built: dict[str, list[Any]] = {}
    # Flags and parameters that holes read come first, optimizers and such last.
    early = {
        parameter.name for parameter in signature.parameters if isinstance(parameter.default, bool)
    } | signature.read_by_holes
    turns = {
        parameter.name: 0 if parameter.name in early else 1 + is_last(parameter.annotation)
        for parameter in signature.with_keys
    }
    for parameter in sorted(signature.with_keys, key=lambda parameter: turns[parameter.name]):
        if parameter.annotation is KEY and parameter.name not in (passed or {}):
            builder.by_name.add(scope.path + parameter.name)
        built[parameter.name] = _values(builder, parameter, scope, dims, passed or {})
        for value in built[parameter.name]:
            scope.values[parameter.name] = value
            if isinstance(fields, types.SimpleNamespace):
                setattr(fields, parameter.name, value)
    for parameter in signature.parameters:
        for value in built[parameter.name]:
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                kwargs.update(value)
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                kwargs[parameter.name] = value
            else:
                args.append(value)
    return tuple(args), kwargs


def _values(
    builder: Builder, parameter: Parameter, scope: Scope, dims: frozenset[str], passed: Mapping[str, Any]
) -> list[Any]:
    """The values for a parameter: one, or for `*args` any number; none for `**kwargs`, of which nothing is known."""
    name, place, annotation = parameter.name, scope.path + parameter.name, parameter.annotation
    if name in passed:
        return [passed[name]]
    if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        builder.vague.add(f"**{place}")
        return []
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        # `*args` of unknown values may be empty; several of a known kind show a function that mixes them up.
        if isinstance(annotation, Anything):
            return []
        count = ITEMS[builder.choose(f"{place} length", len(ITEMS))]
        return [builder.build(annotation, f"{place}[{number}]", scope) for number in range(count)]
    if parameter.required:
        if isinstance(annotation, Anything) and not isinstance(annotation, Variable):
            if name in BY_NAME:
                return [BY_NAME[name](builder, place, scope)]
            raise Unbuildable(f"{place}: it has no annotation and no default")
        return [builder.build(annotation, place, scope)]
    return [defaulted(builder, parameter, place, scope, dims)]


def defaulted(builder: Builder, parameter: Parameter, place: str, scope: Scope, dims: frozenset[str]) -> Any:
    """The value for a parameter with a default: arrays present and absent, flags both ways, sizes as sizes.

    A text or a number notes what is asked of it. What no annotation gives other values for stays at its default, which
    the builder notes, but for the classes of other packages: what these are given by default is their own affair.
    """
    default, annotation = parameter.default, parameter.annotation
    members = members_of(annotation)
    # `def f(x, width=64)` with a dim `width`: at 64 only, equal sizes would hide a mixed-up axis.
    if type(default) is int and parameter.name in dims:
        return integer(builder, parameter.name, scope)
    listed = _listed(default, members)
    is_foreign = scope.owner is not None and builder.is_foreign(scope.owner)
    if not is_foreign:
        builder.own.add(place)
    if listed:
        return builder.one_of(place, (default, *(item for item in listed if item is not default)), _in_words)
    is_text = Instance(str) in members and (default is None or isinstance(default, str))
    known = strings_compared(scope.function, parameter.name) if is_text else ()
    if known or (not is_foreign and (is_text or type(default) in (str, int, float))):
        usual = dict.fromkeys((default, *known))
        return _text(builder, place, scope, tuple(usual)) if is_text else builder.value(place, *usual)
    if not holds_arrays(annotation) and not holds_objects(annotation):
        if not is_foreign:
            builder.fixed[place] = _in_words(default)
        return default
    if default is None and isinstance(annotation, OneOf):  # the option `given` covers None already
        annotation = OneOf(tuple(member for member in annotation.members if member != NONE))
    if builder.choose(f"{place} given", 2) == 1:
        return default
    try:
        return builder.build(annotation, place, scope)
    except Unbuildable:  # the program without this argument can still be judged
        return default


def _in_words(value: Any) -> str:
    """A value as somebody would write it who speaks of it."""
    name = str(value) if isinstance(value, enum.Enum) else getattr(value, "__name__", None)
    return textwrap.shorten(name if isinstance(name, str) else repr(value), 40, placeholder="...")


def strings_compared(function: Callable[..., Any] | None, name: str) -> tuple[str, ...]:
    """The strings that a parameter is compared with, looked up among, or matched against, in order."""
    expressions: list[ast.expr] = []
    for node in _nodes(function):
        if isinstance(node, ast.Compare):
            # Both sides: `if mode == "sum"` and `if "sum" == mode` are both written.
            sides = [node.left, *node.comparators]
            if any(_is_name(side, name) for side in sides):
                expressions += sides
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict) and _is_name(node.slice, name):
            expressions += [key for key in node.value.keys if key is not None]
        elif isinstance(node, ast.Match) and _is_name(node.subject, name):
            patterns = (part for case in node.cases for part in ast.walk(case.pattern))
            expressions += [part.value for part in patterns if isinstance(part, ast.MatchValue)]
    return tuple(dict.fromkeys(text for expression in expressions for text in _strings(expression)))


def keys_read(function: Callable[..., Any] | None, name: str) -> tuple[str, ...]:
    """The strings by which a parameter is indexed, in order."""
    keys: list[ast.expr] = []
    for node in _nodes(function):
        if isinstance(node, ast.Subscript) and _is_name(node.value, name):
            keys.append(node.slice)
    return tuple(dict.fromkeys(text for key in keys for text in _strings(key)))


def numbers_compared(function: Callable[..., Any] | None) -> frozenset[int]:
    """The integers that a value in the body is compared with or divided by; numbers of axes are left out."""
    numbers = [number for axes, number in _compared(function) if not axes]
    for node in _nodes(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            numbers += _integers(node.right)
    return frozenset(number for number in numbers if 1 <= number <= _LARGEST)


def ranks_compared(function: Callable[..., Any] | None) -> frozenset[int]:
    """The integers that a number of axes (`ndim`) is compared with in the body."""
    return frozenset(number for axes, number in _compared(function) if axes and 0 <= number <= _MOST_AXES)


def _compared(function: Callable[..., Any] | None) -> Iterator[tuple[bool, int]]:
    """The integers in comparisons, each with whether the comparison is about a number of axes (`ndim`)."""
    for node in _nodes(function):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            axes = any(isinstance(side, ast.Attribute) and side.attr == "ndim" for side in sides)
            yield from ((axes, number) for side in sides for number in _integers(side))


def _integers(node: ast.expr) -> list[int]:
    several = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return [node.value for node in several if isinstance(node, ast.Constant) and type(node.value) is int]


# Among the names that a function reads: it looks whether something is a part of a constant text.
IN_A_TEXT = "in a text"


@cached_by("code")
def names_read(code: CodeType) -> frozenset[str]:
    """The names of variables and attributes whose values a function looks at, with those of functions inside of it.

    An assignment of a parameter to an attribute of the same name, as in a constructor, only keeps the value.
    """
    # The two names that were loaded last wait in `loaded`: `self.width = width` loads both right before it stores.
    loaded, names, before = list[str](), set[str](), None
    for instruction in dis.get_instructions(code):
        argument = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
        if instruction.opname.startswith("LOAD") and instruction.opname != "LOAD_CONST":
            loaded += (name for name in argument if isinstance(name, str))
        elif instruction.opname == "STORE_ATTR" and loaded[-2:-1] == [instruction.argval]:
            del loaded[-2:]
        elif instruction.opname == "CONTAINS_OP" and type(before) is str:
            names.add(IN_A_TEXT)
        before = instruction.argval
        names.update(loaded[:-2])
        del loaded[:-2]
    inner = (names_read(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return frozenset({*names, *loaded}).union(*inner)


def is_stub(function: Any) -> bool:
    """Whether a function leaves its body to subclasses: it only raises, or is empty and promises a result."""
    if not inspect.isfunction(function):
        return False
    # An empty method without a promised result, such as a hook `def on_end(self): ...`, is complete as it is.
    promises = function.__annotations__.get("return") not in (None, "None")
    return _raises_only(function.__code__) or (promises and _is_empty(function.__code__))


@cached_by("code")
def _raises_only(code: CodeType) -> bool:
    """Whether a function raises NotImplementedError, and returns nothing on any way."""
    operations = (instruction.opname for instruction in dis.get_instructions(code))
    return code.co_names[:1] == ("NotImplementedError",) and not any(name.startswith("RETURN") for name in operations)


@cached_by("code")
def _is_empty(code: CodeType) -> bool:
    """Whether a function has no statements but `pass`, `...` and a docstring."""
    if any(instruction.opname not in _OF_NOTHING for instruction in dis.get_instructions(code)):
        return False
    try:
        # A function that returns None has the same bytecode as an empty one, so only the source tells the two apart.
        written = ast.parse(textwrap.dedent(inspect.getsource(code))).body[0]
    except (OSError, TypeError, SyntaxError):
        return False
    return isinstance(written, ast.FunctionDef | ast.AsyncFunctionDef) and all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in written.body
    )


# The instructions of a function without statements, in every supported version of Python.
_OF_NOTHING = frozenset({"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST", "COPY_FREE_VARS"})


# Arrays of more axes are not tried.
_MOST_AXES = 5
# A comparison with a larger number is about memory, and a trial at such a size would need that memory.
_LARGEST = 4096


def _strings(node: ast.expr) -> Iterator[str]:
    for element in node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]:
        if isinstance(element, ast.Constant) and isinstance(element.value, str):
            yield element.value


def _is_name(node: ast.expr, name: str) -> bool:
    """Whether an expression is the name itself, or a method call on it without arguments, such as `mode.lower()`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args:
        node = node.func.value
    return isinstance(node, ast.Name) and node.id == name


def _nodes(function: Callable[..., Any] | None) -> tuple[ast.expr | ast.Match, ...]:
    """The expressions and `match` statements in a function's source, in source order."""
    code = getattr(function, "__code__", None)
    return () if code is None else _nodes_of(code)


@cached_by("code")
def _nodes_of(code: CodeType) -> tuple[ast.expr | ast.Match, ...]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return ()
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.expr | ast.Match)]
    return tuple(sorted(nodes, key=lambda node: (node.lineno, node.col_offset)))
