"""capture: collecting what Modules `sow` and `perturb` while a function runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from weft.core.paths import Path
from weft.nnx.modules.containers import List
from weft.nnx.modules.module import Module, iter_modules
from weft.nnx.objects.attributes import data
from weft.nnx.states.states import from_flat_state, sort_flat
from weft.nnx.states.traversals import flatten_to_sequence
from weft.nnx.variable.kinds import VariableType
from weft.nnx.variable.variable import Variable

_CAPTURES = "__captures__"


def capture(
    fn: Any, *var_types: VariableType, init: Any = None, method_outputs: VariableType | None = None
) -> Callable[..., Any]:
    """Wraps a function so that it returns what was recorded, too.

    Args:
        fn: a Module, a method of one, or a function whose first argument is one. If it is a Variable type, it counts as
            the first of `var_types`, and this is a decorator.
        var_types: the kinds to record.
        init: a state of values that are there from the start, such as perturbations to differentiate.
        method_outputs: a kind under which the result of every method of every Module is recorded, by its name.

    Returns:
        A function that returns `(result, *states)`, one state for each kind; just the result without any kind.

    >>> from weft.nnx.variable.kinds import Intermediate
    >>> class Double(Module):
    ...     def __call__(self, x):
    ...         self.sow(Intermediate, "twice", 2 * x)
    ...         return x
    >>> out, recorded = capture(Double(), Intermediate)(3)
    >>> recorded.twice.get_value()
    (6,)
    """
    if isinstance(fn, type) and issubclass(fn, Variable):
        kinds = (fn, *var_types)
        return lambda function: capture(function, *kinds, init=init, method_outputs=method_outputs)
    owner = fn if isinstance(fn, Module) else fn.__self__ if inspect.ismethod(fn) else None

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        root = owner if isinstance(owner, Module) else args[0]
        modules = _recording_modules(root)
        _open(modules, var_types, _values_by_module(init))
        undo = _record_methods(modules, method_outputs) if method_outputs else []
        try:
            result = fn(*args, **kwargs)
        finally:
            for cls, name, method in undo:
                setattr(cls, name, method)
            recorded = sorted(_close(_recording_modules(root), var_types), key=_order)
        if not var_types:
            return result
        return (result, *(from_flat_state(part) for part in sort_flat(recorded, var_types)[:-1]))

    return wrapper


def _recording_modules(root: Any) -> list[tuple[Path, Module]]:
    """The Modules that may record something. A List has no methods of the user's, and numbers for attributes."""
    return [(path, module) for path, module in iter_modules(root) if not isinstance(module, List)]


def _order(entry: tuple[Path, Any]) -> list[tuple[str, Any]]:
    """Sorts paths; numbers, which are the attributes of Lists, come before names."""
    return [(type(part).__name__, part) for part in entry[0]]


def _values_by_module(init: Any) -> Mapping[Path, dict[str, Any]]:
    found: dict[Path, dict[str, Any]] = {}
    for path, value in flatten_to_sequence(init) if init else ():
        if isinstance(value, Variable):
            found.setdefault(path[:-1], {})[path[-1]] = value
    return found


def _open(modules: list[tuple[Path, Module]], kinds: Any, init: Mapping[Path, dict[str, Any]]) -> None:
    """Gives each Module a box for each kind."""
    for path, module in modules:
        boxes: dict[VariableType, dict[str, Any]] = {kind: {} for kind in kinds}
        for name, variable in init.get(path, {}).items():
            boxes.setdefault(type(variable), {})[name] = variable.get_value()
        setattr(module, _CAPTURES, data(tuple(kind(box) for kind, box in boxes.items())))


def _close(modules: list[tuple[Path, Module]], kinds: Any) -> list[tuple[Path, Any]]:
    """Takes the boxes away, and returns what is in those of the kinds asked for."""
    found: list[tuple[Path, Any]] = []
    for path, module in modules:
        for box in getattr(module, _CAPTURES, ()):
            if type(box) in kinds:
                found.extend(((*path, name), type(box)(value)) for name, value in box.get_value().items())
        if hasattr(module, _CAPTURES):
            delattr(module, _CAPTURES)
    return found


def _record_methods(modules: list[tuple[Path, Module]], kind: VariableType) -> list[tuple[type, str, Any]]:
    """Makes the methods of the Modules' own classes record their results; returns what to put back."""
    return [entry for cls in {type(module) for _, module in modules} for entry in _record_methods_of(cls, kind)]


def _record_methods_of(cls: type, kind: VariableType) -> Iterator[tuple[type, str, Any]]:
    for name, method in list(vars(cls).items()):
        if callable(method) and (name == "__call__" or not name.startswith("_")):
            setattr(cls, name, _recording(method, name, kind))
            yield cls, name, method


def _recording(method: Any, name: str, kind: VariableType) -> Any:
    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        self.sow(kind, name, result)
        return result

    return wrapper
