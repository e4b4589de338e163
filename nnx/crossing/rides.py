"""Prefix filters: how NNX code says which axis, spec or derivative each part of a graph gets.

`StateAxes`, `StateSharding` and `DiffState` are leaves of a prefix that have a ride for each filter: the first filter
that matches a Variable decides. They are what `weft.axes` is for records, with NNX's filters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from weft.core.interpreter.prefixes import RidesByKind
from weft.core.interpreter.rides import Carry, read_with
from weft.core.paths import Path, format_path
from weft.core.records import filters as core_filters
from weft.nnx.errors import AxisError, PrefixError
from weft.nnx.states.filters import Filter, PathIn, to_predicate
from weft.nnx.states.states import State, to_flat_state
from weft.nnx.variable.variable import Variable

__all__ = ["Carry", "DiffState", "StateAxes", "StateSharding"]


class ByFilter(RidesByKind):
    """A ride for each NNX filter, where the first that matches counts; or a State with a ride at each path."""

    def __init__(self, rides: Any, /):
        if isinstance(rides, State):
            pairs = tuple(
                # A State of axes may have them in Variables (`nnx.map_state` of a model's State) or bare.
                (PathIn(path), ride.get_value() if isinstance(ride, Variable) else ride)
                for path, ride in to_flat_state(rides)
            )
        else:
            filters_and_rides = rides.items() if isinstance(rides, Mapping) else rides
            try:
                pairs = tuple((filter, ride) for filter, ride in filters_and_rides)
            except (TypeError, ValueError):
                raise PrefixError(
                    f"{type(self).__name__} takes pairs of a filter and a ride, not {filters_and_rides!r:.80}",
                    fix=f"write {type(self).__name__}({{nnx.Param: ..., ...: ...}})",
                ) from None
        # The core's class only stores filters, so NNX's own filters may stand where it declares its own.
        super().__init__(cast(Any, pairs))

    @property
    def filters(self) -> tuple[Filter, ...]:
        return tuple(cast(Any, filter) for filter, _ in self.rides)

    def items(self) -> Any:
        return self.rides

    def finder(self, read: Callable[[Any], Any] | None = None) -> Callable[[Path, Any], Any]:
        """Makes a function from (path, Variable) to a ride: through `read` if it is passed, else as the user wrote it.

        Raises (when called):
            LookupError: if no filter matches.
        """
        tests = [(_predicate(filter), ride if read is None else read_with(read, ride)) for filter, ride in self.rides]

        def find(path: Path, value: Any) -> Any:
            for test, ride in tests:
                if test(path, value):
                    return ride
            raise LookupError

        return find

    def map_prefix(self, path: Path, variable: Any) -> Any:
        """The ride of the Variable at a path.

        Raises:
            ValueError: if no filter matches.
        """
        try:
            return self.finder()(path, variable)
        except LookupError:
            raise AxisError(f"no filter of {self!r} matches", at=format_path(path), fix="end with `...`") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByFilter) and type(self) is type(other) and self.rides == other.rides

    def __hash__(self) -> int:
        return hash(self.rides)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self.rides)!r})"


def _predicate(filter: Any) -> Callable[[Path, Any], bool]:
    # The core's filters by value get the array; NNX's own predicates get the Variable.
    if isinstance(filter, core_filters.OfValue):
        return lambda path, value: filter.test(value.get_raw_value() if isinstance(value, Variable) else value)
    if isinstance(filter, core_filters.All):
        tests = [_predicate(part) for part in filter.filters]
        return lambda path, value: all(test(path, value) for test in tests)
    return to_predicate(filter)


class StateAxes(ByFilter, Mapping[Any, Any]):
    """Axes (ints, `Carry` or None) by filter, for `vmap`, `pmap` and `scan`.

    Args:
        filter_axes: a mapping or pairs from filter to axis, or a State of axes.

    Raises:
        TypeError: if it is neither.

    >>> from weft.nnx.variable.kinds import BatchStat
    >>> StateAxes({BatchStat: None, ...: 0}).axes
    (None, 0)
    """

    @property
    def axes(self) -> tuple[Any, ...]:
        return tuple(ride for _, ride in self.rides)

    def __iter__(self) -> Iterator[Filter]:
        return iter(self.filters)

    def __len__(self) -> int:
        return len(self.rides)

    def __getitem__(self, filter: Any) -> Any:
        return dict(self.rides)[filter]


class StateSharding(ByFilter):
    """Shardings or partition specs by filter, for `jit` and `shard_map`.

    Args:
        filter_sharding: a mapping or pairs from filter to sharding, or a State of shardings.

    Raises:
        TypeError: if it is neither.

    >>> from jax.sharding import PartitionSpec
    >>> from weft.nnx.variable.kinds import Param
    >>> len(StateSharding({Param: PartitionSpec("model"), ...: PartitionSpec()}).shardings)
    2
    """

    @property
    def shardings(self) -> tuple[Any, ...]:
        return tuple(ride for _, ride in self.rides)


@dataclasses.dataclass(frozen=True)
class DiffState:
    """An entry of `argnums` that differentiates only some Variables of an argument.

    Attributes:
        argnum: the argument's position.
        filter: the Variables to differentiate.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> model = nnx.Dict(w=nnx.Param(jnp.array(3.0)), mean=nnx.BatchStat(jnp.array(2.0)))
    >>> gradient = nnx.grad(lambda model: model.w * model.mean, argnums=nnx.DiffState(0, nnx.BatchStat))(model)
    >>> {path: value.get_value().item() for path, value in nnx.to_flat_state(gradient)}
    {('mean',): 3.0}
    """

    argnum: int
    filter: Any

    def map_prefix(self, path: Path, variable: Any) -> bool:
        """Whether the Variable at a path is differentiated."""
        return _predicate(self.filter)(path, variable)
