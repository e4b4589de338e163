"""JAX's hijax: values and primitives of one's own. JAX moves these names from release to release, so they are here.

| name here | JAX until 0.10 | JAX 0.12 |
| --- | --- | --- |
| `CHANGING` | a hijax value may change inside of a trace: `MutableHiType`, `cur_qdd`, `HiPrimitive` | none of these: a traced value is what it is |
| `ONE_CALL` | `VJPHiPrimitive` | `HiPrim`: an object for each application of a primitive, with its types |

A JAX that lacks one of the other names has no hijax that weft knows: importing this file then raises
`HijaxMissingError`, which names it. Only hijax Variables import this file.
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.experimental


class HijaxMissingError(ImportError):
    """This JAX has no hijax, or another one."""


try:
    from jax.experimental import hijax as _hijax
except ImportError as error:
    raise HijaxMissingError(
        f"hijax Variables need jax.experimental.hijax, which JAX {jax.__version__} lacks"
    ) from error


def _named(*names: str) -> Any:
    """The first of these names that JAX has."""
    for name in names:
        if hasattr(_hijax, name):
            return getattr(_hijax, name)
    raise HijaxMissingError(
        f"hijax Variables need jax.experimental.hijax.{' or '.join(names)}, which JAX {jax.__version__} lacks"
    )


# Whether what a value holds is tracked while JAX traces (its "quasi-dynamic data"), so that it may change there.
CHANGING = hasattr(jax.experimental, "cur_qdd") and hasattr(_hijax, "MutableHiType")

HiType = _named("HiType")
ONE_CALL = _named("HiPrim", "VJPHiPrimitive")
aval_method = _named("aval_method")
aval_property = _named("aval_property")
instantiate_zeros = _named("instantiate_zeros")
register_hitype = _named("register_hitype")
_Zero = _named("Zero")


def zeros_of(aval: object) -> Any:
    """A zero of a type, as an array or whatever values of it are."""
    return instantiate_zeros(_Zero(aval))


def accumulate(accumulator: object, cotangent: object) -> None:
    """Adds a cotangent to what a transpose rule collects of an input; an input that is not linear collects none."""
    add = getattr(accumulator, "accum", None)
    if add is not None:
        add(cotangent)


def changing() -> Any:
    """JAX's hijax with what only a JAX that is `CHANGING` has."""
    return cast(Any, _hijax)


def held_now(value: object) -> Any:
    """What a value that may change holds at this point of a trace; for a JAX that is `CHANGING`."""
    return cast(Any, jax.experimental).cur_qdd(value)
