"""Chooses the sharding of a result on a mesh of explicit axes, where JAX asks for one.

On such a mesh the type of a value says which mesh axes divide each of its axes. JAX refuses operations whose result
could lie in several ways: a product over an axis that both operands divide, or rows of a divided table. A layer knows
which operand is the batch and which are parameters, so it answers as tensor parallelism does, by one rule:

- contracted axes are summed over all devices,
- mesh axes that divide the batch stay with the batch,
- a parameter's own axis stays divided, unless the same mesh axis divides the batch.

Where JAX has an answer, JAX's answer holds. On automatic meshes, and without one, nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, reshard
from jaxtyping import Array, Float
from weft.core.edge import names
from weft.core.edge.layouts import lying_alike

T = TypeVar("T")
# As of `jax.lax.dot_general`: the contracted axes of both sides, and the batch axes of both.
Dimensions = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]
# Values with a type of JAX's. Objects that stand for arrays, such as quantised weights, have none, and so no sharding:
# `jax.typeof` would raise for them.
_TYPED = (jax.Array, jax.ShapeDtypeStruct)


def spec_of(x: Any) -> tuple[Any, ...]:
    """Returns for each axis of a value the mesh axes that divide it, as far as the value's type says so."""
    return tuple(jax.typeof(x).sharding.spec) if isinstance(x, _TYPED) else (None,) * len(x.shape)


def is_divided(*values: Any) -> bool:
    """Whether any of the values is divided over an explicit mesh.

    >>> is_divided(jnp.ones(2))
    False
    """
    return any(isinstance(value, _TYPED) and any(spec_of(value)) for value in values)


def once(entries: Iterable[Any]) -> tuple[Any, ...]:
    """Returns the entries of a spec with each mesh axis at its first place only.

    >>> once(("data", None, ("data", "model")))
    ('data', None, 'model')
    """
    used: set[Any] = set()
    unique: list[Any] = []
    for entry in entries:
        axes = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        free = tuple(axis for axis in axes if axis not in used)
        used.update(free)
        unique.append(None if not free else free[0] if len(free) == 1 else free)
    return tuple(unique)


def on_mesh_of(entries: Iterable[Any], *values: Any) -> NamedSharding:
    """Makes a sharding with these entries, on the mesh of the values."""
    meshes = [jax.typeof(value).sharding.mesh for value in values if isinstance(value, _TYPED)]
    return NamedSharding(next((mesh for mesh in meshes if not mesh.empty), meshes[0]), PartitionSpec(*entries))


def product_sharding(x: Any, kernel: Any, dimensions: Dimensions) -> NamedSharding | None:
    """Returns the sharding of a product if JAX would ask for one, else None.

    Args:
        x, kernel: the batch and the parameter.
        dimensions: as of `jax.lax.dot_general`.
    """
    if not is_divided(x, kernel):
        return None
    (x_summed, kernel_summed), (x_batch, kernel_batch) = dimensions
    ours, theirs = spec_of(x), spec_of(kernel)
    batch = [ours[i] or theirs[j] for i, j in zip(x_batch, kernel_batch, strict=True)]
    free = [entry for i, entry in enumerate(ours) if i not in (*x_summed, *x_batch)]
    free += [entry for i, entry in enumerate(theirs) if i not in (*kernel_summed, *kernel_batch)]
    spec = once((*batch, *free))
    # JAX has no answer if both operands divide a contracted axis, or if a mesh axis would divide the result twice.
    both_divided = any(ours[i] and theirs[j] for i, j in zip(x_summed, kernel_summed, strict=True))
    return on_mesh_of(spec, x, kernel) if both_divided or spec != (*batch, *free) else None


def matmul(
    x: Float[Array, "*batch in"], kernel: Float[Array, "in out"], *, out_dtype: Any = None
) -> Float[Array, "*batch out"]:
    """`x @ kernel`, summed in `out_dtype`.

    >>> matmul(jnp.ones(2), jnp.ones((2, 1))).tolist()
    [2.0]
    """
    where = product_sharding(x, kernel, (((x.ndim - 1,), (0,)), ((), ())))
    if where is None and out_dtype is None:  # as in the formula, which exporters that replace `jnp.matmul` tell apart
        return x @ kernel
    placed: Any = {} if where is None else {"out_sharding": where}
    return jnp.matmul(x, kernel, preferred_element_type=out_dtype, **placed)


def einsum(  # weft: skip(the equation decides the shapes)
    equation: str, x: Float[Array, "..."], kernel: Float[Array, "..."], *, precision: Any = None
) -> Float[Array, "..."]:
    """`jax.numpy.einsum` of two operands, with an explicit output.

    >>> einsum("...i,ij->...j", jnp.ones((2, 3)), jnp.ones((3, 4))).shape
    (2, 4)
    """
    where = einsum_sharding(equation, x, kernel)
    if where is None:
        # `out_sharding` is not passed as None: a quantiser's replacement of `jnp.einsum` may not know the option.
        return jnp.einsum(equation, x, kernel, precision=precision)
    return jnp.einsum(equation, x, kernel, precision=precision, out_sharding=where)


def einsum_sharding(equation: str, x: Any, kernel: Any) -> NamedSharding | None:
    """Returns the output's sharding: `jnp.einsum` may swap its operands, and would take the layout of the parameter."""
    if not is_divided(x, kernel):
        return None
    names = names_of_axes(equation.replace(" ", ""), x.ndim, kernel.ndim)
    entries: dict[Any, Any] = {}
    for name, entry in (*zip(names.x, spec_of(x), strict=True), *zip(names.kernel, spec_of(kernel), strict=True)):
        entries[name] = entries.get(name) or entry
    return on_mesh_of(once(entries[name] for name in names.output), x, kernel)


class EinsumAxes(NamedTuple):
    """A name for each axis of the operands and of the output of `einsum`."""

    x: list[Any]
    kernel: list[Any]
    output: list[Any]


def names_of_axes(equation: str, x_rank: int, kernel_rank: int) -> EinsumAxes:
    """Names the axes by the letters of an equation without spaces; those of an ellipsis by numbers, counted from its
    end, as they broadcast.

    >>> names_of_axes("b...i,ij->b...j", 4, 2)
    EinsumAxes(x=['b', -2, -1, 'i'], kernel=['i', 'j'], output=['b', -2, -1, 'j'])
    """
    *operands, output = equation.replace("->", ",").split(",")
    hidden = [rank - len(term.replace("...", "")) for term, rank in zip(operands, (x_rank, kernel_rank), strict=True)]
    names: list[list[Any]] = []
    # The ellipsis of the output stands for all axes of the longer one.
    for term, count in zip((*operands, output), (*hidden, max(hidden)), strict=True):
        before, ellipsis, after = term.partition("...")
        names.append([*before, *(range(-count, 0) if ellipsis else ()), *after])
    return EinsumAxes(*names)


def laid_like(small: Array, y: Array) -> Array:
    """Reshards an array that broadcasts against `y`, so that JAX allows to add the two."""
    if not is_divided(small, y):
        return small
    of_y, own = spec_of(y), spec_of(small)
    # A mesh axis that divides `small` alone may stay where it is.
    free = once((*of_y, *own))[y.ndim :]
    # An axis of size 1 broadcasts, and cannot be divided as the axis of `y` is.
    sizes = zip(of_y[y.ndim - small.ndim :], free, small.shape, strict=True)
    wanted = tuple((entry if size > 1 else None) or left for entry, left, size in sizes)
    return small if wanted == own else reshard(small, on_mesh_of(wanted, small, y))


def batched_alike(arrays: Sequence[Array], axes: Iterable[int]) -> list[Array]:
    """Reshards operands so that their batch axes are divided alike, as in the first operand that is divided.

    Args:
        arrays: operands of one product.
        axes: the batch axes, the same in all operands. Since JAX 0.11 a product refuses operands with two layouts.

    >>> [x.shape for x in batched_alike([jnp.ones((2, 3)), jnp.ones((2, 4))], axes=[0])]
    [(2, 3), (2, 4)]
    """
    if not is_divided(*arrays):
        return list(arrays)
    specs = [list(spec_of(array)) for array in arrays]
    for axis in axes:
        entry = next((spec[axis] for spec in specs if spec[axis]), None)
        for spec in specs:
            spec[axis] = entry
    wanted = [once(spec) for spec in specs]
    return [
        array if spec_of(array) == spec else reshard(array, on_mesh_of(spec, *arrays))
        for array, spec in zip(arrays, wanted, strict=True)
    ]


def as_given(function: Callable[..., T], *args: Any, like: Any, **options: Any) -> T:
    """Calls `function(*args, **options)`, and gives its results the explicit shardings of `like`.

    A function that knows nothing of meshes, such as an optax transformation, may contain an operation for which JAX
    asks for a sharding. Then the compiler chooses shardings inside of the function.

    Args:
        function: of arrays in `args`.
        like: arrays with the shardings that the results shall have.

    >>> as_given(jnp.negative, jnp.ones(2), like=jnp.zeros(2)).tolist()
    [-1.0, -1.0]
    """
    try:
        out = function(*args, **options)
    except Exception as error:
        if type(error).__name__ != names.CLASS_OF_SHARDINGS:
            raise
        where = jax.tree.map(lambda x: jax.typeof(x).sharding, like)
        choosing: Any = cast(Any, jax.sharding).auto_axes(lambda *args: function(*args, **options), out_sharding=where)
        try:
            return choosing(*args)
        except Exception:
            # The second attempt may fail for its own reasons, such as arrays in the options. The first error is about
            # the user's program.
            raise error from None
    return jax.tree.map(_typed_as, out, like) if jax.tree.structure(out) == jax.tree.structure(like) else out


def laid_as(new: T, old: Any) -> T:  # weft: skip(of any tree)
    """Gives the next values of a state the shardings of the state, array by array.

    On an explicit mesh a successor with another sharding would have another type, and each step would be compiled anew.
    On an automatic mesh the compiler would choose: parameters took the sharding of a moment, for one. A value with
    fewer axes takes the sharding of the state's first axes.
    """
    return jax.tree.map(_laid_as, new, old)


def _laid_as(new: Any, old: Any) -> Any:
    is_placed = new is not old and isinstance(old, _TYPED) and isinstance(new, _TYPED)
    return lying_alike(_typed_as(new, old), old) if is_placed else new


def _typed_as(new: Any, old: Any) -> Any:
    if not isinstance(old, _TYPED) or not isinstance(new, _TYPED):
        return new
    wanted = spec_of(old)[: new.ndim]
    return new if spec_of(new) == wanted else reshard(new, on_mesh_of(wanted, old, new))


def settled(carry: T, step: Callable[[T], T]) -> T:
    """Returns the initial carry of a loop with the sharding that the loop's step gives it.

    Zeros are not divided, and a step that adds a divided input to them divides the carry: `lax.scan` refuses a carry
    whose type changes.

    Args:
        carry: arrays that nobody has placed.
        step: computes the next carry from a carry.
    """
    after = jax.tree.leaves(jax.eval_shape(step, carry))
    leaves, structure = jax.tree.flatten(carry)
    if [leaf.shape for leaf in leaves] != [leaf.shape for leaf in after]:
        return carry  # the loop itself says what differs
    return jax.tree.unflatten(structure, map(_typed_as, leaves, after))
