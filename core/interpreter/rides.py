"""Rides: how one leaf crosses into a transform and out again.

A transform treats leaves differently by one thing: an axis in vmap, a spec in shard_map, a placement in jit, whether a
loop carries them, their role in a derivative. That is the leaf's *ride*, and leaves with equal rides form a *lane*.
Users write axes, specs and `Carry` in prefixes (see `prefixes`); the rule turns each into a ride, by a `Read`.

A ride knows its consequences, so that no other code has to ask which transform it belongs to:

- `place`: the part of the ride on which two paths to one Variable must agree;
- `update`: the ride on which an updated leaf leaves, or None if updates do not come back;
- `forwards`: whether an output that is an argument itself may stay outside of the trace, if both have this ride;
- `always_leaves`: whether the value comes back from the transform even if it has not changed;
- `gives_away`: whether the transform donates the buffer;
- `refused`, `refuse`: the advice if no leaf may leave on this ride; the check of a single leaf.

Rides are compared and hashed at every call (they are part of a cache key), so they are small and frozen, and the common
ones are created once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeGuard, cast

import jax
from jax.sharding import PartitionSpec, Sharding
from weft.core.caches import cached_by
from weft.core.edge._tracers import is_mapped
from weft.core.edge.layouts import FORMATS
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
    """The base of rides, with the answers of most of them; the module says what each property means.

    Attributes:
        is_place: whether it says where an array is (an axis, a spec, a sharding). Two paths to one Variable must agree
            on such rides; a role in a derivative is no place.
        takes_new: whether a Variable that is new in an argument may leave on this ride, though no leaf entered on it.
        is_abstract: whether no leaf leaves, since the transform computes nothing.
    """

    is_abstract: bool = False
    is_place: ClassVar[bool] = True
    takes_new: ClassVar[bool] = False

    # The field with the value that users write in a prefix, and that JAX takes; None: the ride itself.
    written: ClassVar[str | None] = None

    @property
    def as_written(self) -> object:
        """The value that users write for it in a prefix, and that JAX takes."""
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
        """The sharding that a value must have after the call even if it has not changed."""
        return None

    @property
    def forwards(self) -> bool:
        """Whether an output leaf that is an argument may stay outside of the trace, if both have this ride."""
        return True

    @property
    def place(self) -> Ride:
        """The part of the ride on which all paths to one Variable must agree."""
        return self

    @property
    def update(self) -> Ride | None:
        """The ride on which an updated leaf of an argument leaves; None: updates do not come back."""
        return self

    @property
    def refused(self) -> str | None:
        return None

    def is_like(self, ride: Ride) -> bool:
        """Whether two rides are equal; fast if they are the same object, as the common rides are."""
        return self is ride or self == ride

    def refuse(self, value: PyTree, path: Callable[[], str]) -> None:
        """Refuses a value that cannot leave on this ride, naming its path."""

    def may_return_on(self, ride: Ride) -> bool:
        """Whether a Variable that entered on this ride may be returned on another: a Variable has one place."""
        return isinstance(ride, Role) or self.place == ride.place


# Where `jit` puts an array; None: where it is. `Any` stands for `jax.experimental.layout.Format`.
Where = Sharding | PartitionSpec | Any | None


@dataclass(frozen=True)
class Axis(Ride):
    """Mapped over an axis, or (None) the same for every index."""

    axis: int | None

    takes_new: ClassVar[bool] = True
    written: ClassVar[str | None] = "axis"

    def refuse(self, value: PyTree, path: Callable[[], str]) -> None:
        """Refuses a batched value on the ride None, which would have to be the same for every index.

        Raises:
            AxisError: naming its path.
        """
        if self.axis is None:
            mapped = [leaf for leaf in jax.tree.leaves(value) if is_mapped(leaf)]
            if mapped:
                raise AxisError(
                    "a batched value is returned under axis None, which stands in "
                    "out_axes or in the in_axes of a changed argument",
                    at=f"{path()}: {jax.typeof(mapped[0])} for each index",
                    fix="give it an axis, or reduce it over the mapped one (mean, sum, psum): statistics of a "
                    "BatchNorm by axis_name=, which the vmap is given too",
                )


@dataclass(frozen=True)
class Step(Ride):
    """In a loop over a sequence: one slice along an axis at each step, or (None) the same value at every step.

    Attributes:
        axis: the axis, or None.
        along: whether a leaf under None becomes part of the carry if the function changes it, rather than an error.
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
    """The user's carry. It has no updates: what the function returns is the next carry."""

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
    """Carried by weft in addition to the user's carry: leaves of an argument that a filter gives to `Carry`, and leaves
    under None that the function changes, if `Step.along` allows it."""

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
        # `shard_map` lays a value out over the mesh only if it is an output.
        return self.spec is not None


@dataclass(frozen=True)
class Placement(Ride):
    """In `jit`: a sharding (None: as the array is), and whether the buffer is donated."""

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
        # A donated argument is deleted, so an output that is the argument must come from XLA, which aliases the buffer
        # and copies nothing. A sharding is applied by leaving.
        return self.sharding is None and not self.donated

    @property
    def place(self) -> Ride:
        # Two paths to one Variable need not agree on donation: the path that is met first decides.
        return replace(self, donated=False) if self.donated else self

    @property
    def update(self) -> Ride | None:
        return self.place


@dataclass(frozen=True)
class Role(Ride):
    """What a transform does with a leaf, apart from its place: differentiates it, closes over it, passes it to a
    branch.

    Attributes:
        name: the name in errors.
        keeps: whether an output that is an argument of this role stays outside of the trace.
        returns: whether updates come back.
        is_abstract: whether no leaf leaves, since the transform computes nothing.
    """

    name: str
    keeps: bool = False
    returns: bool = True
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
        return self if self.returns else None


@dataclass(frozen=True)
class Unknown(Ride):
    """A value in a prefix that the transform does not know. It is passed to JAX, which raises its own error."""

    value: object

    written: ClassVar[str | None] = "value"


# ---- from what users write to rides ----------------------------------------------------------------------------------

# Turns a node of a prefix into a ride; None if the node is a container.
Read = Callable[[Any], Ride | None]


def read_with(read: Read, node: object) -> Ride:
    """The ride of a leaf of a prefix.

    Raises:
        AxisError: for a function; equinox calls a function in `in_axes` with each leaf, weft does not.
    """
    ride = read(node)
    if ride is None and callable(node) and not isinstance(node, type):
        raise AxisError(
            f"a function cannot stand for an axis: {node!r}",
            fix="write the axis itself, which leaves that are no arrays ignore; or an axis for each kind, path or "
            "class: weft.axes({filter: axis, ...: axis})",
        )
    return Unknown(node) if ride is None else ride


# Cached, so that the rides of a thousand leaves compare by identity.
@cached_by("axis")
def _axis(axis: int | None) -> Axis:
    return Axis(axis)


@cached_by("axis")
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
    """`Carry`, an axis or None as a ride of a loop."""
    if node is Carry:
        return CARRIED
    return node if isinstance(node, Along | Step) else _step(node) if is_axis(node) else None


def read_step_along(node: object) -> Ride | None:
    """As `read_step`; a leaf under None that the function changes becomes part of the carry."""
    return _step(None, True) if node is None else read_step(node)


def read_spec(node: object) -> Spec | None:
    """A partition spec, or None."""
    return Spec(node) if node is None or isinstance(node, PartitionSpec) else None


def is_sharding(node: object) -> bool:
    """Whether a prefix node is a sharding or a placement."""
    return node is None or isinstance(node, (Placement, Sharding, PartitionSpec, *FORMATS))


def read_placement(node: object) -> Placement | None:
    """A sharding or None as a placement; a placement stays as it is."""
    if isinstance(node, Placement):
        return node
    return Placement(cast("Where", node)) if is_sharding(node) else None


def read_role(node: object) -> Role | None:
    """A role, which stays as it is: rules write roles, users do not."""
    return node if isinstance(node, Role) else None


def axis_of(ride: Ride) -> int | None:
    """The axis of a ride; None if leaves on it are not mapped."""
    return ride.axis if isinstance(ride, Axis | Step) else None


def as_written(lanes: Iterable[Ride]) -> tuple[object, ...]:
    """The lanes' axes, specs or shardings, as JAX takes them."""
    return tuple(lane.as_written for lane in lanes)
