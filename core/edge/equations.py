"""Parameters of equations with inner jaxprs (`scan`, `jit`, `remat`): reads them, and adds inputs and outputs to them.

JAX does not document these parameters, and renames them; see the table in `moved`.
"""

# JAX annotates in part; see `_jax.py`.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeGuard

from jax.extend.core import Jaxpr, JaxprEqn
from weft.core.edge._jax import AnyJaxpr, ClosedJaxpr, Params, is_closed
from weft.core.edge.moved import Names

_SOWING = "`capture`"
# The value in jit's parameters for "no sharding requested", which JAX does not export.
_shardings = Names("jax._src.named_sharding", _SOWING, "UNSPECIFIED")
_flat_trees = Names("jax._src.flattree", _SOWING, "nones", "pack", optional=True)


def inner_jaxprs(params: Params) -> list[AnyJaxpr]:
    """The jaxprs among an equation's parameters, open or closed as they are."""
    sequences = (value if isinstance(value, tuple | list) else (value,) for value in params.values())
    return [item for sequence in sequences for item in sequence if is_jaxpr(item)]


def iter_equations(eqns: Iterable[JaxprEqn]) -> Iterator[JaxprEqn]:
    """Yields equations, and the equations inside of them at any depth."""
    for eqn in eqns:
        yield eqn
        for inner in inner_jaxprs(eqn.params):
            yield from iter_equations(opened(inner).eqns)


def is_jaxpr(value: object) -> TypeGuard[AnyJaxpr]:
    """Whether a value is a jaxpr, open or closed."""
    return isinstance(value, ClosedJaxpr | Jaxpr)


def opened(jaxpr: AnyJaxpr) -> Jaxpr:
    """A jaxpr without its constants."""
    return jaxpr.jaxpr if is_closed(jaxpr) else jaxpr


def scan_counts(params: Params) -> tuple[int, int]:
    """The number of a scan's operands that are constants, and that are carried; the others are scanned."""
    if "ft_in" not in params:  # floor: JAX 0.10 has numbers
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def extend_scan(params: Params, closed: ClosedJaxpr, num_inputs: int, num_outputs: int) -> Params:
    """scan's parameters for a jaxpr to which scanned inputs and stacked outputs were added at the end.

    JAX 0.10 stores the numbers of constants and of carried operands instead of `ft_in`, and these stay the same.
    """
    extended = {**params, "jaxpr": closed}
    if "ft_in" in params:
        consts, carry, scanned = params["ft_in"].unpack()
        carried, stacked = params["ft_out"].unpack()
        nones, pack = _flat_trees.nones, _flat_trees.pack
        extended["ft_in"] = pack((consts, carry, (scanned, nones(num_inputs))))
        extended["ft_out"] = pack((carried, (stacked, nones(num_outputs))))
    return extended


def extend_jit(params: Params, closed: ClosedJaxpr, num_inputs: int, num_outputs: int) -> Params:
    """jit's parameters for a jaxpr to which inputs and outputs were added at the end, without donation or shardings."""
    return {
        **params,
        "jaxpr": closed,
        "donated_invars": (*params["donated_invars"], *[False] * num_inputs),
        "in_shardings": (*params["in_shardings"], *[_shardings.UNSPECIFIED] * num_inputs),
        "out_shardings": (*params["out_shardings"], *[_shardings.UNSPECIFIED] * num_outputs),
        "in_layouts": (*params["in_layouts"], *[None] * num_inputs),
        "out_layouts": (*params["out_layouts"], *[None] * num_outputs),
    }


def extend_remat(params: Params, jaxpr: Jaxpr, num_before: int, num_after: int) -> Params:
    """remat's parameters for a jaxpr to which inputs were added before and after its own."""
    prevent_cse: bool | tuple[bool, ...] = params["prevent_cse"]
    if not isinstance(prevent_cse, bool):
        prevent_cse = (*[True] * num_before, *prevent_cse, *[True] * num_after)
    return {**params, "jaxpr": jaxpr, "prevent_cse": prevent_cse}
