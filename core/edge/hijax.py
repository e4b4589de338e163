"""JAX's hijax: values and primitives of one's own. Only hijax Variables import this file.

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
# What only a JAX has whose values may change.
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

# Whether JAX tracks while it traces what a value holds (its "quasi-dynamic data"), so that it may change there.
CHANGING = _now.has("cur_qdd") and changing.has("MutableHiType")

HiType: Any = _hijax.HiType
ONE_CALL: Any = _calls.VJPHiPrimitive if _calls.has("VJPHiPrimitive") else _calls.HiPrim
aval_method: Any = _hijax.aval_method
aval_property: Any = _hijax.aval_property
instantiate_zeros: Any = _hijax.instantiate_zeros
register_hitype: Any = _hijax.register_hitype


def zeros_of(aval: object) -> Any:
    """A zero of a type, as an array or whatever values of it are."""
    return instantiate_zeros(_hijax.Zero(aval))


def accumulate(accumulator: object, cotangent: object) -> None:
    """Adds a cotangent to what a transpose rule collects of an input; an input that is not linear collects none."""
    add = getattr(accumulator, "accum", None)
    if add is not None:
        add(cotangent)


def held_now(value: object) -> Any:
    """What a value that may change holds at this point of a trace; for a JAX that is `CHANGING`."""
    return _now.cur_qdd(value)
