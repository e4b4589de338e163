"""Expert-choice routing: each expert takes its best tokens."""

import jax
import jax.numpy as jnp
from beartype import beartype
from jaxtyping import Array, Float, jaxtyped


@jaxtyped(typechecker=beartype)
def expert_choice(
    x: Float[Array, "tokens dim"],
    router: Float[Array, "dim experts"],
    experts: Float[Array, "experts dim dim"],
    capacity: int,
) -> Float[Array, "tokens dim"]:
    probs = jax.nn.softmax(x @ router, axis=-1)
    gate, picked = jax.lax.top_k(probs.T, capacity)  # bug: gate, picked = jax.lax.top_k(probs, capacity)
    chosen_tokens = x[picked]
    done = jnp.einsum("ecd,edf->ecf", chosen_tokens, experts) * gate[..., None]
    return jnp.zeros_like(x).at[picked].add(done)


entry = expert_choice


def sample():
    return expert_choice(jnp.ones((4, 3)), jnp.ones((3, 4)), jnp.ones((4, 3, 3)), 2)
