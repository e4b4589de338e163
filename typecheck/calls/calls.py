"""Calls: one function call under contract.

A function's *plan* (see `plans`) is made once. A call is then: bind the fields' dims if it is a method of a record,
check the arguments, run, check what comes back, all in one scope.
Generators are checked as they yield, coroutines when they are awaited; both keep the scope of their call.

What is not checked here: transforms, whose signature is that of the function inside and not of what they take; and
records' own methods given as functions, because they check themselves when they run.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from types import FunctionType, MethodType
from typing import Any, cast

import equinox as eqx
from weft.core.errors import WeftError
from weft.core.tracebacks import cut
from weft.typecheck.calls.asking import told
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
from weft.typecheck.matching.records import check_rebuilt, not_one
from weft.typecheck.matching.scopes import bind_numbers, dims_of, number_for_array, scope_of
from weft.typecheck.messages.explain import contract_error, place_of
from weft.typecheck.messages.running import enter_record, leave_record, module_path
from weft.typecheck.modes import current_mode


class Running:
    """A call under contract, from the check of its arguments on; see `weft.core.hooks.Running`.

    Attributes:
        function, args, kwargs: what is called, with what.
        plan: the function's, if it has something to check.
        bindings: the scope of the call, if it has a plan.
        token: of the record whose method it is.
        context: jaxtyping's, while a function runs that asks it what is bound.
    """

    __slots__ = ("args", "bindings", "context", "function", "kwargs", "plan", "token")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]):
        self.function, self.args, self.kwargs = function, args, kwargs
        self.plan: FunctionPlan | None = None
        self.bindings: Any = None
        self.token: Any = None
        self.context: ExitStack | None = None

    def leave(self, result: Any) -> Any:
        __tracebackhide__ = True
        plan = self.plan
        if plan is None:
            return result
        result = _leave(plan, self.bindings, result)
        if self.context is not None:
            self.context.close()
        return result

    def fail(self, error: Exception) -> None:
        if not isinstance(error, WeftError):
            return
        if self.plan is not None:
            cut(error)
            error.__cause__ = None  # as `from None` does
        # The layer does not know where it is.
        if self.token is not None and error.of_layer and not any(place.startswith("in ") for place in error.at):
            error.also_at(module_path())

    def end(self) -> None:
        if self.context is not None:
            self.context.__exit__(*sys.exc_info())  # of a call that failed: what the result binds is not asked for
        if self.token is not None:
            leave_record(self.token)


def enter(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], typed: bool = True
) -> Running:
    """Begins a call of a function under contract; see `weft.core.hooks.ContractHook.enter`."""
    __tracebackhide__ = True
    if type(function) is not FunctionType:
        function, args, kwargs = _plain(function, args, kwargs)
    plan = plan_of(function, args)
    if plan is not None and not (typed or plan.names_shapes):
        return Running(function, args, kwargs)
    if plan is None:
        function = cast(Callable[..., Any], wrapper_of(function, args) or function)
    running = Running(function, args, kwargs)
    try:
        if (plan is not None and plan.is_method) or _is_dispatched(function, args):
            running.token = enter_record(args[0])
            _check_numbers(args[0])
        else:
            _check_rebuilt(plan, args, kwargs)
        if plan is not None:
            running.bindings = _enter(plan, args, kwargs, False)
            running.plan = plan
            if plan.asking:
                running.context = ExitStack()
                running.context.enter_context(told(running.bindings))
            if current_mode() == "strict" and plan.signature.flavour == "function":
                running.function = _strictly(function)
    except BaseException as error:
        if isinstance(error, Exception):
            running.fail(error)
        running.end()
        raise
    return running


def _plain(
    function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...], Mapping[str, Any]]:
    """The Python function that a partial application, a method or an object with a `__call__` runs."""
    if isinstance(function, functools.partial):
        return _plain(function.func, (*function.args, *args), {**function.keywords, **kwargs})
    if isinstance(function, MethodType) and not isinstance(function.__self__, eqx.Module):
        return _plain(function.__func__, (function.__self__, *args), kwargs)
    if not isinstance(function, FunctionType | eqx.Module | type):
        method = getattr(type(function), "__call__", None)  # noqa: B004  (the function itself is wanted)
        if isinstance(method, FunctionType) and not hasattr(function, "__wrapped__"):
            return method, (function, *args), kwargs
    return function, args, kwargs


def _strictly(function: Callable[..., Any]) -> Callable[..., Any]:
    def strictly(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return call_strictly(function, args, kwargs)

    return strictly


def _check_numbers(record: Any) -> None:
    __tracebackhide__ = True
    try:
        plan = record_plan(type(record), RUN_TIME)
    except AnnotationError:  # said when it was made, if it is weft's to say
        return
    miss = number_for_array(record, plan)
    if miss is not None:
        raise contract_error(miss, module=module_path()) from None


def _is_dispatched(function: Any, args: Sequence[Any]) -> bool:
    return bool(args) and isinstance(args[0], eqx.Module) and owner_of(function, args) is not None


def _check_rebuilt(plan: FunctionPlan | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """The fields of the records that a transform has rebuilt, where no annotation of the function asks for more."""
    __tracebackhide__ = True
    unasked: list[Any] = list(args) + list(kwargs.values())
    if plan is not None:
        rows = itertools.chain(plan.positional, itertools.repeat(plan.rest[0]))
        unasked = [value for row, value in zip(rows, args, strict=False) if row is None]
        unasked += [value for name, value in kwargs.items() if plan.named.get(name) is None]
    miss = check_rebuilt(unasked)
    if miss is not None:
        raise contract_error(miss, module="rebuilt inside a transform") from None


def run(
    plan: FunctionPlan,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    lenient: bool = False,
) -> Any:
    """Calls a function whose plan is known.

    Args:
        plan: its plan.
        function: what to call.
        args, kwargs: with what.
        lenient: whether fields of the record that do not fit bind nothing, and are no error.

    Raises:
        ContractError: if an argument, a field of the record, or the result is not what its annotation says.
    """
    __tracebackhide__ = True
    bindings = _enter(plan, args, kwargs, lenient)
    strict = current_mode() == "strict" and plan.signature.flavour == "function"
    with told(bindings) if plan.asking else nullcontext():
        try:
            result = call_strictly(function, args, kwargs) if strict else function(*args, **kwargs)
        except WeftError as error:
            raise cut(error) from None
        return _leave(plan, bindings, result)


def _leave(plan: FunctionPlan, bindings: Bindings, result: Any) -> Any:
    """What a function returned, checked in the scope of its call; a generator or coroutine is checked as it runs."""
    __tracebackhide__ = True
    if plan.signature.flavour != "function":
        return _WRAPPERS[plan.signature.flavour](plan, bindings, result)
    if plan.returns is not None:
        _check_one(plan.returns, result, bindings)
    if bindings.pending:
        _settle(bindings)
    return result


def _enter(plan: FunctionPlan, args: tuple[Any, ...], kwargs: Mapping[str, Any], lenient: bool) -> Bindings:
    """The scope of a call, with its arguments checked."""
    __tracebackhide__ = True
    bindings = _record_scope(plan, args[0], lenient) if plan.is_method else Bindings(_NO_SLOT)
    bindings.arguments = lambda: _arguments(plan, args, kwargs)
    positional = plan.positional
    bindings.numpy, bindings.sparse = plan.is_method, False
    try:
        for row, value in zip(positional, args, strict=False):
            if row is not None:
                bindings.slot = row[0]
                row[1](value, bindings)
        if len(args) > len(positional) and plan.rest[0] is not None:
            _check_rest(plan.rest[0], enumerate(args[len(positional) :]), bindings)
        for name, value in kwargs.items():
            row = plan.named.get(name)
            if row is not None:
                bindings.slot = row[0]
                row[1](value, bindings)
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
    """Binds the dims of the result that no array of the arguments has, to what an integer or a record says."""
    arguments = bindings.arguments()
    for name, parameter in plan.sized_by:
        value = arguments.get(parameter)
        if name == parameter:
            if type(value) is int and value < 0:  # as -1 is for "all of them", which is no size
                continue
            bindings.slot = Slot("argument", name, plan.signature.function, Instance(int))
            bind_numbers(bindings, {name: value})
        elif name not in bindings.sizes and form_of_value(value) in (DATACLASS, NAMEDTUPLE):
            own = dims_of(value, RUN_TIME)
            bindings.sizes.update((one, size) for one, size in own.sizes.items() if one == name)
            bindings.origins.update((one, origin) for one, origin in own.origins.items() if one == name)


_NO_SLOT = Slot("value", "", None, None)  # pyright: ignore[reportArgumentType]


def _check_rest(row: Row, values: Any, bindings: Bindings) -> None:
    bindings.slot = row[0]
    for key, value in values:
        bindings.path = (key,)
        row[1](value, bindings)
    bindings.path = ()


def _arguments(plan: FunctionPlan, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments by name, defaults included, for the holes of dim expressions."""
    bound = inspect.signature(plan.signature.function).bind_partial(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _record_scope(method: FunctionPlan, record: Any, lenient: bool) -> Bindings:
    """The scope that the fields of a method's record make."""
    __tracebackhide__ = True
    plan = record_plan(type(record), RUN_TIME)
    if plan.form.mutable or lenient:  # others may be changing it
        return dims_of(record, RUN_TIME)
    try:
        return scope_of(record, plan)
    except Mismatch:
        slot = Slot("argument", "self", method.signature.function, RecordOf(type(record)))
        raise contract_error(not_one(record, plan, Bindings(slot)), module=module_path()) from None


def _check_one(row: Row, value: Any, bindings: Bindings) -> None:
    __tracebackhide__ = True
    bindings.slot = row[0]
    try:
        row[1](value, bindings)
        if bindings.pending:
            settle(bindings, finally_=False)
    except Mismatch as miss:
        raise contract_error(miss, module=module_path()) from None


def _settle(bindings: Bindings) -> None:
    __tracebackhide__ = True
    try:
        settle(bindings, finally_=True)
    except Mismatch as miss:
        raise contract_error(miss, module=module_path()) from None
    except UnboundDim as unbound:
        origin = bindings.pending[0].origin
        raise AnnotationError(f"{place_of(origin.slot, origin.path)}: {unbound.what}") from None


def _generator(plan: FunctionPlan, bindings: Bindings, inner: Generator[Any, Any, Any]) -> Any:
    assert inspect.isgenerator(inner)
    yields, sent, returns = plan.streams or (None, None, None)

    def generator() -> Generator[Any, Any, Any]:
        __tracebackhide__ = True
        step: Callable[[Any], Any] = inner.send
        given: Any = None
        while True:
            try:
                value = step(given)
            except StopIteration as stop:
                if returns is not None:
                    _check_one(returns, stop.value, bindings)
                return stop.value
            if yields is not None:
                _check_one(yields, value, bindings)
            try:
                step, given = inner.send, (yield value)
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as error:
                step, given = cast(Callable[[Any], Any], inner.throw), error
                continue
            if sent is not None and given is not None:
                _check_one(sent, given, bindings)

    return generator()


def _coroutine(plan: FunctionPlan, bindings: Bindings, inner: Coroutine[Any, Any, Any]) -> Any:
    async def coroutine() -> Any:
        __tracebackhide__ = True
        result = await inner
        if plan.returns is not None:
            _check_one(plan.returns, result, bindings)
        return result

    return coroutine()


def _async_generator(plan: FunctionPlan, bindings: Bindings, inner: AsyncGenerator[Any, Any]) -> Any:
    yields, sent, _ = plan.streams or (None, None, None)

    async def generator() -> AsyncGenerator[Any, Any]:
        __tracebackhide__ = True
        given: Any = None
        try:
            while True:
                try:
                    value = await inner.asend(given)
                except StopAsyncIteration:
                    return
                if yields is not None:
                    _check_one(yields, value, bindings)
                given = yield value
                if sent is not None and given is not None:
                    _check_one(sent, given, bindings)
        finally:
            await inner.aclose()

    return generator()


_WRAPPERS: dict[str, Callable[[FunctionPlan, Bindings, Any], Any]] = {
    "generator": _generator,
    "coroutine": _coroutine,
    "async generator": _async_generator,
}
