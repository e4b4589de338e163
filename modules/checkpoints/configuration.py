"""Describes the configuration of a tree, all of it but its arrays, as text that can be saved and compared.

Each record, container and configuration value has an entry under its path: `heads` is `8`, `act` is
`jax._src.nn.functions:relu`, `layers` is a `list`, `layers[0]` is of class `weft.modules.dense.linear:Linear`. A value
is never built from such a *description*; it comes from the tree that one loads into, and two descriptions tell whether
it is the same.

The description depends on the value:

- numbers, strings, None, dtypes: their value as text, which shows the type, too (`1`, `1.0`, `True`);
- classes and functions: `module:qualname`, where they are defined. Files of weft 0.3.0 have the outermost package that
  offered the name, if the process had used it. So two names agree if they refer to one object: by such a package, or by
  an alias that was left in an old module. A module that is run as a script is called `__main__`, and has its own name
  when it is imported, so `__main__` agrees with every module. A newer version of a package may define an object in
  another module: if the old module no longer defines it, the name agrees if one of the modules is private
  (`jax._src...`), or if a package around both offers the object;
- functions that cannot be imported by a name (lambdas, functions made inside functions): the name, and a hash of their
  code, their defaults and the values that they close over, each described. The bytecode differs between versions of
  Python and of the function's package, so hashes are compared only if the versions are the same;
- containers and other objects: their class and parts; for objects that are not dataclasses and have no `repr` of their
  own, the attributes. Addresses in printed forms are left out.

Not described, and so not compared: the globals that a function reads, and the code of a named function.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import itertools
import json
import re
import symtable
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from importlib.machinery import PathFinder
from types import CodeType, ModuleType
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from weft.core.edge import trees
from weft.core.edge.trees import key_part
from weft.core.makeup import Makeup, digest_of, fold, makeup_of
from weft.core.paths import Path, format_path, parse_path
from weft.core.records.configuration import MixedContainer, iter_configuration
from weft.core.records.leaves import is_array, record_children
from weft.core.records.storage import Static

# A string, or a dict with a "name", and possibly with "code" and named "parts".
Description = str | dict[str, Any]

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(...))
# Objects may refer to each other in circles; deeper parts are described as `...`.
_DEEPEST = 40
_NOTHING = object()


def configuration(tree: Any, data: Container[str] = ()) -> dict[str, Description]:
    """Returns the description of each part of a tree that is not an array, by path.

    Args:
        tree: the tree.
        data: paths that are left out: Python numbers outside of records, which are stored like arrays. Told as
            configuration as well, a new step number would be a mismatch.
    """
    values = ((path, describe(value)) for path, value in iter_configuration(tree))
    told = {format_path(path): description for path, description in (*_nodes(tree, ()), *values)}
    return {path: description for path, description in told.items() if path not in data}


def is_empty_field(path: str, told: Mapping[str, Description]) -> bool:
    """Whether a path is that of a record's field that is None.

    A class that gains such a field can still load older files: they have no entry for the field, and need none.

    >>> from weft.modules import Linear
    >>> told = configuration({"layer": Linear(2, 2, key=jax.random.key(0), use_bias=False), "bias": None})
    >>> is_empty_field("layer.bias", told), is_empty_field("bias", told)
    (True, False)
    """
    if told.get(path) != describe(None):
        return False
    holder = told.get(format_path(parse_path(path)[:-1]))
    cls = None if holder is None or isinstance(holder, str) else _value_named(holder["name"])
    return isinstance(cls, type) and issubclass(cls, eqx.Module)


def _nodes(node: Any, path: Path) -> Iterator[tuple[Path, Description]]:
    """Yields descriptions of the records, containers and Nones of a tree."""
    if node is None:
        yield path, describe(None)
    elif isinstance(node, eqx.Module):
        node = getattr(node, "__as_saved__", lambda: node)()
        yield path, _of_type(node)
        for name, child in record_children(node):
            yield from _nodes(child, (*path, name))
    elif type(node) is not Static and (level := trees.flatten_one_level(node)) is not None:
        children, own = level
        container = node.value if type(node) is MixedContainer else node
        told = own is None or isinstance(container, (tuple, list)) or type(container) is dict
        yield path, _of_type(container, {} if told else {"own": describe(own)})
        for key, child in children:
            yield from _nodes(child, (*path, key_part(key)))


# --- descriptions ----------------------------------------------------------------------------------------------------


def describe(value: Any) -> Description:
    """Describes a value by properties that another process can compare."""
    return fold(value, _look, _combine, lambda level: "...", _DEEPEST)


def _look(value: Any) -> Description | Makeup:
    if type(value) in _ATOMS:
        return repr(value)
    # `jnp.float32` and `np.float32` stand for the same dtype.
    if isinstance(value, np.dtype | type(jnp.float32)) or (isinstance(value, type) and issubclass(value, np.generic)):
        return f"dtype {np.dtype(value)}"
    if is_array(value):
        return _array(value)
    if isinstance(value, enum.Enum) and value.name is not None:
        return {"name": f"{_name(type(value))}.{value.name}"}
    if isinstance(value, type | ModuleType):
        return {"name": _name(value)}
    makeup = makeup_of(value)
    if makeup.sort in ("sequence", "mapping", "set", "partial"):
        return makeup
    if callable(value) and isinstance(_qualname(value), str):
        return _look_at_function(value)
    # A repr with an address in it is different in each process.
    if type(value).__repr__ is not object.__repr__ and not dataclasses.is_dataclass(value):
        return _of_type(value, {"repr": re.sub(r"\b0x[0-9a-fA-F]{4,}", "0x", repr(value))})
    return makeup


def _combine(value: Any, makeup: Makeup, parts: list[Description]) -> Description:
    names: Iterable[Any] = makeup.names
    if makeup.sort == "mapping":
        names = [show(describe(name)) for name in names]
    elif makeup.sort == "set":
        # The order of a set depends on the process: Python seeds the hashes of strings.
        parts.sort(key=lambda part: json.dumps(part, sort_keys=True))
    elif type(value) is tuple and all(isinstance(part, str) for part in parts):
        return f"({', '.join(map(str, parts))}{',' if len(parts) == 1 else ''})"
    described = dict(zip(map(str, names), parts, strict=True))
    if makeup.sort not in ("function", "method"):
        return _of_type(value, described)
    return {"name": _name(value)} | (_code(_underlying(value)) if makeup.sort == "function" else {}) | _parts(described)


def _array(value: Any) -> Description:
    type_text = f"{value.dtype}[{','.join(map(str, value.shape))}]"
    is_data = not isinstance(value, Tracer | jax.ShapeDtypeStruct | jax.Ref)
    return f"{type_text} {digest_of(value)[:16]}" if is_data else type_text


def _of_type(value: Any, parts: Mapping[str, Description] | None = None) -> Description:
    return {"name": _name(type(value))} | _parts(parts)


def _parts(parts: Mapping[str, Description] | None) -> dict[str, Any]:
    return {"parts": dict(parts)} if parts else {}


# --- functions and classes -------------------------------------------------------------------------------------------


def _qualname(value: Any) -> str | None:
    return getattr(value, "__qualname__", None) or getattr(value, "__name__", None)


def _name(value: Any) -> str:
    if isinstance(value, ModuleType):
        return f"{value.__name__}:"
    module, qualname = getattr(value, "__module__", None), str(_qualname(value))
    if not isinstance(module, str):
        return f":{qualname}"
    # A process that `multiprocessing` spawned calls the program's module by another name.
    return f"{'__main__' if module == '__mp_main__' else module}:{qualname}"


def _value_named(name: str) -> Any:
    """The object that a module which is imported has under a name; `_NOTHING` if there is none.

    By `getattr` of the module, whose `__getattr__` may import the object: its `__dict__` has only the names that the
    process has used, and a second run of the same script would come to another answer.
    """
    module, _, qualname = name.partition(":")
    try:
        return functools.reduce(getattr, qualname.split("."), cast("Any", sys.modules[module]))
    except Exception:  # whatever a module's `__getattr__` raises
        return _NOTHING


def _look_at_function(value: Any) -> Description | Makeup:
    owner = getattr(value, "__self__", None)
    if owner is not None and not isinstance(owner, ModuleType):
        return Makeup("method", ("self",), (owner,))
    name = _name(value)
    named, underlying = _value_named(name), _underlying(value)
    # In a notebook a cell that runs twice defines its function anew. The name then leads to another object with the
    # same code, which counts as the same function.
    is_same = named is value or (
        named is not _NOTHING
        and underlying is not None
        and getattr(_underlying(named), "__code__", None) == underlying.__code__
    )
    return {"name": name} if is_same or underlying is None else makeup_of(underlying)


def _underlying(value: Any) -> Any:
    """Returns the Python function inside of wrappers such as `jax.jit`; None if there is none."""
    for _ in range(_DEEPEST):
        if isinstance(getattr(value, "__code__", None), CodeType):
            return value
        value = getattr(value, "__wrapped__", None)
    return None


def _code(function: Any) -> dict[str, Any]:
    package = sys.modules.get(str(function.__module__).partition(".")[0])
    versions = f"{sys.implementation.cache_tag} {getattr(package, '__version__', '')}"
    return {"code": f"{versions} {_hash_code(function.__code__).hexdigest()[:16]}"}


def _hash_code(code: CodeType) -> Any:
    # Nested code objects are hashed in the same way: their repr has an address and a file in it, which differ between
    # processes.
    digest = hashlib.sha256(code.co_code)
    for const in code.co_consts:
        inner = isinstance(const, CodeType)
        digest.update(_hash_code(const).digest() if inner else json.dumps(describe(const), sort_keys=True).encode())
    digest.update(repr((code.co_names, code.co_varnames, code.co_flags)).encode())
    return digest


# --- comparing -------------------------------------------------------------------------------------------------------


def is_description(value: Any, depth: int = 0) -> bool:
    """Whether a value that was read from a file is a description."""
    if isinstance(value, str):
        return True
    if not isinstance(value, dict) or depth > 2 * _DEEPEST or not isinstance(value.get("name"), str):
        return False
    parts = value.get("parts", {})
    return (
        isinstance(value.get("code", ""), str)
        and isinstance(parts, dict)
        and all(is_description(part, depth + 1) for part in parts.values())
    )


def difference(
    saved: Description | None, here: Description | None, *, closed_over: bool = False
) -> tuple[tuple[str, ...], Description | None, Description | None] | None:
    """Returns the first difference of two descriptions: the names of the parts that lead to it, and both texts there.

    Args:
        saved: a description from a file, or None if the file has none.
        here: a description made in this process, likewise.
        closed_over: whether they describe a value that a function closes over.

    >>> difference(describe({"a": [2, 3]}), describe({"a": [2, 4]}))
    (("'a'", '1'), '3', '4')
    """
    if not isinstance(saved, dict) or not isinstance(here, dict):
        # optax's schedules turn a captured 100 into 100.0 at their first call, so a used schedule would not match a new
        # one.
        same = saved == here or (closed_over and _number(saved) is not None and _number(saved) == _number(here))
        return None if same else ((), saved, here)
    parts, own = saved.get("parts", {}), here.get("parts", {})
    if not _names_agree(saved["name"], here["name"]) or parts.keys() != own.keys():
        return (), saved, here
    for name in parts:
        inner = difference(parts[name], own[name], closed_over="code" in saved)
        if inner is not None:
            return (name, *inner[0]), inner[1], inner[2]
    code, own_code = saved.get("code"), here.get("code")
    # Bytecode differs between versions of Python and of the package, so hashes count within one version only.
    if code == own_code or (code and own_code and code.rpartition(" ")[0] != own_code.rpartition(" ")[0]):
        return None
    return (), saved, here


def _number(text: object) -> float | None:
    try:
        return float(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _names_agree(saved: str, here: str) -> bool:
    if saved == here:
        return True
    saved_value, value = _value_named(saved), _value_named(here)
    if value is not _NOTHING and value is saved_value:
        return True
    (module, _, qualname), (own, _, own_qualname) = saved.partition(":"), here.partition(":")
    # A script's module is `__main__` when it runs and has its own name when it is imported.
    if qualname != own_qualname or "__main__" in (module, own):
        return qualname == own_qualname
    around = [package for package in _packages(own) if f"{module}.".startswith(f"{package}.")]
    is_offered = value is not _NOTHING and any(_value_named(f"{package}:{qualname}") is value for package in around)
    is_private = "._" in module + own
    # An old name that still leads to an object leads to another one, or the two would have agreed above.
    if not around or saved_value is not _NOTHING or not (is_offered or is_private):
        return False
    return module in sys.modules or not _defines(module, qualname.partition(".")[0])


def _packages(module: str) -> Iterator[str]:
    """Yields the packages around a module, and the module itself, from the outermost one on."""
    return itertools.accumulate(module.split("."), "{}.{}".format)


def _defines(module: str, name: str) -> bool:
    """Whether the source of a module that is not imported binds a name.

    A process that has imported the module comes to the same answer. It is not imported for this: it is a file that
    chooses the module.
    """
    top, *inner = _packages(module)
    path, loader = getattr(sys.modules.get(top), "__path__", ()), None
    for package in inner:
        spec = PathFinder.find_spec(package, path)
        if spec is None:
            return False
        path, loader = spec.submodule_search_locations or (), spec.loader
    try:
        symbol = symtable.symtable(cast("Any", loader).get_source(module), module, "exec").lookup(name)
    except KeyError:
        return False
    # A module without a loader or a source, one whose source is gone, and one that is not of this version of Python.
    except (AttributeError, ImportError, SyntaxError, TypeError, ValueError):
        return True
    return symbol.is_assigned() or symbol.is_imported()


def show(description: Description) -> str:
    """Formats a description for an error.

    >>> show(describe((3, 3))), show(describe(len)), show(describe([]))
    ('(3, 3)', 'len', 'list')
    """
    if isinstance(description, str):
        return description
    code = [f"code {description['code'].split(' ')[-1]}"] if "code" in description else []
    parts = [f"{name}={show(part)}" for name, part in description.get("parts", {}).items()]
    inside = ", ".join(code + parts)
    name = description["name"]
    if (value := _value_named(name)) is not _NOTHING:
        # By the outermost package that offers the object: users know `weft.Linear`, and not where it is defined.
        module, _, qualname = name.partition(":")
        named = (f"{package}:{qualname}" for package in _packages(module))
        name = next(each for each in named if _value_named(each) is value)
    return name.removeprefix("builtins:") + (f"({inside})" if inside else "")
