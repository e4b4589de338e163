"""Where a result lies on a mesh of explicit axes, where JAX leaves it open.

On such a mesh a value's type says which axes of the mesh divide each of its axes, and JAX refuses what has more than
one answer: a product over an axis that is divided on both sides, rows of a divided table. A layer knows which of its
operands is the batch and which are its parameters, so it answers as tensor parallelism does, by one rule:

- what is summed over is summed up on all devices,
- what the batch is divided over stays with the batch,
- a parameter's own axis stays divided, unless the batch lies on the same axis of the mesh.

Where JAX has an answer, that one holds. On automatic meshes, and without one, nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, reshard
from jaxtyping import Array, Float
from weft.core.edge import names

T = TypeVar("T")
# As of `jax.lax.dot_general`: the contracted axes of both sides, and the batch axes of both.
Dimensions = tuple[tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]]
# What has a type of JAX's. What others put in an array's place, as quantised weights, has none, and lies on no mesh.
_TYPED = (jax.Array, jax.ShapeDtypeStruct)


def spec_of(x: Any) -> tuple[Any, ...]:
    """What divides each axis of a value, as far as its type says it."""
    return tuple(jax.typeof(x).sharding.spec) if isinstance(x, _TYPED) else (None,) * len(x.shape)


def is_divided(*values: Any) -> bool:
    """Whether one of them lies on an explicit mesh, divided.

    >>> is_divided(jnp.ones(2))
    False
    """
    return any(isinstance(value, _TYPED) and any(spec_of(value)) for value in values)


def once(entries: Iterable[Any]) -> tuple[Any, ...]:
    """The entries of a spec, each axis of the mesh where it comes first.

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
    """A sharding with these entries, on the mesh on which the values lie."""
    meshes = [jax.typeof(value).sharding.mesh for value in values if isinstance(value, _TYPED)]
    return NamedSharding(next((mesh for mesh in meshes if not mesh.empty), meshes[0]), PartitionSpec(*entries))


def product_sharding(x: Any, kernel: Any, dimensions: Dimensions) -> NamedSharding | None:
    """Where a product lies if JAX would ask, else None.

    Args:
        x, kernel: the batch, and what it is multiplied with.
        dimensions: as of `jax.lax.dot_general`.
    """
    if not is_divided(x, kernel):
        return None
    (x_summed, kernel_summed), (x_batch, kernel_batch) = dimensions
    ours, theirs = spec_of(x), spec_of(kernel)
    batch = [ours[i] or theirs[j] for i, j in zip(x_batch, kernel_batch, strict=True)]
    free = [entry for i, entry in enumerate(ours) if i not in (*x_summed, *x_batch)]
    free += [entry for i, entry in enumerate(theirs) if i not in (*kernel_summed, *kernel_batch)]
    asked = any(ours[i] and theirs[j] for i, j in zip(x_summed, kernel_summed, strict=True))
    spec = once((*batch, *free))
    return on_mesh_of(spec, x, kernel) if asked or spec != (*batch, *free) else None


def matmul(x: Float[Array, "*batch in"], kernel: Float[Array, "in out"]) -> Float[Array, "*batch out"]:
    """`x @ kernel`.

    >>> matmul(jnp.ones(2), jnp.ones((2, 1))).tolist()
    [2.0]
    """
    where = product_sharding(x, kernel, (((x.ndim - 1,), (0,)), ((), ())))
    return x @ kernel if where is None else jnp.matmul(x, kernel, out_sharding=where)


def einsum(  # weft: skip(the equation decides the shapes)
    equation: str, x: Float[Array, "..."], kernel: Float[Array, "..."], *, precision: Any = None
) -> Float[Array, "..."]:
    """`jax.numpy.einsum` of two, with an explicit output.

    >>> einsum("...i,ij->...j", jnp.ones((2, 3)), jnp.ones((3, 4))).shape
    (2, 4)
    """
    where = einsum_sharding(equation, x, kernel)
    if where is None:
        # Without a word about it: what others put in its place while a model runs may know no such option.
        return jnp.einsum(equation, x, kernel, precision=precision)
    return jnp.einsum(equation, x, kernel, precision=precision, out_sharding=where)


def einsum_sharding(equation: str, x: Any, kernel: Any) -> NamedSharding | None:
    """Where it lies: JAX multiplies in an order of its own, and would take the layout of what comes first there."""
    if not is_divided(x, kernel):
        return None
    inputs, output = equation.replace(" ", "").split("->")
    known: dict[Any, Any] = {}
    for letters, value in zip(inputs.split(","), (x, kernel), strict=True):
        for name, entry in zip(_names(letters, value.ndim), spec_of(value), strict=True):
            known[name] = known.get(name) or entry
    rank = max((-name for name in known if isinstance(name, int)), default=0)
    return on_mesh_of(once(known[name] for name in _names(output, rank + len(output.replace("...", "")))), x, kernel)


def _names(letters: str, rank: int) -> list[Any]:
    """A name for each axis; those of the ellipsis are counted from its end."""
    if "..." not in letters:
        return list(letters)
    before, after = letters.split("...")
    return [*before, *range(len(before) + len(after) - rank, 0), *after]


def laid_like(small: Array, y: Array) -> Array:
    """What broadcasts against `y`, laid so that it can be added to it."""
    if not is_divided(small, y):
        return small
    of_y, own = spec_of(y), spec_of(small)
    free = once((*of_y, *own))[y.ndim :]
    there = [entry if size > 1 else None for entry, size in zip(of_y[y.ndim - small.ndim :], small.shape, strict=True)]
    wanted = tuple(map(lambda entry, left: entry or left, there, free))
    return small if wanted == own else reshard(small, on_mesh_of(wanted, small, y))


def batched_alike(arrays: Sequence[Array], axes: Iterable[int]) -> list[Array]:
    """Operands whose batch axes lie alike: each as in the first operand in which it is divided.

    Args:
        arrays: operands of one product.
        axes: the batch axes, the same in all of them. Since JAX 0.11 a product does not choose between two layouts.

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
    """`function(*args, **options)`, whose results lie where others of the same structure do.

    Code that knows nothing of meshes may multiply, reshape or pick where JAX asks for a layout, which nobody can say
    from outside. If it does, the compiler is left to choose inside of the function.

    Args:
        function: of arrays in `args`.
        like: what lies where the results shall.

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
            # Of arrays that the options hold, too: what is known is what was refused at first.
            raise error from None
    if not is_divided(*jax.tree.leaves((args, out))) or jax.tree.structure(out) != jax.tree.structure(like):
        return out
    return jax.tree.map(laid_as, out, like)


def laid_as(new: Array, old: Array) -> Array:
    """A state's next value, where the state lies: else a successor would lie elsewhere than what it follows.

    A value of fewer axes lies as the state's first ones.
    """
    wanted = spec_of(old)[: new.ndim]
    return new if spec_of(new) == wanted else reshard(new, on_mesh_of(wanted, old, new))


def settled(carry: T, step: Callable[[T], T]) -> T:
    """What a loop begins with, where the loop's step will leave it: zeros lie on no axis, and what comes of them may.

    Args:
        carry: arrays that nobody has placed.
        step: from a carry to the next one.
    """
    after = jax.tree.leaves(jax.eval_shape(step, carry))
    leaves, structure = jax.tree.flatten(carry)
    if [leaf.shape for leaf in leaves] != [leaf.shape for leaf in after]:
        return carry  # the loop itself says what differs
    return jax.tree.unflatten(structure, map(laid_as, leaves, after))
