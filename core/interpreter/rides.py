"""Rides: how one leaf crosses into a transform and out again.

A transform tells leaves apart by one thing: an axis for vmap, a spec for shard_map, a placement for jit, whether a loop
carries them, their role in a derivative. That is the leaf's *ride*, and leaves that ride alike form a *lane*. Users
write axes, specs and `Carry` in prefixes (see `prefixes`); the rule *reads* each into a ride, by a `Read`.

A ride knows what follows from it, so that nothing else has to ask which transform it is of:

- `place`: what two paths to one leaf must agree on;
- `update`: the ride on which what changed in it leaves, or None where that does not come back;
- `forwards`: whether an output that is the argument itself may stay outside of the trace, if both ride so;
- `always_leaves`: whether who asked for it wants the value to come back from there, changed or not;
- `gives_away`: whether what rides so is gone once the function has run;
- `refused`, `refuse`: what to do instead, if no leaf may leave so; what cannot.

Rides are compared and hashed a lot (they are part of a compiled function's key), so they are small and frozen, and the
common ones are made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeGuard, cast

import jax
from jax.sharding import PartitionSpec, Sharding
from weft.core.caches import kept
from weft.core.edge._tracers import is_mapped
from weft.core.edge.layouts import is_format
from weft.core.edge.trees import PyTree
from weft.core.errors import AxisError


class Carry:
    """In `in_axes` and `out_axes` of `scan`: this argument is carried from one iteration to the next.

    >>> import jax.numpy as jnp
    >>> from weft import scan
    >>> total, sums = scan(lambda total, x: (total + x, total + x), in_axes=(Carry, 0))(0.0, jnp.ones(3))
    >>> total.item(), sums.tolist()
    (3.0, [1.0, 2.0, 3.0])
    """

    def __repr__(self) -> str:
        return "Carry"


class Ride:
    """How a leaf crosses. What holds for most of them; see the module.

    Attributes:
        is_place: whether it says where arrays are. Roles do not, so they never disagree about it.
        takes_new: whether something new in an argument may leave by it, though nothing arrived by it.
        is_abstract: whether nothing leaves at all, since nothing is computed.
    """

    is_abstract: bool = False
    is_place: ClassVar[bool] = True
    takes_new: ClassVar[bool] = False

    # The field that stands for it in a prefix, for users and for JAX; None: it does itself.
    written: ClassVar[str | None] = None

    @property
    def as_written(self) -> object:
        """What stands for it in a prefix."""
        return self if self.written is None else getattr(self, self.written)

    def __str__(self) -> str:
        return repr(self.as_written)

    @property
    def always_leaves(self) -> bool:
        return False

    @property
    def gives_away(self) -> bool:
        return False

    @property
    def kept_at(self) -> object:
        """The sharding that a value is to have after the call, though it has not changed."""
        return None

    @property
    def forwards(self) -> bool:
        """Whether an output leaf that is an argument's may stay outside of the trace, where both ride so."""
        return True

    @property
    def place(self) -> Ride:
        """What every path to one leaf must say alike."""
        return self

    @property
    def update(self) -> Ride | None:
        """The ride on which what changed in an argument leaves; None: it does not come back."""
        return self

    @property
    def refused(self) -> str | None:
        return None

    def is_like(self, other: Ride) -> bool:
        """Whether two rides are equal, quickly where they are one."""
        return self is other or self == other

    def refuse(self, value: PyTree, path: Callable[[], str]) -> None:
        """Refuses a value that cannot leave so, naming its path."""

    def may_return_on(self, ride: Ride) -> bool:
        """Whether a leaf that arrived on this may be returned on another: it is one leaf, and rides in one way."""
        return isinstance(ride, Role) or self.place == ride.place


# Where jit is told to put an array; None: where it is. `Any` is a `Format`, with a layout of its own.
Where = Sharding | PartitionSpec | Any | None


@dataclass(frozen=True)
class Axis(Ride):
    """Mapped over an axis, or (None) the same for every index."""

    axis: int | None

    takes_new: ClassVar[bool] = True
    written: ClassVar[str | None] = "axis"

    def refuse(self, value: PyTree, path: Callable[[], str]) -> None:
        """Refuses what differs along the axis of a `vmap`, but is to leave without one.

        Raises:
            AxisError: naming its path.
        """
        if self.axis is None:
            mapped = [leaf for leaf in jax.tree.leaves(value) if is_mapped(leaf)]
            if mapped:
                raise AxisError(
                    "something mapped leaves under None: by out_axes, or by the in_axes of an argument that changes",
                    at=f"{path()}: {jax.typeof(mapped[0])} for each index",
                    fix="give it an axis, or reduce it over the mapped one (mean, sum, psum): statistics of a "
                    "BatchNorm by axis_name=, which the vmap is given too",
                )


@dataclass(frozen=True)
class Step(Ride):
    """In a loop over a sequence: one slice along an axis at each step, or (None) the same at every step.

    Attributes:
        axis: the axis, or None.
        along: whether what changes of what is the same at every step is carried along.
    """

    axis: int | None
    along: bool = False

    takes_new: ClassVar[bool] = True
    written: ClassVar[str | None] = "axis"

    @property
    def forwards(self) -> bool:
        return self.axis is None

    @property
    def place(self) -> Ride:
        return _step(self.axis)

    @property
    def update(self) -> Ride | None:
        if self.axis is None:
            return Along() if self.along else None
        return self

    @property
    def refused(self) -> str | None:
        return "carry it (Carry), or stack it (an axis)" if self.axis is None else None


@dataclass(frozen=True)
class Carried(Ride):
    """Carried from one iteration to the next. Its updates are the carry itself."""

    is_place: ClassVar[bool] = False

    def __str__(self) -> str:
        return Carry.__name__

    @property
    def forwards(self) -> bool:
        return False

    @property
    def update(self) -> Ride | None:
        return None


@dataclass(frozen=True)
class Along(Ride):
    """Carried from one iteration to the next without being returned: what a filter says to carry inside of an argument,
    and, where it is asked for, what is the same at every step until the function changes it."""

    is_place: ClassVar[bool] = False

    def __str__(self) -> str:
        return "'carried along'"

    @property
    def forwards(self) -> bool:
        return False


@dataclass(frozen=True)
class Spec(Ride):
    """Laid out over the devices of a mesh by a `PartitionSpec`; None is replicated."""

    spec: PartitionSpec | None

    takes_new: ClassVar[bool] = True
    written: ClassVar[str | None] = "spec"

    @property
    def always_leaves(self) -> bool:
        # A shard_map has no other way to lay a value out than to let it leave.
        return self.spec is not None


@dataclass(frozen=True)
class Placement(Ride):
    """Through jit: by a sharding (None: as it is), its buffer given away or not."""

    sharding: Where = None
    donated: bool = False

    takes_new: ClassVar[bool] = True
    written: ClassVar[str | None] = "sharding"

    @property
    def gives_away(self) -> bool:
        return self.donated

    @property
    def kept_at(self) -> object:
        return self.sharding

    @property
    def forwards(self) -> bool:
        # A donated leaf leaves through XLA's aliasing, which copies nothing; a sharding, asked for, must be applied.
        return self.sharding is None and not self.donated

    @property
    def place(self) -> Ride:
        # Where a leaf is first met says whether it is given away.
        return replace(self, donated=False) if self.donated else self

    @property
    def update(self) -> Ride | None:
        return self.place


@dataclass(frozen=True)
class Role(Ride):
    """A part in what a transform does that is no place: differentiated, closed over, an operand of a branch.

    Attributes:
        name: in errors.
        keeps: whether an output that is an argument of this role stays outside of the trace.
        returns: whether updates come back, on `updates_as` if that is another role.
        updates_as: see `returns`. It is no part of what a role is: transforms that differentiate share their roles,
            whatever they do with updates.
        instead: what to do instead of letting something leave so, which is refused; None: it is not.
        is_abstract: whether nothing leaves, since nothing is computed.
    """

    name: str
    keeps: bool = False
    returns: bool = True
    updates_as: Role | None = field(default=None, compare=False)
    instead: str | None = field(default=None, compare=False)
    is_abstract: bool = False

    is_place: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__

    @property
    def forwards(self) -> bool:
        return self.keeps

    @property
    def update(self) -> Ride | None:
        return (self.updates_as or self) if self.returns else None

    @property
    def refused(self) -> str | None:
        return self.instead


@dataclass(frozen=True)
class Unknown(Ride):
    """Something in a prefix that the transform does not know; JAX says what it thinks of it."""

    value: object

    written: ClassVar[str | None] = "value"


# ---- from what users write to rides ----------------------------------------------------------------------------------

# What a node of a prefix means to a rule: a ride, or None where it is a container of such.
Read = Callable[[Any], Ride | None]


def read_with(read: Read, node: object) -> Ride:
    """The ride that a leaf of a prefix means.

    Raises:
        AxisError: for a function, which other libraries call with each leaf.
    """
    ride = read(node)
    if ride is None and callable(node) and not isinstance(node, type):
        raise AxisError(
            f"a function says how a leaf rides: {node!r}",
            fix="write the axis itself, which what is no array does not ride on; or one for each kind, path or class: "
            "weft.axes({filter: axis, ...: axis})",
        )
    return Unknown(node) if ride is None else ride


# Made once, so that the rides of a thousand leaves compare by identity.
@kept("axis")
def _axis(axis: int | None) -> Axis:
    return Axis(axis)


@kept("axis")
def _step(axis: int | None, along: bool = False) -> Step:
    return Step(axis, along)


CARRIED = Carried()


def is_axis(node: object) -> TypeGuard[int | None]:
    """Whether a prefix node is an axis: an int or None."""
    return read_axis(node) is not None


def read_axis(node: object) -> Axis | None:
    """An axis, or None."""
    return _axis(node) if node is None or (isinstance(node, int) and not isinstance(node, bool)) else None


def read_step(node: object) -> Ride | None:
    """`Carry`, an axis or None, in a loop."""
    if node is Carry:
        return CARRIED
    return node if isinstance(node, Along | Step) else _step(node) if is_axis(node) else None


def read_step_along(node: object) -> Ride | None:
    """The same, in a loop that carries along what changes of what is the same at every step."""
    return _step(None, True) if node is None else read_step(node)


def read_spec(node: object) -> Spec | None:
    """A partition spec, or None."""
    return Spec(node) if node is None or isinstance(node, PartitionSpec) else None


def is_sharding(node: object) -> bool:
    """Whether a prefix node is a sharding or a placement."""
    return node is None or isinstance(node, Placement | Sharding | PartitionSpec) or is_format(node)


def read_placement(node: object) -> Placement | None:
    """A sharding, or None, or a placement as it is."""
    if isinstance(node, Placement):
        return node
    return Placement(cast("Where", node)) if is_sharding(node) else None


def read_role(node: object) -> Role | None:
    """A role as it is: users do not write them."""
    return node if isinstance(node, Role) else None


def axis_of(ride: Ride) -> int | None:
    """The axis that leaves are mapped over, if they are."""
    return ride.axis if isinstance(ride, Axis | Step) else None


def as_written(lanes: Iterable[Ride]) -> tuple[object, ...]:
    """Lanes as JAX takes them: axes, specs, shardings."""
    return tuple(lane.as_written for lane in lanes)
