"""RNN and Bidirectional: a recurrent cell run over sequences, padded ones too.

At masked steps the carry stays as it is and the output is zero. So each padded sequence ends with the carry of its own
last step, and a reversed run effectively starts there: no sequence has to be flipped, and each output has the position
of its input.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack, overload

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key
from weft.core.caches import cached_by
from weft.core.errors import AxisError, SuccessorError
from weft.core.interpreter.rides import Carry as CARRY
from weft.core.records.module import Module, static
from weft.core.records.successors import refuse_pair
from weft.modules.calling import call_layer, check_call_key, takes_key
from weft.modules.construct import ConfigError
from weft.modules.dtypes import in_policy
from weft.modules.explicit import is_divided, settled
from weft.transforms.scanning import scan

Carry = TypeVar("Carry")


class SequenceOptions(TypedDict, total=False):
    """The keyword arguments of a call over sequences."""

    initial_carry: Any
    lengths: Array | None
    mask: Array | None
    key: Array | None


class RNN(Module, Generic[Carry]):  # weft: skip(of any cell)
    """A recurrent cell run over a sequence: `ys = rnn(xs)`.

    Args:
        cell: such as `GRUCell`: a record with `carry, y = cell(carry, x)` and `initial_carry(x)`.
        reverse: whether to go from the last step to the first. Each output still has the position of its input.
        time_axis: the axis of steps; by default the last but one. 0 for time-major sequences.
        unroll: how many steps to lay out in one iteration of the compiled loop; True for all.

    >>> from weft.modules import GRUCell
    >>> rnn = RNN(GRUCell(3, 4, key=jax.random.key(0)))
    >>> rnn(jnp.ones((2, 5, 3))).shape
    (2, 5, 4)
    >>> carry, ys = rnn(jnp.ones((2, 5, 3)), lengths=jnp.array([2, 5]), return_carry=True)
    >>> bool((carry[0] == ys[0, 1]).all()), ys[0, 2:].any().item()
    (True, False)
    """

    cell: Callable[..., tuple[Carry, Any]]
    reverse: bool = static()
    time_axis: int = static()
    unroll: int | bool = static()

    def __init__(
        self,
        cell: Callable[[Any, Any], tuple[Carry, Any]],
        *,
        reverse: bool = False,
        time_axis: int = -2,
        unroll: int | bool = 1,
    ):
        self.cell, self.reverse, self.time_axis, self.unroll = cell, reverse, time_axis, unroll

    @overload
    def __call__(
        self, x: Array, *, return_carry: Literal[True], reverse: bool | None = None, **options: Unpack[SequenceOptions]
    ) -> tuple[Carry, Any]: ...
    @overload
    def __call__(
        self,
        x: Array,
        *,
        return_carry: Literal[False] = False,
        reverse: bool | None = None,
        **options: Unpack[SequenceOptions],
    ) -> Any: ...
    def __call__(
        self,
        x: Float[Array, "..."],
        *,
        initial_carry: Any = None,
        lengths: Int[Array, "*batch"] | None = None,
        mask: Bool[Array, "..."] | None = None,
        return_carry: bool = False,
        reverse: bool | None = None,
        key: Key[Array, ""] | None = None,
    ) -> Any:
        """Runs the cell over a sequence.

        Args:
            x: the inputs, `(*batch, time, features)` where the time axis is the last but one.
            initial_carry: what the first step is given; by default the cell's own.
            lengths: how many steps of each sequence there are, from its start; the rest is padding.
            mask: which steps there are, in place of lengths: the axes of `x` without its features.
            return_carry: whether to return the carry after the last step, too.
            reverse: this call's direction, if it is not the record's own.
            key: a typed key, split among the steps, for a cell whose call has a `key` argument.

        Returns:
            The outputs of all steps; or `(carry, outputs)`.

        Raises:
            AxisError: if there is no time axis, or lengths or mask are not of this batch.
            ConfigError: if there are both lengths and a mask.
            SuccessorError: if the cell is stateful in more than its carry.
        """
        check_call_key(key, "RNN")
        refuse_pair(x, "RNN")
        axis = _axis(x, self.time_axis)
        # Lengths become a mask, so that one rule holds for both directions and any padding.
        mask = _mask(x, axis, lengths, mask)
        cell: Any = self.cell

        def first(array: Any) -> Any:
            if array is None:
                return None
            # A sequence without steps has no first one, and the shape and dtype of a step all the same.
            if array.shape[axis] == 0:
                return jnp.zeros((*array.shape[:axis], *array.shape[axis + 1 :]), array.dtype)
            return jax.lax.index_in_dim(array, 0, axis, keepdims=False)

        if initial_carry is None:
            initial_carry = cell.initial_carry(first(x))
        # One key a step: with one key for all, a cell with dropout would drop the same features at each step.
        keys = jax.random.split(key, x.shape[axis]) if key is not None and takes_key(cell) else None
        # On an explicit mesh the sharding is part of the carry's type, and a scan refuses a carry whose type changes.
        if is_divided(*jax.tree.leaves((cell, initial_carry, x))):
            first_key = None if keys is None else keys[0]
            initial_carry = settled(
                initial_carry, lambda carry: _step(cell, carry, first(x), first(mask), first_key)[0]
            )
        run = _scan(axis, self.reverse if reverse is None else reverse, self.unroll)
        carry, y = run(cell, in_policy(initial_carry), x, mask, keys)
        return (carry, y) if return_carry else y


# Typed, because `unroll=True` means all steps and `unroll=1` one, although `1 == True`.
@cached_by("options", most=64, typed=True)
def _scan(axis: int, reverse: bool, unroll: int | bool) -> Any:
    # One function for all cells: JAX caches compiled scans by the identity of their body, so a new closure for each
    # call would be compiled at each eager call.
    axes = {"in_axes": (None, CARRY, axis, axis, 0), "out_axes": (CARRY, axis)}
    return scan(_step, reverse=reverse, unroll=unroll, **axes)


def _step(cell: Any, carry: Any, x: Any, mask: Any, key: Any) -> tuple[Any, Any]:
    if mask is not None:
        # Padding may be NaN. The output is selected away below, but the gradient of a select multiplies NaN by zero.
        x = _where(mask, x, jnp.zeros_like(x))
    options = {} if key is None else {"key": key}
    value, successor = call_layer(cell, "RNN.cell", carry, x, **options)
    if successor is not None:
        raise SuccessorError(
            f"a {type(cell).__qualname__} returns a successor, and RNN would lose it",
            at="RNN.cell",
            fix="keep what changes in the carry, which goes from step to step",
        )
    after, y = value
    if mask is None:
        return after, y
    after = jax.tree.map(lambda new, old: _where(mask, new, old), after, carry)
    return after, jax.tree.map(lambda leaf: _where(mask, leaf, jnp.zeros_like(leaf)), y)


def _where(mask: Any, yes: Any, no: Any) -> Any:
    return jnp.where(jnp.expand_dims(mask, range(mask.ndim, yes.ndim)), yes, no)


def _axis(x: Any, time_axis: int) -> int:
    if not -x.ndim <= time_axis < x.ndim or x.ndim < 2:
        raise AxisError(
            "a sequence needs an axis of steps and one of features", at=f"x: {jax.typeof(x)}, time_axis: {time_axis}"
        )
    return range(x.ndim)[time_axis]


def _mask(x: Any, axis: int, lengths: Any, mask: Any) -> Any:
    if lengths is not None:
        if mask is not None:
            raise ConfigError("both lengths and a mask were passed", fix="pass one of them: each tells the valid steps")
        lengths, batch = jnp.asarray(lengths), (*x.shape[:axis], *x.shape[axis + 1 : -1])
        if lengths.shape != batch:
            raise AxisError(
                "lengths must have the shape of the batch, one length for each sequence",
                at=f"lengths: {lengths.shape}, batch: {batch}",
            )
        steps = jnp.expand_dims(jnp.arange(x.shape[axis]), [i for i in range(x.ndim - 1) if i != axis])
        return steps < jnp.expand_dims(lengths, axis)
    if mask is not None and mask.shape != x.shape[:-1]:
        raise AxisError(
            "the mask of a sequence must have all its axes but the features",
            at=f"mask: {mask.shape}, x: {jax.typeof(x)}",
        )
    return mask


def _concatenated(forward: Any, backward: Any) -> Any:
    return jnp.concatenate([forward, backward], axis=-1)


class Bidirectional(Module):  # weft: skip(of any cells)
    """Two recurrent networks over a sequence, one in each direction.

    Args:
        forward: an `RNN`, which is run from the first step.
        backward: another, with parameters of its own, which is run from the last.
        merge: combines the two outputs; by default it concatenates them.

    Raises:
        ConfigError: if the two networks are one record.

    >>> from weft.modules import GRUCell
    >>> first, second = jax.random.split(jax.random.key(0))
    >>> both = Bidirectional(RNN(GRUCell(3, 4, key=first)), RNN(GRUCell(3, 4, key=second)))
    >>> both(jnp.ones((2, 5, 3))).shape
    (2, 5, 8)

    Source: Schuster and Paliwal, "Bidirectional Recurrent Neural Networks", 1997.
    """

    forward: RNN[Any]
    backward: RNN[Any]
    merge: Callable[[Any, Any], Any] = static()

    def __init__(self, forward: RNN[Any], backward: RNN[Any], *, merge: Callable[[Any, Any], Any] = _concatenated):
        # The two directions would train one set of parameters, which is hardly ever meant.
        if forward is backward:
            raise ConfigError(
                "Bidirectional needs two networks, and got the same one twice", fix="make them from two keys"
            )
        self.forward, self.backward, self.merge = forward, backward, merge

    @overload
    def __call__(
        self, x: Array, *, return_carry: Literal[True], **options: Unpack[SequenceOptions]
    ) -> tuple[tuple[Any, Any], Any]: ...
    @overload
    def __call__(
        self, x: Array, *, return_carry: Literal[False] = False, **options: Unpack[SequenceOptions]
    ) -> Any: ...
    def __call__(
        self,
        x: Float[Array, "..."],
        *,
        initial_carry: tuple[Any, Any] | None = None,
        lengths: Int[Array, "*batch"] | None = None,
        mask: Bool[Array, "..."] | None = None,
        return_carry: bool = False,
        key: Key[Array, ""] | None = None,
    ) -> Any:
        """Runs both.

        Args:
            x: the inputs, as in `RNN`.
            initial_carry: what their first steps are given: one for each.
            lengths, mask: which steps there are, as in `RNN`.
            return_carry: whether to give the pair of their carries as well.
            key: a typed key, for cells whose call has a `key` argument.

        Returns:
            The outputs, merged; or `(carries, outputs)`.
        """
        check_call_key(key, "Bidirectional")
        carries = (None, None) if initial_carry is None else initial_carry
        keys = (None, None) if key is None else jax.random.split(key)
        ends, outputs = [], []
        for rnn, carry, own, reverse in zip((self.forward, self.backward), carries, keys, (False, True), strict=True):
            options = {"initial_carry": carry, "lengths": lengths, "mask": mask, "reverse": reverse, "key": own}
            end, y = rnn(x, return_carry=True, **options)
            ends.append(end)
            outputs.append(y)
        merged = jax.tree.map(self.merge, *outputs)
        return ((ends[0], ends[1]), merged) if return_carry else merged
