"""Public names: those that a package imports when they are first used, and where those of weft 0.2 are now.

`import weft` loads records and the transforms over them. Layers, capture, debugging, exports and the like have their
names in the same package, but only programs that use them wait for their import. The package imports them under
`TYPE_CHECKING` for type checkers, and lists the module of each name in a table.

The names of weft 0.2 are for errors about a missing name, and for `weft migrate`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

# From the old namespace to the new, the names that are called the same in both.
_SAME_NAME = {
    ("weft", "weft.errors"): (
        "AxisError BranchError CacheError CaptureError CarryError CheckError ConfigError DifferentiationError "
        "DonatedError FilterError ForeignObjectError FrozenError KeyReuseError MeshError MetricError MissingExtraError "
        "MissingRuleError NonFiniteError PaddingError PairError ReplicatedWarning RetraceWarning SeedError StaticError "
        "StreamError StructureError SurgeryError TraceLevelError TracedArrayError TracedBoolError TracedIntegerError "
        "TracedMaskError TracedValueError UnboundAxisError"
    ),
    ("weft", "weft.filters"): "All Any Filter Inside InstanceOf Maybe Not PathContains WithTag",
    ("weft", "weft.debug"): "debug_keys debug_successors explain_retraces",
    ("weft", "weft.tree"): "Structure changes merge select split update",
    ("weft.typecheck", "weft"): "ContractError",
    ("weft.typecheck", "weft.errors"): "AnnotationError ImportHookError ModeError",
    ("weft.debug", "weft.errors"): "NonFiniteError",
    ("weft.metrics", "weft.errors"): "MetricError",
    ("weft.ops", "weft"): "adaptive_avg_pool adaptive_max_pool avg_pool max_pool min_pool sinusoidal",
    # They never were there, but somebody who knows that exceptions are in weft.errors looks for them there.
    ("weft.errors", "weft"): "AliasError CheckpointError ContractError SuccessorError WeftError",
}
# The dotted name of 0.3 by that of 0.2.
MOVED = {
    **{f"{old}.{name}": f"{new}.{name}" for (old, new), names in _SAME_NAME.items() for name in names.split()},
    "weft.drop": "weft.drop_successor",
    "weft.inference": "weft.inference_mode",
    "weft.map": "weft.lax_map",
    "weft.scope": "weft.name_scope",
    "weft.training": "weft.training_mode",
}
# The namespace of a module below `weft`: of packages that have the names of `weft`, and of those with a short name.
NAMESPACE_OF = {
    "core": "weft",
    "modules": "weft",
    "transforms": "weft",
    "insight.debug": "weft.debug",
    "modules.learning.metrics": "weft.metrics",
    "modules.ops": "weft.ops",
}


def place_of(module: str, name: str) -> str | None:
    """The dotted name under which something of a module of weft 0.2 is reached now; None if it did not move.

    >>> place_of("weft", "split"), place_of("weft.core", "AxisError"), place_of("weft", "jit")
    ('weft.tree.split', 'weft.errors.AxisError', None)
    """
    return MOVED.get(f"{NAMESPACE_OF.get(module.removeprefix('weft.'), module)}.{name}")


def absence(module: str, name: str) -> str:
    """The text of the error about a name that a module does not have.

    >>> absence("weft", "nonsense")
    "module 'weft' has no attribute 'nonsense'"
    >>> absence("weft", "split")
    "module 'weft' has no attribute 'split': it is weft.tree.split (`weft migrate` rewrites programs of weft 0.2)"
    """
    place = place_of(module, name)
    hint = f": it is {place} (`weft migrate` rewrites programs of weft 0.2)" if place else ""
    return f"module {module!r} has no attribute {name!r}{hint}"


def first_use(
    namespace: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package.

    Args:
        namespace: the `globals()` of the package.
        homes: from a module to the names that come from it; `origin=name` for a name that is `origin` in the module. A
            name that comes from the package itself is a submodule.

    >>> namespace = {"__name__": "weft.core.public_names"}
    >>> get, names = first_use(namespace, {"math": "tau=circle pi"})
    >>> get("circle"), "circle" in namespace, names()
    (6.283185307179586, True, ['__name__', 'circle', 'pi'])
    """
    entries = [(module, *entry.partition("=")) for module, names in homes.items() for entry in names.split()]
    origins = {name or origin: (module, origin) for module, origin, _, name in entries}
    package = namespace["__name__"]

    def get(name: str) -> Any:
        if name not in origins:
            raise AttributeError(absence(package, name))
        module, origin = origins[name]
        if module == package:
            return importlib.import_module(f"{package}.{origin}")
        # `__import__` with a name also imports a submodule, as `from module import name` does.
        namespace[name] = getattr(__import__(module, None, None, [origin]), origin)
        return namespace[name]

    return get, lambda: sorted({*namespace, *origins})
