"""Ensemble: copies of one layer that run in parallel, as a single vmap."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, cast

import jax
from weft.core.donations import naming_deleted
from weft.core.errors import AxisError
from weft.core.interpreter.prefixes import RidesByKind, axes, resolve
from weft.core.interpreter.rides import axis_of, read_axis
from weft.core.records.filters import Filter
from weft.core.records.module import static
from weft.core.records.partition import changes, take_apart
from weft.modules.batches import MEMBERS
from weft.modules.calling import Combinator, L_co, call_layer, takes_key
from weft.modules.combinators.stack import SharedArguments, make_copies, together
from weft.modules.construct import ConfigError
from weft.transforms.mapping import vmap


class Ensemble(Combinator[L_co]):
    """`n` parallel copies of a layer: `ys = ensemble(x)`, or `ys, ensemble = ensemble(x)` if the layer is stateful.

    Each member has parameters and, in a call, a key of its own. Outputs have a leading axis of members.

    Args:
        make: makes one member from a key: `lambda key: Net(64, key=key)`. It is called once, for all of them.
        n: how many.
        key: a typed key, split among them.
        axes: which arrays the members share, by filter: `{BatchStat: None}` for one set of statistics for all. Other
            arrays are each member's own (0). A shared array is the first member's at the start. Every member must
            return the same value of a shared statistic, so the layer averages over members:
            `BatchNorm(..., axis_name="members")` in an ensemble of that `axis_name`.
        in_axes: the batch axis of the arguments: with None all members get the same; an axis, or a tuple
            with one prefix for each positional argument, as in `weft.vmap`. Arguments by name go to all.
        out_axes: where the axis of members is in the outputs.
        axis_name: a name for the axis, for collectives.

    Raises:
        ConfigError: if `n` is not positive, `make` makes something else than a record, or `axes` gives another axis
            than 0 or None.
        SeedError: without a typed key.
        AxisError: if `axes` names a kind that is not there.

    >>> import jax.numpy as jnp
    >>> from weft.modules import Linear
    >>> ensemble = Ensemble(lambda key: Linear(4, 2, key=key), 3, key=jax.random.key(0))
    >>> ensemble(jnp.ones((5, 4))).shape, len(ensemble), ensemble[0].kernel.shape
    ((3, 5, 2), 3, (4, 2))
    """

    members: L_co
    n: int = static()
    axes: RidesByKind | int = static()
    in_axes: Any = static()
    out_axes: Any = static()
    axis_name: Any = static()

    def __init__(
        self,
        make: Callable[[Any], L_co],
        n: int,
        *,
        key: Any,
        axes: Mapping[Filter, int | None] | None = None,
        in_axes: Any = None,
        out_axes: Any = 0,
        axis_name: Any = None,
    ):
        self.n, self.in_axes, self.out_axes, self.axis_name = n, in_axes, out_axes, axis_name
        self.axes = _by_kind(axes)
        copies = make_copies(make, n, key, "Ensemble")
        # Shared arrays lose their axis here, because `vmap` takes them with None in its axes.
        self.members = _where_own(self.axes, lambda own, leaf: leaf if own else leaf[0], copies)

    def _run(self, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> tuple[Any, Self | None]:
        arguments = (x, *args)
        in_axes = self.in_axes if isinstance(self.in_axes, tuple) else (self.in_axes,) * len(arguments)
        if len(in_axes) != len(arguments):
            raise AxisError(
                f"in_axes has {len(in_axes)} entries for {len(arguments)} positional arguments",
                at=f"Ensemble.in_axes={self.in_axes!r}",
                fix="give one for each positional argument, or one for all; arguments by name go to all members",
            )
        # Members need keys of their own: with one key, all of them would drop the same activations.
        keys = None if key is None or not takes_key(cast(Any, self.members)) else jax.random.split(key, self.n)
        over_members = vmap(
            _one_member,
            in_axes=(self.axes, 0, None, *in_axes),
            out_axes=(self.out_axes, self.axes),
            axis_name=MEMBERS if self.axis_name is None else self.axis_name,
            axis_size=self.n,
        )
        y, successor = over_members(self.members, keys, SharedArguments((), kwargs), *arguments)
        if successor is None:
            return y, None
        # A call that changed nothing returns the ensemble itself, so that shared records stay shared.
        return y, self.replace(members=successor) if jax.tree.leaves(changes(self.members, successor)) else self

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[L_co]:
        return (self[index] for index in range(self.n))

    @functools.partial(naming_deleted, method=True)
    def __getitem__(self, index: int) -> L_co:
        """Returns one member by its number; negative numbers count from the end."""
        place = range(self.n)[index]
        return _where_own(self.axes, lambda own, leaf: leaf[place] if own else leaf, self.members)

    def __with_items__(self, items: Mapping[int, Any]) -> Self:
        """Returns the ensemble with some of its members replaced, for `weft.at(ensemble)[1]`."""
        owned = jax.tree.leaves(_where_own(self.axes, lambda own, leaf: own, self.members))
        if not all(owned):
            raise ConfigError(
                "an Ensemble whose members share arrays is not edited member by member",
                fix="edit all of them at once: weft.at(ensemble).members",
            )
        return self.replace(members=together([items.get(i, member) for i, member in enumerate(self)], "Ensemble"))


def _one_member(member: Any, key: Any, rest: SharedArguments, *args: Any) -> tuple[Any, Any]:
    options = {} if key is None else {"key": key}
    return call_layer(member, "Ensemble.members", *args, **rest.kwargs, **options)


def _by_kind(by_kind: Mapping[Filter, int | None] | None) -> RidesByKind | int:
    if by_kind is None:
        return 0
    wrong = {filter: axis for filter, axis in by_kind.items() if axis not in (0, None)}
    if wrong:
        raise ConfigError(
            f"an axis of an Ensemble is 0 (one value for each member) or None (shared by all), not {wrong}",
            fix="axes={BatchStat: None}",
        )
    return axes(by_kind if ... in by_kind else {**by_kind, ...: 0})


def _where_own(axes: RidesByKind | int, function: Callable[[bool, Any], Any], members: Any) -> Any:
    """Applies a function to each array of the members and to whether the array is each member's own."""
    structure, leaves = take_apart(members)
    rides = resolve(axes, members, leaves, read_axis, option="axes", statics=structure.static_positions)
    return structure.build([function(axis_of(ride) == 0, leaf.value) for leaf, ride in zip(leaves, rides, strict=True)])
