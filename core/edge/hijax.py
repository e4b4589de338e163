"""JAX's hijax, by which programs define types of values and primitives. Only hijax Variables import this file.

| name here | JAX until 0.10 | JAX 0.12 |
| --- | --- | --- |
| `CHANGING` | true: a hijax value may change inside of a trace (`MutableHiType`, `HiPrimitive`, `cur_qdd`) | false |
| `ONE_CALL` | `VJPHiPrimitive` | `HiPrim`: an object for each application of a primitive, with its types |
"""

from __future__ import annotations

from typing import Any

from weft.core.edge.moved import Names

_FEATURE = "a hijax Variable"
_hijax = Names(
    "jax.experimental.hijax",
    _FEATURE,
    "HiType",
    "Zero",
    "aval_method",
    "aval_property",
    "instantiate_zeros",
    "register_hitype",
)
_calls = Names("jax.experimental.hijax", _FEATURE, "HiPrim", "VJPHiPrimitive", optional=True)
_now = Names("jax.experimental", _FEATURE, "cur_qdd", optional=True)
# floor: names of a JAX whose hijax values may change in a trace.
changing = Names(
    "jax.experimental.hijax",
    _FEATURE,
    "AvalQDD",
    "HiPrimitive",
    "MutableHiType",
    "control_flow_allowed_effects",
    "is_undefined_primal",
    optional=True,
)

# Whether JAX tracks the content of a value (its "quasi-dynamic data") while it traces, so that it may change there.
CHANGING = _now.has("cur_qdd") and changing.has("MutableHiType")

HiType: Any = _hijax.HiType
ONE_CALL: Any = _calls.VJPHiPrimitive if _calls.has("VJPHiPrimitive") else _calls.HiPrim
aval_method: Any = _hijax.aval_method
aval_property: Any = _hijax.aval_property
instantiate_zeros: Any = _hijax.instantiate_zeros
register_hitype: Any = _hijax.register_hitype


def zeros_of(aval: object) -> Any:
    """The zero of an aval, as an array or as a hijax value."""
    return instantiate_zeros(_hijax.Zero(aval))


def accumulate(accumulator: object, cotangent: object) -> None:
    """Adds a cotangent to the accumulator of an input in a transpose rule; a non-linear input has no accumulator."""
    add = getattr(accumulator, "accum", None)
    if add is not None:
        add(cotangent)


def held_now(value: object) -> Any:
    """The present content of a value that may change in a trace; only in a JAX that is `CHANGING`."""
    return _now.cur_qdd(value)
