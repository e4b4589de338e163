"""What is known of values without running a program: that they hold no bare number.

equinox keeps Python's numbers out of its transforms, and weft traces those that are arguments; apart from that the two
agree. So a call is the same where no argument and no result is or holds a number. Annotations are believed, as
contracts hold them afterwards; what has none is looked at in the function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

import libcst as cst

from .reading import Reader, dotted, names_in

# What an expression is known to be. A tree holds arrays, modules and what they are kept in, and a number is none.
ARRAY, TREE, NUMBER, UNKNOWN = "array", "tree", "number", "unknown"

_DTYPES = ("Float", "Int", "UInt", "Integer", "Inexact", "Num", "Shaped", "Bool", "Complex", "Real", "Key")
_ARRAYS = ("jax.Array", "jaxtyping.Array", "jax.numpy.ndarray", "numpy.ndarray", "jaxtyping.PRNGKeyArray")
_TREES = ("equinox.Module", "optax.OptState", "optax.Updates", "optax.GradientTransformation", "typing.Callable")
_TREES += ("collections.abc.Callable",)
_NUMBERS = ("int", "float", "bool")
HOLDERS = ("tuple", "list", "dict", "typing.Optional", "typing.Annotated", "typing.Union", "jaxtyping.PyTree")
_MAKERS = ("jax.numpy.", "jax.random.", "jax.nn.", "jax.lax.", "jax.scipy.", "optax.")
_NO_MAKERS = ("shape", "ndim", "size", "dtype", "result_type", "issubdtype", "iinfo", "finfo", "broadcast_shapes")
_NO_MAKERS += ("isdtype", "promote_types", "axis_size", "can_cast", "isscalar", "iterable", "safe_increment")
_METHODS = ("sum", "mean", "max", "min", "reshape", "astype", "ravel", "squeeze", "transpose", "std", "var", "prod")
_METHODS += ("swapaxes", "argmax", "argmin", "all", "any", "cumsum", "dot", "clip", "round", "flatten", "copy")
_UPDATES = ("set", "add", "multiply", "mul", "divide", "min", "max", "power", "get", "subtract")
_GRADIENTS = ("equinox.filter_grad", "jax.grad", "weft.grad")
_WITH_VALUE = ("equinox.filter_value_and_grad", "jax.value_and_grad", "weft.value_and_grad")
_SAME_TREE = (
    "equinox.apply_updates",
    "equinox.filter",
    "equinox.combine",
    "equinox.partition",
    "jax.lax.stop_gradient",
)

# What binds a name, and what gives a function's result.
OTHERWISE = (cst.AnnAssign, cst.AugAssign, cst.For, cst.CompFor, cst.NamedExpr)
_LOOKED_AT = (cst.Assign, cst.AssignTarget, *OTHERWISE, cst.Return, cst.Yield)


class Known:
    """What one file says of its annotations, functions and classes."""

    def __init__(self, reader: Reader, elsewhere: Callable[[str], bool] = lambda name: False):
        self.reader = reader
        self._elsewhere = elsewhere  # whether a dotted name is a module that another file defines

    @cached_property
    def functions(self) -> dict[str, cst.FunctionDef]:
        """Functions by name, where there is one of the name, and nothing else."""
        found: dict[str, list[cst.FunctionDef]] = {}
        for node in self.reader.nodes:
            if isinstance(node, cst.FunctionDef):
                found.setdefault(node.name.value, []).append(node)
        bound = self._bound
        return {name: nodes[0] for name, nodes in found.items() if bound.count(name) == 1}

    @cached_property
    def classes(self) -> dict[str, cst.ClassDef]:
        """Classes by name, likewise."""
        named = {node.name.value: node for node in self.reader.nodes if isinstance(node, cst.ClassDef)}
        return {name: node for name, node in named.items() if self._bound.count(name) == 1}

    @cached_property
    def _bound(self) -> list[str]:
        found: list[str] = []
        for node in self.reader.nodes:
            if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
                found.append(node.name.value)
            elif isinstance(node, (cst.AssignTarget, cst.AnnAssign, cst.AugAssign)):
                found += [one.value for one in names_in(node.target)]
        return found

    def is_module(self, node: cst.CSTNode) -> bool:
        """Whether a class of the file is an equinox.Module, by its bases."""
        definition = self.classes.get(node.value) if isinstance(node, cst.Name) else node
        if not isinstance(definition, cst.ClassDef):
            return False
        return any(
            self._means(base.value) in ("equinox.Module", "weft.Module")
            or self.is_module(base.value)
            or self._elsewhere(self._means(base.value))
            for base in definition.bases
            if isinstance(base.value, (cst.Name, cst.Attribute)) and base.value is not node
        )

    def _means(self, node: cst.CSTNode) -> str:
        return self.reader.means(node) or ""

    def annotated(self, node: cst.BaseExpression | None) -> str:
        """What values of an annotation are."""
        match node:
            case cst.SimpleString():
                value = node.evaluated_value
                try:
                    parsed = cst.parse_expression(value) if isinstance(value, str) else None
                except cst.ParserSyntaxError:
                    return UNKNOWN
                # A name in a string has no meaning in the tree; classes of the file are found by their names.
                return TREE if isinstance(parsed, cst.Name) and self.is_module(parsed) else UNKNOWN
            case cst.Name(value="None"):
                return TREE
            case cst.Name() | cst.Attribute():
                return self._named(node)
            case cst.Subscript():
                return self._subscripted(node)
            case cst.BinaryOperation(operator=cst.BitOr()):
                return joined([self.annotated(node.left), self.annotated(node.right)])
            case _:
                return UNKNOWN

    def _named(self, node: cst.Name | cst.Attribute) -> str:
        name = self._means(node)
        if name in _ARRAYS:
            return ARRAY
        if name in _TREES or name.startswith("equinox.nn.") or self.is_module(node) or self._elsewhere(name):
            return TREE
        if isinstance(node, cst.Name) and not name:
            if node.value in _NUMBERS:
                return NUMBER
            if node.value == "str":
                return TREE
        return UNKNOWN

    def _subscripted(self, node: cst.Subscript) -> str:
        name = self._means(node.value) or dotted(node.value)
        inner = [one.slice.value for one in node.slice if isinstance(one.slice, cst.Index)]
        if name.removeprefix("jaxtyping.") in _DTYPES and name.startswith("jaxtyping.") and inner:
            return self.annotated(inner[0])
        if name in ("typing.Callable", "collections.abc.Callable"):
            return TREE
        if name not in HOLDERS:
            return UNKNOWN
        if name == "typing.Annotated":
            return self.annotated(inner[0])
        if name == "jaxtyping.PyTree":
            inner = inner[:1]
        inner = [one for one in inner if not isinstance(one, cst.Ellipsis)]
        found = joined(self.annotated(one) for one in (inner[1:] if name == "dict" else inner))
        return TREE if found == ARRAY else found if found == TREE else UNKNOWN

    def parameters(self, function: cst.FunctionDef) -> Iterator[tuple[str, str]]:
        """The parameters of a function, with what each is; `self` of a module is a tree."""
        params = function.params
        stars = [one for one in (params.star_arg, params.star_kwarg) if isinstance(one, cst.Param)]
        for index, one in enumerate([*params.posonly_params, *params.params, *params.kwonly_params, *stars]):
            if one.annotation is None and index == 0 and self._is_method(function):
                yield one.name.value, TREE
                continue
            kind = self.annotated(one.annotation.annotation if one.annotation else None)
            if isinstance(one.default, (cst.Integer, cst.Float)) and kind != NUMBER:
                kind = UNKNOWN
            yield one.name.value, kind

    def of_modules(self, function: cst.FunctionDef) -> str | None:
        """A parameter that is annotated with a class of modules, other than equinox's layers."""
        params = function.params
        for one in (*params.posonly_params, *params.params, *params.kwonly_params):
            if one.annotation is not None and self._has_module(one.annotation.annotation):
                return one.name.value
        return None

    def _has_module(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.SimpleString):
            return self.annotated(node) == TREE
        own = isinstance(node, (cst.Name, cst.Attribute)) and (
            self.is_module(node) or self._elsewhere(self._means(node))
        )
        return own or any(self._has_module(child) for child in node.children)

    def _is_method(self, function: cst.FunctionDef) -> bool:
        around = self.reader.around(function)
        of_class = len(around) > 1 and isinstance(around[1], cst.ClassDef) and self.is_module(around[1])
        plain = ("staticmethod", "classmethod")
        return of_class and not any(dotted(one.decorator) in plain for one in function.decorators)

    def returned(self, function: cst.FunctionDef) -> str:
        """What a function returns: by its annotation, or by each of its `return`s."""
        if function.returns is not None:
            return self.annotated(function.returns.annotation)
        found = [
            TREE if node.value is None else self.value(node.value, function)
            for node in self._inside.get(function, ())
            if isinstance(node, (cst.Return, cst.Yield))
        ]
        return joined(found) if found else TREE

    @cached_property
    def _inside(self) -> dict[cst.CSTNode | None, list[cst.CSTNode]]:
        """The nodes of each function that are of no function in it."""
        found: dict[cst.CSTNode | None, list[cst.CSTNode]] = {}
        for node in self.reader.nodes:
            if isinstance(node, _LOOKED_AT):
                found.setdefault(self._function(node), []).append(node)
        return found

    def _function(self, node: cst.CSTNode) -> cst.CSTNode | None:
        inside = (one for one in self.reader.around(node) if isinstance(one, (cst.FunctionDef, cst.Lambda)))
        return next(inside, None)

    def value(self, node: cst.CSTNode, function: cst.FunctionDef, seen: frozenset[str] = frozenset()) -> str:
        """What an expression in a function is."""

        def of(inner: cst.CSTNode) -> str:
            return self.value(inner, function, seen)

        match node:
            case cst.Name(value="None"):
                return TREE
            case cst.Name():
                return self._variable(node.value, function, seen)
            case cst.Tuple() | cst.List():
                found = joined(of(one.value) for one in node.elements)
                return TREE if found in (ARRAY, TREE) else UNKNOWN
            case cst.BinaryOperation() | cst.BooleanOperation():
                return ARRAY if ARRAY in (of(node.left), of(node.right)) else UNKNOWN
            case cst.Comparison():
                return ARRAY if of(node.left) == ARRAY else UNKNOWN
            case cst.UnaryOperation():
                return of(node.expression) if not isinstance(node.operator, cst.Not) else UNKNOWN
            case cst.Subscript():
                found = of(node.value)
                return found if found == ARRAY else UNKNOWN
            case cst.Attribute():
                return ARRAY if node.attr.value in ("T", "mT", "real", "imag") and of(node.value) == ARRAY else UNKNOWN
            case cst.Call():
                return self._call(node, of, function)
            case _:
                return UNKNOWN

    def _variable(self, name: str, function: cst.FunctionDef, seen: frozenset[str]) -> str:
        if name in seen:  # it is made of itself, and of what else it was
            return ARRAY
        found = [kind for one, kind in self.parameters(function) if one == name]
        for node in self._inside.get(function, ()):
            targets = [one.target for one in node.targets] if isinstance(node, cst.Assign) else []
            if isinstance(node, (cst.AnnAssign, cst.AugAssign)):
                targets = [node.target]
            given = node.value if isinstance(node, (cst.Assign, cst.AnnAssign, cst.AugAssign)) else None
            for target in targets if given is not None else ():
                if given is not None and name in [one.value for one in names_in(target)]:
                    found.append(self.value(given, function, seen | {name}))
            others = (cst.For, cst.CompFor, cst.NamedExpr)
            if isinstance(node, others) and name in [one.value for one in names_in(node.target)]:
                found.append(UNKNOWN)
        return joined(found) if found else UNKNOWN

    def _call(self, node: cst.Call, of: Callable[[cst.CSTNode], str], function: cst.FunctionDef) -> str:
        name = self._means(node.func)
        if name.startswith(_MAKERS) and name.rpartition(".")[2] not in _NO_MAKERS:
            return TREE if name.startswith("optax.") and not self._is_loss(name) else ARRAY
        if name in _SAME_TREE:
            return TREE if node.args and of(node.args[0].value) in (TREE, ARRAY) else UNKNOWN
        if isinstance(node.func, cst.Call):
            return self._derivative(node.func, function)
        if isinstance(node.func, cst.Attribute):
            return self._method(node.func, of, function)
        if isinstance(node.func, cst.Name) and not name:
            return self._local(node.func.value, function)
        return UNKNOWN

    def _is_loss(self, name: str) -> bool:
        return name.startswith("optax.losses.") or "loss" in name or "entropy" in name or "error" in name

    def _local(self, name: str, function: cst.FunctionDef) -> str:
        called = self.functions.get(name)
        if called is not None and called is not function:
            decorators = [self._means(_unwrapped(one.decorator)) for one in called.decorators]
            if not decorators:
                return self.returned(called)
            if len(decorators) == 1 and decorators[0] in (*_GRADIENTS, *_WITH_VALUE):
                return TREE if self._is_plain(called) else UNKNOWN
            return UNKNOWN
        # A parameter that is a module of this file: what its `__call__` says.
        for one in function.params.params:
            if one.name.value == name and one.annotation is not None and not self.stores(function, name):
                return self._called_module(one.annotation.annotation)
        return UNKNOWN

    def stores(self, function: cst.FunctionDef, name: str) -> bool:
        """Whether a function binds a name anew."""
        kinds = (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.For, cst.CompFor, cst.NamedExpr)
        return any(
            isinstance(node, kinds) and name in [one.value for one in names_in(node.target)]
            for node in self._inside.get(function, ())
        )

    def call_of(self, annotation: cst.BaseExpression) -> cst.FunctionDef | None:
        """The `__call__` of a module of this file, by an annotation that names its class."""
        definition = self.classes.get(annotation.value) if isinstance(annotation, cst.Name) else None
        if definition is None or not self.is_module(definition):
            return None
        body = [one for one in definition.body.body if isinstance(one, cst.FunctionDef)]
        return next((one for one in body if one.name.value == "__call__" and not one.decorators), None)

    def _called_module(self, annotation: cst.BaseExpression) -> str:
        called = self.call_of(annotation)
        return UNKNOWN if called is None or called.returns is None else self.returned(called)

    def _derivative(self, made: cst.Call, function: cst.FunctionDef) -> str:
        """`filter_value_and_grad(loss)(...)`: gradients are trees, and a value is an array; aux may be anything."""
        name = self._means(made.func)
        if name == "jax.vmap":  # what is no array comes out as one
            return TREE
        if name not in (*_GRADIENTS, *_WITH_VALUE) or not made.args:
            return UNKNOWN
        has_aux = any(one.keyword is not None and one.keyword.value == "has_aux" for one in made.args)
        loss = made.args[0].value
        called = self.functions.get(loss.value) if isinstance(loss, cst.Name) else None
        if has_aux:
            return self.returned(called) if called is not None and called is not function else UNKNOWN
        return TREE

    def _is_plain(self, called: cst.FunctionDef) -> bool:
        decorator = called.decorators[0].decorator
        return not isinstance(decorator, cst.Call) or self.returned(called) in (ARRAY, TREE)

    def _method(self, called: cst.Attribute, of: Callable[[cst.CSTNode], str], function: cst.FunctionDef) -> str:
        if called.attr.value in _METHODS:
            return ARRAY if of(called.value) == ARRAY else UNKNOWN
        at = called.value
        if isinstance(at, cst.Subscript) and isinstance(at.value, cst.Attribute) and at.value.attr.value == "at":
            return ARRAY if called.attr.value in _UPDATES and of(at.value.value) == ARRAY else UNKNOWN
        if called.attr.value in ("update", "init") and isinstance(called.value, cst.Name):
            return TREE if self._is_optax(called.value, function) else UNKNOWN
        return UNKNOWN

    def _is_optax(self, node: cst.Name, function: cst.FunctionDef) -> bool:
        """Whether a name is one of optax's transformations: a parameter by annotation, or made in the file."""
        for one in function.params.params:
            if one.name.value == node.value and one.annotation is not None:
                return self._means(one.annotation.annotation) == "optax.GradientTransformation"
        made = [
            one.value
            for one in self.reader.nodes
            if isinstance(one, cst.Assign)
            and node.value in [name.value for t in one.targets for name in names_in(t.target)]
        ]
        return bool(made) and all(
            isinstance(one, cst.Call) and self._means(one.func).startswith("optax.") for one in made
        )


def joined(kinds: Iterable[str]) -> str:
    """What is known of something that may be one of several."""
    found = set(kinds)
    if len(found) == 1:
        return found.pop()
    return TREE if found and found <= {ARRAY, TREE} else UNKNOWN


def _unwrapped(decorator: cst.BaseExpression) -> cst.BaseExpression:
    return decorator.func if isinstance(decorator, cst.Call) else decorator
