"""The check of one array against one array annotation: class, dtype, rank, then each axis.

Names are bound here. Sizes are compared with `==` only, so they may be JAX's symbolic dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.annotations import ArrayOf
from weft.typecheck.language.dims import AnyDim, Dim, FixedDim, NamedDim, SymbolicDim, UnboundDim, VariadicDim
from weft.typecheck.language.forms import unboxed
from weft.typecheck.matching.bindings import Bindings, Mismatch, Origin, Pending, PendingStructure, Variadic
from weft.typecheck.matching.compiling import CASES, Check
from weft.typecheck.matching.policies import Policy
from weft.typecheck.matching.words import dtype_name


def array_check(spec: ArrayOf, policy: Policy) -> Check:
    """The check of an array annotation under a policy; a policy with `boxes` lets a Variable stand for its array."""
    check = _check_of_array(spec)
    return (lambda value, bindings: check(unboxed(value), bindings)) if policy.boxes else check


def _check_of_array(spec: ArrayOf) -> Check:
    is_array, of_jax = _class_test(spec.array_type), spec.array_type is jax.Array
    accepted: dict[Any, bool] = {}  # by dtype, as matching names and patterns at each call would be slow
    dtypes, shape = spec.dtype, spec.shape
    dims, rank, variadic = shape.dims, shape.min_rank, shape.variadic
    any_shape = len(dims) == 1 and dims[0] == VariadicDim(None)

    def check(value: Any, bindings: Bindings) -> None:
        if not is_array(value):
            # In one part of a split record, the leaves of the other parts are None.
            if bindings.sparse and type(value) is type(None):
                return
            # JAX converts any array or scalar of NumPy's but strings, objects and dates.
            of_numpy = isinstance(value, np.ndarray | np.generic)
            if not (of_jax and bindings.numpy and of_numpy and value.dtype.kind not in "OSUMm"):
                raise Mismatch("class", spec, value, bindings)
        if dtypes.accepted is not None:
            dtype = value.dtype
            if bindings.numpy and of_jax and isinstance(value, np.ndarray | np.generic):
                dtype = jax.dtypes.canonicalize_dtype(dtype)  # `jit` makes float64 a float32, and the check must agree
            fits = accepted.get(dtype)
            if fits is None:
                fits = accepted[dtype] = dtypes.accepts(dtype_name(dtype))
            if not fits:
                raise Mismatch("dtype", spec, value, bindings)
        if bindings.met is not None:  # arrays are placed on a mesh by the dims that they were checked for
            whole = shape if bindings.lead is None else shape.under(bindings.lead[0])
            bindings.met.append((value, bindings.slot, whole))
        actual = value.shape
        skip = 0
        # The leading axes are checked and removed first: the annotation of the array inside does not name them.
        if bindings.lead is not None:
            skip = check_lead(value, actual, bindings, rank, variadic is not None, spec)
            actual = actual[skip:]
        if any_shape:
            return
        if variadic is None:
            if len(actual) != rank:
                raise Mismatch("rank", spec, value, bindings)
            check_axes(dims, actual, skip, value, bindings, spec)
            return
        if len(actual) < rank:
            raise Mismatch("rank", spec, value, bindings)
        # The axes behind the variadic dim are counted from the end: only then is it known how many the dim takes.
        after = len(actual) - (len(dims) - variadic - 1)
        check_axes(dims[:variadic], actual[:variadic], skip, value, bindings, spec)
        check_axes(dims[variadic + 1 :], actual[after:], skip + after, value, bindings, spec)
        check_variadic(dims[variadic], actual[variadic:after], skip + variadic, value, bindings, spec)

    return check


def _class_test(array_type: Any) -> Callable[[Any], bool]:
    """The test whether a value is an array of the annotated class."""
    if array_type is jax.Array:
        known: dict[type, bool] = {}

        def test(value: Any) -> bool:
            # The class decides whether a value is an array, and `isinstance` on `jax.Array` runs Python code each time.
            answer = known.get(type(value))
            if answer is None:
                answer = known[type(value)] = isinstance(value, jax.Array | jax.ShapeDtypeStruct)
            return answer

        return test
    if array_type is Any:
        return lambda value: hasattr(value, "shape") and hasattr(value, "dtype")
    if array_type is np.ndarray:  # inside a transform, a NumPy argument has become an array of JAX
        array_type = np.ndarray | jax.Array | jax.ShapeDtypeStruct
    return lambda value: isinstance(value, array_type)


def check_lead(value: Any, actual: Any, bindings: Bindings, rank: int, open_ended: bool, spec: Any) -> int:
    """Checks the leading axes that `Batched` declares; returns how many axes the array has of them."""
    assert bindings.lead is not None
    lead, outer = bindings.lead
    if lead.variadic is None:
        count = len(lead.dims)
        if len(actual) < count + rank:
            raise Mismatch("unbatched", spec, value, bindings)
        _in_scope_of(outer, bindings, lambda: check_axes(lead.dims, actual[:count], 0, value, outer, spec))
        return count
    count = len(actual) - rank
    # With two variadic dims, nothing says where the leading axes end and those of the array begin.
    if open_ended or count < lead.min_rank:
        raise Mismatch("unbatched", spec, value, bindings)
    before, after = lead.variadic, count - (len(lead.dims) - lead.variadic - 1)

    def check() -> None:
        check_axes(lead.dims[:before], actual[:before], 0, value, outer, spec)
        check_axes(lead.dims[before + 1 :], actual[after:count], after, value, outer, spec)
        check_variadic(lead.dims[before], actual[before:after], before, value, outer, spec)

    _in_scope_of(outer, bindings, check)
    return count


# The names of leading axes belong to the scope that declares them: `layers` is the parent's dim, not the child's.
def _in_scope_of(outer: Bindings, inner: Bindings, check: Callable[[], None]) -> None:
    if outer is inner:
        return check()
    place = outer.slot, outer.path
    outer.slot, outer.path = inner.slot, (*outer.path, *inner.path)
    try:
        check()
    finally:
        outer.slot, outer.path = place


def check_axes(
    dims: Sequence[Dim], sizes: Sequence[Any], start: int, value: Any, bindings: Bindings, spec: Any
) -> None:
    """Checks single axes and binds free names; `start` is the number of the first axis in the value."""
    for axis, (dim, size) in enumerate(zip(dims, sizes, strict=True), start):
        kind = type(dim)
        if kind is NamedDim:
            if dim.broadcastable and size == 1:  # pyright: ignore[reportAttributeAccessIssue]
                continue
            named: Any = dim
            name: str = _of_leaf(named, bindings) if named.per_leaf else named.name
            expected = bindings.sizes.get(name)
            # A size is never None, so one lookup tells a free name from a bound one.
            if expected is None:
                bindings.sizes[name] = size
                bindings.origins[name] = Origin(bindings.slot, bindings.path, axis, value)
            elif expected != size:
                raise Mismatch("size", spec, value, bindings, axis=axis, dim=dim, expected=expected)
        elif kind is not AnyDim:
            _check_size(dim, size, axis, value, bindings, spec)


def _check_size(dim: Dim, size: Any, axis: int, value: Any, bindings: Bindings, spec: Any) -> None:
    """Checks an axis whose size the annotation gives, as a number or an expression."""
    assert isinstance(dim, FixedDim | SymbolicDim)
    if dim.broadcastable and size == 1:
        return
    if isinstance(dim, FixedDim):
        expected = dim.size
    else:
        try:
            expected = dim.evaluate(bindings.sizes, bindings.arguments())
        # A later argument may bind the name, as in `f(x: "2*n", y: "n")`: the axis waits until all values were seen.
        except UnboundDim:
            bindings.pending.append(Pending(dim, size, Origin(bindings.slot, bindings.path, axis, value)))
            return
    if expected != size:
        raise Mismatch("size", spec, value, bindings, axis=axis, dim=dim, expected=expected)


def settle(bindings: Bindings, *, finally_: bool) -> None:
    """Checks the axes that waited for names which have been bound since.

    An expression with a single unknown that is linear in it, such as `2*n`, binds the unknown.

    Args:
        bindings: the scope.
        finally_: whether nothing more will be bound, so that an axis that still waits is an error.

    Raises:
        UnboundDim: if, at the end, an expression still reads a name that nothing binds.
    """
    progress = True
    # One solved axis may bind the name that an earlier one waits for, so the loop runs until a pass changes nothing.
    while bindings.pending and progress:
        waiting, progress = bindings.pending, False
        bindings.pending = []
        for entry in waiting:
            if _is_settled(entry, bindings):
                progress = True
            else:
                bindings.pending.append(entry)
    if finally_ and bindings.pending:
        entry = bindings.pending[0]
        if isinstance(entry, PendingStructure):
            raise AnnotationError(
                entry.unbound, fix='annotate one argument with that structure alone: PyTree[..., "T"]'
            )
        # The last evaluation raises UnboundDim, whose message names the dim that nothing binds.
        entry.dim.evaluate(bindings.sizes, bindings.arguments())


def _is_settled(entry: Pending | PendingStructure, bindings: Bindings) -> bool:
    """Checks an axis or structure if its names are bound or can be solved for; returns whether it could."""
    if isinstance(entry, PendingStructure):
        return entry.check()
    try:
        expected = entry.dim.evaluate(bindings.sizes, bindings.arguments())
    except UnboundDim as unbound:
        size = _solve(entry, unbound.name, bindings)
        if size is None:
            return False
        bindings.sizes[unbound.name] = size
        bindings.origins[unbound.name] = entry.origin
        return True
    if expected != entry.size:
        raise _pending_mismatch(entry, expected, bindings)
    return True


def _solve(pending: Pending, name: str, bindings: Bindings) -> Any:
    """The unknown of an expression that is linear in one unknown; None if it has several or is not linear."""
    if name not in pending.dim.names:
        return None
    try:
        # Three points tell a line from a curve: `n*n` has the same values as a line at any two.
        zero, first, second = (
            pending.dim.evaluate({**bindings.sizes, name: trial}, bindings.arguments()) for trial in (0, 1, 2)
        )
    except Exception:  # several unknowns, or a division by zero at a trial value: not solvable
        return None
    slope = first - zero
    if slope == 0 or second - first != slope:
        return None
    size = (pending.size - zero) // slope
    # Floor division rounds: `2*n` of an odd size has no solution, and the check says so here.
    if pending.dim.evaluate({**bindings.sizes, name: size}, bindings.arguments()) != pending.size:
        raise _pending_mismatch(pending, None, bindings)
    return size


def _pending_mismatch(pending: Pending, expected: Any, bindings: Bindings) -> Mismatch:
    """The mismatch of an axis that waited for its names, at the place where the axis stands."""
    origin = pending.origin
    return Mismatch(
        "size",
        origin.slot.annotation,
        origin.value,
        bindings,
        axis=origin.axis,
        dim=pending.dim,
        expected=expected,
        origin=origin,
    )


def _of_leaf(dim: Any, bindings: Bindings) -> str:
    """The key of a dim that differs from leaf to leaf, made of its name and the leaf that is being checked."""
    trees = bindings.leaf.count(":")
    if trees != 1:  # jaxtyping refuses these as well: with two trees, the name could mean the leaf of either
        problem = (
            f"the dim '{dim}' has a size for each leaf, so it must be inside of one PyTree with a structure, such as "
        )
        raise AnnotationError(problem + f'PyTree[..., "T"]; here {"two are" if trees else "none is"} around it')
    return bindings.leaf + dim.name


def check_variadic(dim: Dim, axes: tuple[Any, ...], axis: int, value: Any, bindings: Bindings, spec: Any) -> None:
    """Checks the axes of a variadic dim, and binds its name if it is free; `axis` is the number of the first axis."""
    assert isinstance(dim, VariadicDim)
    if dim.name is None:
        return
    name = _of_leaf(dim, bindings) if dim.per_leaf else dim.name
    known = bindings.variadics.get(name)
    if known is None:
        bindings.variadics[name] = Variadic(axes, dim.broadcastable)
        bindings.origins["*" + name] = Origin(bindings.slot, bindings.path, axis, value)
        return
    if not known.broadcastable and not dim.broadcastable:
        if known.shape != axes:
            raise Mismatch("axes", spec, value, bindings, axis=axis, dim=dim, expected=known.shape)
        return
    # As in jaxtyping: a use without `#` has the full shape, and uses with `#` broadcast to that shape.
    together = _broadcast(known.shape, axes)
    full = together is not None and (dim.broadcastable or together == axes)
    if not full or (not known.broadcastable and together != known.shape):
        raise Mismatch("axes", spec, value, bindings, axis=axis, dim=dim, expected=known.shape)
    assert together is not None
    bindings.variadics[name] = Variadic(together, known.broadcastable and dim.broadcastable)


def _broadcast(*shapes: tuple[Any, ...]) -> tuple[Any, ...] | None:
    # NumPy's rules, written here because sizes may be symbolic, which `np.broadcast_shapes` does not take.
    longer, shorter = sorted(shapes, key=len, reverse=True)
    padded = (1,) * (len(longer) - len(shorter)) + tuple(shorter)
    if any(a != b and a != 1 and b != 1 for a, b in zip(longer, padded, strict=True)):
        return None
    return tuple(b if a == 1 else a for a, b in zip(longer, padded, strict=True))


CASES[ArrayOf] = array_check
