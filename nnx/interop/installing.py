"""install: makes imports of `flax.nnx` return `weft.nnx`, for programs that run unmodified.

A finder at the head of `sys.meta_path` resolves `flax.nnx` and its public submodules to the modules of this package: so
`from flax import nnx`, `import flax.nnx` and `from flax.nnx import X` give what `from weft import nnx` gives. The rest
of flax (Linen, `flax.training`, `flax.struct`, ...) is the installed one. If flax is not installed, the finder provides
a minimal `flax` with `nnx`, `config` and `errors`.

    import weft.nnx
    weft.nnx.install()          # before anything imports flax.nnx

    python -m weft.nnx train.py --steps 10      # the same for a program as it is
    python -m weft.nnx -m pytest -n 2 tests/    # and for the workers of pytest-xdist

A spawned process (`multiprocessing` with `spawn`) imports its own modules, and must install for itself.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from typing import Any

from weft.core.errors import WeftError
from weft.nnx.config import config
from weft.nnx.errors import ImmutableVariableError, TraceContextError
from weft.nnx.foreign import real_nnx
from weft.nnx.interop.names import IN_ROOMS, SUBMODULES, NamesModule, offer_imports

NNX = "flax.nnx"
OURS = "weft.nnx"

# Packages and modules of flax.nnx with the same name and submodules here; for others see `SUBMODULES`.
SAME_NAME = ("bridge", "ids", "nn", "proxy_caller", "summary", "training", "transforms")
# Modules of flax.nnx that are several files here.
OTHERWISE = {
    "nn.linear": ("nn.linear", "nn.convolution"),
    "transforms.autodiff": ("transforms.autodiff", "transforms.custom"),
}
# Modules of the real flax that re-export flax.nnx: `install` and `uninstall` must make them import again.
RE_EXPORTS = ("flax.experimental.nnx",)


class InstallError(WeftError, ImportError):
    """Raised if the real flax.nnx was imported before `install`."""


class NoCounterpartError(WeftError, ModuleNotFoundError):
    """Raised for the import of a module of flax without a counterpart in weft."""


class _Alias(Loader):
    """Loads a module by storing an existing module under its name in `sys.modules`."""

    def __init__(self, module: types.ModuleType):
        self._module = module

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        # A placeholder: the import system overwrites `__spec__` and `__name__` of the module returned here.
        return types.ModuleType(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        # After this method, Python's import takes the module from `sys.modules`, so the placeholder is seen by nobody.
        sys.modules[module.__name__] = self._module
        if module.__name__ == NNX:
            # Only now may names of flax's modules be looked up in these modules: without `install` a misspelt name is
            # an AttributeError.
            for name, loaded in list(sys.modules.items()):
                if name.startswith(tuple(f"{OURS}.{part}." for part in SAME_NAME)):
                    offer_imports(loaded)
            _join_flax(sys.modules["flax"])


class _MinimalFlax(Loader):
    """Creates the minimal `flax`, with `config` and `errors` only."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        # Python then makes an ordinary module.
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        errors = types.ModuleType("flax.errors", "The errors of flax that weft.nnx raises.")
        configurations = types.ModuleType("flax.configurations", "The switches of flax that weft.nnx has.")
        errors.__dict__.update(
            FlaxError=WeftError, TraceContextError=TraceContextError, ImmutableVariableError=ImmutableVariableError
        )
        configurations.__dict__["config"] = config
        module.__dict__.update(
            config=config, errors=errors, configurations=configurations, __version__="0.12.12+weft", __weft__=True
        )
        sys.modules.update({"flax.errors": errors, "flax.configurations": configurations})


class Finder(MetaPathFinder):
    """Resolves `flax.nnx` and its submodules to this package, and `flax` to a minimal module if it is not installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "flax":
            # The installed flax is used, for Linen: only its `nnx` is replaced.
            others = (finder for finder in sys.meta_path if not isinstance(finder, Finder))
            if any(finder.find_spec(fullname, None) is not None for finder in others):
                return None
            return importlib.machinery.ModuleSpec(fullname, _MinimalFlax(), is_package=True)
        if fullname == NNX or fullname.startswith(f"{NNX}."):
            module = twin_module(fullname)
            return importlib.machinery.ModuleSpec(fullname, _Alias(module), is_package=hasattr(module, "__path__"))
        if fullname.startswith("flax.") and getattr(sys.modules.get("flax"), "__weft__", False):
            raise NoCounterpartError(
                f"No module named {fullname!r}: flax is not installed, and weft provides flax.nnx only",
                fix="install flax for this module",
            )
        return None


def twin_module(fullname: str) -> types.ModuleType:
    """Returns weft's counterpart of a module of flax.nnx.

    Args:
        fullname: `flax.nnx`, or a submodule, such as `flax.nnx.nn.linear`.

    Raises:
        ImportError: if there is no counterpart.

    >>> twin_module("flax.nnx.traversals").__name__
    'weft.nnx.states.traversals'
    """
    package = importlib.import_module(OURS)
    path = fullname.removeprefix(NNX).removeprefix(".")
    if not path:
        return package
    if path in SUBMODULES or path in IN_ROOMS:
        return offer_imports(getattr(package, path))
    if path in OTHERWISE:
        return NamesModule(OURS, path, OTHERWISE[path])
    if path.split(".")[0] in SAME_NAME and _exists(f"{OURS}.{path}"):
        return offer_imports(importlib.import_module(f"{OURS}.{path}"))
    raise NoCounterpartError(
        f"No module named {fullname!r}: weft.nnx has no counterpart of it",
        fix="import the names that you need from flax.nnx itself, if it has them",
    )


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


# Functions that undo the changes of `_join_flax` to the real flax.
_undo: list[Callable[[], None]] = []


def _join_flax(flax: Any) -> None:
    """Makes the real flax (Linen) and weft.nnx share error classes and switches."""
    if getattr(flax, "__weft__", False):
        return
    errors: Any = importlib.import_module("flax.errors")
    theirs = errors.TraceContextError
    errors.TraceContextError = TraceContextError
    _undo.append(lambda: setattr(errors, "TraceContextError", theirs))
    # Code that imported flax's class before this must catch weft's error with it. Linen raises ImmutableVariableError
    # itself, so flax's class is not replaced.
    _catch_by(TraceContextError, theirs)
    _catch_by(ImmutableVariableError, errors.ImmutableVariableError)
    update = flax.config.update

    def update_both(option: Any, value: Any, /) -> None:
        update(option, value)
        name = option if isinstance(option, str) else option.name
        if name in config.__dataclass_fields__:
            config.update(name, value)

    # On the instance, so that deleting the attribute brings the method of the class back.
    flax.config.update = update_both
    _undo.append(lambda: delattr(flax.config, "update"))


def _catch_by(ours: type, theirs: type) -> None:
    """Makes an error class of this package a subclass of flax's, so that `except` with flax's class catches it."""
    bases = ours.__bases__
    ours.__bases__ = (*bases, theirs)
    _undo.append(lambda: setattr(ours, "__bases__", bases))


def installed() -> bool:
    """Whether imports of `flax.nnx` return `weft.nnx`."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)


def install() -> None:
    """Makes later imports of `flax.nnx` return `weft.nnx`; a second call has no effect.

    Raises:
        ImportError: if the real flax.nnx has been imported already.

        from weft import nnx

        nnx.install()
        from flax import nnx as same

        assert same is nnx
    """
    if installed():
        return
    # The real library's objects may exist already, and would be mixed with weft's.
    real = real_nnx()
    if real is not None:
        raise InstallError(
            "the real flax.nnx was imported before weft.nnx.install()",
            at=str(getattr(real, "__file__", real)),
            fix="call weft.nnx.install() first, before any import of flax.nnx (in a conftest.py, for pytest), "
            "or start the program by python -m weft.nnx",
        )
    # First, because Python's own finder would find the real package.
    sys.meta_path.insert(0, Finder())


def uninstall() -> None:
    """Undoes `install`: the next import of flax.nnx returns the real one.

    Modules that have imported `nnx` before keep weft's.
    """
    if not installed():
        return
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
    flax = sys.modules.get("flax")
    dropped = [name for name in sys.modules if name == NNX or name.startswith(f"{NNX}.") or name in RE_EXPORTS]
    if getattr(flax, "__weft__", False):
        dropped += ["flax", "flax.errors", "flax.configurations"]
    for name in dropped:
        sys.modules.pop(name, None)
    if flax is not None:
        # `from flax import nnx` reads this attribute, and would not import again while it is there.
        vars(flax).pop("nnx", None)
    while _undo:
        _undo.pop()()
