"""convert: converts objects of the real flax.nnx to objects of weft.nnx, with their state.

The object graph is walked once, and each flax object becomes one object here, so sharing and cycles survive. Variables
keep value and metadata; static attributes are copied. Classes are translated, in this order:

- classes in the `classes` argument, to what it says;
- flax.nnx's own classes (layers, `List`, `Rngs`, `Optimizer`, Variable types, ...), to weft's class of that name;
- a user's class, to a *re-based* class of the same name and body over translated bases. In its methods, `super()` and
  `__class__` are the re-based class. Global names are looked up in the user's module, and translated if they are
  flax.nnx's: `nnx.relu`, `isinstance(x, nnx.Param)` and other user classes are weft's counterparts.

A class body with an object that the real library made, such as a method under `@nnx.jit`, cannot be re-based; the error
names it.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Mapping
from typing import Any, Generic, Protocol

import jax
from weft.core.errors import WeftError
from weft.core.paths import Path, format_path
from weft.nnx.foreign import is_foreign_type, real_nnx
from weft.nnx.graphs.nodes import is_graph_node
from weft.nnx.interop.installing import NNX, twin_module
from weft.nnx.objects.attributes import HashableMapping
from weft.nnx.objects.objects import fill_object, new_object
from weft.nnx.states.states import State

# flax's notes about an object, of which weft makes its own in slots.
_BOOKKEEPING = ("_pytree__nodes", "_pytree__state", "_object__nodes", "_object__state")
# Entries of a class's namespace that Python creates for every class.
_CLASS_BOOKKEEPING = frozenset(("__dict__", "__weakref__", "__classcell__", "__abstractmethods__", "_abc_impl"))
_FLAX_CLASS_BOOKKEEPING = ("_pytree__", "_object__", "_graph_node_")


class ConvertError(WeftError, TypeError):
    """Raised for an object or class of flax.nnx without a counterpart in weft.nnx."""


def convert(obj: Any, /, *, classes: Mapping[type, type] | None = None) -> Any:
    """Converts an object of the real flax.nnx to one of weft.nnx, with its state.

    Args:
        obj: a module, Variable, State, or a container of them; anything else is returned unchanged.
        classes: the weft.nnx class to use for a user's class, instead of a re-based one.

    Returns:
        New objects around the same arrays, with the sharing of `obj`.

    Raises:
        TypeError: for an object without a counterpart, naming its path.

        from flax import nnx as flax_nnx

        model = nnx.convert(flax_nnx.Linear(2, 3, rngs=flax_nnx.Rngs(0)))

    >>> convert({"a": 1})
    {'a': 1}
    """
    return _Conversion(Translation(dict(classes or {}))).value(obj, ())


class _Conversion:
    """Converts an object graph in one walk, and remembers the converted objects."""

    def __init__(self, translation: Translation):
        self.translation = translation
        # With the flax objects, to keep them alive: `id`s of dead objects are reused.
        self.made: dict[int, tuple[Any, Any]] = {}

    def value(self, value: Any, path: Path) -> Any:
        if id(value) in self.made:
            return self.made[id(value)][1]
        if isinstance(value, type | types.FunctionType | types.ModuleType):
            return self.translation.value(value)
        if not is_foreign_type(type(value)):
            return self._container(value, path)
        real = real_nnx()
        if isinstance(value, real.Variable):
            return self._variable(value, path)
        if isinstance(value, real.State):
            return State({key: self.value(child, (*path, key)) for key, child in value.items()})
        if isinstance(value, real.GraphDef):
            raise ConvertError(
                "a GraphDef of flax.nnx cannot be converted",
                at=format_path(path),
                fix="convert the object (flax.nnx.merge it first), and split that",
            )
        return self._object(value, path)

    def _container(self, value: Any, path: Path) -> Any:
        def is_end(node: Any) -> bool:
            if not is_graph_node(node):
                return is_foreign_type(type(node))
            # JAX would rebuild an object of weft as a copy, without its sharing.
            inside = jax.tree.leaves(node, is_leaf=lambda part: is_foreign_type(type(part)))
            return not any(is_foreign_type(type(part)) for part in inside)

        leaves, treedef = jax.tree_util.tree_flatten_with_path(value, is_leaf=is_end)
        # A leaf that is no object of flax: an array or a static value, which both libraries share.
        if treedef == jax.tree_util.tree_structure(0):
            return value
        if not any(is_foreign_type(type(leaf)) or isinstance(leaf, type | types.FunctionType) for _, leaf in leaves):
            return value
        return treedef.unflatten(self.value(leaf, (*path, jax.tree_util.keystr(keys))) for keys, leaf in leaves)

    def _variable(self, variable: Any, path: Path) -> Any:
        kind = self.translation.type(type(variable), path)
        twin = kind.from_metadata(None, self.value(dict(variable.get_metadata()), path))
        # Recorded before its value is converted, because a path may lead from the value back to the Variable.
        self.made[id(variable)] = (variable, twin)
        twin.set_raw_value(self.value(variable.get_raw_value(), path))
        return twin

    def _object(self, obj: Any, path: Path) -> Any:
        kind = self.translation.type(type(obj), path)
        attributes = {name: value for name, value in vars(obj).items() if name not in _BOOKKEEPING}
        data = getattr(obj, "_pytree__nodes", {})
        nodes = HashableMapping({name: bool(data[name]) for name in attributes if name in data})
        # Recorded before its attributes are converted: a cycle leads back to the object.
        twin = new_object(kind)
        self.made[id(obj)] = (obj, twin)
        fill_object(twin, [(name, self.value(value, (*path, name))) for name, value in attributes.items()], nodes)
        return twin


class Translation:
    """Translates classes, functions and modules of flax.nnx, and user code that refers to them."""

    def __init__(self, classes: dict[type, type]):
        self.known: dict[Any, Any] = dict(classes)
        self.scopes: dict[int, _Scope] = {}

    def type(self, kind: type, path: Path = ()) -> type:
        """Returns weft's counterpart of a class of flax.nnx, or the re-based class of a user's.

        Raises:
            ConvertError: if there is no counterpart.
        """
        twin = self.known.get(kind) or _REBASED.get(kind)
        if twin is not None:
            return twin
        if _is_of_flax(kind):
            twin = _twin(kind)
            if twin is None:
                raise ConvertError(
                    f"weft.nnx has no counterpart of {kind.__module__}.{kind.__qualname__}",
                    at=format_path(path),
                    fix="pass one: nnx.convert(obj, classes={TheirClass: YourClass})",
                )
            return twin
        return self._rebased(kind, path)

    def value(self, value: Any) -> Any:
        """Translates the value of a global name or class attribute."""
        if isinstance(value, types.ModuleType):
            return twin_module(value.__name__) if _is_of_flax(value) else value
        if isinstance(value, type):
            return self.type(value) if is_foreign_type(value) else _twin(value) or value
        if isinstance(value, types.FunctionType):
            if _is_of_flax(value):
                return _twin(value) or value
            return self.function(value) if _mentions_flax(value) else value
        return value

    def function(self, function: types.FunctionType, owner: types.CellType | None = None) -> Any:
        """Copies a user's function with translated globals, and with another `__class__` cell if it is a method."""
        if function in self.known:
            return self.known[function]
        scope = self.scopes.get(id(function.__globals__))
        if scope is None:
            scope = self.scopes[id(function.__globals__)] = _Scope(function.__globals__, self)
        names = function.__code__.co_freevars
        cells = function.__closure__ or ()
        closure = tuple(
            owner if owner is not None and name == "__class__" else cell
            for name, cell in zip(names, cells, strict=True)
        )
        twin = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, closure)
        twin.__dict__.update(function.__dict__)
        for name in ("__kwdefaults__", "__doc__", "__qualname__", "__module__", "__annotations__"):
            setattr(twin, name, getattr(function, name))
        # A copy of a method is not remembered: it has the `__class__` cell of one class.
        if owner is None:
            self.known[function] = twin
        return twin

    # `super()` without arguments reads the class from the cell `__class__`, which must be the new class.
    def _rebased(self, kind: type, path: Path) -> type:
        cell = types.CellType()
        bases = tuple(
            base if base in (object, Generic, Protocol) or not is_foreign_type(base) else self.type(base, path)
            for base in kind.__bases__
        )
        body = {
            name: self._member(kind, name, value, cell, path)
            for name, value in vars(kind).items()
            if name not in _CLASS_BOOKKEEPING and not name.startswith(_FLAX_CLASS_BOOKKEEPING)
        }
        options = {} if getattr(kind, "_pytree__is_pytree", True) else {"pytree": False}
        twin = types.new_class(kind.__name__, bases, options, lambda namespace: namespace.update(body))
        # Filled last, because the methods are made before the class in whose body they are.
        cell.cell_contents = twin
        self.known[kind] = _REBASED[kind] = twin
        return twin

    def _member(self, kind: type, name: str, value: Any, cell: types.CellType, path: Path) -> Any:
        if isinstance(value, staticmethod | classmethod):
            return type(value)(self._member(kind, name, value.__func__, cell, path))
        if isinstance(value, property):
            parts = (value.fget, value.fset, value.fdel)
            getter, setter, deleter = (part and self._member(kind, name, part, cell, path) for part in parts)
            return property(getter, setter, deleter, value.__doc__)
        made_by_flax = _is_of_flax(type(value)) and not isinstance(value, type)
        if made_by_flax or (hasattr(value, "__wrapped__") and _is_code_of_flax(value)):
            raise ConvertError(
                f"{kind.__qualname__}.{name} is an object of the real flax.nnx ({type(value).__name__}), "
                "so its class cannot be used here",
                at=format_path(path),
                fix="define the class over weft.nnx (start the program by python -m weft.nnx), "
                "or pass a class: nnx.convert(obj, classes={TheirClass: YourClass})",
            )
        if isinstance(value, types.FunctionType):
            return self.function(value, cell)
        return self.value(value)


# Re-based classes are stored, so that two objects of a class that are converted one by one have the same class again.
_REBASED: dict[type, type] = {}


class _Scope(dict[str, Any]):
    """The globals of a user's module, translated when a function looks one up."""

    def __init__(self, original: dict[str, Any], translation: Translation):
        # Python reads `__builtins__` of a function's globals without calling `__missing__`.
        super().__init__(__builtins__=original.get("__builtins__", __builtins__))
        self._original = original
        self._translation = translation

    def __missing__(self, name: str) -> Any:
        # Not stored: a global may be bound anew, which the copied function must see as the original does.
        return self._translation.value(self._original[name])


def _is_of_flax(thing: Any) -> bool:
    """Whether a value is a module of flax.nnx, or a class, function or instance of such a module."""
    module = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None) or ""
    return module == NNX or module.startswith(f"{NNX}.")


def _is_code_of_flax(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    real = sys.modules.get(NNX)
    folder = (getattr(real, "__file__", None) or "").removesuffix("__init__.py")
    return code is not None and bool(folder) and code.co_filename.startswith(folder)


def _twin(thing: Any) -> Any:
    """Returns the object of the same name in weft's counterpart of its module, or None."""
    if not _is_of_flax(thing):
        return None
    # The file of a name may have no counterpart here, while `flax.nnx` itself exports the name.
    for module in (thing.__module__, NNX):
        try:
            counterpart: Any = twin_module(module)
            for name in thing.__qualname__.split("."):
                counterpart = getattr(counterpart, name)
            return counterpart
        except (ImportError, AttributeError):
            continue
    return None


def _mentions_flax(function: types.FunctionType) -> bool:
    """Whether a global name in a function's code refers to an object of flax.nnx, or to a class derived from one."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    values = [function.__globals__[name] for name in names if name in function.__globals__]
    return any(_is_of_flax(value) or (inspect.isclass(value) and is_foreign_type(value)) for value in values)


def _codes(code: types.CodeType) -> list[types.CodeType]:
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    # Functions and classes inside of a function have code of their own, which names globals, too.
    return [code, *(deeper for constant in inner for deeper in _codes(constant))]
