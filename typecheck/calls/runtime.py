"""The run-time checker: the hook that the core calls, and `contract` for functions outside of transforms."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast, overload

import jax
from weft.core import hooks
from weft.core.logical_axes import rules_in_force
from weft.core.records.leaves import is_array
from weft.core.records.module import Module
from weft.typecheck.calls import calls
from weft.typecheck.calls.placing import place_fields
from weft.typecheck.calls.plans import FunctionPlan, function_plan, owner_of
from weft.typecheck.calls.rebuilding import is_rebuilding
from weft.typecheck.errors import AnnotationError, ContractError
from weft.typecheck.language.forms import DATACLASS, MODULE, form_of
from weft.typecheck.language.reading import Scope, read
from weft.typecheck.matching.arrays import settle
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot
from weft.typecheck.matching.compiling import check_of
from weft.typecheck.matching.policies import RUN_TIME
from weft.typecheck.matching.record_plans import record_plan
from weft.typecheck.matching.records import has_generated_init
from weft.typecheck.matching.scopes import scope_of, stack_of
from weft.typecheck.messages.explain import contract_error
from weft.typecheck.modes import current_mode

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Contracts:
    """The hook that the core calls: see `weft.core.hooks.ContractHook`."""

    def constructed(self, record: Any, arguments: Any) -> None:
        __tracebackhide__ = True
        _check_fields(record, arguments)

    def initialised(self, record: Any) -> None:
        """Checks a dataclass after its `__init__`, which JAX also runs, with placeholders for arrays."""
        __tracebackhide__ = True
        try:
            self.constructed(record, DATACLASS.values(record))
        except ContractError:
            # `is_rebuilding` walks the frames, which is slow, so it comes last, for pytree nodes that do not fit.
            if jax.tree_util.all_leaves([record]) or not is_rebuilding(sys._getframe(2)):
                raise

    def replaced(self, record: Any) -> None:
        __tracebackhide__ = True
        # `tree_at` and `replace` may make a stack, or a tree of axes for `vmap`: both are allowed until they are used.
        _check_fields(record)

    def enter(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        typed: bool = True,
    ) -> calls.Running:
        """Begins a call under the mode in force; with contracts off, arrays are still placed if rules are in force."""
        __tracebackhide__ = True
        mode = current_mode()
        if mode == "off":
            rules = rules_in_force()
            if rules is not None:
                return calls.enter_unchecked(rules, function, args, kwargs)
            return calls.Running(function, args, kwargs)
        return calls.enter(function, args, kwargs, typed or mode == "strict")


def _check_fields(record: Any, arguments: Any = None) -> None:
    """Checks the fields of a record, which may lack arrays unless it is new, and may be a stack.

    Args:
        record: the record.
        arguments: the arguments of its constructor, if it is new.
    """
    __tracebackhide__ = True
    is_new = arguments is not None
    rules = rules_in_force()
    if current_mode() == "off":
        if rules is not None:
            place_fields(rules, record, record_plan(type(record), RUN_TIME))
        return
    plan = record_plan(type(record), RUN_TIME)
    try:
        scope_of(record, plan, everything=True, sparse=not is_new)
    except Mismatch as miss:
        # A handwritten constructor makes a single record, never a stack, and so do defaults of fields.
        if is_new and not (has_generated_init(type(record)) and any(map(is_array, jax.tree.leaves(arguments)))):
            raise contract_error(miss) from None
        try:
            stack_of(record, plan, everything=True, sparse=not is_new, shares=not is_new)
        except Mismatch as nearest:
            raise contract_error(nearest) from None
    if rules is not None:
        place_fields(rules, record, plan)


# The checker of this process.
CONTRACTS = Contracts()


def install() -> Contracts:
    """Installs the checker in the core and returns it; a second call changes nothing."""
    if hooks.installed is not CONTRACTS:
        hooks.install_contracts(CONTRACTS)
    return CONTRACTS


@overload
def contract(function: F, /) -> F: ...
@overload
def contract(*, names: Mapping[str, Any] | None = None) -> Callable[[F], F]: ...
def contract(function: Any = None, /, *, names: Mapping[str, Any] | None = None) -> Any:
    """Checks a function's annotations at each call, as for a function that is passed to a transform.

    A dim has one size in each call. Inside a transform the function is checked while JAX traces it, for the arrays that
    it sees there. On a dataclass, `contract` checks the fields after `__init__` has run.

    Args:
        function: a function (plain, async, generator), a method, or a dataclass.
        names: further names that string annotations may use, in addition to those visible at the definition.

    Returns:
        A function with the same signature.

    Raises:
        AnnotationError: at the first call, if an annotation cannot be read.

    >>> import jax.numpy as jnp
    >>> from jaxtyping import Array, Float
    >>> @contract
    ... def outer(x: Float[Array, "n"], y: Float[Array, "m"]) -> Float[Array, "n m"]:
    ...     return x[:, None] * y
    >>> outer(jnp.ones(2), jnp.ones(3)).shape
    (2, 3)
    >>> try:
    ...     outer(jnp.ones(2), jnp.ones((3, 1)))
    ... except TypeError as error:
    ...     print(error.what, error.fix, sep="\\n")
    argument y of outer should be f32[m], and is f32[3,1]
    its last axis has size 1: drop it with y[..., 0] or y.squeeze(-1)
    """
    if function is None:
        return functools.partial(contract, names=names)
    visible = {**sys._getframe(1).f_locals, **(names or {})}
    if isinstance(function, type):
        return _checked_dataclass(function)
    if isinstance(function, Module):  # checks its methods itself, and around it a function would hide its arrays
        return function
    return _checked_function(function, visible)


def _checked_function(function: Callable[..., Any], names: Mapping[str, Any]) -> Callable[..., Any]:
    """The function with a check of each call, under a plan that is made at the first one."""
    plans: list[FunctionPlan] = []

    def plan_for(args: tuple[Any, ...]) -> FunctionPlan:
        # At the first call, since annotations may name classes that are defined after the function.
        if not plans:
            owner = owner_of(function, args)
            plans.append(function_plan(function, owner, names))
        return plans[0]

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        off = current_mode() == "off" or getattr(checked, "__no_type_check__", False)
        if off and rules_in_force() is None:
            return function(*args, **kwargs)
        return calls.run(plan_for(args), function, args, kwargs, checked=not off)

    return checked


def _checked_dataclass(cls: type[T]) -> type[T]:
    """The dataclass, whose `__init__` now checks the fields."""
    if form_of(cls) is not DATACLASS:
        raise AnnotationError(
            f"`contract` takes a function or a dataclass, and {cls.__qualname__} is neither"
            + ("; a Module is checked without it" if form_of(cls) is MODULE else "")
        )
    original = cast(Any, cls).__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        original(self, *args, **kwargs)
        # A subclass's `__init__` has set only some of its fields when it calls this one.
        if type(self) is cls:
            CONTRACTS.initialised(self)

    cast(Any, cls).__init__ = __init__
    return cls


def check(value: T, annotation: Any, name: str = "value") -> T:
    """Checks a value against an annotation, now, and returns the value.

    Args:
        value: the value to check.
        annotation: a type hint, as for an argument or a field.
        name: how the error refers to the value.

    Returns:
        The value.

    Raises:
        ContractError: if the value does not fit.

    >>> import jax.numpy as jnp
    >>> from jaxtyping import Array, Float
    >>> check(jnp.ones((2, 2)), Float[Array, "n n"]).shape
    (2, 2)
    """
    __tracebackhide__ = True
    frame = inspect.currentframe()
    caller = frame.f_back if frame is not None else None
    # The caller's names, so that a string annotation may use classes that are visible there.
    scope = Scope(caller.f_globals, caller.f_locals) if caller is not None else Scope()
    spec = read(annotation, scope)
    test = check_of(spec, RUN_TIME)
    if test is None:
        return value
    bindings = Bindings(Slot("value", name, None, spec))
    try:
        test(value, bindings)
        settle(bindings, finally_=True)
    except Mismatch as miss:
        raise contract_error(miss) from None
    return value


__all__ = ["CONTRACTS", "Contracts", "check", "contract", "install"]
