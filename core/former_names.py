"""Where the public names of weft 0.2 are now: for errors about a missing name, and for `weft migrate`."""

from __future__ import annotations

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
