"""Code that all transforms with derivatives share: the choice of leaves, and how tangents and cotangents become trees.

All of these transforms differentiate some leaves of some arguments, and close over the rest (`_arrive`). A filter
chooses the leaves, `wrt=Param` by default. The gradient or tangent of an argument is sparse: it has the argument's
structure, with `None` at leaves that were not differentiated.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
from weft.core.edge import trees
from weft.core.edge.trees import key_part
from weft.core.edge.untyped import jnp
from weft.core.errors import DifferentiationError, StructureError
from weft.core.interpreter.boundary import AnyCrossing, Arrival, Call, Outcome, parameter_names
from weft.core.interpreter.prefixes import RidesByKind
from weft.core.interpreter.rides import Ride, Role, read_role
from weft.core.interpreter.rules import Exit, Finish, Lift, Lifted, Rule, pair
from weft.core.interpreter.values import named_arguments
from weft.core.paths import format_path
from weft.core.records.configuration import iter_configuration
from weft.core.records.filters import All, Filter, Maybe, OfValue, format_filter
from weft.core.records.kinds import Buffer, Param
from weft.core.records.leaves import Leaf, refuse_aliases, type_of
from weft.core.records.sorting import probably_meant
from weft.core.records.successors import arguments_by_name, how_to_unpack, note_rivals, pair_in_words

# A closed-over leaf may be forwarded. A differentiated leaf in the output must not: its derivative would be missing.
DIFFERENTIATED, CLOSED, PRIMAL = Role("differentiated"), Role("closed over", keeps=True), Role("primal")


@dataclass(frozen=True)
class DiffOptions:
    """The options of one differentiation."""

    name: str
    argnums: int | tuple[int, ...]
    wrt: Any
    has_aux: bool = False
    holomorphic: bool = False
    allow_int: bool = False
    with_value: bool = False
    filters: tuple[tuple[int, Any], ...] = ()
    chooses: str = "wrt="  # the option that chooses the leaves, for errors
    may_be_none: bool = False  # whether no leaf need be differentiated; the gradient is empty then

    @property
    def positions(self) -> tuple[int, ...]:
        """The differentiated arguments."""
        return (self.argnums,) if isinstance(self.argnums, int) else self.argnums


class _ByFilter(RidesByKind):
    """`RidesByKind` whose filters may match nothing: one argument of several may have nothing to differentiate."""

    optional = True

    def of_array(self, value: Any) -> Any:
        return DIFFERENTIATED


def _arrive(options: DiffOptions, call: Call) -> Arrival:
    _, args, _ = call
    positions = {n + len(args) if n < 0 else n for n in options.positions}
    if any(not 0 <= n < len(args) for n in positions):
        raise DifferentiationError(
            f"{options.name} is asked for argument {options.argnums}, but was called with {len(args)} positional ones",
            fix="pass the argument by position, or correct argnums",
        )
    # The filter of a differentiated argument decides for each leaf; all other arguments are closed over as a whole.
    rides = tuple(
        _ByFilter(((_wanted(options, i), DIFFERENTIATED), (..., CLOSED))) if i in positions else CLOSED
        for i in range(len(args))
    )
    return CLOSED, rides, CLOSED


def _wanted(options: DiffOptions, position: int) -> Filter:
    """The filter for the leaves of an argument that are differentiated."""
    for argnum, filter in options.filters:
        if argnum == position:
            return filter
    if options.wrt is None:
        return (Param, All(Buffer, OfValue(_is_integer))) if options.allow_int else Param
    return options.wrt


def _is_integer(value: Any) -> bool:
    # Of Buffers, integers have a gradient with allow_int, and booleans never.
    return not jnp.issubdtype(jnp.result_type(value), jnp.bool_)


def _check(
    for_updates: bool, forward: bool, options: DiffOptions, call: Call, leaves: Sequence[Leaf], rides: Sequence[Ride]
) -> None:
    chosen = [leaf for leaf, ride in zip(leaves, rides, strict=True) if ride == DIFFERENTIATED]
    # An error, because an empty gradient trains nothing and says so nowhere.
    if not chosen and not options.may_be_none and not isinstance(options.wrt, Maybe):
        wanted = "Param" if options.wrt is None else format_filter(options.wrt)
        # A float in a field looks like a parameter to everybody who writes it.
        floats = [
            f"{format_path(path)}: configuration, {value!r}"
            for root, argument in named_arguments(call)
            for path, value in iter_configuration(argument, root)
            if type(value) is float
        ]
        raise DifferentiationError(
            f"{options.name} has nothing to differentiate: no leaf of argument {options.argnums} is {wanted}",
            at=[f"{format_path(leaf.path)}: {leaf.kind.__name__}, {types_of(leaf.value)}" for leaf in leaves[:20]]
            + floats,
            fix=(
                "a number in a record's field is configuration: make it an array, jnp.asarray(...); " if floats else ""
            )
            + f"{probably_meant((options.wrt,), leaves)}choose the leaves with {options.chooses}, or the argument "
            "with argnums=; integers have no gradient",
        )
    # Only for gradients, which are applied as updates. The two cotangents that a vjp returns for an array in two places
    # are right.
    if for_updates:
        _refuse_aliases(options, call, chosen)
    # The value of an NNX Variable may be a tree of arrays.
    arrays = [replace(leaf, value=value) for leaf in chosen for value in jax.tree.leaves(leaf.value)]
    for leaf in arrays:
        dtype = jnp.result_type(leaf.value)
        complex_, inexact = jnp.issubdtype(dtype, jnp.complexfloating), jnp.issubdtype(dtype, jnp.inexact)
        if not (inexact or options.allow_int):
            _refuse(options, leaf, "is not inexact", f"leave it out ({options.chooses}), or pass allow_int=True")
        if options.holomorphic and not complex_:
            _refuse(options, leaf, "is not complex, but holomorphic=True", "make it complex, or drop holomorphic")
        if forward and complex_ and not options.holomorphic:
            _refuse(options, leaf, "is complex", "pass holomorphic=True, or use jacrev or jvp")


def note_rivals_of(options: DiffOptions, call: Call) -> None:
    """Remembers the other arguments of the call, for `Optimizer.update`, which checks whose successor it gets."""
    _, args, kwargs = call
    positions = {n % len(args) for n in options.positions}
    others = [value for i, value in enumerate(args) if i not in positions and not isinstance(value, jax.Array)]
    if others or kwargs:
        for position in positions:
            note_rivals(args[position], arguments_by_name(others, kwargs))


def _refuse_aliases(options: DiffOptions, call: Call, chosen: Sequence[Any]) -> None:
    # Not for NNX objects, which may be shared, and whose leaves are no `Leaf`s. One array may be two arguments, because
    # the caller applies the updates of the two arguments separately. The root of an argument's paths is the parameter's
    # name, or ("args", its position); see `named_arguments`.
    args = call[1]
    of_records = [leaf for leaf in chosen if isinstance(leaf, Leaf)]
    for root in dict.fromkeys(leaf.path[: leaf.root] for leaf in of_records):
        own = [leaf for leaf in of_records if leaf.path[: leaf.root] == root]
        has_name = len(root) == 1
        position = parameter_names(call[0][0]).index(cast(str, root[0])) if has_name else int(cast(Any, root[1]))
        refuse_aliases(args[position], own, root, f"an update with the gradient of {options.name}")


def _refuse(options: DiffOptions, leaf: Leaf, problem: str, fix: str) -> None:
    raise DifferentiationError(
        f"{options.name} cannot differentiate a leaf that {problem}",
        at=f"{format_path(leaf.path)}: {types_of(leaf.value)}",
        fix=fix,
    )


def types_of(value: Any) -> str:
    """The types of a leaf's arrays: the value of an NNX Variable may be a tree of them."""
    return ", ".join(map(type_of, jax.tree.leaves(value))) or "no array"


def _returns(options: DiffOptions, out: Any) -> Any:
    out = pair(out) if options.has_aux else out
    if options.name in ("grad", "value_and_grad"):
        _refuse_container(options, out[0] if options.has_aux else out)
    return out


def _refuse_container(options: DiffOptions, value: Any) -> None:
    """Refuses a loss that is a container with one number, as JAX does, or the pair that a stateful record returns."""
    # Before JAX, which would report a tuple of several arrays: to forget the successor of a loss is a common mistake.
    pair = pair_in_words(value)
    if pair is not None:
        raise DifferentiationError(
            f"{options.name} needs a function that returns one scalar, but this one returned {pair}",
            fix=f"return (loss, successor) with has_aux=True; or {how_to_unpack(value)}",
        )
    if trees.children_of(value) is not None and len(jax.tree.leaves(value)) == 1:
        raise DifferentiationError(
            f"{options.name} needs a function that returns one scalar, but this one returned a "
            f"{type(value).__name__} with one number",
            fix="return the number itself, or (loss, aux) with has_aux=True, where aux may be a "
            f"{type(value).__name__}",
        )


Primal = Callable[[Any, Any], tuple[tuple[Any, ...], Exit]]


def primal_of(lift: Lift[DiffOptions]) -> Primal:
    """The body as a function of (differentiated, closed over), which returns (primal outputs, its whole exit)."""
    (body,) = lift.bodies

    def primal(differentiated: Any, closed: Any) -> tuple[tuple[Any, ...], Exit]:
        out, updates, outcome = body((differentiated, closed))
        # The first lane is PRIMAL, since rules depart on PRIMAL or on (PRIMAL, CLOSED).
        return out[0], (out, updates, outcome)

    return primal


def sparse_arguments(crossing: AnyCrossing, values: Sequence[Any]) -> tuple[Any, ...]:
    """Values of the differentiated leaves as trees like the positional arguments."""
    positions = [i for i, ride in enumerate(crossing.rides) if ride == DIFFERENTIATED]
    return crossing.structure.sparse(dict(zip(positions, values, strict=True)))[1]


def read_arguments(crossing: AnyCrossing, call: Call, primals: Sequence[Any], kind: str = "tangent") -> tuple[Any, ...]:
    """The inverse of `sparse_arguments`, with zeros for None.

    Args:
        crossing: the crossing of the call.
        call: a call with tangents or cotangents in the places of its arguments.
        primals: the differentiated leaves.
        kind: `tangent` or `cotangent`, for errors.

    Raises:
        StructureError: if a value has another shape than its argument.
    """
    positions = [i for i, ride in enumerate(crossing.rides) if ride == DIFFERENTIATED]
    # Values at leaves that are not differentiated are ignored, as JAX's `float0` tangents of integers are.
    values = crossing.structure.read_sparse(call)
    chosen = tuple([
        jax.tree.map(jnp.zeros_like, primal) if values[i] is None else values[i]
        for i, primal in zip(positions, primals, strict=True)
    ])  # fmt: skip
    # JAX accepts cotangents of another precision from the rule of a custom_vjp.
    any_dtype = kind == "cotangent"
    refuse_misshapen(kind, chosen, primals, lambda i: format_path(crossing.structure.path_of(positions[i])), any_dtype)
    return chosen


def read_output(outcome: Outcome, tree: Any, primals: Sequence[Any], kind: str) -> tuple[Any, ...]:
    """The leaves, or None, of a tree of tangents or cotangents (`kind`) like the primal output.

    Raises:
        StructureError: if a value has another shape than its output.
    """
    values = outcome.read_sparse(tree)

    def path_of(position: int) -> str:
        places = trees.flatten_with_path(outcome.sparse(range(len(primals))))[0]
        keys = next(keys for keys, value in places if value == position)
        return format_path(tuple(map(key_part, keys)), "output")

    refuse_misshapen(kind, values, primals, path_of)
    return tuple(values)


def _are_both_leaves(value: Any, primal: Any) -> bool:
    """Whether both are single leaves, or neither: a tree in the place of an array may have the shapes of one."""
    return jax.tree_util.all_leaves([value]) == jax.tree_util.all_leaves([primal])


def _fits(value: Any, primal: Any, any_dtype: bool) -> bool:
    """Whether JAX accepts a value as the tangent of a primal; the dtype of an integer's tangent is left to JAX."""
    if not _are_both_leaves(value, primal):
        return False
    leaves: list[Any] = jax.tree.leaves(value)
    primals: list[Any] = jax.tree.leaves(primal)
    return len(leaves) == len(primals) and False not in [
        leaf.shape == aval.shape
        and (any_dtype or leaf.dtype in (aval.dtype, jax.dtypes.float0) or not jnp.issubdtype(aval.dtype, jnp.inexact))
        for leaf, aval in zip(map(jax.typeof, leaves), map(jax.typeof, primals), strict=True)
    ]


def refuse_misshapen(
    kind: str, values: Sequence[Any], primals: Sequence[Any], path_of: Callable[[int], str], any_dtype: bool = False
) -> None:
    """Refuses tangents or cotangents (`kind`) that do not fit, naming the paths of their primals; JAX names numbers."""
    wrong = [
        f"{path_of(i)}: {types_of(primal)}, its {kind}: "
        + (types_of(value) if _are_both_leaves(value, primal) else type(value).__name__)
        for i, (value, primal) in enumerate(zip(values, primals, strict=True))
        if value is not None and not _fits(value, primal, any_dtype)
    ]
    if wrong:
        raise StructureError(
            f"a {kind} must have the shape and dtype of its primal",
            at=wrong,
            fix="sum it over the axes along which the primal was broadcast; .astype gives it the dtype; None is zero",
        )


def like_arguments(finish: Finish[DiffOptions], values: Sequence[Any]) -> Any:
    """Values of the differentiated leaves as trees like their arguments: one tree, or a tuple as in `argnums`."""
    args = sparse_arguments(finish.crossing, values)
    argnums = finish.options.argnums
    return args[argnums] if isinstance(argnums, int) else tuple(args[n] for n in argnums)


def differentiation(
    name: str,
    lift: Callable[[Lift[DiffOptions]], Lifted],
    finish: Any,
    *,
    for_updates: bool = False,
    forward: bool = False,
) -> Rule[DiffOptions]:
    """The rule of a derivative.

    Args:
        name: the transform's name, as users write it.
        lift: the JAX call.
        finish: makes the result.
        for_updates: whether users update the arguments by the result, so that an array in two places is refused.
        forward: whether real tangents are pushed forward, so that complex leaves are refused.
    """
    return Rule(
        name,
        lift,
        arrive=_arrive,
        # The auxiliary output rides as closed-over leaves do, so that such leaves in it are forwarded.
        depart=lambda options, index: (PRIMAL, CLOSED) if options.has_aux else PRIMAL,
        read=read_role,
        lanes=(DIFFERENTIATED, CLOSED),
        returns=_returns,
        check=functools.partial(_check, for_updates, forward),
        called=lambda options: options.name,
        finish=finish,
        options=("argnums", "has_aux"),
        retraces=True,
    )


def like_output(finish: Finish[DiffOptions], values: Sequence[Any]) -> Any:
    """Values of the primal output's leaves as a tree like it, `None` at its static leaves."""
    tree = finish.outcome.sparse(values)
    return tree[0] if finish.options.has_aux else tree


def closed_over(primal: Callable[[Any, Any], Any], closed: Any) -> Callable[[Any], Any]:
    """The primal as a function of the differentiated lane alone."""
    return lambda differentiated: primal(differentiated, closed)


def numbers_of_arguments(argnums: Iterable[Any], instead: str) -> tuple[int, ...]:
    """The numbers of the differentiated arguments.

    Raises:
        DifferentiationError: if one is no integer; `instead` is the advice on how to choose leaves.
    """
    try:
        return tuple(map(operator.index, argnums))
    except TypeError:
        raise DifferentiationError(
            "argnums must be the position of an argument, or a tuple of positions",
            at=f"argnums={argnums!r}",
            fix=f"name arguments by position; {instead}",
        ) from None


def diff_options(name: str, argnums: Any, wrt: Any, **options: Any) -> DiffOptions:
    """The options of a derivative for which the user may give `argnums`; the others are those of `DiffOptions`."""
    if not isinstance(argnums, int):
        argnums = numbers_of_arguments(argnums, "wrt= chooses the leaves of an argument by kind or filter")
    return DiffOptions(name, argnums, wrt, **options)
