"""The kinds of Variables (`Param`, `BatchStat`, ...), and their registry by name.

The type of a Variable is the role of its value. Each type here is also a subclass of the core's kind of that name, so
`weft` filters match NNX Variables. The *name registry* maps the names of Linen's collections to types, one to one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from weft.core.records import kinds
from weft.nnx.errors import MISSING, Missing, StructureError
from weft.nnx.variable.variable import Variable

A = TypeVar("A")
VariableType = type[Variable[Any]]


class Param(Variable[A], kinds.Param):
    """A trainable parameter; an `Optimizer` with `wrt=nnx.Param` updates it.

    >>> from weft import nnx
    >>> list(nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Param))
    ['bias', 'kernel']
    """


class LoRAParam(Param[A], kinds.LoRAParam):
    """A parameter of a low-rank adapter (`LoRA`).

    >>> from weft import nnx
    >>> list(nnx.state(nnx.LoRA(2, 1, 3, rngs=nnx.Rngs(0)), nnx.LoRAParam))
    ['lora_a', 'lora_b']
    """


class BatchStat(Variable[A], kinds.BatchStat):
    """A running statistic of batch normalization (mean, variance).

    >>> from weft import nnx
    >>> list(nnx.state(nnx.BatchNorm(2, rngs=nnx.Rngs(0)), nnx.BatchStat))
    ['mean', 'var']
    """


class Cache(Variable[A], kinds.Cache):
    """Keys and values that attention caches between decoding steps.

    >>> from weft import nnx
    >>> attention = nnx.MultiHeadAttention(2, 4, decode=True, rngs=nnx.Rngs(0))
    >>> attention.init_cache((1, 3, 4))
    >>> list(nnx.state(attention, nnx.Cache))
    ['cache_index', 'cached_key', 'cached_value']
    """


class Intermediate(Variable[A], kinds.Intermediate):
    """An intermediate value that `Module.sow` recorded during a call.

    >>> from weft import nnx
    >>> class Double(nnx.Module):
    ...     def __call__(self, x):
    ...         self.sow(nnx.Intermediate, "seen", x)
    ...         return 2 * x
    >>> list(nnx.capture(Double(), nnx.Intermediate)(3)[1])
    ['seen']
    """


class Perturbation(Intermediate[A], kinds.Perturbation):
    """A zero that `Module.perturb` adds to an intermediate value: its gradient is the gradient of that value.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> class Double(nnx.Module):
    ...     def __call__(self, x):
    ...         return 2 * self.perturb("hidden", x)
    >>> list(nnx.capture(Double(), nnx.Perturbation)(jnp.ones(2))[1])
    ['hidden']
    """


class RngState(Variable[Any], kinds.RngState):
    """State of a random stream (its key or its count), tagged with the stream's name.

    >>> from weft import nnx
    >>> [path[-1] for path in nnx.to_flat_state(nnx.state(nnx.Rngs(0), nnx.RngState)).paths]
    ['count', 'key']
    """

    tag: str


class RngCount(RngState, kinds.RngCount):
    """The number of keys that a random stream has drawn.

    >>> from weft import nnx
    >>> rngs = nnx.Rngs(0)
    >>> key = rngs()
    >>> [count.get_value().item() for _, count in nnx.to_flat_state(nnx.state(rngs, nnx.RngCount))]
    [1]
    """


class RngKey(RngState, kinds.RngKey):
    """The base key of a random stream, from which it derives a key for each draw.

    >>> from weft import nnx
    >>> [key.tag for _, key in nnx.to_flat_state(nnx.state(nnx.Rngs(params=0, dropout=1), nnx.RngKey))]
    ['dropout', 'params']
    """


VariableTypeCache: dict[str, VariableType] = {}


def variable_type_from_name(
    name: str, /, *, base: VariableType = Variable, allow_register: bool = False
) -> VariableType:
    """Returns the Variable type that is registered under a name.

    Args:
        name: the name of a collection, such as `"params"`.
        base: the base class of a type that is made for a new name.
        allow_register: whether to make and register a type for a new name.

    Raises:
        ValueError: if the name is new and may not be registered.

    >>> variable_type_from_name("params").__name__
    'Param'
    """
    if name not in VariableTypeCache:
        if not allow_register:
            raise StructureError(
                f"no Variable type is registered under {name!r}",
                fix="register one with register_variable_name, or pass allow_register=True",
            )
        # Registered, so that all Variables of a collection have one type: filters and graph definitions go by it.
        VariableTypeCache[name] = cast(VariableType, type(base)(name, (base,), {}))
    return VariableTypeCache[name]


def variable_name_from_type(typ: VariableType, /, *, allow_register: bool = False) -> str:
    """Returns the name under which a Variable type is registered.

    Args:
        typ: the type.
        allow_register: whether to register a new type under its own name.

    Raises:
        ValueError: if the type is new and may not be registered, or another type has its name.

    >>> variable_name_from_type(BatchStat)
    'batch_stats'
    """
    # By identity: two libraries may define types of the same name.
    for name, registered in VariableTypeCache.items():
        if registered is typ:
            return name
    if not allow_register:
        raise StructureError(
            f"the type {getattr(typ, '__name__', typ)!s:.80} is registered under no name",
            fix="register it with register_variable_name, or pass allow_register=True",
        )
    register_variable_name(typ.__name__, typ)
    return typ.__name__


def register_variable_name(
    name: str, typ: VariableType | Missing = MISSING, *, overwrite: bool = False
) -> VariableType | Callable[[VariableType], VariableType]:
    """Registers a Variable type under a name; without a type, returns a decorator.

    Raises:
        ValueError: if another type has the name, unless `overwrite`.

    >>> @register_variable_name("memories")
    ... class Memory(Variable):
    ...     pass
    >>> variable_type_from_name("memories") is Memory
    True
    """
    if isinstance(typ, Missing):
        return cast(Any, functools.partial(register_variable_name, name, overwrite=overwrite))
    if name in VariableTypeCache and not overwrite:
        raise StructureError(
            f"Name {name!r} is already mapped to type {VariableTypeCache[name].__name__}",
            fix="pass overwrite=True to replace that type",
        )
    VariableTypeCache[name] = typ
    return typ


for _name, _type in {
    "params": Param,
    "batch_stats": BatchStat,
    "cache": Cache,
    "intermediates": Intermediate,
    "perturbations": Perturbation,
}.items():
    register_variable_name(_name, _type)
