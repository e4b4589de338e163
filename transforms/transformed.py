"""What a transform makes of a function: it is called like it, bound like a method, and pickled as what made it.

A wrapper holds what was compiled and learned of its function, which is about this process. So what is sent to another
is the public transform, the function and the options that it was given; there the transform is called again.
"""

from __future__ import annotations

import copyreg
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Generic, ParamSpec, Self, TypeVar, cast

from weft.core.constants import is_in_its_module
from weft.core.edge.trees import PyTree
from weft.core.tracebacks import cut, cutting

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

Run = Callable[[tuple[Any, ...], Mapping[str, Any]], Any]
# The public transform, its arguments by position and by name.
Recipe = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
# Methods that were called on what it made, with their arguments: derivative rules.
Definitions = tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...]


def named_like(function: Callable[..., Any], wrapper: Any) -> Any:
    """The wrapper with the function's name, docstring and signature, also where the function is a record.

    Of a function that wraps it, errors have no frame.
    """
    wrapper = cutting(wrapper) if isinstance(wrapper, types.FunctionType) else wrapper
    assigned = set(functools.WRAPPER_ASSIGNMENTS) - {"__type_params__"}
    return functools.update_wrapper(wrapper, function, assigned=assigned, updated=())


class Transformed(Generic[P, R]):
    """A function that a transform made.

    Attributes:
        recipe: how it is made again, once the transform has returned it.
        definitions: what was defined on it since.
    """

    # Whether a record's class that has it as a method looks after it as after functions.
    __weft_method__: ClassVar[bool] = True
    recipe: Recipe | None = None
    definitions: Definitions = ()

    def __init__(self, function: Callable[P, R], run: Run | None = None):
        self._run: Any = run
        named_like(function, self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        # Not by `cutting`, which would be one more call for each.
        try:
            return self._run(args, kwargs)
        except Exception as error:
            cut(error)
            raise

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    # As a function, which copies share.
    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> Any:
        # What decorates a function has its name in the module, and the function is reached through it alone. What the
        # program itself defines is sent by value to other processes, whose program is another one.
        if self.__module__ != "__main__" and is_in_its_module(self):
            return cast(Any, self).__qualname__
        if self.recipe is None:
            return copyreg.__newobj__, (type(self),), vars(self)
        return _made_again, (*self.recipe, self.definitions)

    def __repr__(self) -> str:
        transform = type(self).__name__ if self.recipe is None else self.recipe[0].__name__
        return f"weft.{transform}({getattr(self, '__qualname__', getattr(self, '__wrapped__', ''))!s})"


def _made_again(
    transform: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any], definitions: Definitions
) -> PyTree:
    made = transform(*args, **options)
    for name, given, named in definitions:
        getattr(made, name)(*given, **named)
    return made


def transform(*names: str, call: str = "") -> Callable[[F], F]:
    """Declares a public transform of functions: what it makes knows how it is made again.

    It also says how the transform is called to who gives it more than a function by position, as JAX's own take it.

    Args:
        names: the options that JAX takes by position, in its order.
        call: how it is called, if more than options were given.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def public(*args: Any, **options: Any) -> Any:
            if len(args) > 1 and (names or call):
                known = [f"{name}={value!r}"[:60] for name, value in zip(names, args[1:], strict=False)]
                way = call or f"{function.__name__}(function, {', '.join(known)})"
                taken = f"{function.__name__} takes only the function by position, not {len(args)} arguments"
                raise TypeError(f"{taken}: {way}")
            made = function(*args, **options)
            if isinstance(made, Transformed):
                made.recipe = public, args, options
                return made
            # As a decorator, with options alone.
            return functools.partial(public, **options) if not args or args[0] is None else made

        return cast("F", public)

    return decorate
