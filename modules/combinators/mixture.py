"""MoE: a mixture of experts, in which each token goes through a few experts.

The experts are one record whose arrays have a leading axis, and run as one vmap. One-hot products send tokens to
experts, which keeps all shapes static: each expert has room for as many tokens as its *capacity*, and tokens beyond
that are skipped.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Annotated, Any, Generic, cast

import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array, Bool, Float, Int
from weft.core.errors import SuccessorError
from weft.core.records.axis_names import Sharded
from weft.core.records.module import Module, static
from weft.core.sowing.capturing import sow
from weft.modules.batches import MEMBERS, counted
from weft.modules.calling import L_co, call_layer
from weft.modules.combinators.stack import make_copies
from weft.modules.construct import ConfigError, Initializer, KeyLike, check_features, check_positive
from weft.modules.drawing import parameter_keys
from weft.modules.dtypes import in_policy, promote
from weft.modules.explicit import einsum, is_divided, matmul, on_mesh_of, once, spec_of
from weft.modules.op import op
from weft.transforms.mapping import vmap

_ALL_TOKENS = "tokens of one call share the room of experts: call it on the whole batch, or capacity_factor=None"
default_router_init = initializers.lecun_normal()


@op
def send(
    logits: Float[Array, "tokens experts"], *, top_k: int, capacity: int
) -> tuple[Bool[Array, "tokens experts {capacity}"], Float[Array, "tokens experts {capacity}"], Float[Array, ""]]:
    """Assigns tokens to the places of experts.

    First choices of all tokens come before second ones, and earlier tokens before later ones.

    Args:
        logits: the router's, for each token and expert.
        top_k: how many experts a token goes to.
        capacity: how many tokens an expert has room for.

    Returns:
        The assignment as booleans; the weights, which add up to one for each token before any is skipped; and the
        load-balancing loss, `experts * sum(fraction of tokens * mean probability)`, which is one for an even load.

    >>> sent, weights, loss = send(jnp.array([[9.0, 0.0], [9.0, 0.0]]), top_k=1, capacity=1)
    >>> sent[:, 0, 0].tolist(), sent[:, 1, 0].tolist()
    ([True, False], [False, False])

    Source: Fedus et al., "Switch Transformers", 2021; Lepikhin et al., "GShard", 2020.
    """
    experts = logits.shape[-1]
    probabilities = jax.nn.softmax(logits, axis=-1)
    gates, chosen = jax.lax.top_k(probabilities, top_k)
    # Normalised before the capacity is applied: a token that one expert skips keeps the weights of its other experts.
    gates = gates / jnp.sum(gates, axis=-1, keepdims=True)
    choices = jax.nn.one_hot(chosen.T, experts, dtype=jnp.int32)  # (top_k, tokens, experts)
    places = _places(choices)
    sent = (choices == 1)[..., None] & (places[..., None] == jnp.arange(capacity)[None, None, None, :])
    weights = jnp.sum(jnp.where(sent, gates.T[:, :, None, None], jnp.zeros((), gates.dtype)), axis=0)
    fractions = jnp.mean(jnp.sum(choices, axis=0).astype(logits.dtype), axis=0) / top_k
    loss = experts * jnp.sum(fractions * jnp.mean(probabilities, axis=0))
    return jnp.any(sent, axis=0), weights, loss


def _places(choices: Int[Array, "top_k tokens experts"]) -> Int[Array, "top_k tokens experts"]:
    """Returns how many earlier choices went to the same expert."""
    # The axis of choices comes first, so that no second choice takes the room of another token's first choice.
    flat = choices.reshape(-1, choices.shape[-1])
    return (jnp.cumsum(flat, axis=0) - flat).reshape(choices.shape)


class MoE(Module, Generic[L_co]):  # weft: skip(of any experts)
    """A mixture of experts: each token goes to the `top_k` that a router finds best, and gets their weighted sum.

    `y = moe(x)` sows the loss that keeps the load even, under the name "load_balancing", for `weft.capture`;
    `y, loss = moe.with_loss(x)` returns it. The router sums in float32 at least. A token that finds no room is zero
    in `y`; in a `Residual` it is passed on as it is.

    Args:
        make: makes one expert from a key, as in `Stack`; it is given `(tokens, features)` and is pure.
        n: how many experts.
        features: size of the last axis of the input.
        top_k: how many experts a token goes to.
        capacity_factor: the room of an expert, in shares of an even load; None has room for all tokens, and so costs as
            much as all experts for each.
        router_init: initialiser from `jax.nn.initializers`.
        key: a typed key, for router and experts.

    Raises:
        ConfigError: if `top_k` is more than `n`, or a number is not positive.
        SeedError: without a typed key.

    >>> from weft.modules import MLP
    >>> moe = MoE(lambda key: MLP(4, 8, 4, key=key), 3, 4, key=jax.random.key(0))
    >>> y, loss = moe.with_loss(jnp.ones((2, 5, 4)))
    >>> y.shape, loss.shape
    ((2, 5, 4), ())

    Source: Shazeer et al., "Outrageously Large Neural Networks", 2017; Fedus et al., "Switch Transformers", 2021.
    """

    router: Annotated[Float[Array, "features experts"], Sharded("embed", "experts")]
    experts: Annotated[L_co, Sharded("experts", ...)]
    n: int = static()
    top_k: int = static()
    capacity_factor: float | None = static()

    def __init__(
        self,
        make: Callable[[Any], L_co],
        n: int,
        features: int,
        *,
        key: KeyLike,
        top_k: int = 2,
        capacity_factor: float | None = 1.25,
        router_init: Initializer = default_router_init,
    ):
        check_positive("MoE", n=n, features=features, top_k=top_k)
        if top_k > n:
            raise ConfigError(f"MoE: a token cannot go to top_k={top_k} of {n} experts")
        if capacity_factor is not None and not capacity_factor > 0:
            raise ConfigError(
                f"MoE: capacity_factor must be positive, not {capacity_factor}",
                fix="capacity_factor=None has room for all tokens",
            )
        router_key, experts_key = parameter_keys(key, 2, "MoE")
        self.router = router_init(router_key, (features, n), jnp.float32)
        self.experts = make_copies(make, n, experts_key, "MoE")
        self.n, self.top_k, self.capacity_factor = n, top_k, capacity_factor

    def __call__(self, x: Float[Array, "*batch features"]) -> Float[Array, "*batch out"]:
        """Returns the weighted outputs of the experts for each token, and sows the loss.

        Raises:
            AxisError: if the last axis is not of size `features`.
            SuccessorError: if an expert is stateful.
        """
        y, loss = self.with_loss(x)
        sow("load_balancing", loss)
        return y

    def with_loss(self, x: Float[Array, "*batch features"]) -> tuple[Float[Array, "*batch out"], Float[Array, ""]]:
        """Returns the outputs, as a call does, with the load-balancing loss."""
        check_features(self, x, self.router.shape[0])
        x = counted(self, x, int(self.capacity_factor is not None), self.router, fix=_ALL_TOKENS)
        tokens = in_policy(jnp.reshape(x, (-1, x.shape[-1])))
        # The router sums in float32 at least: rounded logits tie, and ties all go to the first expert.
        both = promote(tokens, self.router)
        logits = matmul(*both, out_dtype=jnp.promote_types(both[0].dtype, jnp.float32))
        choose: Callable[[Any], Any] = functools.partial(send, top_k=self.top_k, capacity=self.capacity(len(tokens)))
        if is_divided(logits):
            # The count of earlier choices runs over the tokens of all devices, which JAX cannot express with explicit
            # axes. The compiler chooses inside, and the results are divided as the tokens are.
            with_token, everywhere = (on_mesh_of(entries, logits) for entries in (spec_of(tokens)[:1], ()))
            choose = cast(Any, jax.sharding).auto_axes(choose, out_sharding=(with_token, with_token, everywhere))
        sent, weights, loss = choose(logits)
        each = einsum("tec,tf->ecf", sent.astype(tokens.dtype), tokens)
        # One vmap over all experts: a loop would trace and compile each expert for itself.
        ys = vmap(_expert, axis_name=MEMBERS)(self.experts, _sharded_as(each, self.experts))
        y = einsum("tec,ecf->tf", weights.astype(ys.dtype), ys)
        return jnp.reshape(y, (*x.shape[:-1], y.shape[-1])), loss

    def capacity(self, tokens: int) -> int:
        """Returns for how many of `tokens` tokens an expert has room.

        >>> import jax
        >>> from weft import Linear, MoE
        >>> experts = MoE(lambda key: Linear(2, 2, key=key), 4, 2, top_k=1, capacity_factor=1.5, key=jax.random.key(0))
        >>> experts.capacity(16)  # an even share would be 4
        6
        """
        if self.capacity_factor is None:
            return tokens
        return min(tokens, math.ceil(tokens * self.top_k / self.n * self.capacity_factor))


def _sharded_as(each: Array, experts: Any) -> Array:
    """Reshards the inputs of experts to the experts' devices: `vmap` wants all mapped arrays divided alike."""
    entries = next((spec_of(leaf)[:1] for leaf in jax.tree.leaves(experts) if is_divided(leaf)), ())
    if not any(entries):
        return each
    return jax.sharding.reshard(each, on_mesh_of(once((*entries, *spec_of(each)[1:])), each))


def _expert(expert: Any, x: Any) -> Any:
    y, successor = call_layer(expert, "MoE.experts", x)
    if successor is not None:
        raise SuccessorError(
            f"a {type(expert).__qualname__} is stateful, and MoE would lose its successor",
            at="MoE.experts",
            fix="make experts of pure layers",
        )
    return y
