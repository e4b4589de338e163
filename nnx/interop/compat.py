"""compat: the functions and transforms in graph mode with graph updates, whatever `set_graph_mode` says.

graphdef, state = nnx.compat.split(model)

@nnx.compat.jit
def step(model, x): ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from weft.nnx import transforms
from weft.nnx.crossing import contexts
from weft.nnx.graphs import splitting, walk
from weft.nnx.modules import module, views
from weft.nnx.streams import rng_transforms
from weft.nnx.transforms import partitioning

F = TypeVar("F", bound=Callable[..., Any])


def _on_graphs(function: F) -> F:
    return cast(F, functools.partial(function, graph=True))


def _with_updates(function: F) -> F:
    return cast(F, functools.partial(function, graph=True, graph_updates=True))


split = _on_graphs(splitting.split)
state = _on_graphs(splitting.state)
clone = _on_graphs(splitting.clone)
graphdef = _on_graphs(splitting.graphdef)
flatten = _on_graphs(splitting.flatten)
iter_graph = _on_graphs(walk.iter_graph)
recursive_map = _on_graphs(walk.recursive_map)
cached_partial = _with_updates(contexts.cached_partial)

view = _on_graphs(views.view)
view_info = _on_graphs(views.view_info)
iter_modules = _on_graphs(module.iter_modules)
iter_children = _on_graphs(walk.iter_children)

split_rngs = _with_updates(rng_transforms.split_rngs)
fork_rngs = _with_updates(rng_transforms.fork_rngs)
reseed = _on_graphs(rng_transforms.reseed)
backup_keys = _on_graphs(rng_transforms.backup_keys)

jit = _with_updates(transforms.jit)
shard_map = _with_updates(transforms.shard_map)
grad = _with_updates(transforms.grad)
value_and_grad = _with_updates(transforms.value_and_grad)
custom_vjp = _with_updates(transforms.custom_vjp)
vjp = _with_updates(transforms.vjp)
jvp = _with_updates(transforms.jvp)
remat = _with_updates(transforms.remat)
vmap = _with_updates(transforms.vmap)
scan = _with_updates(transforms.scan)
pmap = _with_updates(transforms.pmap)
while_loop = _with_updates(transforms.while_loop)
fori_loop = _with_updates(transforms.fori_loop)
get_abstract_model = _on_graphs(partitioning.get_abstract_model)
eval_shape = _with_updates(transforms.eval_shape)
cond = _with_updates(transforms.cond)
switch = _with_updates(transforms.switch)
checkify = _with_updates(transforms.checkify)
