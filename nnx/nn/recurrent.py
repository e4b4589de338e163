"""`RNN` and `Bidirectional`: run recurrent cells over sequences, with or without padding. Cells are re-exported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType as MappingProxyType  # libraries replace this name of flax's module
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from weft.core.caches import cached_by
from weft.core.errors import AxisError
from weft.core.records.keys import SeedError
from weft.modules import ops
from weft.modules.construct import ConfigError
from weft.modules.explicit import is_divided, on_mesh_of, spec_of
from weft.nnx.modules.module import Module
from weft.nnx.nn.affine import default_bias_init as default_bias_init
from weft.nnx.nn.affine import default_kernel_init as default_kernel_init
from weft.nnx.nn.cell_base import Carry, RNNCellBase
from weft.nnx.nn.cells import GRUCell, LSTMCell, OptimizedLSTMCell, SimpleCell
from weft.nnx.nn.cells import modified_orthogonal as modified_orthogonal
from weft.nnx.objects.attributes import HashableMapping, data
from weft.nnx.states.filters import All, Filter
from weft.nnx.streams.rng_transforms import split_rngs
from weft.nnx.streams.rngs import Rngs, RngStream
from weft.nnx.transforms import iteration
from weft.nnx.transforms.iteration import StateAxes
from weft.nnx.types import Dtype as Dtype
from weft.nnx.types import Initializer as Initializer
from weft.nnx.types import Shape as Shape
from weft.nnx.variable.kinds import RngState

__all__ = [
    "RNN",
    "Bidirectional",
    "GRUCell",
    "LSTMCell",
    "OptimizedLSTMCell",
    "RNNCellBase",
    "SimpleCell",
]

Array = jax.Array
Output = Any
_log = logging.getLogger(__name__)
# Hashable, because it is an attribute of `RNN` and a part of the key of cached loops.
_CARRIED = HashableMapping({...: iteration.Carry})


class RNN(Module):
    """Runs a recurrent cell over a sequence: `ys = rnn(xs)`.

    Args:
        cell: a recurrent cell, such as `GRUCell`; see `RNNCellBase`.
        time_major: whether inputs are `(time, *batch, features)`, and not `(*batch, time, features)`.
        return_carry: whether calls return `(carry, outputs)`.
        reverse: whether to run from the last step to the first; outputs are then in this order, too.
        keep_order: with `reverse`, whether to return the outputs in the order of the inputs.
        unroll: the number of steps in an iteration of the compiled loop, as in `jax.lax.scan`.
        state_axes: an axis or `Carry` by filter for the cell's Variables, as in `nnx.scan`; `Carry` by default.
        broadcast_rngs: a filter for streams that draw the same key at each step of a call, for recurrent dropout.
        rngs: the source of the initial carry: `Rngs`, of whose stream `carry` a fork is stored; True for a stream of
            seed 0; False for none, so that each call must pass a carry or streams.

    Raises:
        ValueError: if `rngs` is anything else.

    >>> from weft import nnx
    >>> rnn = RNN(GRUCell(3, 4, rngs=nnx.Rngs(0)), return_carry=True)
    >>> carry, ys = rnn(jnp.ones((2, 5, 3)), seq_lengths=jnp.array([2, 5]))
    >>> ys.shape, bool((carry[0] == ys[0, 1]).all())
    ((2, 5, 4), True)
    """

    state_axes: Mapping[Any, Any] | StateAxes

    def __init__(
        self,
        cell: RNNCellBase,
        *,
        time_major: bool = False,
        return_carry: bool = False,
        reverse: bool = False,
        keep_order: bool = False,
        unroll: int = 1,
        state_axes: Mapping[Any, Any] | StateAxes | None = None,
        broadcast_rngs: Filter = None,
        rngs: Rngs | RngStream | bool = True,
    ):
        self.cell = cell
        self.time_major = time_major
        self.return_carry = return_carry
        self.reverse = reverse
        self.keep_order = keep_order
        self.unroll = unroll
        if not isinstance(rngs, bool | Rngs | RngStream):
            raise ConfigError(
                "Expected rngs to be Rngs or a stream: "
                f"RNN draws its initial carry from Rngs or a stream, got a {type(rngs).__name__}",
                fix="pass rngs=nnx.Rngs(seed), or a bool",
            )
        self.rngs: RngStream | None = data(None) if rngs is False else _own_stream(rngs)
        # By default everything in the cell is carried: each step sees what the step before it has written.
        state_axes = state_axes or _CARRIED
        self.state_axes = state_axes if isinstance(state_axes, StateAxes) else HashableMapping(state_axes)
        self.broadcast_rngs = ops.hashable(broadcast_rngs)

    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: Carry | None = None,
        seq_lengths: jax.Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: Rngs | RngStream | None = None,
    ) -> Any:
        """Runs the cell over a sequence.

        Args:
            inputs: `(*batch, time, *features)`, or `(time, *batch, *features)` with `time_major`.
            initial_carry: the carry of the first step; by default that of the cell's `initialize_carry`.
            seq_lengths: the number of steps of each sequence, `(*batch,)`; the rest is padding. The returned carry is
                then that after the last step of each sequence.
            return_carry, time_major, reverse, keep_order: override the layer's options for this call.
            rngs: the source of the initial carry for this call.

        Returns:
            The outputs of all steps, `(*batch, time, *features)`, or `(carry, outputs)`.

        Raises:
            ValueError: if the inputs have no time axis.
        """
        return_carry = self.return_carry if return_carry is None else return_carry
        time_major = self.time_major if time_major is None else time_major
        reverse = self.reverse if reverse is None else reverse
        keep_order = self.keep_order if keep_order is None else keep_order
        # At least 0, so that an input with too few axes reaches the error below.
        batch = max(inputs.ndim - 1 - self.cell.num_feature_axes, 0)
        time_axis = 0 if time_major else batch
        if inputs.ndim <= time_axis:
            raise AxisError("the inputs of an RNN need a time axis", at=f"inputs: {jax.typeof(inputs)}")
        if reverse:
            inputs = flip_sequences(inputs, seq_lengths, batch, time_major)
        stream: Any = self.rngs if rngs is None else rngs
        if isinstance(stream, Rngs):
            # Forked, so that running a sequence draws one key from the caller's stream, however many arrays a cell's
            # carry has.
            stream = stream.carry.fork()
        if initial_carry is None:
            initial_carry = _first_carry(self.cell, inputs, time_axis, batch, stream)
        # The loop's last carry has run through the padding. So the carries of all steps are stacked, and the one after
        # each sequence's last step is selected below.
        history = return_carry and seq_lengths is not None
        own_axes = self.state_axes != _CARRIED or not isinstance(self.broadcast_rngs, str | None)
        # Loops with a user's filters are not cached: a filter may be an unhashable object.
        run = (_loop if own_axes else _cached_loop)(
            time_axis, history, self.unroll, self.state_axes, self.broadcast_rngs
        )
        carry, outputs = run(self.cell, initial_carry, inputs)
        if history:
            carries, outputs = outputs
            carry = jax.tree.map(lambda leaf: ops.last_step(leaf, jnp.asarray(seq_lengths)), carries)
        if reverse and keep_order:
            outputs = jax.tree.map(lambda leaf: flip_sequences(leaf, seq_lengths, batch, time_major), outputs)
        return (carry, outputs) if return_carry else outputs


def _first_carry(cell: RNNCellBase, inputs: jax.Array, time_axis: int, batch: int, stream: Any) -> Carry:
    """Makes the cell's initial carry, sharded over the batch as the inputs are."""
    carry = cell.initialize_carry(inputs.shape[:time_axis] + inputs.shape[time_axis + 1 :], stream)
    # Without explicit sharding, XLA chooses the layout of the carry.
    if not is_divided(inputs):
        return carry
    along = [entry for axis, entry in enumerate(spec_of(inputs)) if axis != time_axis][:batch]
    return jax.tree.map(lambda leaf: jax.sharding.reshard(leaf, on_mesh_of(along, inputs)), carry)


def _own_stream(rngs: Any) -> RngStream:
    if rngs is True:
        # A constant seed, as in flax. Cells draw a key for each carry, but by default their initial carries are zeros.
        return RngStream(0, tag="carry")
    return (rngs.carry if isinstance(rngs, Rngs) else rngs).fork()


def _loop(time_axis: int, history: bool, unroll: int, state_axes: Any, broadcast: Any) -> Callable[..., Any]:
    """Makes the loop `carry, outputs = run(cell, carry, inputs)`; with `history`, outputs are `(carries, outputs)`."""
    # Broadcast streams come first, because the first filter that matches a Variable counts.
    state_axes = state_axes if isinstance(state_axes, StateAxes) else StateAxes(state_axes)
    axes = StateAxes([(All(RngState, broadcast), None), *state_axes.rides])
    run = iteration.scan(
        _step_with_history if history else _step,
        in_axes=(axes, iteration.Carry, time_axis),
        out_axes=(iteration.Carry, (0, time_axis) if history else time_axis),
        unroll=unroll,
        graph=True,
        graph_updates=True,
    )
    # `split_rngs` draws a new key for each call, which all steps then share.
    return run if broadcast is None else split_rngs(splits=1, only=broadcast, squeeze=True)(run)


# One loop for all cells with equal options: outside `jit`, each new loop function would be compiled.
_cached_loop = cached_by("options", most=64, typed=True)(_loop)


def _step(cell: Any, carry: Any, x: Any) -> tuple[Any, Any]:
    return cell(carry, x)


def _step_with_history(cell: Any, carry: Any, x: Any) -> tuple[Any, Any]:
    carry, y = cell(carry, x)
    # The carry goes out twice: as the loop's carry, and stacked, for the carry after each sequence's own last step.
    return carry, (carry, y)


def flip_sequences(
    inputs: jax.Array, seq_lengths: jax.Array | None, num_batch_dims: int, time_major: bool
) -> jax.Array:
    """Reverses padded sequences. The padding, reversed too, stays at the end.

    Args:
        inputs: `(*batch, time, ...)`, or `(time, *batch, ...)` with `time_major`.
        seq_lengths: the number of steps of each sequence, `(*batch,)`; None for all steps.
        num_batch_dims: the number of batch axes.
        time_major: whether the time axis is the first axis.

    >>> flip_sequences(jnp.array([[1, 0, 0], [2, 3, 0]]), jnp.array([1, 2]), 1, False).tolist()
    [[1, 0, 0], [3, 2, 0]]
    """
    lengths = None if seq_lengths is None else jnp.asarray(seq_lengths)
    return ops.flip_sequences(inputs, lengths, time_axis=0 if time_major else num_batch_dims)


def _concatenate(a: jax.Array, b: jax.Array) -> jax.Array:
    """Concatenates two arrays along the last axis."""
    return jnp.concatenate([a, b], axis=-1)


class RNNBase(Protocol):
    """The call signature of the networks of `Bidirectional`, which `RNN` has."""

    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: Carry | None = None,
        rngs: Rngs | RngStream | None = None,
        seq_lengths: jax.Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
    ) -> Any:
        """As in `RNN`."""
        ...


class Bidirectional(Module):
    """Runs two recurrent networks over a sequence, one in each direction.

    Args:
        forward_rnn: the network that runs from the first step.
        backward_rnn: the network that runs from the last step; its outputs are returned in the order of the inputs.
        merge_fn: merges the outputs of both; by default concatenates the features.
        time_major: as in `RNN`, for both networks.
        return_carry: whether calls return `((carry, carry), outputs)`.
        rngs: the source of the initial carries: `Rngs`, of whose stream `carry` a fork is stored; a stream, which is
            stored itself; True for a stream of seed 0; False for the sources of the two networks.

    Raises:
        TypeError: if `rngs` is anything else.

    >>> from weft import nnx
    >>> both = Bidirectional(*(RNN(GRUCell(3, 4, rngs=nnx.Rngs(seed))) for seed in (0, 1)))
    >>> both(jnp.ones((2, 5, 3))).shape
    (2, 5, 8)

    Source: Schuster and Paliwal, "Bidirectional Recurrent Neural Networks", 1997.
    """

    forward_rnn: RNNBase
    backward_rnn: RNNBase
    merge_fn: Callable[[jax.Array, jax.Array], jax.Array] = _concatenate
    time_major: bool = False
    return_carry: bool = False

    def __init__(
        self,
        forward_rnn: RNNBase,
        backward_rnn: RNNBase,
        *,
        merge_fn: Callable[[jax.Array, jax.Array], jax.Array] = _concatenate,
        time_major: bool = False,
        return_carry: bool = False,
        rngs: Rngs | RngStream | bool = True,
    ):
        self.forward_rnn = forward_rnn
        self.backward_rnn = backward_rnn
        self.merge_fn = merge_fn
        self.time_major = time_major
        self.return_carry = return_carry
        if not isinstance(rngs, bool | Rngs | RngStream):
            raise SeedError(
                f"Bidirectional draws its initial carries from Rngs or a stream, got a {type(rngs).__name__}",
                fix="pass rngs=nnx.Rngs(seed), or a bool",
            )
        self.rngs: RngStream | None = (
            None if rngs is False else rngs if isinstance(rngs, RngStream) else _own_stream(rngs)
        )

    def __call__(
        self,
        inputs: jax.Array,
        *,
        initial_carry: tuple[Carry, Carry] | None = None,
        rngs: Rngs | RngStream | None = None,
        seq_lengths: jax.Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
    ) -> Any:
        """Runs both networks.

        Args:
            inputs, seq_lengths: as in `RNN`.
            initial_carry: the initial carries of both networks.
            return_carry, time_major: override the layer's options for this call.
            rngs: the source of the initial carries for this call.
            reverse, keep_order: are ignored; they make the signature that of an `RNN`.

        Returns:
            The merged outputs, or `((forward carry, backward carry), outputs)`.
        """
        if self.forward_rnn is self.backward_rnn:
            # A log entry and not an error: sharing the parameters of both directions may be what the user wants.
            _log.warning("forward_rnn and backward_rnn are the same object, so they share their parameters")
        stream: Any = self.rngs if rngs is None else rngs
        shared: dict[str, Any] = {
            "rngs": stream.carry if isinstance(stream, Rngs) else stream,
            "seq_lengths": seq_lengths,
            "time_major": self.time_major if time_major is None else time_major,
            # Asked for in any case: both networks then return pairs, whatever their own `return_carry` says.
            "return_carry": True,
        }
        first, second = (None, None) if initial_carry is None else initial_carry
        forward, forward_outputs = self.forward_rnn(inputs, initial_carry=first, reverse=False, **shared)
        # `keep_order` puts the outputs of the reversed run back in the order of the inputs, so `merge_fn` joins outputs
        # of one step.
        backward, backward_outputs = self.backward_rnn(
            inputs, initial_carry=second, reverse=True, keep_order=True, **shared
        )
        outputs = jax.tree.map(self.merge_fn, forward_outputs, backward_outputs)
        return_carry = self.return_carry if return_carry is None else return_carry
        return ((forward, backward), outputs) if return_carry else outputs
