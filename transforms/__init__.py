"""Every JAX transform over records, each declared once as a rule of the interpreter."""

import typing as _typing
from types import ModuleType as _ModuleType

from weft.core.interpreter.prefixes import axes as axes
from weft.core.interpreter.rides import Carry as Carry
from weft.core.public_names import first_use as _first_use
from weft.transforms.autodiff import grad as grad
from weft.transforms.autodiff import value_and_grad as value_and_grad
from weft.transforms.branches import cond as cond
from weft.transforms.branches import switch as switch
from weft.transforms.compilation import jit as jit
from weft.transforms.mapping import pmap as pmap
from weft.transforms.mapping import vmap as vmap
from weft.transforms.scanning import scan as scan

if _typing.TYPE_CHECKING:
    from weft.transforms.autodiff import jvp as jvp
    from weft.transforms.autodiff import linearize as linearize
    from weft.transforms.autodiff import vjp as vjp
    from weft.transforms.checks import checkify as checkify
    from weft.transforms.checks import error_if as error_if
    from weft.transforms.custom_rules import custom_jvp as custom_jvp
    from weft.transforms.custom_rules import custom_vjp as custom_vjp
    from weft.transforms.jacobians import hessian as hessian
    from weft.transforms.jacobians import jacfwd as jacfwd
    from weft.transforms.jacobians import jacrev as jacrev
    from weft.transforms.loops import fori_loop as fori_loop
    from weft.transforms.loops import while_loop as while_loop
    from weft.transforms.sequences import associative_scan as associative_scan
    from weft.transforms.sequences import lax_map as lax_map
    from weft.transforms.shards import shard_map as shard_map
    from weft.transforms.tracing import eval_shape as eval_shape
    from weft.transforms.tracing import make_jaxpr as make_jaxpr
    from weft.transforms.tracing import remat as remat
    from weft.transforms.tracing import transform_metadata as transform_metadata

# The module of each name that is imported on first use; a test compares this with the imports above.
_HOMES = {
    "weft.transforms.autodiff": "jvp linearize vjp",
    "weft.transforms.checks": "checkify error_if",
    "weft.transforms.custom_rules": "custom_jvp custom_vjp",
    "weft.transforms.jacobians": "hessian jacfwd jacrev",
    "weft.transforms.loops": "fori_loop while_loop",
    "weft.transforms.sequences": "associative_scan lax_map",
    "weft.transforms.shards": "shard_map",
    "weft.transforms.tracing": "eval_shape make_jaxpr remat transform_metadata",
}
__getattr__, __dir__ = _first_use(globals(), _HOMES)

if not _typing.TYPE_CHECKING:  # checkers read the names off the imports above
    __all__ = [name for name in __dir__() if name[0] != "_" and not isinstance(globals().get(name), _ModuleType)]
