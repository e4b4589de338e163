"""Every JAX transform over records, each declared once as a rule of the interpreter."""

from weft.core.first_use import on_first_use
from weft.core.interpreter.prefixes import axes
from weft.core.interpreter.rides import Carry
from weft.transforms.autodiff import grad, value_and_grad
from weft.transforms.branches import cond, switch
from weft.transforms.compilation import jit
from weft.transforms.mapping import pmap, vmap
from weft.transforms.scanning import scan

with on_first_use(globals()):
    from weft.transforms.autodiff import jvp, linearize, vjp
    from weft.transforms.checks import error_if
    from weft.transforms.custom_jvps import custom_jvp
    from weft.transforms.custom_vjps import custom_vjp
    from weft.transforms.jacobians import hessian, jacfwd, jacrev
    from weft.transforms.loops import fori_loop, while_loop
    from weft.transforms.sequences import associative_scan, map
    from weft.transforms.shards import shard_map
    from weft.transforms.tracing import checkify, eval_shape, make_jaxpr, remat, transform_metadata

__all__ = [
    "Carry",
    "associative_scan",
    "axes",
    "checkify",
    "cond",
    "custom_jvp",
    "custom_vjp",
    "error_if",
    "eval_shape",
    "fori_loop",
    "grad",
    "hessian",
    "jacfwd",
    "jacrev",
    "jit",
    "jvp",
    "linearize",
    "make_jaxpr",
    "map",
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
