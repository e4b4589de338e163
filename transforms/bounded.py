"""A while loop of bounded length that reverse-mode differentiates, in the memory of a few of its carries.

`lax.while_loop` has no reverse mode, since the number of carries to store is unknown. With a bound the loop is a tree:
up to 16 steps are a scan, up to 16 of these scans are a scan again, and so on. Each node is rematerialised, so the
backward pass stores 16 carries of each level, and runs each step once more for each level: a loop of 4,096 steps stores
48 carries. A node runs under a `cond` on whether the loop continues, so nodes after its end cost next to nothing.

Under `vmap` there is a condition for each element. A batched `cond` would run all nodes up to the bound, so the nodes
test whether *any* element continues, and only the step itself selects by element.

Values that a step sows are stacked, as by a scan: with an axis for each level, and zeros for steps that did not run.

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

# Whether the loop continues, the number of steps so far, and the carry.
State = tuple[Any, Any, Any]


@custom_vmap
def _any_of(goes_on: Any) -> Any:
    """Whether any element of all batches continues: under `vmap` a scalar without batch axes."""
    return goes_on


@_any_of.def_vmap
def _any_of_batch(size: int, batched: Any, goes_on: Any) -> tuple[Any, bool]:
    return _any_of(jnp.any(goes_on)), False


@custom_vmap
def _of_element(goes_on: Any) -> Any:
    """Whether this element continues, in a step that runs because some element does: True without `vmap`."""
    return jnp.ones((), bool)


@_of_element.def_vmap
def _of_element_of_batch(size: int, batched: Any, goes_on: Any) -> tuple[Any, bool]:
    return goes_on, True


def bounded_while(goes_on: Callable[[Any], Any], body: Callable[[Any], Any], init: Any, max_steps: int) -> Any:
    """`lax.while_loop(goes_on, body, init)` with at most `max_steps` steps.

    >>> import jax.numpy as jnp
    >>> jax.grad(lambda x: bounded_while(lambda c: c < 10, lambda c: c * c, x, 8))(3.0).item()
    108.0
    """
    init = _widened(goes_on, body, init)

    def step(state: State) -> State:
        active, count = _of_element(state[0]), state[1] + 1
        # For an element that has ended the body gets the first carry. At the last carry it may divide by zero, and the
        # derivative of `where` by the branch that it does not select is then NaN, not zero.
        new = _choose(active, body(_choose(active, state[2], init)), state[2])
        return active & goes_on(new) & (count < max_steps), count, new

    # As few levels as 16 branches allow, since each level runs every step once more; then as few branches as that many
    # levels need.
    levels = next(levels for levels in range(1, 64) if BRANCHES**levels >= max_steps)
    branches = next(branches for branches in range(1, BRANCHES + 1) if branches**levels >= max_steps)
    run = step
    for _ in range(levels):
        run = _repeated(run, branches)
    return run((jnp.asarray(goes_on(init)), jnp.zeros((), jnp.int32), init))[2]


def _widened(goes_on: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """The first carry with Python numbers in the dtypes of the next carry, as `lax.while_loop` converts them."""
    if not any(jax.typeof(leaf).weak_type for leaf in jax.tree.leaves(init)):
        return init

    def widened(leaf: Any, type: Any) -> Any:
        # A leaf whose dtype stays keeps its weak type.
        return leaf if leaf.dtype == type.dtype else lax.convert_element_type(leaf, type.dtype)

    return jax.tree.map(widened, init, jax.eval_shape(functools.partial(lax.while_loop, goes_on, body), init))


def _repeated(run: Callable[[State], State], times: int) -> Callable[[State], State]:
    """Runs a function `times` times, rematerialised, but not after the loop has ended."""
    # Inside of a scan XLA cannot merge the recomputation with the forward pass, so `prevent_cse` is not needed.
    run = jax.checkpoint(run, prevent_cse=False)

    def unchanged(state: State) -> State:
        return state

    def run_if(state: State, _: None) -> tuple[State, None]:
        return lax.cond(_any_of(state[0]), run, unchanged, state), None

    def repeated(state: State) -> State:
        return lax.scan(run_if, state, None, length=times)[0]

    return repeated


def _choose(active: Any, new: Any, old: Any) -> Any:
    return jax.tree.map(functools.partial(jnp.where, active), new, old)
