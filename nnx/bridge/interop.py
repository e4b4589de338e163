"""Functions that make NNX and Linen modules submodules of a `bridge.Module`."""

from __future__ import annotations

from collections.abc import Callable

from flax import linen
from weft.nnx.bridge.module import ModuleStackEntry, add_submodule, current_context
from weft.nnx.bridge.wrappers import ToNNX
from weft.nnx.errors import StructureError
from weft.nnx.graphs.splitting import clone, state
from weft.nnx.graphs.updating import update
from weft.nnx.modules.module import Module
from weft.nnx.streams.rngs import Rngs
from weft.nnx.transforms.compilation import jit
from weft.nnx.transforms.transforms import eval_shape
from weft.nnx.variable.kinds import RngState


def nnx_in_bridge_mdl(factory: Callable[[Rngs], Module], name: str | None = None) -> Module:
    """Makes an NNX module a submodule of the `bridge.Module` that is being called.

    Args:
        factory: a function from `Rngs` to the module. In `init` it creates the variables; in `apply` only its random
            state is computed, and the variables are those passed to `apply`.
        name: the submodule's name in a method under `compact`; in `setup`, assign the module to an attribute.

    Returns:
        The module.

    Raises:
        ValueError: outside a `bridge.Module`.
    """
    context = _context("nnx_in_bridge_mdl")
    rngs = context.module.scope.rngs
    if context.module.is_initializing():
        module = factory(rngs)
    else:
        # Abstract, because the parameters are those passed to `apply`: initial values would be drawn and thrown away.
        module = eval_shape(factory, clone(rngs, graph=True), graph=True)
        # Under `jit`, so that XLA removes the computation of parameters, on which the random state does not depend.
        update(module, jit(lambda rngs: state(factory(rngs), RngState, graph=True), graph=True)(rngs))
    _add(context, module, name, type(module))
    return module


def linen_in_bridge_mdl(linen_module: linen.Module, name: str | None = None) -> Module:
    """Makes a Linen module a submodule of the `bridge.Module` that is being called. See `nnx_in_bridge_mdl`.

    Args:
        linen_module: the module; the submodule draws its keys from a fork of the scope's streams.
        name: the submodule's name in a method under `compact`.
    """
    context = _context("linen_in_bridge_mdl")
    module = ToNNX(linen_module, rngs=context.module.scope.rngs)
    _add(context, module, name, type(linen_module))
    return module


def _context(function: str) -> ModuleStackEntry:
    context = current_context()
    if context is None:
        raise StructureError(
            f"{function}() only needed inside bridge Module",
            fix="call it in setup or in a method under compact; elsewhere use the module itself",
        )
    return context


def _add(context: ModuleStackEntry, module: Module, name: str | None, kind: type) -> None:
    if name is not None or context.in_compact:
        add_submodule(context, module, name, kind)
