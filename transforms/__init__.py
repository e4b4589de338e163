"""Every JAX transform over records, each declared once as a rule of the interpreter."""

from weft.core.rides import Carry
from weft.core.rides import axes
from weft.transforms.autodiff import grad
from weft.transforms.autodiff import hessian
from weft.transforms.autodiff import jacfwd
from weft.transforms.autodiff import jacrev
from weft.transforms.autodiff import jvp
from weft.transforms.autodiff import linearize
from weft.transforms.autodiff import value_and_grad
from weft.transforms.autodiff import vjp
from weft.transforms.branches import cond
from weft.transforms.branches import switch
from weft.transforms.custom import custom_jvp
from weft.transforms.custom import custom_vjp
from weft.transforms.jit import jit
from weft.transforms.loops import associative_scan
from weft.transforms.loops import fori_loop
from weft.transforms.loops import map
from weft.transforms.loops import scan
from weft.transforms.loops import while_loop
from weft.transforms.mapping import pmap
from weft.transforms.mapping import shard_map
from weft.transforms.mapping import vmap
from weft.transforms.tracing import checkify
from weft.transforms.tracing import eval_shape
from weft.transforms.tracing import make_jaxpr
from weft.transforms.tracing import remat
from weft.transforms.tracing import transform_metadata

__all__ = [
    "Carry",
    "associative_scan",
    "axes",
    "checkify",
    "cond",
    "custom_jvp",
    "custom_vjp",
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
