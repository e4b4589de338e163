"""Graph attention over an edge list."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Graph(NamedTuple):
    nodes: Float[Array, "n d"]
    senders: Int[Array, "e"]
    receivers: Int[Array, "e"]


def gat(graph: Graph, w: Float[Array, "d h"], a: Float[Array, "2*h"]) -> Graph:
    n = graph.nodes.shape[0]
    x = graph.nodes @ w
    pair = jnp.concatenate([x[graph.senders], x[graph.receivers]], axis=-1)
    score = jnp.exp(jax.nn.leaky_relu(pair @ a))
    total = jax.ops.segment_sum(score, graph.receivers, n)
    weight = score / total[graph.receivers]  # bug: weight = score / total
    out = jax.ops.segment_sum(weight[:, None] * graph.nodes[graph.senders], graph.receivers, n)
    return graph._replace(nodes=out)


entry = gat


def sample():
    graph = Graph(jnp.ones((5, 3)), jnp.zeros(5, int), jnp.zeros(5, int))
    return gat(graph, jnp.ones((3, 2)), jnp.ones(4))
