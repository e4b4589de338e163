"""Policy: mixed precision; one record with the dtypes of parameters, computation and results.

    policy = weft.Policy(param=jnp.float32, compute=jnp.bfloat16, output=jnp.float32)
    (value, new), grad = weft.value_and_grad(policy(loss), has_aux=True)(model, x, y)

The function under a policy casts its arguments, so outside of it parameters keep their dtype (the *master* parameters),
and gradients have that dtype, too. A returned record with the structure of an argument is a successor, and gets the
dtypes of that argument. Unchanged parameters in it are the master parameters themselves, and statistics, caches and
keys are never cast, so nothing is rounded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self, TypeVar, overload

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from weft.core.edge import trees
from weft.core.edge.contexts import compute_context
from weft.core.records.kinds import FrozenParam, Param
from weft.core.records.leaves import Leaf, is_array, iter_leaves
from weft.core.records.module import Module, static
from weft.modules.calling import Combinator, L_co, call_layer, key_option
from weft.modules.construct import ConfigError, option_dtype
from weft.modules.dtypes import is_of
from weft.modules.learning import tree as trees_by_filter

R = TypeVar("R", bound=eqx.Module)
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Policy(Module):
    """Mixed precision: `policy(loss)` computes the loss in another precision, `policy(model)` the model.

    Inside of the function, parameters and floating-point arguments have the dtype `compute`, and so have the results of
    all layers, whatever they are given; only a layer with a `dtype` of its own computes in that. Products that you
    write yourself promote like all of JAX's. Without `compute` a policy casts what the other two say, if anything.

    Args:
        param: the dtype of the parameters of a model that the policy is applied to; float32 if there is a `compute`.
        compute: the dtype to compute in; by default nothing is cast.
        output: the dtype of floating-point results; float32 if there is a `compute`. Records that come back keep their
            own.

    Raises:
        ConfigError: for a dtype that is not floating-point.

    >>> policy = Policy(compute=jnp.bfloat16)
    >>> model = Linear(3, 2, key=jax.random.key(0))
    >>> def apply(model, x):
    ...     print("computes in", model(x).dtype)
    ...     return model(x)
    >>> policy(apply)(model, jnp.ones(3)).dtype, policy(model)(jnp.ones(3)).dtype
    computes in bfloat16
    (dtype('float32'), dtype('float32'))

    Source: Micikevicius et al., "Mixed Precision Training", 2018.
    """

    param: Any = static()
    compute: Any = static()
    output: Any = static()

    def __init__(
        self, param: DTypeLike | None = None, compute: DTypeLike | None = None, output: DTypeLike | None = None
    ):
        default = None if compute is None else jnp.float32
        self.param, self.compute, self.output = map(_floating, (param or default, compute, output or default))

    @overload
    def __call__(self, target: R, /) -> UnderPolicy[R]: ...
    @overload
    def __call__(self, target: F, /) -> F: ...
    def __call__(self, target: Any, /) -> Any:
        """Applies the policy.

        Args:
            target: a function, or a record that can be called.

        Returns:
            The function, computing in the policy's dtypes; of a record a layer that is called like it, and holds it
            with its parameters in the dtype `param`.
        """
        # Records are callable too, so they are told apart before functions.
        if isinstance(target, eqx.Module):
            return UnderPolicy(self.cast_params(target), self)

        @functools.wraps(target)
        def computed(*args: Any, **kwargs: Any) -> Any:
            return self._computed(target, args, kwargs)

        return computed

    def cast_params(self, model: T) -> T:
        """A model with its parameters in the dtype `param`.

        >>> import jax
        >>> from weft import Linear, Policy
        >>> half = Policy(param=jnp.bfloat16).cast_params(Linear(2, 1, key=jax.random.key(0)))
        >>> str(half.kernel.dtype)
        'bfloat16'
        """
        return model if self.param is None else trees_by_filter.cast(model, self.param)

    def _computed(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = (args, kwargs)
        if self.compute is None:
            low, out = arguments, function(*args, **kwargs)
        else:
            low = trees_by_filter.cast(arguments, self.compute)
            with compute_context(self.compute.name):
                out = function(*low[0], **low[1])
        return _Return(arguments, low, self.output).of(out)


class UnderPolicy(Combinator[L_co]):
    """A layer that computes in the dtypes of a policy; made by calling the policy with it. It is called like the layer.

    Attributes:
        layer: the record, with parameters in the dtype `param`.
        policy: the policy.
    """

    __stands_for__ = "layer"

    layer: L_co
    policy: Policy

    def _run(self, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> tuple[Any, Self | None]:
        def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
            return call_layer(layer, "UnderPolicy.layer", *args, **kwargs)

        layer: Any = self.layer
        options = {**kwargs, **key_option(layer, key)}
        value, successor = self.policy(call)(layer, x, *args, **options)
        if successor is None:
            return value, None
        return value, self if successor is layer else self.replace(layer=successor)


class _CastRecord(NamedTuple):
    """The leaves of a record among the arguments, before and after the cast."""

    originals: list[Any]
    casts: list[Any]

    def shares(self, leaves: list[Any]) -> int:
        """Returns how many leaves of another record are those of this one, unchanged."""
        return sum(now is was for now, was in zip(leaves, self.casts, strict=True))


class _Return:
    """Restores dtypes in the result of a function whose arguments were cast.

    Args:
        arguments: the arguments.
        low: the same, cast.
        output: the dtype of results.
    """

    def __init__(self, arguments: Any, low: Any, output: Any):
        self.output = output
        # From each cast array to its original, by identity: a parameter that comes out unchanged is the master, and not
        # a cast of its cast.
        self.low = low  # alive, so that the ids stay those of its arrays
        self.original_of = {id(b): a for a, b in zip(jax.tree.leaves(arguments), jax.tree.leaves(low), strict=True)}
        self.records: dict[Any, list[_CastRecord]] = {}
        for before, after in zip(_records(arguments), _records(low), strict=True):
            record = _CastRecord(jax.tree.leaves(before), jax.tree.leaves(after))
            self.records.setdefault(trees.structure(before), []).append(record)

    def of(self, out: Any) -> Any:
        """Returns the result with all dtypes restored."""
        # Walked along with the nodes: each node takes as many leaves as lie in it.
        leaves = iter_leaves(out)
        values: list[Any] = []
        for node in trees.flatten(out, self._is_successor)[0]:
            if self._is_successor(node):
                own = [next(leaves).value for _ in jax.tree.leaves(node)]
                # Of several arguments of this structure, it succeeds the one with which it shares most arrays.
                argument = max(self.records[trees.structure(node)], key=lambda record: record.shares(own))
                values += map(self._successor_of, own, argument.originals)
            else:
                values.append(self._result(next(leaves)))
        return trees.structure(out).unflatten(values)

    def _is_successor(self, node: Any) -> bool:
        return isinstance(node, eqx.Module) and trees.structure(node) in self.records

    def _successor_of(self, now: Any, before: Any) -> Any:
        if id(now) in self.original_of:
            return self.original_of[id(now)]
        return _cast(now, before.dtype) if is_array(before) else now

    def _result(self, leaf: Leaf) -> Any:
        value = self.original_of.get(id(leaf.value), leaf.value)
        # A statistic returned by itself is state, and `output` would round it.
        is_state = bool(leaf.owners) and not issubclass(leaf.kind, (Param, FrozenParam))
        return value if is_state else _cast(value, self.output)


def _records(tree: Any) -> Iterator[eqx.Module]:
    """All records in a tree, outer ones first."""
    for node in jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, eqx.Module)):
        if isinstance(node, eqx.Module):
            yield node
            children = trees.children_of(node)
            yield from _records(None if children is None else tuple(children[0]))


def _cast(value: Any, dtype: Any) -> Any:
    # Integers, booleans and keys have no precision to choose.
    floating = dtype is not None and is_of(jnp.floating, value) and jnp.issubdtype(dtype, jnp.floating)
    return value.astype(dtype) if floating and value.dtype != dtype else value


def _floating(dtype: DTypeLike | None) -> Any:
    floating = option_dtype(dtype)
    if floating is not None and not jnp.issubdtype(floating, jnp.floating):
        raise ConfigError(f"the dtypes of a policy must be floating-point, not {floating.name}")
    return floating
