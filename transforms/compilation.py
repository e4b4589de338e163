"""jit: compiles functions of records.

Static leaves need no `static_argnums`; leaves that did not change do not leave the trace; dispatch is asynchronous and
uses generated code (see `core.interpreter.codegen`). The ride of an argument is its sharding, and whether it is
donated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, overload

import jax
from weft.core.edge.contexts import successors_context
from weft.core.edge.trees import is_tuple
from weft.core.edge.untyped import jax as untyped_jax
from weft.core.errors import StructureError
from weft.core.frames import call_with_room, open_frame
from weft.core.interpreter.boundary import AnyBoundary, Arrival, Call
from weft.core.interpreter.interpret import Interpreted, interpret
from weft.core.interpreter.prefixes import RidesByKind
from weft.core.interpreter.rides import Placement, as_written, is_sharding, read_placement
from weft.core.interpreter.rules import Exit, Lift, Rule, titled
from weft.core.interpreter.values import VALUES
from weft.core.records.storage import Bound, Static
from weft.core.tracebacks import cut, cutting
from weft.transforms.arguments import numbers_and_names, with_statics
from weft.transforms.keywords import CompilerKeywords
from weft.transforms.transformed import Transformed, decorate, transform

if TYPE_CHECKING:
    from weft.transforms.stages import Arguments, Stage, StaticArguments


P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class JitOptions:
    """The options of one `jit`; arguments are listed both by number and by name."""

    static_numbers: frozenset[int]
    static_names: frozenset[str]
    donated_numbers: frozenset[int]
    donated_names: frozenset[str]
    in_shardings: Any
    out_shardings: Any
    jax_options: dict[str, Any]


def _arrive(options: JitOptions, call: Call) -> Arrival:
    _, args, kwargs = call
    shardings = options.in_shardings
    # As in `jax.jit`, `in_shardings` has entries for these only.
    traced = [i for i in range(len(args)) if i not in options.static_numbers]
    by_argument = dict.fromkeys(traced, shardings)
    if is_tuple(shardings) and not is_sharding(shardings):
        if len(shardings) != len(traced):
            raise StructureError(
                f"in_shardings has {len(shardings)} entries for {len(traced)} positional arguments"
                + (" that are not static" if len(traced) < len(args) else ""),
                fix="give one for each argument, or one for all",
            )
        by_argument = dict(zip(traced, shardings, strict=True))

    def placed(sharding: Any, donated: bool) -> Any:
        def place(node: Any) -> Any:
            if isinstance(node, RidesByKind):
                return RidesByKind(tuple((kind, Placement(ride, donated)) for kind, ride in node.rides))
            return Placement(node, donated)

        return jax.tree.map(place, sharding, is_leaf=lambda node: isinstance(node, RidesByKind) or is_sharding(node))

    # The function's own arrays stay where they are. Arguments passed by name have no sharding here, as in `jax.jit`.
    return (
        Placement(),
        tuple(placed(by_argument.get(i), i in options.donated_numbers) for i in range(len(args))),
        {name: Placement(None, name in options.donated_names) for name in kwargs},
    )


def _lift(lift: Lift[JitOptions]) -> Any:
    (body,) = lift.bodies

    # The name `weft_lanes` appears in JAX's errors, where `Crossing.name_lanes` looks for it.
    def traced(extra: Any, *weft_lanes: tuple[Any, ...]) -> Exit:
        # This line runs once for each trace, since JAX does not run it when it has compiled the call before.
        lift.traces.record(body.name, body.boundary, lift.crossing, lift.crossing.ungroup(weft_lanes))
        with open_frame("jit"):
            # With room here too, because a call whose plan exists is traced again for arguments of other shapes.
            return call_with_room(body, weft_lanes)

    options = lift.options
    keywords = dict(options.jax_options)
    # Donated leaves have a lane of their own, which JAX donates as a whole. Argument 0 is `extra`.
    keywords["donate_argnums"] = tuple(i + 1 for i, lane in enumerate(lift.lanes) if lane.gives_away)
    arguments, out, updates = map(as_written, (lift.lanes, lift.out_lanes, lift.update_lanes))
    # Only if the user asked for a sharding: most functions run on one device, and need none of JAX's checks of
    # shardings.
    if any(sharding is not None for sharding in arguments):
        keywords["in_shardings"] = (None, *arguments)
    if any(sharding is not None for sharding in (*out, *updates)):
        keywords["out_shardings"] = (out, updates, None)
    return untyped_jax.jit(titled(body.name, traced), **keywords)


JIT: Rule[JitOptions] = Rule(
    "jit",
    _lift,
    arrive=_arrive,
    depart=lambda options, index: options.out_shardings,
    read=read_placement,
    frame=None,
    options=("in_shardings", "out_shardings"),
    compiles=True,
    quick=True,
    shares="always",
)


class JitFunction(Transformed[P, R]):
    """A compiled function of records. Made by `jit`."""

    __weft_method__ = False

    def __init__(
        self,
        function: Callable[P, R],
        options: JitOptions,
        boundary: AnyBoundary = VALUES,
        rule: Rule[JitOptions] = JIT,
    ):
        self._options = options
        self._interpreted: Interpreted[JitOptions] = interpret(rule, boundary)((function,), options)
        # The bound method, which Python calls faster than the object.
        self._call = self._interpreted.__call__
        # Computed once, because most functions have none and each call tests it.
        self._has_statics = bool(options.static_numbers or options.static_names)
        super().__init__(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        # The body of `cutting`, because the decorator would add a Python call to every call.
        try:
            if self._has_statics:
                return self._interpreted(*self._with_statics(args, kwargs))
            return self._call(args, kwargs)
        except Exception as error:
            cut(error)
            raise

    def __repr__(self) -> str:
        name = getattr(self, "__qualname__", self._interpreted.user_functions[0])
        return f"{self._interpreted.boundary.layer}.jit({name!s})"

    def _with_statics(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        function = self._interpreted.user_functions[0]
        return with_statics(function, args, kwargs, self._options.static_numbers, self._options.static_names)

    @cutting
    def trace(self, *args: P.args, **kwargs: P.kwargs) -> Stage:
        """Traces the function for these arguments (or `ShapeDtypeStruct`s); see `jax.stages.Traced`."""
        from weft.transforms.stages import Stage

        call = (self._interpreted.functions, *self._with_statics(args, kwargs))
        # By the same plan as a call, so that a call of the same structure afterwards does not trace again.
        plan, values, _ = self._interpreted.plan(call)
        jitted: Any = plan.lifted
        statics = self.static_arguments(args, kwargs)

        def complete(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
            return self._with_statics(*statics.complete(args, kwargs))

        try:
            traced = jitted.trace((), *plan.crossing.group(values))
        except Exception as error:
            self._interpreted.explain(error, call, plan.crossing)
            raise
        return Stage(traced, self._interpreted, plan.crossing, complete)

    def static_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> StaticArguments:
        """The static arguments of a call.

        Their values are stored, because a compiled function is called without them, but its calls need the same
        crossing.
        """
        from weft.transforms.stages import StaticArguments

        numbers, names = self._options.static_numbers, self._options.static_names
        by_number = {i: value for i, value in enumerate(args) if i in numbers}
        return StaticArguments(len(args), by_number, {name: kwargs[name] for name in kwargs if name in names})

    @property
    def writes_into_arguments(self) -> bool:
        """Whether the function mutates its arguments, as functions of NNX objects do."""
        return self._interpreted.boundary.has_updates

    def lower(self, *args: P.args, **kwargs: P.kwargs) -> Stage:
        """Traces and lowers the function for these arguments; see `jax.stages.Lowered`."""
        return self.trace(*args, **kwargs).lower()

    def load(self, data: bytes, /, *args: P.args, **kwargs: P.kwargs) -> Stage:
        """Loads a compiled function that `lower(...).compile().serialize()` wrote in another process.

        The function is traced here, to compare the programs, and not compiled.

        Args:
            data: the bytes of `serialize`. They contain machine code: load only data that you trust.
            args: the arguments of the function, or `ShapeDtypeStruct`s, as for `lower`.
            kwargs: the same by name.

        Returns:
            A compiled function, as `lower(...).compile()` returns it.

        Raises:
            StructureError: if it was compiled from another program, or by other versions.

        >>> import jax.numpy as jnp
        >>> double = jit(lambda model: {**model, "w": model["w"] * 2})
        >>> model = {"w": jnp.ones(2), "name": "scale"}
        >>> data = double.lower(model).compile().serialize()
        >>> double.load(data, model)(model)
        {'name': 'scale', 'w': Array([2., 2.], dtype=float32)}
        """
        return self.trace(*args, **kwargs).load(data)

    @cutting
    def eval_shape(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The output as `ShapeDtypeStruct`s, without running or compiling anything."""
        call = (self._interpreted.functions, *self._with_statics(args, kwargs))
        plan, values, entered = self._interpreted.plan(call)
        jitted: Any = plan.lifted
        with successors_context(None):  # nothing is computed, so no successor can be lost
            out, updates, outcome = jitted.eval_shape((), *plan.crossing.group(values))
        # Forwarded arguments must come out as shapes too. One trace for all of them, since there may be thousands.
        shapes = untyped_jax.eval_shape(list, values)
        return self._interpreted.boundary.hand_over(entered, outcome.value, shapes, (*out, *updates))

    def _cache_size(self) -> int:
        """The number of compiled programs in the cache, under the name that the functions of `jax.jit` have for it."""
        return sum(cast(Any, plan.lifted)._cache_size() for plan in self._interpreted.memory.plans.values())

    def clear_cache(self) -> None:
        """Drops the compiled programs of this function.

        >>> double = jit(lambda x: 2 * x)
        >>> double(1.0).item(), double._cache_size()
        (2.0, 1)
        >>> double.clear_cache()
        >>> double._cache_size()
        0
        """
        self._interpreted.memory.clear()

    def partial(self, *args: Any) -> Callable[..., R]:
        """The function with its first arguments fixed. They are flattened only once, so that calls are faster.

        >>> import jax.numpy as jnp
        >>> scale = jit(lambda model, x: model["w"] * x)
        >>> apply = scale.partial({"w": jnp.array(3.0)})
        >>> float(apply(2.0))
        6.0
        """
        fixed = self._with_statics(args, {})[0]
        # Later calls compare the structure by identity, and read no record.
        bound = tuple(argument if type(argument) is Static else bind(argument) for argument in fixed)

        def apply(*rest: Any, **kwargs: Any) -> R:
            # `static_argnums` counts from the first of all arguments, the fixed ones included.
            shifted = (*args, *rest)
            rest = self._with_statics(shifted, {})[0][len(args) :]
            return self._interpreted((*bound, *rest), self._with_statics((), kwargs)[1])

        return cutting(apply)


def bind(argument: Any) -> Bound:
    """Flattens an argument, for calls to come."""
    return Bound(*VALUES.pack(argument))


@overload
def jit(function: Callable[P, R], /, **options: Unpack[CompilerKeywords]) -> JitFunction[P, R]: ...
@overload
def jit(**options: Unpack[CompilerKeywords]) -> Callable[[Callable[P, R]], JitFunction[P, R]]: ...
@transform()
def jit(
    function: Callable[..., Any] | None = None,
    /,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    **jax_options: Any,
) -> Any:
    """Compiles a function of records, arrays and anything hashable.

    Args:
        function: the function. If it is a record (or a method of one), its arrays are arguments, not constants.
        in_shardings: a sharding for all arguments, or a tuple with one prefix for each; `axes({kind: sharding})` gives
            one for each kind.
        out_shardings: likewise for the output.
        static_argnums: arguments that are static as a whole, numbers in them too. Leaves that are no arrays or numbers,
            and the numbers in a record's fields, are static anyway.
        static_argnames: the same by name.
        donate_argnums: arguments whose buffers the output may reuse; using them afterwards is a `DonatedError`.
        donate_argnames: the same by name.
        jax_options: `keep_unused`, `inline`, `compiler_options`, ..., for `jax.jit`.

    Returns:
        A function with the same signature, and with `trace`, `lower`, `eval_shape` and `partial`; `weft.export` exports
        it.

    Raises:
        StaticError: if a static leaf cannot be hashed.
        DonatedError: if an argument was donated before.

    Source: `jax.jit`.

    >>> import jax.numpy as jnp
    >>> @jit
    ... def step(model, x):
    ...     return x * model["w"], {**model, "count": model["count"] + 1}
    >>> y, model = step({"w": jnp.array(2.0), "count": 0, "name": "scale"}, 3.0)
    >>> float(y), int(model["count"]), model["name"]
    (6.0, 1, 'scale')
    """

    def wrap(function: Callable[..., Any]) -> JitFunction[Any, Any]:
        static_numbers, static_names = numbers_and_names(function, static_argnums, static_argnames)
        donated_numbers, donated_names = numbers_and_names(function, donate_argnums, donate_argnames)
        options = JitOptions(
            static_numbers, static_names, donated_numbers, donated_names, in_shardings, out_shardings, jax_options
        )
        return JitFunction(function, options)

    # `wrap` is new at each call: transforms of a part of a threaded record are compared by the options beside it.
    statics, donated = (static_argnums, static_argnames), (donate_argnums, donate_argnames)
    return decorate(function, wrap, JIT, in_shardings, out_shardings, statics, donated, jax_options)
