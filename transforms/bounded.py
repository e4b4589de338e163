"""A while loop of bounded length that reverse-mode differentiates, in the memory of a few of its carries.

`lax.while_loop` has no reverse mode, since nobody knows how many carries would have to be kept. With a bound the loop
is a tree: up to 16 steps are a scan, up to 16 of these are a scan again, and so on. Each node is rematerialised, so the
backward pass keeps 16 carries of each level, and runs each step once more for each level: a loop of 4,096 steps keeps
48 carries. A node is behind a `cond` on whether the loop still goes on, so what lies behind its end costs next to
nothing.

Under `vmap` a condition is one for each element. A batched `cond` would run all nodes up to the bound, so the nodes ask
whether *any* element goes on, and only the step itself chooses between the elements.

What a step sows is stacked, as by a scan: with an axis for each level, and zeros for steps that were not made.

Source: recursive checkpointing, Griewank, "Achieving logarithmic growth of temporal and spatial complexity in reverse
automatic differentiation", 1992.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jax.custom_batching import custom_vmap as _custom_vmap
from weft.core.edge.untyped import jax, jnp, lax

BRANCHES = 16

custom_vmap: Any = _custom_vmap

# Whether the loop goes on, how many steps were made, and the carry.
State = tuple[Any, Any, Any]


@custom_vmap
def _any_of(goes_on: Any) -> Any:
    """Whether any element of all batches goes on: no batch axis is left."""
    return goes_on


@_any_of.def_vmap
def _any_of_batch(size: int, batched: Any, goes_on: Any) -> tuple[Any, bool]:
    return _any_of(jnp.any(goes_on)), False


@custom_vmap
def _of_element(goes_on: Any) -> Any:
    """Whether this element goes on, in a step that is made since one does: a constant where there is no batch."""
    return jnp.ones((), bool)


@_of_element.def_vmap
def _of_element_of_batch(size: int, batched: Any, goes_on: Any) -> tuple[Any, bool]:
    return goes_on, True


def bounded_while(goes_on: Callable[[Any], Any], body: Callable[[Any], Any], init: Any, max_steps: int) -> Any:
    """`lax.while_loop(goes_on, body, init)` that ends after `max_steps` steps at the latest.

    >>> import jax.numpy as jnp
    >>> jax.grad(lambda x: bounded_while(lambda c: c < 10, lambda c: c * c, x, 8))(3.0).item()
    108.0
    """
    init = _widened(goes_on, body, init)

    def step(state: State) -> State:
        active, count = _of_element(state[0]), state[1] + 1
        # An element that has ended is given the first carry: at its last one the body may divide by zero, and the
        # derivative of what is not chosen would be NaN.
        new = _choose(active, body(_choose(active, state[2], init)), state[2])
        return active & goes_on(new) & (count < max_steps), count, new

    levels = next(levels for levels in range(1, 64) if BRANCHES**levels >= max_steps)
    branches = next(branches for branches in range(1, BRANCHES + 1) if branches**levels >= max_steps)
    run = step
    for _ in range(levels):
        run = _repeated(run, branches)
    return run((jnp.asarray(goes_on(init)), jnp.zeros((), jnp.int32), init))[2]


def _widened(goes_on: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """The first carry with Python's numbers in the dtypes that the body makes of them, as `lax.while_loop` has them."""
    if not any(jax.typeof(leaf).weak_type for leaf in jax.tree.leaves(init)):
        return init

    def widened(leaf: Any, type: Any) -> Any:
        # What keeps its dtype stays as weakly typed as it is.
        return leaf if leaf.dtype == type.dtype else lax.convert_element_type(leaf, type.dtype)

    return jax.tree.map(widened, init, jax.eval_shape(functools.partial(lax.while_loop, goes_on, body), init))


def _repeated(run: Callable[[State], State], times: int) -> Callable[[State], State]:
    """As many runs, each of them rematerialised, and none once the loop has ended."""
    # Within a scan nothing is taken for a common subexpression of the forward pass, so JAX need not prevent it.
    run = jax.checkpoint(run, prevent_cse=False)

    def run_if(state: State, _: None) -> tuple[State, None]:
        return lax.cond(_any_of(state[0]), run, _as_it_is, state), None

    def repeated(state: State) -> State:
        return lax.scan(run_if, state, None, length=times)[0]

    return repeated


def _as_it_is(state: State) -> State:
    return state


def _choose(active: Any, new: Any, old: Any) -> Any:
    return jax.tree.map(functools.partial(jnp.where, active), new, old)
