"""capture: collects the values that Modules `sow` and `perturb` during a call."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from weft.core.edge.patches import patched
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
    """Wraps a function, so that it also returns the values that Modules recorded during the call.

    Args:
        fn: a Module, a method of a Module, or a function whose first argument is a Module. If it is a Variable type, it
            is the first of `var_types`, and `capture` returns a decorator.
        var_types: the kinds of values to record.
        init: a State of initial values, such as perturbations to differentiate.
        method_outputs: if passed, every method of every Module records its result as a Variable of this kind.

    Returns:
        A function that returns `(result, *states)`, with a State for each kind; without kinds, the result alone.

    >>> from weft.nnx.variable.kinds import Intermediate
    >>> class Double(Module):
    ...     def __call__(self, x):
    ...         self.sow(Intermediate, "twice", 2 * x)
    ...         return x
    >>> out, recorded = capture(Double(), Intermediate)(3)
    >>> recorded.twice.get_value()
    (6,)
    """
    # Used as a decorator: `@nnx.capture(nnx.Intermediate)`.
    if isinstance(fn, type) and issubclass(fn, Variable):
        kinds = (fn, *var_types)
        return lambda function: capture(function, *kinds, init=init, method_outputs=method_outputs)
    # A bound method's object is found here, because `fn(*args)` does not show it among the arguments.
    owner = fn if isinstance(fn, Module) else fn.__self__ if inspect.ismethod(fn) else None

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        root = owner if isinstance(owner, Module) else args[0]
        # Listed before the call for `_open`, and again after it for `_close`: the call may add or replace Modules.
        modules = _recording_modules(root)
        # A `capture` around this one has dicts of its own in the same Modules.
        outer = [(module, boxes) for _, module in modules if (boxes := getattr(module, _CAPTURES, None)) is not None]
        _open(modules, var_types, _values_by_module(init))
        classes = {type(module) for _, module in modules} if method_outputs else ()
        try:
            with patched(*(entry for cls in classes for entry in _recorded_methods(cls, method_outputs))):
                result = fn(*args, **kwargs)
        finally:
            recorded = sorted(_close(_recording_modules(root), var_types), key=_order)
            _close(modules, ())  # those that the call has removed from the model
            for module, boxes in outer:
                setattr(module, _CAPTURES, data(boxes))
        if not var_types:
            return result
        return (result, *(from_flat_state(part) for part in sort_flat(recorded, var_types)[:-1]))

    return wrapper


def _recording_modules(root: Any) -> list[tuple[Path, Module]]:
    """The Modules that may record values, with paths. `List`s cannot: they have no user methods, and no named slots."""
    return [(path, module) for path, module in iter_modules(root) if not isinstance(module, List)]


def _order(entry: tuple[Path, Any]) -> list[tuple[str, Any]]:
    """A sort key for paths that mix ints (elements of `List`s) and names, which Python cannot compare."""
    return [(type(part).__name__, part) for part in entry[0]]


def _values_by_module(init: Any) -> Mapping[Path, dict[str, Any]]:
    values: dict[Path, dict[str, Any]] = {}
    for path, value in flatten_to_sequence(init) if init else ():
        if isinstance(value, Variable):
            values.setdefault(path[:-1], {})[path[-1]] = value
    return values


def _open(modules: list[tuple[Path, Module]], kinds: Any, init: Mapping[Path, dict[str, Any]]) -> None:
    """Gives each Module an empty dict for each kind, in the attribute that `sow` writes to."""
    for path, module in modules:
        boxes: dict[VariableType, dict[str, Any]] = {kind: {} for kind in kinds}
        for name, variable in init.get(path, {}).items():
            # A kind that only `init` has gets a dict, too: `perturb` reads the values of a call before from it.
            boxes.setdefault(type(variable), {})[name] = variable.get_value()
        setattr(module, _CAPTURES, data(tuple(kind(box) for kind, box in boxes.items())))


def _close(modules: list[tuple[Path, Module]], kinds: Any) -> list[tuple[Path, Any]]:
    """Removes the dicts of `_open`, and returns (path, Variable) for the values of the requested kinds."""
    recorded: list[tuple[Path, Any]] = []
    for path, module in modules:
        for box in getattr(module, _CAPTURES, ()):
            if type(box) in kinds:
                recorded.extend(((*path, name), type(box)(value)) for name, value in box.get_value().items())
        # A Module that was created in the call has none.
        if hasattr(module, _CAPTURES):
            delattr(module, _CAPTURES)
    return recorded


def _recorded_methods(cls: type, kind: Any) -> Iterator[tuple[type, str, Any]]:
    """The methods of a class, each with a replacement that records its results."""

    def replacement(name: str, method: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(self, *args, **kwargs)
        self.sow(kind, name, result)
        return result

    # `vars(cls)` alone: an inherited method belongs to a class that may have instances elsewhere.
    for name, method in vars(cls).items():
        is_method = callable(method) and not isinstance(method, staticmethod | type)
        if is_method and (name == "__call__" or not name.startswith("_")):
            # In the class, because Python looks up `__call__` there and not in the object.
            yield cls, name, functools.partial(replacement, name)
