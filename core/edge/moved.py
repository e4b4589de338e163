"""Names of JAX that may move, and what moved between the releases that weft supports.

JAX promises to keep the names in its documentation. Weft declares every other name that it needs, for each module of
JAX's, with the feature that needs it. If a release no longer has a name, only that feature fails: with a
`MissingNameError`, a line that says which name is missing in which JAX, and for which feature. `missing()` lists the
declared names that the installed JAX lacks; a weekly job runs it under JAX's nightly build.

The changes so far, and where weft handles them (by testing for a name, never for a version):

| since | what moved | where weft follows |
| --- | --- | --- |
| 0.11 | Python 3.11 is dropped: pip stops at JAX 0.10.2 there | `constraints.txt` |
| 0.11 | `ClosedJaxpr` is another name for `Jaxpr`, which may hold its constants | `edge._jax.close`, `opened` |
| 0.11 | `scan` has `ft_in` and `ft_out`, flat trees, for `num_consts` and `num_carry` | `edge.equations` |
| 0.11 | `jit(inline=True)` inlines as MLIR is made; `jax.Inline.JAX_EARLY` is what it was | `edge.untyped.INLINED` |
| 0.11 | a call of a jaxpr, `closed_call`, is an equation like any other: `eval_jaxpr` | `sowing.hoisting` |
| 0.11 | `partial_eval._prune_closed_jaxpr_outputs` became `_prune_jaxpr_outputs_cached` | `edge._tracers` |
| 0.12 | hijax values no longer change in a trace (`cur_qdd` is gone); `VJPHiPrimitive` became `HiPrim` | `edge.hijax` |
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

import jax


class MissingNameError(ImportError):
    """A feature of weft needs a name that the installed JAX does not have."""


class Names:
    """A module of JAX's, imported when one of its declared names is first used.

    Args:
        module: its full name.
        feature: the feature that needs it, as the subject of "needs" in the error.
        names: the names that weft uses.
        optional: whether weft works without them, or needs them in some releases only; `missing` leaves them out.

    >>> Names("jax.numpy", "this example", "sin", "gone").gone
    Traceback (most recent call last):
        ...
    weft.core.edge.moved.MissingNameError: this example needs `jax.numpy.gone`, which JAX ... does not have...
    """

    def __init__(self, module: str, feature: str, *names: str, optional: bool = False):
        self._module = module
        self._feature = feature
        self._names = names
        if not optional:
            DECLARED.append(self)

    def __getattr__(self, name: str) -> Any:
        if name not in self._names:
            raise AttributeError(f"`{self._module}.{name}` is not declared in weft.core.edge.moved")
        try:
            value = getattr(importlib.import_module(self._module), name)
        except (ImportError, AttributeError):
            raise MissingNameError(
                f"{self._feature} needs `{self._module}.{name}`, which JAX {jax.__version__} does not have: "
                "install an older JAX, or a newer weft"
            ) from None
        setattr(self, name, value)  # later uses do not come here
        return value

    def has(self, name: str) -> bool:
        """Whether the installed JAX has a name."""
        return self._error_of(name) is None

    @property
    def present(self) -> list[str]:
        """The declared names that the installed JAX has."""
        return [name for name in self._names if self.has(name)]

    @property
    def module(self) -> ModuleType:
        """JAX's module, if it has any of the names."""
        return importlib.import_module(self._module)

    def missing(self) -> list[str]:
        """The errors for the names that the installed JAX does not have, one line for each."""
        return [str(error) for name in self._names if (error := self._error_of(name)) is not None]

    def _error_of(self, name: str) -> MissingNameError | None:
        try:
            getattr(self, name)
        except MissingNameError as error:
            return error
        return None


DECLARED: list[Names] = []


def declared() -> list[Names]:
    """All declarations in this room, including those of modules that are not imported yet."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        importlib.import_module(f"{__package__}.{module.name}")
    return DECLARED


def missing() -> list[str]:
    """The names that the installed JAX lacks, and the features that need them, one line for each name."""
    return [line for names in declared() for line in names.missing()]
