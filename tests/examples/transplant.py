"""Parameters of a weft model put into the same model of another library, layer by layer.

The programs of the gallery declare their layers in the same order in every library, so the n-th layer (or lone array)
of one is the n-th of the other; what differs is where a layer keeps its weight, and which axis of it comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import weft
from flax import nnx

WEFT = (weft.Linear, weft.Conv, weft.Embed, weft.LayerNorm, weft.BatchNorm, weft.GRUCell, weft.MultiHeadAttention)
EQUINOX = (eqx.nn.Linear, eqx.nn.Conv, eqx.nn.Embedding, eqx.nn.LayerNorm, eqx.nn.BatchNorm, eqx.nn.GRUCell)
FLAX = (nnx.Linear, nnx.Conv, nnx.Embed, nnx.LayerNorm, nnx.BatchNorm)
WEIGHTS = ("kernel", "kernel", "embedding", "scale", "scale")


def parameters(model: Any) -> list[tuple[int | None, list[jax.Array]]]:
    """For each layer of a weft model (None: a lone array), in order, its weight and bias."""
    layers: list[tuple[int | None, list[jax.Array]]] = []
    for node in jax.tree.leaves(model, is_leaf=lambda node: isinstance(node, WEFT)):
        sort = _sort(node, WEFT)
        if isinstance(node, weft.MultiHeadAttention):  # the others' programs write it themselves, of two linear maps
            maps = [(part.kernel, part.bias) for part in (node.query, node.key, node.value)]
            layers.append((0, [jnp.concatenate(weights, -1) for weights in zip(*maps, strict=True)]))
            layers.append((0, [node.out.kernel, node.out.bias]))
        elif isinstance(node, weft.GRUCell):
            layers.append((sort, [node.dense_i.kernel, node.dense_h.kernel]))
            assert node.dense_i.bias is None
        elif sort is not None:
            weights = [getattr(node, WEIGHTS[sort]), getattr(node, "bias", None)]
            layers.append((sort, [weight for weight in weights if weight is not None]))
        elif jnp.issubdtype(node.dtype, jnp.inexact):
            layers.append((None, [node]))
    return layers


def _sort(node: Any, classes: Sequence[type]) -> int | None:
    return next((i for i, cls in enumerate(classes) if isinstance(node, cls)), None)


def to_equinox(model: Any, target: Any) -> Any:
    """The equinox model with a weft model's parameters."""
    nodes, structure = jax.tree.flatten(target, is_leaf=lambda node: isinstance(node, (*EQUINOX, eqx.nn.State)))
    new = iter(parameters(model))
    filled = [_with_parameters(node, new) for node in nodes]
    assert next(new, None) is None
    return structure.unflatten(filled)


def _with_parameters(node: Any, new: Iterator[tuple[int | None, list[jax.Array]]]) -> Any:
    """A layer or array of equinox with the next of the parameters; whatever has none as it is."""
    sort = _sort(node, EQUINOX)
    if sort is None and not eqx.is_inexact_array(node):
        return node
    expected, [weight, *bias] = next(new)
    assert sort == expected
    assert bias or getattr(node, "bias", None) is None
    if sort is None:
        assert weight.shape == node.shape
        return weight
    if sort == 0:
        weight = jnp.swapaxes(weight, -1, -2)
    elif sort == 1:  # windows are behind features there, and so is an axis of the bias for each
        weight, bias = jnp.moveaxis(weight, (-1, -2), (0, 1)), [vector[:, None, None] for vector in bias]
    names = ("weight", "bias")[: 1 + len(bias)]
    if sort == 5:
        names, weight, bias = ("weight_ih", "weight_hh"), weight.T, [bias[0].T]
    assert [getattr(node, name).shape for name in names] == [array.shape for array in (weight, *bias)]
    return eqx.tree_at(lambda layer: [getattr(layer, name) for name in names], node, [weight, *bias])


def to_flax(model: Any, target: Any) -> Any:
    """The flax model, given a weft model's parameters in place."""
    layers = [layer for part in (target if isinstance(target, tuple) else (target,)) for layer in _flax_layers(part)]
    for (sort, weights), layer in zip(parameters(model), layers, strict=True):
        assert sort is not None
        for name, weight in zip((WEIGHTS[sort], "bias"), weights, strict=False):
            variable = getattr(layer, name)
            assert variable.shape == weight.shape
            variable[...] = weight
    return target


def _flax_layers(node: Any) -> Iterator[Any]:
    if isinstance(node, FLAX):
        yield node
    elif isinstance(node, (list, tuple, nnx.List)):
        for inner in node:
            yield from _flax_layers(inner)
    elif isinstance(node, nnx.Module):
        for inner in vars(node).values():
            yield from _flax_layers(inner)
