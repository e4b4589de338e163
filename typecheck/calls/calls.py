"""Calls: checks one function call under contract.

A function's *plan* (see `plans`) is made once. A call then binds the dims of the record's fields if it is a method,
checks the arguments, runs the function and checks the result, all in one scope.
Generators are checked as they yield, coroutines when they are awaited; both keep the scope of their call.

Two kinds of functions are not checked here. A transformed function has a copied signature, that of the function inside.
A method of a record that is passed as a function checks itself when it runs.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import ExitStack, nullcontext
from types import FunctionType, MethodType
from typing import Any, cast

import equinox as eqx
from weft.core.errors import WeftError
from weft.core.logical_axes import AxisRules, rules_in_force
from weft.core.tracebacks import cut
from weft.typecheck.calls.asking import sharing_dims
from weft.typecheck.calls.placing import place_arguments, place_result
from weft.typecheck.calls.plans import FunctionPlan, Row, owner_of, plan_of, wrapper_of
from weft.typecheck.calls.strictness import call_strictly
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import Instance, RecordOf
from weft.typecheck.language.dims import UnboundDim
from weft.typecheck.language.forms import DATACLASS, NAMEDTUPLE, form_of_value
from weft.typecheck.matching.arrays import settle
from weft.typecheck.matching.bindings import Bindings, Mismatch, Slot
from weft.typecheck.matching.policies import RUN_TIME
from weft.typecheck.matching.record_plans import record_plan
from weft.typecheck.matching.records import check_rebuilt, mismatch_of
from weft.typecheck.matching.scopes import bind_numbers, dims_of, number_for_array, scope_of
from weft.typecheck.messages.explain import contract_error, place_of
from weft.typecheck.messages.running import enter_record, leave_record, module_path
from weft.typecheck.modes import current_mode


class Running:
    """A call under contract, after the check of its arguments; see `weft.core.hooks.Running`.

    Attributes:
        function, args, kwargs: the function to call and its arguments.
        plan: the function's plan, if there is something to check.
        bindings: the scope of the call, if there is a plan; None if contracts are off, and only rules place arrays.
        token: the entry in `messages.running` of the record whose method runs.
        context: the open jaxtyping context, if the function's body asks jaxtyping about dims.
    """

    __slots__ = ("args", "bindings", "context", "function", "kwargs", "plan", "token")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]):
        self.function, self.args, self.kwargs = function, args, kwargs
        self.plan: FunctionPlan | None = None
        self.bindings: Any = None
        self.token: Any = None
        self.context: ExitStack | None = None

    def leave(self, result: Any) -> Any:
        """Checks and places the result, and closes the jaxtyping context, if one is open."""
        __tracebackhide__ = True
        plan = self.plan
        if plan is None:
            return result
        # The result is checked before the context closes, because the body's dims must still be known.
        result = _leave(plan, self.bindings, result)
        if self.context is not None:
            self.context.close()
        return result

    def fail(self, error: Exception) -> None:
        """Removes weft's frames from an error of the call, and adds the place of the module that raised it."""
        if not isinstance(error, WeftError):
            return
        if self.plan is not None:
            cut(error)
            error.__cause__ = None  # as `from None` does
        # The layer that raised the error does not know its place in the model, so the path is added here.
        if self.token is not None and error.of_layer and not any(place.startswith("in ") for place in error.at):
            error.also_at(module_path())

    def end(self) -> None:
        """Closes what the call has opened; called whether it returned or raised."""
        if self.context is not None:
            self.context.__exit__(*sys.exc_info())  # the call failed, so no result has to agree with the body
        if self.token is not None:
            leave_record(self.token)


def enter(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], typed: bool = True
) -> Running:
    """Begins a call under contract; see `weft.core.hooks.ContractHook.enter`."""
    __tracebackhide__ = True
    if type(function) is not FunctionType:
        function, args, kwargs = _plain(function, args, kwargs)
    plan = plan_of(function, args)
    if plan is not None and not (typed or plan.names_shapes):
        return Running(function, args, kwargs)
    if plan is None:
        # A wrapper with copied annotations is replaced by one whose inner function is checked.
        function = cast(Callable[..., Any], wrapper_of(function, args) or function)
    running = Running(function, args, kwargs)
    try:
        # `_enter` checks a method's record as a whole; other functions may get records that a transform rebuilt.
        of_record = args and isinstance(args[0], eqx.Module)
        if (plan is not None and plan.is_method) or (of_record and owner_of(function, args) is not None):
            running.token = enter_record(args[0])
            _check_numbers(args[0])
        else:
            _check_rebuilt(plan, args, kwargs)
        if plan is not None:
            running.bindings = _enter(plan, args, kwargs, False)
            running.plan = plan
            if (rules := rules_in_force()) is not None:
                running.args, running.kwargs = place_arguments(rules, plan, args, kwargs)
            if plan.asking:
                running.context = ExitStack()
                running.context.enter_context(sharing_dims(running.bindings))
            if current_mode() == "strict" and plan.signature.flavour == "function":
                running.function = functools.partial(call_strictly, function)
    # `fail` and `end` must run here as well, whatever is raised: a caller gets no `Running` whose `end` it could call.
    except BaseException as error:
        if isinstance(error, Exception):
            running.fail(error)
        running.end()
        raise
    return running


def enter_unchecked(rules: AxisRules, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> Running:
    """Begins a call whose contract is off, and whose arrays are placed all the same."""
    if type(function) is not FunctionType:
        function, args, kwargs = _plain(function, args, kwargs)
    running = Running(function, args, kwargs)
    running.plan = plan_of(function, args)
    if running.plan is not None:
        running.args, running.kwargs = place_arguments(rules, running.plan, args, kwargs)
    return running


def _plain(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    """The Python function that a partial application, a bound method or a callable object runs, with its arguments."""
    if isinstance(function, functools.partial):
        return _plain(function.func, (*function.args, *args), {**function.keywords, **kwargs})
    if isinstance(function, MethodType) and not isinstance(function.__self__, eqx.Module):
        return _plain(function.__func__, (function.__self__, *args), kwargs)
    if not isinstance(function, FunctionType | eqx.Module | type):
        method = getattr(type(function), "__call__", None)  # noqa: B004  (the function itself is wanted)
        if isinstance(method, FunctionType) and not hasattr(function, "__wrapped__"):
            return method, (function, *args), kwargs
    return function, args, kwargs


def _check_numbers(record: Any) -> None:
    """Refuses a record, whose method is called, that has a number where a field is annotated as an array."""
    __tracebackhide__ = True
    try:
        plan = record_plan(type(record), RUN_TIME)
    except AnnotationError:  # an unreadable annotation was reported when the record was made
        return
    miss = number_for_array(record, plan)
    if miss is not None:
        raise contract_error(miss, module=module_path()) from None


def _check_rebuilt(plan: FunctionPlan | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Checks the records in arguments without annotations: a transform may have rebuilt them with other arrays."""
    __tracebackhide__ = True
    unannotated: list[Any] = [*args, *kwargs.values()]
    if plan is not None:
        # Annotated parameters are left out, because their own check looks into the records.
        rows = itertools.chain(plan.positional, itertools.repeat(plan.rest[0]))
        unannotated = [value for row, value in zip(rows, args, strict=False) if row is None]
        unannotated += [value for name, value in kwargs.items() if plan.named.get(name) is None]
    miss = check_rebuilt(unannotated)
    if miss is not None:
        raise contract_error(miss, module="a record that a transform has rebuilt") from None


def run(
    plan: FunctionPlan,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    lenient: bool = False,
    checked: bool = True,
) -> Any:
    """Calls a function under its plan, checks arguments and result, and places them if rules are in force.

    Args:
        plan: the function's plan.
        function: the function to call.
        args, kwargs: its arguments.
        lenient: whether fields of the record that do not fit are ignored rather than refused.
        checked: whether contracts are on.

    Raises:
        ContractError: if an argument, a field of the record, or the result does not fit its annotation.
    """
    __tracebackhide__ = True
    bindings = _enter(plan, args, kwargs, lenient) if checked else None
    if (rules := rules_in_force()) is not None:
        args, kwargs = place_arguments(rules, plan, args, kwargs)
    if bindings is None:
        return _leave(plan, None, function(*args, **kwargs))
    if current_mode() == "strict" and plan.signature.flavour == "function":
        function = functools.partial(call_strictly, function)
    with sharing_dims(bindings) if plan.asking else nullcontext():
        try:
            result = function(*args, **kwargs)
        # `from None`: the error is complete, and its context would show weft's frames among the user's.
        except WeftError as error:
            raise cut(error) from None
        return _leave(plan, bindings, result)


def _leave(plan: FunctionPlan, bindings: Bindings | None, result: Any) -> Any:
    """Checks a function's result in the scope of its call; a generator or coroutine is checked as it runs."""
    __tracebackhide__ = True
    if plan.signature.flavour != "function":
        return _WRAPPERS[plan.signature.flavour](plan, bindings, result)
    if plan.returns is not None:
        result = _checked_value(plan.returns, result, bindings)
    if bindings is not None and bindings.pending:
        try:
            settle(bindings, finally_=True)
        except Mismatch as miss:
            raise contract_error(miss, module=module_path()) from None
        # At the end of a call nothing more can bind the name, so the annotation itself has a mistake.
        except UnboundDim as unbound:
            origin = bindings.pending[0].origin
            raise AnnotationError(f"{place_of(origin.slot, origin.path)}: {unbound.what}") from None
    return result


def _enter(plan: FunctionPlan, args: tuple[Any, ...], kwargs: Mapping[str, Any], lenient: bool) -> Bindings:
    """Checks the arguments of a call and returns the scope."""
    __tracebackhide__ = True
    bindings = _record_scope(plan, args[0], lenient) if plan.is_method else Bindings(_NO_SLOT)
    # A function, not a dict: few annotations read arguments by name, and binding them takes longer than a check.
    bindings.arguments = lambda: _arguments(plan, args, kwargs)
    positional = plan.positional
    # Records' methods accept NumPy arrays, which `jit` converts: refused here, the error would vanish under `jit`.
    bindings.numpy, bindings.sparse = plan.is_method, False
    try:
        for row, value in zip(positional, args, strict=False):
            if row is not None:
                bindings.slot = row.slot
                row.check(value, bindings)
        if len(args) > len(positional) and plan.rest[0] is not None:
            _check_rest(plan.rest[0], enumerate(args[len(positional) :]), bindings)
        for name, value in kwargs.items():
            row = plan.named.get(name)
            if row is not None:
                bindings.slot = row.slot
                row.check(value, bindings)
            elif plan.rest[1] is not None and name not in plan.named:
                _check_rest(plan.rest[1], [(name, value)], bindings)
        if plan.sized_by:
            _bind_sizes(plan, bindings)
        if bindings.pending:
            settle(bindings, finally_=False)
    except Mismatch as miss:
        raise contract_error(miss, module=module_path()) from None
    bindings.numpy = False
    return bindings


def _bind_sizes(plan: FunctionPlan, bindings: Bindings) -> None:
    """Binds the dims that only the result names from an integer argument or a record that determines them."""
    arguments = bindings.arguments()
    for name, parameter in plan.sized_by:
        value = arguments.get(parameter)
        if name == parameter:
            if type(value) is int and value < 0:  # -1 often means "all of them", which is no size
                continue
            bindings.slot = Slot("argument", name, plan.signature.function, Instance(int))
            bind_numbers(bindings, {name: value})
        # If an array has bound the name, the record may have another size: `concatenate(a: Batch, b: Batch)`.
        elif name not in bindings.sizes and form_of_value(value) in (DATACLASS, NAMEDTUPLE):
            own = dims_of(value, RUN_TIME)
            if name in own.sizes:
                bindings.sizes[name], bindings.origins[name] = own.sizes[name], own.origins[name]


_NO_SLOT = Slot("value", "", None, None)  # pyright: ignore[reportArgumentType]


def _check_rest(row: Row, values: Any, bindings: Bindings) -> None:
    """Checks the values of `*args` or `**kwargs`."""
    bindings.slot = row.slot
    for key, value in values:
        bindings.path = (key,)
        row.check(value, bindings)
    bindings.path = ()


def _arguments(plan: FunctionPlan, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments by name, defaults included, which expressions in braces may read."""
    bound = inspect.signature(plan.signature.function).bind_partial(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _record_scope(method: FunctionPlan, record: Any, lenient: bool) -> Bindings:
    """The scope that the fields of a method's record make."""
    __tracebackhide__ = True
    plan = record_plan(type(record), RUN_TIME)
    if plan.form.mutable or lenient:  # an object may be changed during the call, so a mismatch is no error
        return dims_of(record, RUN_TIME)
    try:
        return scope_of(record, plan)
    except Mismatch:
        slot = Slot("argument", "self", method.signature.function, RecordOf(type(record)))
        raise contract_error(mismatch_of(record, plan, Bindings(slot)), module=module_path()) from None


def _checked_value(row: Row, value: Any, bindings: Bindings | None) -> Any:
    """A value that leaves a call, or is sent into it, after its check (none without bindings) and placed."""
    __tracebackhide__ = True
    if bindings is not None:
        bindings.slot = row.slot
        try:
            row.check(value, bindings)
            if bindings.pending:
                settle(bindings, finally_=False)
        except Mismatch as miss:
            raise contract_error(miss, module=module_path()) from None
    return place_result(row, value)


def _generator(plan: FunctionPlan, bindings: Bindings | None, inner: Generator[Any, Any, Any]) -> Any:
    """The generator with a check of each value that it yields, is sent and returns."""
    assert inspect.isgenerator(inner)
    yields, sent, returns = plan.streams or (None, None, None)

    def generator() -> Generator[Any, Any, Any]:
        __tracebackhide__ = True
        # How the function's code goes on: it is sent a value, or an exception is thrown into it.
        resume: Callable[[Any], Any] = inner.send
        message: Any = None
        while True:
            try:
                value = resume(message)
            except StopIteration as stop:
                return stop.value if returns is None else _checked_value(returns, stop.value, bindings)
            if yields is not None:
                value = _checked_value(yields, value, bindings)
            try:
                resume, message = inner.send, (yield value)
            # Closing the outer generator must close the inner one, whose `finally` blocks have to run.
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as error:
                # The function's code may handle an exception that is thrown into it, and yield again.
                resume, message = cast(Callable[[Any], Any], inner.throw), error
                continue
            if sent is not None and message is not None:  # `next` sends None
                message = _checked_value(sent, message, bindings)

    return generator()


def _coroutine(plan: FunctionPlan, bindings: Bindings | None, inner: Coroutine[Any, Any, Any]) -> Any:
    async def coroutine() -> Any:
        __tracebackhide__ = True
        result = await inner
        return result if plan.returns is None else _checked_value(plan.returns, result, bindings)

    return coroutine()


def _async_generator(plan: FunctionPlan, bindings: Bindings | None, inner: AsyncGenerator[Any, Any]) -> Any:
    """The async generator with a check of each value that it yields and is sent."""
    yields, sent, _ = plan.streams or (None, None, None)

    async def generator() -> AsyncGenerator[Any, Any]:
        __tracebackhide__ = True
        sent_value: Any = None
        try:
            while True:
                try:
                    value = await inner.asend(sent_value)
                except StopAsyncIteration:
                    return
                if yields is not None:
                    value = _checked_value(yields, value, bindings)
                sent_value = yield value
                if sent is not None and sent_value is not None:
                    sent_value = _checked_value(sent, sent_value, bindings)
        finally:
            # An async generator that is abandoned would otherwise run its `finally` blocks at some later time.
            await inner.aclose()

    return generator()


_WRAPPERS: dict[str, Callable[[FunctionPlan, Bindings | None, Any], Any]] = {
    "generator": _generator,
    "coroutine": _coroutine,
    "async generator": _async_generator,
}
