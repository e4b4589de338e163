"""Stack: copies of one layer, one after another, as a single scan.

The copies are one record whose arrays have a leading axis of layers. One vmapped call constructs them and one scan runs
them, so that twelve layers are traced and compiled as one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self, cast, overload

import equinox as eqx
import jax
import jax.numpy as jnp
from weft.core.caches import cached_by
from weft.core.donations import naming_deleted
from weft.core.errors import AxisError, StructureError
from weft.core.interpreter.rides import Carry
from weft.core.records.agree import describe, differences
from weft.core.records.axis_names import Sharded
from weft.core.records.leaves import is_array
from weft.core.records.module import Module, static
from weft.core.records.partition import changes, take_apart, update
from weft.core.records.storage import Static
from weft.modules.calling import Combinator, L_co, call_layer, keys_of_copies, takes_key
from weft.modules.construct import ConfigError, check_positive
from weft.modules.dtypes import in_policy
from weft.transforms.mapping import vmap
from weft.transforms.scanning import scan
from weft.transforms.tracing import remat as remat_of


class Stack(Combinator[L_co]):
    """`n` copies of a layer, one after another: `y = stack(x)`, or `y, stack = stack(x)` if the layer is stateful.

    Each copy has its own parameters, its own state and, in a call, its own key. The other arguments of a call go to
    every copy. The output of a layer has the shape and dtype of its input.

    Args:
        make: makes one layer from a key: `lambda key: Block(64, key=key)`. It is called once, for all of them, so they
            are all configured alike.
        n: how many.
        key: a typed key, split among them.
        remat: whether the backward pass computes the inside of each layer again instead of storing it; or a policy of
            `jax.checkpoint_policies`, which says what to store.
        unroll: how many layers to lay out in one iteration of the compiled loop; True for all.

    Raises:
        ConfigError: if `n` is not positive, or `make` makes something else than a record.
        SeedError: without a typed key.

    >>> import jax.numpy as jnp
    >>> from weft.modules import Linear
    >>> stack = Stack(lambda key: Linear(4, 4, key=key), 3, key=jax.random.key(0))
    >>> stack(jnp.ones((5, 4))).shape, stack.layers.kernel.shape
    ((5, 4), (3, 4, 4))
    >>> len(stack), stack[0].kernel.shape, len(stack[1:])
    (3, (4, 4), 2)
    """

    layers: Annotated[L_co, Sharded("layers", ...)]
    n: int = static()
    remat: bool | Callable[..., Any] = static()
    unroll: int | bool = static()

    def __init__(
        self,
        make: Callable[[Any], L_co],
        n: int,
        *,
        key: Any,
        remat: bool | Callable[..., Any] = False,
        unroll: int | bool = 1,
    ):
        self.layers = make_copies(make, n, key, "Stack")
        self.n, self.remat, self.unroll = n, remat, unroll

    def _run(self, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> tuple[Any, Self | None]:
        keys = jax.random.split(key, self.n) if key is not None and takes_key(cast(Any, self.layers)) else None
        x = in_policy(x)
        y, changed = _scan(self.unroll)(x, self.layers, keys, SharedArguments(args, kwargs), Static(self.remat))
        if changed is None:
            return y, None
        return y, self.replace(layers=update(self.layers, changed)) if jax.tree.leaves(changed) else self

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[L_co]:
        return (self[index] for index in range(self.n))

    @overload
    def __getitem__(self, index: int) -> L_co: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    @functools.partial(naming_deleted, method=True)
    def __getitem__(self, index: Any) -> Any:
        """Returns one layer by its number, or a stack of some layers by a slice."""
        places = range(self.n)[index]
        # Configuration has no axis of layers, so only arrays are indexed.
        layers = map_arrays(lambda leaf: leaf[index], self.layers)
        return layers if isinstance(places, int) else self.replace(layers=layers, n=len(places))

    def __with_items__(self, items: Mapping[int, Any]) -> Self:
        """Returns the stack with some of its layers replaced, for `weft.at(stack)[1]`."""
        return self.replace(layers=together([items.get(i, layer) for i, layer in enumerate(self)], "Stack"))


class SharedArguments(Module):
    """The arguments that all copies share: a record, so that numbers and flags in it stay static."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


# Typed, because `unroll=True` means all layers and `unroll=1` one, although `1 == True`.
@cached_by("option", most=64, typed=True)
def _scan(unroll: int | bool) -> Any:
    # One function for all stacks: JAX caches compiled scans by the identity of their body, so a new closure for each
    # call would be compiled at each eager call.
    return scan(_advance, in_axes=(Carry, 0, 0, None, None), out_axes=(Carry, 0), unroll=unroll)


def _advance(x: Any, layer: Any, key: Any, rest: SharedArguments, remat: Any) -> tuple[Any, Any]:
    run = _one_layer
    if remat is not False:
        # `prevent_cse` keeps XLA from merging the recomputation with the forward pass. A scan separates the two anyway,
        # and the barriers would cost time.
        run = remat_of(run, policy=None if remat is True else remat, prevent_cse=False)
    y, changed = run(x, layer, key, rest)
    _check_kept(x, y, layer)
    return y, changed


def _one_layer(x: Any, layer: Any, key: Any, rest: SharedArguments) -> tuple[Any, Any]:
    options = {} if key is None else {"key": key}
    y, successor = call_layer(layer, "Stack.layers", x, *rest.args, **rest.kwargs, **options)
    # Only changed leaves are outputs of the loop. A whole successor would have its parameters stacked again, and each
    # call would copy the model.
    return y, None if successor is None else changes(layer, successor)


def _check_kept(x: Any, y: Any, layer: Any) -> None:
    before, after = jax.tree.structure(x), jax.tree.structure(y)
    if before != after:
        wrong = [f"x: {before} -> {after}"]
    else:
        wrong = [
            f"x{jax.tree_util.keystr(path)}: {jax.typeof(was)} -> {jax.typeof(now)}"
            for (path, was), now in zip(jax.tree.leaves_with_path(x), jax.tree.leaves(y), strict=True)
            if is_array(was) and is_array(now) and (was.shape, was.dtype) != (now.shape, now.dtype)
        ]
    if wrong:
        raise AxisError(
            f"a layer of a Stack must keep the shape and dtype of x, and a {type(layer).__qualname__} does not",
            at=wrong,
            fix="change sizes before or after the stack; cast x to the layer's dtype first",
        )


def make_copies(make: Callable[[Any], Any], n: int, key: Any, owner: str) -> Any:
    """Makes one record of `n` copies of a layer, each array with a leading axis of copies.

    Raises:
        ConfigError: if `n` is not positive, or `make` makes something else than a record.
        SeedError: without a typed key.
    """
    check_positive(owner, n=n)
    # One trace of the constructor for all layers: a loop would trace and draw each layer for itself.
    copies = vmap(make)(keys_of_copies(key, n, owner))
    if not isinstance(copies, eqx.Module):
        raise ConfigError(
            f"{owner} makes copies of a record, not of a {type(copies).__name__}",
            at=f"make={make!r}",
            fix="lambda key: Block(..., key=key)",
        )
    return copies


def map_arrays(function: Callable[[Any], Any], tree: Any) -> Any:
    """Applies a function to each array of a tree; configuration stays as it is."""
    structure, leaves = take_apart(tree)
    return structure.build([function(leaf.value) for leaf in leaves])


def together(layers: Sequence[Any], owner: str) -> Any:
    """Makes one record of layers of equal structure, each array with a leading axis.

    Raises:
        StructureError: if the layers differ in more than the values of their arrays.
    """
    rows = [describe(layer, "") for layer in layers]
    unlike = next((i for i, row in enumerate(rows) if differences(rows[0], row)), None)
    if unlike is not None:
        raise StructureError(
            f"the layers of {owner} must have one structure, and [0] and [{unlike}] would have two",
            at=differences(rows[0], rows[unlike], root=f"{owner}[0]"),
            fix=f"edit all layers alike, weft.at(...)[:], or take them out of the {owner} first: "
            f"weft.at(...).apply(lambda layers: weft.{'Parallel' if owner == 'Ensemble' else 'Sequential'}(*layers))",
        )
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
