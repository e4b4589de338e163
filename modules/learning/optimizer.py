"""Optimizer: an optax transformation, its state and the filter of the leaves that it moves, as one record.

A training step returns two things: a gradient, and the successor of the model that computed the loss. The successor
holds the changed state (statistics, caches, random streams). Its parameters may be those that the loss computed with,
such as a cast or perturbed copy, and must not become the model's. So `update` takes the parameters and the state from
different arguments:

    (value, new), grad = weft.value_and_grad(loss, has_aux=True)(model, x, y)
    model, opt = opt.update(model, grad, state_of=new)

The result has the parameters of `model` (the leaves that `wrt` selects), moved by the optimizer, and all other leaves
of `new`.

optax gets sparse records, the model with `None` in the place of every other leaf, so labels and masks may be records.
The state is stored as optax has it (`opt.state.hyperparams["learning_rate"]`), but for the records in it: their arrays
are in plain dicts, and the treedef of the whole is configuration. Records would have the model's configuration and its
fields' kinds: a switch to inference mode, or a filter for `Param`, would change the moments, too.

For a complex parameter, `weft.grad` and `jax.grad` return the conjugate of the direction in which a real loss grows.
optax subtracts what it is given, so `update` passes the conjugate on, for `minimize` and for gradients of the user's
alike.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from weft.core.edge import trees
from weft.core.edge.trees import TreeDef, key_part
from weft.core.errors import DifferentiationError, StructureError, TraceLevelError
from weft.core.interpreter.boundary import parameter_names
from weft.core.paths import Path, format_path
from weft.core.records.filters import Filter, format_filter, predicate
from weft.core.records.kinds import OptState, Param
from weft.core.records.leaves import Leaf, iter_leaves, refuse_aliases
from weft.core.records.module import Module, static, with_fields
from weft.core.records.partition import only_leaves, with_leaves
from weft.core.records.sorting import sort_leaves
from weft.core.records.successors import (
    GRADIENTS,
    PARAMETERS,
    arguments_by_name,
    check_origin,
    check_successor,
    closed_over_by,
    how_to_unpack,
    pair_in_words,
    rivals_of,
    take_successor,
)
from weft.core.threads.calls import drop_successor
from weft.modules.construct import ConfigError
from weft.modules.explicit import as_given, laid_as
from weft.modules.learning.choosing import chosen
from weft.modules.learning.offered import accepted, no_schedules
from weft.modules.op import hashable
from weft.transforms.autodiff import value_and_grad

if TYPE_CHECKING:
    import optax

M = TypeVar("M")


class Layout:
    """The treedefs by which an optimizer's arrays are rebuilt to what optax expects.

    Attributes:
        leaves: the parameters, in order, with shapes in place of arrays: their kinds and the names of their axes. It
            is not compared: dtypes may change by a cast, and the rest follows from the other attributes.
        paths: the paths of the parameters.
        forms: their shapes, and whether they are complex. They are compared, so that no trace serves other shapes.
        parameters: the treedef of the sparse model that optax sees.
        state: the treedef of optax's state, whose leaves have the paths `paths_in_state`.
    """

    # Not a dataclass: the repr of an Optimizer would print both treedefs, which are as long as the model's.
    def __init__(self, leaves: Sequence[Leaf], parameters: TreeDef, state: TreeDef):
        self.leaves = {leaf.path: replace(leaf, value=_abstract(leaf.value)) for leaf in leaves}
        self.paths, self.parameters, self.state = tuple(self.leaves), parameters, state
        self.forms = tuple(_form(leaf.value) for leaf in leaves)
        self.paths_in_state = _paths(state)

    def parameter_of(self, path: Path, shape: tuple[int, ...]) -> Leaf | None:
        """Returns the parameter to which an array of the optimizer belongs, such as a moment; None if there is none of
        its shape.

        Args:
            path: the path of the array in the optimizer.
            shape: the shape of the array; leading axes, which a mapped constructor adds, are ignored.
        """
        # The path of a moment ends with the path of its parameter: `mu.layers[0].kernel`. Longer ends are tried first.
        for start in range(1, len(path) + 1):
            leaf = self.leaves.get(path[start:])
            if leaf is not None:
                own = leaf.value.shape
                return leaf if shape[len(shape) - len(own) :] == own else None
        return None

    def __eq__(self, other: object) -> bool:
        return type(other) is Layout and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash((self.parameters, self.state))

    def _compared(self) -> tuple[Any, ...]:
        return self.paths, self.forms, self.parameters, self.state

    def __repr__(self) -> str:
        return f"Layout({len(self.paths)} parameters, {self.state.num_leaves} arrays of state)"


@dataclass(frozen=True)
class PerFilter:
    """Several transformations as one; each parameter belongs to one of the transformations.

    Attributes:
        transformations: the transformations, of optax.
        groups: for each parameter, in order, the number of the transformation that moves it.
    """

    transformations: tuple[Any, ...]
    groups: tuple[int, ...]

    def init(self, params: Any) -> Any:
        """Returns the initial states of the transformations."""
        return tuple(tx.init(self._part(params, group)) for group, tx in enumerate(self.transformations))

    def update(self, updates: Any, state: Any, params: Any, **extra: Any) -> tuple[Any, Any]:
        """Returns the updates of all parameters, and the next states of the transformations."""
        done = [
            _update(tx, self._part(updates, group), own, self._part(params, group), self._extra(extra, params, group))
            for group, (tx, own) in enumerate(zip(self.transformations, state, strict=True))
        ]
        treedef = trees.structure(params)
        rows = [treedef.flatten_up_to(moved) for moved, _ in done]
        # Each parameter takes its update from its own transformation; the others have None there.
        merged = [rows[group][i] for i, group in enumerate(self.groups)]
        return treedef.unflatten(merged), tuple(state for _, state in done)

    def _extra(self, extra: Mapping[str, Any], params: Any, group: int) -> dict[str, Any]:
        """Converts extra arguments from all parameters to those of one transformation."""
        leaves, treedef = trees.flatten(params)

        def whole(part: Any) -> Any:
            # Parameters of the other transformations keep their current values while this one evaluates the loss.
            rows = zip(leaves, treedef.flatten_up_to(part), self.groups, strict=True)
            return treedef.unflatten([moved if of == group else kept for kept, moved, of in rows])

        return _in_terms(extra, whole, lambda gradient: self._part(gradient, group))

    def _part(self, tree: Any, group: int) -> Any:
        leaves, treedef = trees.flatten(tree)
        return treedef.unflatten([leaf if of == group else None for leaf, of in zip(leaves, self.groups, strict=True)])


def _check_transformation(transformations: Any) -> None:
    by_filter = cast("Mapping[Any, Any]", transformations) if isinstance(transformations, Mapping) else None
    for transformation in (transformations,) if by_filter is None else by_filter.values():
        if not callable(getattr(transformation, "init", None)) or not callable(getattr(transformation, "update", None)):
            name = getattr(transformation, "__name__", None)
            raise ConfigError(
                f"an optimizer takes a transformation of optax, not a {type(transformation).__name__}",
                at=f"transformation={f'the function {name}' if name else transformation!r}",
                fix=f"call it: {name}(...)" if name else "Optimizer(model, optax.adamw(1e-3)): the model comes first",
            )
        if wrong := no_schedules(transformation):
            raise ConfigError(
                "optax.inject_hyperparams takes what can be called for a schedule, and this gives no number for a step",
                at=wrong,
                fix=f'say that it is none: optax.inject_hyperparams(..., static_args=("{wrong[0]}",))',
            )


class Optimizer(Module):  # weft: skip(of any model)
    """Moves the parameters of a model: `model, opt = opt.update(model, grad, state_of=new)`.

    Args:
        model: a record, or any tree of arrays and records.
        transformation: a transformation of optax (`optax.adamw(1e-3)`, a chain, `optax.MultiSteps`), or a dict from
            filters to transformations: the first filter that matches a parameter decides which one moves it.
        wrt: a filter for the leaves to move; `Param` by default. `grad` must get the same filter.

    Attributes:
        state: optax's state, with plain dicts for records, so `opt.state.hyperparams["learning_rate"]` reads what
            `optax.inject_hyperparams` keeps, and `weft.at(opt).state...set(...)` changes it. `optax_state` is the state
            as optax has it.
        step: how many updates were made.

    Raises:
        ConfigError: if `transformation` is not a transformation of optax.
        FilterError: if a filter matches nothing, or a parameter matches no filter of the dict.
        DifferentiationError: if a parameter is not inexact.
        AliasError: if one array is in two places, which an update would take apart; see `Shared`.

    >>> import jax, optax
    >>> model = Linear(2, 1, key=jax.random.key(0))
    >>> opt = Optimizer(model, optax.sgd(0.5))
    >>> gradient = grad(lambda model, x: model(x).sum())(model, jnp.ones(2))
    >>> moved, opt = opt.update(model, gradient)
    >>> (moved.bias - model.bias).tolist(), int(opt.step)
    ([-0.5], 1)
    """

    state: Annotated[Any, OptState]
    step: Annotated[jax.Array, OptState]
    transformation: Any = static()
    wrt: Any = static()
    layout: Any = static()

    def __init__(
        self,
        model: Any,
        transformation: optax.GradientTransformation | optax.MultiSteps | Mapping[Any, optax.GradientTransformation],
        *,
        wrt: Filter = Param,
    ):
        _check_transformation(transformation)
        predicate(wrt)  # raises if `wrt` is no filter
        # Filters are static fields, which JAX hashes; a list among them would fail at the first jitted step.
        self.wrt = hashable(wrt)
        leaves = _parameters(model, self.wrt)
        PARAMETERS.note([leaf.value for leaf in leaves])
        # One array in two places is two leaves here. They would get two different updates, and be shared no more.
        refuse_aliases(model, leaves, ("model",), "an optimizer")
        if isinstance(transformation, Mapping):
            groups = cast("list[int]", sort_leaves(leaves, tuple(transformation)))
            self.transformation = PerFilter(tuple(transformation.values()), tuple(groups))
        else:
            self.transformation = transformation
        parameters = only_leaves(model, {leaf.path: leaf.value for leaf in leaves})
        state = self.transformation.init(parameters)
        self.layout = Layout(leaves, trees.structure(parameters), trees.structure(state))
        self.state = _without_records(_owned(state, model))
        # An array and no Python number: as configuration it would compile the step anew at every update.
        self.step = jnp.zeros((), jnp.int32)

    def __as_saved__(self) -> Self:
        """This record as checkpoints describe it: optax's classes are private, and move between its releases."""
        return with_fields(self, {"state": _by_path(self.state)})

    @property
    def optax_state(self) -> Any:
        """The state as optax has it; for a dict of transformations, a tuple of their states.

        >>> import jax, optax
        >>> opt = Optimizer(Linear(2, 1, key=jax.random.key(0)), optax.adam(1e-3))
        >>> [type(part).__name__ for part in opt.optax_state], int(opt.optax_state[0].count)
        (['ScaleByAdamState', 'EmptyState'], 0)
        """
        arrays = {_path(keys): leaf for keys, leaf in trees.flatten_with_path(self.state)[0]}
        return self.layout.state.unflatten([arrays[path] for path in self.layout.paths_in_state])

    def update(self, model: M, grad: Any, /, *, state_of: M | None = None, **extra: Any) -> tuple[M, Self]:
        """Moves the parameters.

        Args:
            model: the model that was differentiated. Its parameters are moved.
            grad: the gradient as `weft.grad` or `jax.grad` returns it, of the model's structure, with `None` at all
                leaves but parameters. For complex parameters it is not conjugated before.
            state_of: the model's successor, as the loss returned it. All leaves but the parameters are taken from it.
                Without it, they stay as they are in `model`.
            extra: the extra arguments of the transformation, such as `value=loss`. `grad` is a gradient of the model;
                `value_fn` and `grad_fn` are functions of a model. Of `value`, `grad`, `value_fn` and `grad_fn`, a
                transformation gets those that it accepts.

        Returns:
            The successors of the model and of the optimizer. All arrays keep their dtypes, and their shardings.

        Raises:
            StructureError: naming the paths where the gradient does not fit the parameters, or where the model has
                other parameters than the one that the optimizer was made for, or of other shapes; or if the two
                arguments are swapped, as far as the gradient or the model is known.
            TraceLevelError: if the transformation was made inside of a transform, of a value that was traced there.
            SuccessorError: naming the paths where `state_of` has another structure than the model; or if `state_of` is
                the successor of another model that the loss took as an argument, too.
        """
        import optax

        layout: Layout = self.layout
        _refuse_swapped(model, grad)
        parameters = self._read(model)
        tree, gradient = layout.parameters.unflatten(parameters), self._read_gradient(grad, parameters)
        extra = _in_terms(
            extra,
            lambda tree: self._with_parameters(model, tree),
            lambda gradient: self._read_gradient(gradient, parameters),
        )
        updates, state = _update(self.transformation, gradient, self.optax_state, tree, extra)
        # A state of another treedef would be stored under wrong paths, and fail only at the next update.
        if trees.structure(state) != layout.state:
            raise StructureError(
                "the update of the transformation returned a state of another structure",
                at=[f"before: {layout.state}", f"after: {trees.structure(state)}"],
                fix="make the transformation keep the structure of its state, as optax requires",
            )
        new = model
        if state_of is not None:
            # The successor's parameters may be casts or perturbations of the loss, so the model's own replace them
            # first.
            new = self._with_parameters(state_of, tree)
            check_successor(model, new, "state_of")
            # A teacher's successor may have the same treedef as the student's: the student would get the teacher's
            # statistics.
            check_origin(cast(Any, model), cast(Any, state_of), rivals_of(model), "state_of")
            new = laid_as(new, model)
        moved = laid_as(optax.apply_updates(tree, updates), tree)
        PARAMETERS.note(jax.tree.leaves(moved))
        successor = self._with_parameters(new, moved)
        # The update itself lies as the compiler likes: beside a gathered gradient it would be gathered, too.
        state = _without_records(laid_as(state, self.optax_state))
        return successor, self.replace(state=state, step=self.step + 1)

    def minimize(self, loss: Callable[..., Any], model: M, /, *args: Any, **kwargs: Any) -> tuple[Any, M, Self]:
        """Makes one step down the gradient of a loss: `value, model, opt = opt.minimize(loss, model, x, y)`.

        The loss is differentiated with respect to the leaves that the optimizer moves (`wrt`), so that the two cannot
        disagree. The last record of the model's type that the loss returns is the model's successor, as in a `thread`
        block. Transformations that look at the loss (`optax.lbfgs`, `optax.contrib.reduce_on_plateau`) get its value,
        its gradient and the loss itself; successors of the evaluations of a line search are dropped.

        Args:
            loss: of the model and the arguments. It returns a scalar, or a tuple that begins with one: `(value, aux)`,
                `(value, successor)`, `(value, aux, successor)`.
            model: the model.
            args: further arguments of the loss, which are not differentiated.
            kwargs: the same by name.

        Returns:
            The loss's result without the successor, the successor of the model and the successor of the optimizer.

        Raises:
            DifferentiationError: if the loss, or the first item of its tuple, is not an inexact scalar.
            SuccessorError: if several of the returned records may be the successor, or if the record is the successor
                of another argument of the loss, such as a teacher.

        >>> import jax, optax
        >>> model = Linear(2, 1, key=jax.random.key(0))
        >>> opt = Optimizer(model, optax.sgd(0.5))
        >>> value, moved, opt = opt.minimize(lambda model, x: model(x).sum(), model, jnp.ones(2))
        >>> (moved.bias - model.bias).tolist()
        [-0.5]
        """
        before = model

        def evaluate(model: Any, *args: Any, **kwargs: Any) -> Any:
            value, successor = take_successor(model, loss(model, *args, **kwargs), "the loss")
            if successor is not None:
                others = [*arguments_by_name(args, kwargs, parameter_names(loss)[1:]), *closed_over_by(loss)]
                check_origin(
                    model,
                    successor,
                    [(name, argument) for name, argument in others if argument is not before],
                    "the loss",
                )
            return _number(value), (value, successor)

        (_, (value, new)), gradient = value_and_grad(evaluate, wrt=self.wrt, has_aux=True)(model, *args, **kwargs)

        def grad_fn(model: Any, *_: Any) -> Any:
            return drop_successor(value_and_grad(evaluate, wrt=self.wrt, has_aux=True)(model, *args, **kwargs))[1]

        seen = {"value": _number(value), "grad": gradient, "grad_fn": grad_fn}
        # A line search evaluates the loss at points that it may reject, so the statistics of these calls are dropped.
        seen["value_fn"] = lambda model: drop_successor(evaluate(model, *args, **kwargs))[0]
        return value, *self.update(model, gradient, state_of=new, **seen)

    def _read(self, model: Any) -> list[Any]:
        """Returns the parameters of a model, after a check that they have the known paths."""
        leaves, layout = _parameters(model, self.wrt), self.layout
        known, values = layout.paths, {leaf.path: leaf.value for leaf in leaves}
        wrong = []
        if tuple(values) != known:
            wrong = _unlike(known, tuple(values), "model", "is no parameter there", "was none there")
        # Inside of a `shard_map` each device sees its part of the parameters and of the state.
        elif not jax.sharding.get_abstract_mesh().manual_axes:
            was = {path: leaf.value for path, leaf in layout.leaves.items()}
            wrong = _misshapen(values, was, layout.forms, "model", "it was")
        if wrong:
            raise StructureError(
                "the model has other parameters than the model that this optimizer was made for",
                at=wrong,
                fix=how_to_unpack(model) if pair_in_words(model) else "make a new Optimizer for this model",
            )
        refuse_aliases(model, leaves, ("model",), "an optimizer")
        return [leaf.value for leaf in leaves]

    def _read_gradient(self, grad: Any, parameters: Sequence[Any]) -> Any:
        """Returns a gradient as the tree that optax gets, after a check of its paths and shapes."""
        gradients = {leaf.path: leaf.value for leaf in iter_leaves(grad) if leaf.dynamic}
        known = dict(zip(self.layout.paths, parameters, strict=True))
        # Compared by path, because a gradient with another `wrt` may have the same number of leaves.
        wrong = _unlike(tuple(known), tuple(gradients), "grad", "is missing", "is the gradient of no parameter")
        wrong += _misshapen(gradients, known, [*map(_form, parameters)], "grad", "the parameter")
        if wrong:
            raise StructureError(
                f"the gradient does not fit the optimized leaves: {format_filter(self.wrt)}",
                at=wrong,
                fix="unpack the pair: has_aux=True returns (gradient, aux), value_and_grad returns (value, gradient)"
                if type(grad) is tuple
                else "give grad and Optimizer the same wrt, and update the model that was differentiated",
            )
        # JAX's gradient of a real loss of a complex parameter is the conjugate of the direction of steepest ascent:
        # without this, `minimize` climbed along the imaginary part.
        values = [gradients[path] for path in known]
        return self.layout.parameters.unflatten([jnp.conj(g) if jnp.iscomplexobj(g) else g for g in values])

    def _with_parameters(self, model: M, tree: Any) -> M:
        values = self.layout.parameters.flatten_up_to(tree)
        return with_leaves(model, dict(zip(self.layout.paths, values, strict=True)))


def _abstract(value: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(jnp.shape(value), jnp.result_type(value))


def _number(value: Any) -> Any:
    """Returns the loss of what a loss returned: a number, or a tuple that begins with it."""
    return value[0] if type(value) is tuple and value else value


def _form(value: Any) -> tuple[tuple[int, ...], bool]:
    """What of a parameter its moments depend on: its shape, and whether it is complex."""
    return jnp.shape(value), jnp.issubdtype(jnp.result_type(value), jnp.complexfloating)


def _misshapen(
    values: Mapping[Path, Any], expected: Mapping[Path, Any], forms: Sequence[Any], root: str, whose: str
) -> list[str]:
    """Returns a line for each value that has another shape than expected, or is complex where that is real.

    The forms of the expected values are given, because a layout has them: an eager update would spend its time on them.
    """
    lines: list[str] = []
    for (path, was), form in zip(expected.items(), forms, strict=True):
        if path not in values or _form(values[path]) == form:
            continue
        now = values[path]
        if jnp.shape(now) != jnp.shape(was):
            differing = f"shape {jnp.shape(now)}, {whose} of {jnp.shape(was)}"
        else:
            differing = f"dtype {jnp.result_type(now).name}, {whose} of {jnp.result_type(was).name}"
        lines.append(f"{format_path(path, root)} is of {differing}")
    return lines


def _refuse_swapped(model: Any, grad: Any) -> None:
    """Refuses a gradient in the place of the model, if the gradient or the model is known.

    A gradient has the structure of a model of parameters alone, so that the step would move the gradient by the model.
    """
    first, second = (next(iter(jax.tree.leaves(tree)), None) for tree in (model, grad))
    if (first in GRADIENTS and second not in GRADIENTS) or (second in PARAMETERS and first not in PARAMETERS):
        raise StructureError(
            "the gradient is in the place of the model, and the model in that of the gradient",
            at="opt.update(gradient, model)",
            fix="opt.update(model, gradient); if it is meant so, pass copies of both: weft.tree.copy",
        )


def _parameters(model: Any, wrt: Filter) -> list[Leaf]:
    leaves = chosen(model, wrt)
    wrong = [leaf for leaf in leaves if not jnp.issubdtype(jnp.result_type(leaf.value), jnp.inexact)]
    if wrong:
        raise DifferentiationError(
            "an optimizer updates only inexact arrays, and these leaves are not",
            at=[f"{format_path(leaf.path, 'model')}: {jax.typeof(leaf.value)}" for leaf in wrong],
            fix="leave them out with wrt=: All(Param, ...)",
        )
    return leaves


def _unlike(known: Sequence[Path], paths: Sequence[Path], root: str, missing: str, new: str) -> list[str]:
    """Returns a line for each path that is in only one of two lists."""
    here, there = set(known), set(paths)
    gone = [f"{format_path(path, root)} {missing}" for path in known if path not in there]
    return gone + [f"{format_path(path, root)} {new}" for path in paths if path not in here]


def _update(transformation: Any, updates: Any, state: Any, params: Any, extra: Mapping[str, Any]) -> tuple[Any, Any]:
    import optax

    # `MultiSteps` and `PerFilter` are not `GradientTransformation`s, and pass extra arguments on by themselves.
    if isinstance(transformation, optax.GradientTransformation):
        transformation = optax.with_extra_args_support(transformation)
    arguments = extra if isinstance(transformation, PerFilter) else accepted(transformation.update, extra)
    try:
        return as_given(transformation.update, updates, state, params, like=(updates, state), **arguments)
    except jax.errors.UnexpectedTracerError as error:
        raise TraceLevelError(
            "the transformation of this optimizer holds a traced value of a vmap or jit that has ended",
            at="transformation",
            fix="optax.inject_hyperparams(optax.adam)(rate) keeps the value in the optimizer's state; or make the "
            "transformation of numbers, outside of the function that is transformed",
        ) from error


def _in_terms(extra: Mapping[str, Any], whole: Callable[[Any], Any], own: Callable[[Any], Any]) -> dict[str, Any]:
    """Converts extra arguments from a whole tree to the parameters that a transformation sees.

    Args:
        extra: the extra arguments for the whole tree.
        whole: completes the parameters to the whole tree.
        own: reduces a gradient of the whole tree to one of the parameters.
    """
    seen = dict(extra)
    if "grad" in extra:
        seen["grad"] = own(extra["grad"])
    if "value_fn" in extra:
        seen["value_fn"] = lambda params: extra["value_fn"](whole(params))
    if "grad_fn" in extra:
        seen["grad_fn"] = lambda params, *step: own(extra["grad_fn"](whole(params), *step))
    return seen


def _owned(state: Any, model: Any) -> Any:
    """Copies arrays that a state shares with the model or holds twice: XLA refuses to donate one buffer twice."""
    # Ids stay those of the leaves, which the two trees and the new one keep alive.
    seen = {id(leaf) for leaf in jax.tree.leaves(model)}

    def own(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and id(leaf) in seen:
            leaf = jnp.copy(leaf)
        seen.add(id(leaf))
        return leaf

    return jax.tree.map(own, state)


def _paths(treedef: TreeDef) -> list[Path]:
    """Returns the path of each leaf of a tree with this treedef."""
    # The tree is rebuilt with numbers as leaves, because only the paths matter.
    rows = trees.flatten_with_path(treedef.unflatten(range(treedef.num_leaves)))[0]
    return [_path(keys) for keys, _ in rows]


def _path(keys: Sequence[Any]) -> Path:
    return tuple(map(key_part, keys))


def _without_records(state: Any) -> Any:
    """Returns a state with plain dicts in the places of its records."""
    return jax.tree.map(_by_path, state, is_leaf=lambda node: isinstance(node, eqx.Module))


def _by_path(tree: Any) -> Any:
    """Stores the leaves of a tree in dicts, nested by the parts of their paths; a single leaf comes back as it is."""
    nested: dict[Hashable, Any] = {}
    for path, (_, leaf) in zip(_paths(trees.structure(tree)), trees.flatten_with_path(tree)[0], strict=True):
        if not path:
            return leaf
        inner = nested
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = leaf
    return nested
