"""The NNX transforms: the rules of `weft.transforms`, interpreted over the references boundary."""

from weft.nnx.transforms.autodiff import DiffState, grad, jvp, remat, value_and_grad, vjp
from weft.nnx.transforms.compilation import JitWrapped, StateSharding, jit, jit_partial, shard_map
from weft.nnx.transforms.custom import CustomVjp, custom_vjp
from weft.nnx.transforms.iteration import (
    Carry,
    StateAxes,
    fori_loop,
    pmap,
    scan,
    transform_metadata,
    vmap,
    while_loop,
)
from weft.nnx.transforms.transforms import checkify, cond, eval_shape, make_jaxpr, switch

__all__ = [
    "Carry",
    "CustomVjp",
    "DiffState",
    "JitWrapped",
    "StateAxes",
    "StateSharding",
    "checkify",
    "cond",
    "custom_vjp",
    "eval_shape",
    "fori_loop",
    "grad",
    "jit",
    "jit_partial",
    "jvp",
    "make_jaxpr",
    "pmap",
    "remat",
    "scan",
    "shard_map",
    "switch",
    "transform_metadata",
    "value_and_grad",
    "vjp",
    "vmap",
    "while_loop",
]
