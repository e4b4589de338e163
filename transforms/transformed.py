"""`Transformed`: the result of a transform; and the code by which the public functions of all transforms make it.

The result is called like the function, bound like a method, and can be pickled.

A transformed function holds plans and compiled programs, which belong to this process. So pickle stores the public
transform, the function and the options, and unpickling calls the transform again.

Over a record (or a method or partial application that holds arrays) the result is a pytree that holds it, with the
transform and its options in the treedef. So a model may keep `weft.vmap(record)` in a field, at the path
`field.function`. Over any other function the result is a leaf, as functions are.
"""

from __future__ import annotations

import copy
import copyreg
import functools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, ParamSpec, Self, TypeVar, cast

import jax
from weft.core.caches import cached_by
from weft.core.constants import constants_of, name_for_pickle
from weft.core.edge import trees
from weft.core.edge.trees import PyTree
from weft.core.interpreter.boundary import AnyBoundary
from weft.core.interpreter.interpret import Interpreted, interpret
from weft.core.interpreter.rules import Rule
from weft.core.interpreter.values import VALUES
from weft.core.memory import Recent, key_of, text_key
from weft.core.records.configuration import as_tree
from weft.core.threads.blocks import Transform
from weft.core.threads.handle import threaded_function
from weft.core.tracebacks import cut, cutting

P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O")
F = TypeVar("F", bound=Callable[..., Any])

Run = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
# The public transform, its arguments by position and by name.
Recipe = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
# Methods that were called on the result, with their arguments: they define derivative rules.
Definitions = tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]


def named_like(function: Callable[..., Any], wrapper: Any) -> Any:
    """Gives a wrapper the function's name, docstring and signature, also if the function is a record.

    If the wrapper is a function, its frames are cut from errors.
    """
    wrapper = cutting(wrapper) if isinstance(wrapper, types.FunctionType) else wrapper
    assigned = set(functools.WRAPPER_ASSIGNMENTS) - {"__type_params__"}
    return functools.update_wrapper(wrapper, function, assigned=assigned, updated=())


class Transformed(Generic[P, R]):
    """A function that a transform returned.

    Attributes:
        recipe: the transform and its arguments, which make it again; None until the transform has returned it.
        definitions: the derivative rules that were defined on it.
    """

    # Whether a class of records treats it as a method, with contracts, if it is assigned in the class's body.
    __weft_method__: ClassVar[bool] = True
    recipe: Recipe | None = None
    definitions: Definitions = ()

    def __init__(self, function: Callable[P, R], run: Run | None = None):
        self._run: Any = run
        named_like(function, self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        # The body of `cutting`, because the decorator would add a Python call to every call.
        try:
            return self._run(args, kwargs)
        except Exception as error:
            cut(error)
            raise

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    # A copy is the same object, as for Python functions.
    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> Any:
        # A decorated function has its name in its module, by which pickle finds it, while the function inside has none.
        if (name := name_for_pickle(self)) is not None:
            return name
        if self.recipe is None:
            return cast(Any, copyreg).__newobj__, (type(self),), vars(self)
        return _made_again, (*self.recipe, self.definitions)

    def __repr__(self) -> str:
        transform = type(self).__name__ if self.recipe is None else self.recipe[0].__name__
        return f"weft.{transform}({getattr(self, '__qualname__', getattr(self, '__wrapped__', ''))!s})"


class _TransformedNode(Transformed[..., Any]):
    """A transformed function that is a pytree: the base of the classes that `_holding` makes."""

    @property
    def function(self) -> Any:
        """The record that was transformed."""
        return cast(Any, self.recipe)[1][0]

    @property
    def how(self) -> _NodeData:
        """The transform, its options, and the definitions, to which `defvjp` and the like add."""
        how: _NodeData | None = vars(self).get("_how")
        if how is None or how.definitions is not self.definitions:
            how = vars(self)["_how"] = _NodeData(cast(Any, self.recipe), self.definitions)
        return how

    def __getattr__(self, name: str) -> Any:
        # Tree functions rebuild it without calling the transform, which may be given placeholders in the place of the
        # arrays, and would take longer than all else at a call of a compiled step.
        if "_run" in vars(self) or self.recipe is None:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        made: Any = _made_again(*self.recipe, self.definitions)
        self.__dict__.update(made.__dict__)
        return getattr(self, name)

    def __deepcopy__(self, memo: object) -> Self:
        # With copies of the arrays, as a record has them: the buffers of the original may be donated.
        return jax.tree.map(copy.copy, self)


class _NodeData:
    """How a tree was transformed: the data of its node, equal for equal transforms and options."""

    def __init__(self, recipe: Recipe, definitions: Definitions):
        (self.transform, _, self.options), self.definitions = recipe, definitions
        try:
            self.key: Any = self.transform, key_of((self.options, definitions))
        except TypeError:  # an option cannot be hashed
            self.key = id(self.options), id(definitions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NodeData) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"weft.{self.transform.__name__}({options})"


@cached_by("class")
def _holding(kind: type[Transformed[..., Any]]) -> type[_TransformedNode]:
    """The class of results over trees, for a class of results."""
    holding: Any = type(
        kind.__name__, (_TransformedNode, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__}
    )

    def unflatten(how: _NodeData, children: Iterable[Any]) -> Any:
        node: Any = object.__new__(holding)
        recipe = (how.transform, tuple(children), how.options)
        node.__dict__.update(recipe=recipe, definitions=how.definitions, _how=how)
        return node

    trees.register_node_with_keys(
        holding,
        lambda node: ([(jax.tree_util.GetAttrKey("function"), node.function)], node.how),
        unflatten,
        lambda node: ((node.function,), node.how),
    )
    return holding


def _made_again(
    transform: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], definitions: Definitions
) -> PyTree:
    """The result of a transform, made from its recipe, with the derivative rules that were defined on it."""
    transformed = transform(*args, **options)
    for name, positional, named in definitions:
        getattr(transformed, name)(*positional, **named)
    return transformed


def transform(*names: str, call: str = "") -> Callable[[F], F]:
    """Decorates a public transform of functions: its results get a `recipe`, by which they can be pickled.

    If options are passed by position, which JAX's transforms allow, the error shows the call with keywords.

    Args:
        names: the options that JAX takes by position, in JAX's order.
        call: the text of the right call, for transforms whose other arguments are no options.
    """

    def make_public(function: F) -> F:
        @functools.wraps(function)
        def public(*args: Any, **options: Any) -> Any:
            if len(args) > 1 and (names or call):
                keywords = [f"{name}={value!r}"[:60] for name, value in zip(names, args[1:], strict=False)]
                right_call = call or f"{function.__name__}(function, {', '.join(keywords)})"
                problem = f"{function.__name__} takes only the function by position, not {len(args)} arguments"
                raise TypeError(f"{problem}: {right_call}")
            result = function(*args, **options)
            # The public function is in the recipe, because pickle finds it by its name in its module.
            if isinstance(result, Transformed):
                transformed = cast("Transformed[..., Any]", result)
                inner = cast("tuple[Any, ...]", args)[0]
                if type(inner) is not types.FunctionType:
                    args = (as_tree(inner),)
                    if trees.children_of(args[0]) is not None and not isinstance(transformed, _TransformedNode):
                        transformed.__class__ = _holding(type(transformed))
                transformed.recipe = public, args, options
                return transformed
            # Without a function it is a decorator.
            return functools.partial(public, **options) if not args or args[0] is None else result

        return cast("F", public)

    return make_public


# --- the public functions ---------------------------------------------------------------------------------------------


def decorate(function: Callable[..., Any] | None, wrap: Callable[[Callable[..., Any]], Any], *key: object) -> Any:
    """`wrap(function)`, or the decorator `wrap` if no function was given.

    Args:
        function: the user's function, or a part of a threaded record; or None.
        wrap: applies the transform to a function.
        key: the rule and the options, by which transforms of parts are compared; empty if parts have no such transform.

    Raises:
        TypeError: if the function is not callable.
    """

    def apply(function: Callable[..., Any]) -> Any:
        threaded = threaded_function(function)
        if threaded is not None and key:
            return threaded.through(Transform(wrap, key))
        if not callable(function):
            raise TypeError(f"expected a function, got {type(function).__name__}: {function!r}")
        return wrap(function)

    return apply if function is None else apply(function)


def over_values(rule: Rule[O], options: O) -> Callable[[Callable[..., Any]], Any]:
    """The decorator of a rule with its options, over records."""

    return lambda function: Transformed(function, interpret(rule, VALUES)((function,), options))


def call_over_values(
    rule: Rule[O], functions: Sequence[Callable[..., Any]], options: O, *args: Any, extra: Any = ()
) -> Any:
    """Applies a rule to functions and their arguments at once, as `cond` and `while_loop` do."""
    return interpreted_at_once(rule, VALUES, tuple(functions), options)(args, {}, extra=extra)


class _SameAgain(Generic[O]):
    """Interpreted functions that may be used again while their functions read the same constants as at the first
    call."""

    def __init__(self, interpreted: Interpreted[O], functions: tuple[Callable[..., Any], ...], constants: Any):
        self._interpreted, self._functions, self._is_new = interpreted, functions, True
        self.constants = constants

    def __call__(self, args: Any, kwargs: Mapping[str, Any], *, extra: Any = ()) -> Any:
        out = self._interpreted(args, kwargs, extra=extra)
        if self._is_new:
            # Read after the first call: the trace itself may have changed a constant, such as a counter of traces,
            # which must not count as a change later.
            self.constants, self._is_new = tuple(map(constants_of, self._functions)), False
        return out


# For transforms that take functions and arguments in one call (`cond`), by the code and constants of the functions,
# which hold no arrays.
_at_once: Recent[Any, Interpreted[Any]] = Recent(
    256, listed=("weft.transforms.transformed, by text", "rule, mode, options and texts")
)
# The same by the identity of the functions, for functions whose constants may be freed with them, or that change a
# constant while they are traced. The cache holds the functions, but only those that hold no arrays.
_same_again: Recent[Any, _SameAgain[Any]] = Recent(
    64, listed=("weft.transforms.transformed, by identity", "rule, mode, options and functions")
)


def interpreted_at_once(
    rule: Rule[O], boundary: AnyBoundary, functions: tuple[Callable[..., Any], ...], options: O
) -> Interpreted[O] | _SameAgain[O]:
    """The interpreted functions for a transform that takes functions and arguments in one call, from a cache if
    possible.

    `boundary` is part of the cache key, so that there must be one object for each mode.
    """
    key = text_key(rule, boundary, functions, options)
    cached = None if key is None else _at_once.get(key)
    if cached is not None:
        return cached
    # A function that reads values which may change is interpreted anew at each call: a cached trace would have their
    # old values.
    constants = tuple(map(constants_of, functions))
    if None in constants:
        return interpret(rule, boundary)(functions, options)
    by_identity = (rule, boundary, options, tuple(map(id, functions)))
    try:
        again = _same_again.get(by_identity)
    except TypeError:  # an option cannot be hashed
        return interpret(rule, boundary)(functions, options)
    if again is not None and again.constants == constants:
        return again
    interpreted = interpret(rule, boundary)(functions, options)
    if key is not None:
        # Two threads may come here at once; `add` returns the first of the two to both.
        interpreted = _at_once.add(key, interpreted)
    _same_again.forget(by_identity)
    return _same_again.add(by_identity, _SameAgain(interpreted, functions, constants))
