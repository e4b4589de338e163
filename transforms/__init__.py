"""Every JAX transform over records, each declared once as a rule of the interpreter."""

from typing import TYPE_CHECKING

from weft.core.first_use import first_use
from weft.core.interpreter.prefixes import axes
from weft.core.interpreter.rides import Carry
from weft.transforms.autodiff import grad, value_and_grad
from weft.transforms.branches import cond, switch
from weft.transforms.compilation import jit
from weft.transforms.mapping import pmap, vmap
from weft.transforms.scanning import scan

if TYPE_CHECKING:
    from weft.transforms.autodiff import jvp, linearize, vjp
    from weft.transforms.checks import error_if
    from weft.transforms.custom_jvps import custom_jvp
    from weft.transforms.custom_vjps import custom_vjp
    from weft.transforms.jacobians import hessian, jacfwd, jacrev
    from weft.transforms.loops import fori_loop, while_loop
    from weft.transforms.sequences import associative_scan, lax_map
    from weft.transforms.shards import shard_map
    from weft.transforms.tracing import checkify, eval_shape, make_jaxpr, remat, transform_metadata

# The module of each name that is imported on first use; a test compares this with the imports above.
_HOMES = {
    "weft.transforms.autodiff": "jvp linearize vjp",
    "weft.transforms.checks": "error_if",
    "weft.transforms.custom_jvps": "custom_jvp",
    "weft.transforms.custom_vjps": "custom_vjp",
    "weft.transforms.jacobians": "hessian jacfwd jacrev",
    "weft.transforms.loops": "fori_loop while_loop",
    "weft.transforms.sequences": "associative_scan lax_map",
    "weft.transforms.shards": "shard_map",
    "weft.transforms.tracing": "checkify eval_shape make_jaxpr remat transform_metadata",
}
__getattr__, __dir__ = first_use(globals(), _HOMES)

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
    "lax_map",
    "linearize",
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
