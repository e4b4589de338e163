"""Structures: values described as JSON, and abstract values made from such descriptions.

A structure has the shape and dtype of an array; the class and fields of a record, dataclass or other object; the name
of a function or class; and numbers, strings and flags themselves, because they are configuration. The numbers in an
array are never stored. A value that cannot be found by a name (a lambda, an object of native code) is `Opaque`: an
argument that contains one is built from its annotation.

    3, "relu", None, true       themselves
    {"array": "float32", "shape": [3, 4]}
    {"tuple": [...]}, {"list": [...]}, {"dict": [[key, value], ...]}, {"set": [...]}, {"frozenset": [...]}
    {"of": "module:Class", "fields": {...}}, {"name": "module:function"}, {"member": ["module:Enum", "RED"]}
"""

from __future__ import annotations

import enum
import functools
import importlib
import inspect
import json
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from weft.core.records.leaves import is_array
from weft.typecheck.language.forms import MODULE, NAMEDTUPLE, form_of
from weft.typecheck.language.objects import layer_of

# The most nodes in a structure, and characters in a string: a data set in lists is no configuration, and a long text
# may be anything, an API key included.
MOST_NODES, MOST_CHARACTERS = 1500, 200

Node = Any


class Opaque(Exception):
    """A value that cannot be described by a structure."""


class Unresolved(Exception):
    """A class or function named in a structure no longer exists."""


class Encoder:
    """Writes values as structures."""

    def __init__(self) -> None:
        self._nodes_to_go = MOST_NODES
        self._inside: list[Any] = []

    def argument(self, value: Any) -> Node:
        """The structure of an argument; `{"opaque": reason}` if it has none."""
        try:
            return self.node(value)
        except Opaque as reason:
            return {"opaque": str(reason)}
        except Exception as error:  # a property may raise, and recording must not make a test fail
            return {"opaque": f"reading its attributes raises {type(error).__name__}: {error}"[:MOST_CHARACTERS]}

    def node(self, value: Any) -> Node:
        """The structure of a value.

        Raises:
            Opaque: with the reason why it has none.
        """
        # Parts are counted over the whole argument, because nested lists can be large at each level.
        self._nodes_to_go -= 1
        if self._nodes_to_go < 0:
            raise Opaque(f"it has more than {MOST_NODES:,} parts")
        if value is None or type(value) in (bool, int):
            return value
        if type(value) is str:
            if len(value) > MOST_CHARACTERS:
                raise Opaque(f"it contains a string of more than {MOST_CHARACTERS} characters")
            return value
        # Records come before arrays, because a record may have a `shape` and a `dtype` as well.
        if form_of(type(value)) is not None:
            return self._within(value)
        for cls, encode in _ENCODED:
            if isinstance(value, cls):
                return encode(self, value)
        # Arrays of other libraries have a shape and a dtype as well.
        if is_array(value) and hasattr(value, "dtype"):
            return _array(self, value)
        if callable(value) and hasattr(value, "__qualname__"):
            return self._named(value)
        return self._within(value)

    def _within(self, value: Any) -> Node:
        """The structure of a container or object; a value that contains itself is `Opaque`."""
        if any(outer is value for outer in self._inside):
            raise Opaque("it contains itself")
        self._inside.append(value)
        try:
            for cls, name in ((tuple, "tuple"), (list, "list")):
                if type(value) is cls:
                    return {name: [self.node(item) for item in value]}
            if type(value) in (set, frozenset):  # sorted, as sets of strings iterate in another order in each run
                items = sorted((self.node(item) for item in value), key=json.dumps)
                return {type(value).__name__: items}
            if type(value) is dict:
                return {"dict": [[self.node(key), self.node(item)] for key, item in value.items()]}
            return self._object(value)
        finally:
            self._inside.pop()

    def _object(self, value: Any) -> Node:
        cls = type(value)
        # A proof of a shared object needs to know who else holds it, which a tree of JSON cannot say.
        if layer_of(cls) is not None:
            raise Opaque(f"a {cls.__name__} is mutable, and another argument may share it")
        form = form_of(cls)
        if form is None and not hasattr(value, "__dict__"):
            raise Opaque(f"a {cls.__name__} has no attributes that can be recorded")
        name = _global_name(value) if form is None else None
        if name is not None:  # a sentinel such as `MISSING`, which programs compare by identity
            return {"name": f"{cls.__module__}:{name}"}
        # A dataclass may have attributes besides its fields, and its fields may be slots.
        fields = {} if form is None else dict(form.values(value))
        if form not in (MODULE, NAMEDTUPLE):
            fields |= getattr(value, "__dict__", {})
        return {**self._of(cls), "fields": {name: self.node(one) for name, one in fields.items()}}

    def _of(self, cls: type) -> dict[str, Any]:
        return {"of": self._named(cls)["name"]}

    def _named(self, thing: Any) -> Node:
        if isinstance(thing, types.MethodType):
            return {"method": thing.__name__, "self": self.node(thing.__self__)}
        module = getattr(thing, "__module__", None) or ""
        # The name must lead back to this very object: a decorator may have put another function under it.
        for name in (getattr(thing, "__qualname__", ""), getattr(thing, "__name__", "")):
            if module in sys.modules and _reached(sys.modules[module], name) is thing:
                return {"name": f"{module}:{name}"}
        raise Opaque(f"{getattr(thing, '__qualname__', type(thing).__name__)} cannot be imported by its name")


def _array(_: Encoder, value: Any) -> Node:
    return {"array": str(value.dtype), "shape": [int(size) for size in value.shape]}


_ENCODED: tuple[tuple[Any, Callable[[Encoder, Any], Node]], ...] = (
    (jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct, _array),
    (enum.Enum, lambda encoder, value: {"member": [encoder._named(type(value))["name"], value.name]}),
    # As text, because JSON has no infinity and no NaN.
    (float, lambda encoder, value: {"float": repr(float(value))}),
    (complex, lambda encoder, value: {"complex": repr(complex(value))}),
    (np.dtype, lambda encoder, value: {"dtype": str(value)}),
    (slice, lambda encoder, value: {"slice": [encoder.node(getattr(value, one)) for one in ("start", "stop", "step")]}),
    (
        functools.partial,
        lambda encoder, value: {
            "partial": [encoder.node(one) for one in (value.func, value.args, dict(value.keywords))],
            "tree": isinstance(value, jax.tree_util.Partial),
        },
    ),
)


def _global_name(value: Any) -> str | None:
    """The name of the global variable that has a value, in the module of the value's class."""
    module = sys.modules.get(type(value).__module__)
    return next((name for name, one in vars(module).items() if one is value), None) if module is not None else None


def _reached(module: Any, qualname: str) -> Any:
    value: Any = module
    for name in qualname.split("."):
        value = getattr(value, name, None)
    return value


class Decoder:
    """Makes abstract values from structures; new ones at each call.

    Args:
        modules: modules by their recorded names, where these differ: a script that is checked was `__main__`.
    """

    def __init__(self, modules: Mapping[str, Any] | None = None):
        self.modules = modules or {}

    def value(self, node: Node) -> Any:
        """The value of a structure, with `ShapeDtypeStruct`s for arrays.

        Raises:
            Opaque: if the structure says that the value could not be described.
            Unresolved: if a class or function in it no longer exists.
        """
        if not isinstance(node, dict):
            return node
        kind = next(iter(node), "")
        try:
            decode = _DECODED[kind]
        except KeyError:
            raise Unresolved(f"this version of weft knows no structure of the kind {kind!r}") from None
        try:
            return decode(self, node)
        # A file from an older version of the program may have other fields or members.
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise Unresolved(f"{type(error).__name__}: {error}") from None

    def named(self, name: str) -> Any:
        """The class or function with a name of the form `module:qualname`."""
        module, _, qualname = name.partition(":")
        try:
            loaded = self.modules.get(module) or importlib.import_module(module)
        except Exception as error:
            raise Unresolved(f"{module} cannot be imported: {type(error).__name__}: {error}") from None
        value = _reached(loaded, qualname)
        if value is None:
            raise Unresolved(f"there is no {qualname} in {module}")
        return value

    def _opaque(self, node: Node) -> Any:
        raise Opaque(node["opaque"])

    def _array(self, node: Node) -> Any:
        name = node["array"]
        # NumPy has no dtype for random keys, so it is taken from a key that is made without computing.
        is_key = name.startswith("key<")
        dtype = jax.eval_shape(lambda: jax.random.key(0, impl=_KEYS.get(name))).dtype if is_key else jnp.dtype(name)
        return jax.ShapeDtypeStruct(tuple(node["shape"]), dtype)

    def _object(self, node: Node) -> Any:
        cls = self.named(node["of"])
        fields = {name: self.value(one) for name, one in node["fields"].items()}
        form = form_of(cls)
        if form in (MODULE, NAMEDTUPLE) and form is not None:
            return form.make(cls, fields)
        # Not by calling the class: the recorded fields are those after `__init__`, whose arguments are unknown.
        made = object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(made, name, value)
        return made

    def _partial(self, node: Node) -> Any:
        function, args, kwargs = map(self.value, node["partial"])
        return (jax.tree_util.Partial if node["tree"] else functools.partial)(function, *args, **kwargs)


# The implementations of random keys, by the names of their dtypes.
_KEYS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}

_DECODED: dict[str, Callable[[Decoder, Node], Any]] = {
    "opaque": Decoder._opaque,
    "array": Decoder._array,
    "tuple": lambda decoder, node: tuple(map(decoder.value, node["tuple"])),
    "list": lambda decoder, node: list(map(decoder.value, node["list"])),
    "set": lambda decoder, node: set(map(decoder.value, node["set"])),
    "frozenset": lambda decoder, node: frozenset(map(decoder.value, node["frozenset"])),
    "dict": lambda decoder, node: {decoder.value(key): decoder.value(one) for key, one in node["dict"]},
    "of": Decoder._object,
    "name": lambda decoder, node: decoder.named(node["name"]),
    "method": lambda decoder, node: getattr(decoder.value(node["self"]), node["method"]),
    "member": lambda decoder, node: decoder.named(node["member"][0])[node["member"][1]],
    "float": lambda decoder, node: float(node["float"]),
    "complex": lambda decoder, node: complex(node["complex"]),
    "dtype": lambda decoder, node: jnp.dtype(node["dtype"]),
    "slice": lambda decoder, node: slice(*map(decoder.value, node["slice"])),
    "partial": Decoder._partial,
}


def is_plain_object(value: Any) -> bool:
    """Whether a value is an object into which neither JAX nor a proof looks by itself."""
    return (
        hasattr(value, "__dict__")
        and form_of(type(value)) is None
        and not callable(getattr(value, "tree_flatten", None))
        and not isinstance(
            value, type | types.FunctionType | types.ModuleType | functools.partial | jax.ShapeDtypeStruct
        )
        and not inspect.isbuiltin(value)
        and jax.tree.structure(value) == _LEAF
    )


_LEAF = jax.tree.structure(0)
