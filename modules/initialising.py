"""init: constructs a model by one compiled program.

A constructor that runs eagerly dispatches several operations for each parameter, and puts all of them on one device. In
one program XLA draws each parameter directly into its sharding, so a model may be larger than the memory of a device.

The arguments of a constructor that are not arrays are *configuration*: Python reads sizes, flags and functions while it
builds the model, so they are static. `weft.jit` alone would trace the numbers among them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, TypeVar

import equinox as eqx
import jax
from weft.core.constants import constants_of
from weft.core.edge import trees
from weft.core.interpreter.prefixes import RidesByKind
from weft.core.interpreter.rides import is_sharding
from weft.core.logical_axes import rules_in_force
from weft.core.memory import Recent
from weft.core.paths import Path
from weft.core.records.leaves import is_array, iter_leaves
from weft.core.records.partition import Structure, check_hashable
from weft.core.records.storage import Bound
from weft.modules.construct import ConfigError, check_key
from weft.transforms.compilation import jit

T = TypeVar("T")

# Functions by a text of what they do. A lambda in a call to `init` is a new object at each call, and as a static
# argument it would be a cache miss each time.
_functions: Recent[Any, Any] = Recent(128, listed=(f"{__name__}._functions", "what a function reads"))


def init(
    make: Callable[..., T], /, *args: Any, key: Any = None, abstract: bool = False, shardings: Any = None, **kwargs: Any
) -> T:
    """Makes a model of any depth in one compiled program: `make(*args, key=key, **kwargs)`.

    A second call with the same configuration and shapes runs what the first has compiled. The numbers are those of the
    eager constructor, up to the rounding of what XLA fuses.

    Args:
        make: a class of records, or a function that makes a record. A function that closes over arrays, or over other
            values that may change, is compiled at each call.
        args: for `make`. Arrays in them are traced, all else is configuration and has to be hashable.
        key: a typed key, passed on as `key`; with `abstract=True` it may be left out.
        abstract: whether to compute nothing and return `jax.ShapeDtypeStruct`s for arrays, into which
            `load_checkpoint` can load. They have the shardings that were given.
        shardings: where arrays are made: a sharding, a tree prefix of the model with shardings, `weft.axes({filter:
            sharding})`, or a function that gives one of these for the abstract model; by default, inside of a block
            of `weft.axis_rules`, what its rules say. With a function or a tree of records, and in a block, it is
            compiled at each call.
        kwargs: for `make`, by name.

    Returns:
        The result of `make`, with its arrays on devices.

    Raises:
        SeedError: if the key is not a typed key.
        StaticError: if configuration cannot be hashed, naming its place.
        AxisError: if shardings do not fit the model, naming paths.

    >>> from weft.modules import MLP
    >>> mlp = init(MLP, 4, 32, 2, key=jax.random.key(0))
    >>> mlp(jax.numpy.ones((8, 4))).shape
    (8, 2)
    >>> init(MLP, 4, 32, 2, abstract=True).layers[0].kernel
    ShapeDtypeStruct(shape=(4, 32), dtype=float32)
    """
    if not callable(make):
        raise ConfigError(
            f"init takes a class or function that makes a model, not a {type(make).__name__}",
            fix="init(Model, ..., key=key)",
        )
    key = _key_for(make, key, abstract)
    if shardings is None and (rules := rules_in_force()) is not None:
        shardings = rules.shardings
    is_tree = shardings is None or is_sharding(shardings) or isinstance(shardings, RidesByKind | eqx.Module)
    # The abstract model costs one trace and no memory, and has the paths and shapes that such a function needs.
    if not is_tree and callable(shardings):
        shardings = shardings(_made(make, args, kwargs, key, None, abstract=True))
    return _made(make, args, kwargs, key, shardings, abstract=abstract)


def _made(
    make: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any], key: Any, shardings: Any, *, abstract: bool
) -> T:
    constants: list[Any] = [_by_text(make)]
    arguments = tuple(_bound(argument, ("args", i), constants) for i, argument in enumerate(args))
    named = {name: _bound(argument, (name,), constants) for name, argument in kwargs.items()}
    if key is not None:
        named["key"] = key
    # JAX's cache keeps a compiled program with its function and its static arguments. If those may hold arrays, which
    # would stay in memory for ever, a new function is compiled, and freed after this call.
    function = constants[0] if None not in constants else lambda *args, **kwargs: make(*args, **kwargs)
    compiled = jit(function, out_shardings=shardings)
    return compiled.eval_shape(*arguments, **named) if abstract else compiled(*arguments, **named)


def _key_for(make: Callable[..., Any], key: Any, abstract: bool) -> Any:
    """Returns the key that was given; for an abstract model without a key, the shape of one."""
    if key is not None:
        check_key(key, getattr(make, "__name__", "init"))
        return key
    parameters = inspect.signature(make).parameters if abstract else {}
    takes_key = "key" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return jax.eval_shape(lambda: jax.random.key(0)) if takes_key else None


def _bound(argument: Any, path: Path, constants: list[Any]) -> Bound:
    """Makes an argument whose structure holds its configuration, as `_by_text` has it; adds this to `constants`."""
    leaves = list(iter_leaves(argument, path))
    shared = {i: _by_text(leaf.value) for i, leaf in enumerate(leaves) if not is_array(leaf.value)}
    constants += shared.values()
    values = {i: leaves[i].value if value is None else value for i, value in shared.items()}
    treedef = trees.structure(argument)
    # Checked here, where the path is known: JAX's error would not say which argument it is about.
    check_hashable(treedef, [(leaves[i].path, value) for i, value in values.items()])
    statics = tuple((i, type(value), value) for i, value in values.items())
    arrays = tuple(leaf.value for i, leaf in enumerate(leaves) if i not in shared)
    return Bound(Structure(treedef, statics, tuple(leaf.path for leaf in leaves)), arrays)


def _by_text(value: Any) -> Any:
    """Returns for a function the first one seen with its text; None for a function that may not be kept alive."""
    if not isinstance(value, FunctionType | MethodType | functools.partial):
        return value
    text = constants_of(value, lasting=True)
    return None if text is None else _functions.get(text) or _functions.add(text, value)
