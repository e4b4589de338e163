"""`weft.debug`: finds where a value stops being finite, shows statistics of values over steps, and helps to find bugs.

>>> import jax.numpy as jnp, weft
>>> @weft.jit
... def loss(x):
...     return jnp.log(x).sum()
>>> weft.debug.nonfinite(loss)(jnp.array([1.0, 0.0]))
Traceback (most recent call last):
...
weft.core.errors.NonFiniteError: log of 0 gives -inf, first seen in the forward pass
  at: ...jnp.log(x)...
"""

from typing import TYPE_CHECKING

from weft.core.interpreter.retraces import explain_retraces
from weft.core.public_names import first_use

if TYPE_CHECKING:
    from weft.core.threads.lost import debug_successors
    from weft.insight.debug.guarding import expected, nonfinite
    from weft.insight.debug.lying import Placements, placements
    from weft.insight.debug.reuse import debug_keys
    from weft.insight.debug.showing import plot, table
    from weft.insight.debug.watching import Row, watch

# Imported on first use, because `import weft` must not load the interpreter of the second run.
_HOMES = {
    "weft.core.threads.lost": "debug_successors",
    "weft.insight.debug.guarding": "expected nonfinite",
    "weft.insight.debug.lying": "Placements placements",
    "weft.insight.debug.reuse": "debug_keys",
    "weft.insight.debug.showing": "plot table",
    "weft.insight.debug.watching": "Row watch",
}
__getattr__, _ = first_use(globals(), _HOMES)


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "Placements",
    "Row",
    "debug_keys",
    "debug_successors",
    "expected",
    "explain_retraces",
    "nonfinite",
    "placements",
    "plot",
    "table",
    "watch",
]
