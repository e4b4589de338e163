"""axis_rules: the block in which shape annotations place arrays.

    with weft.axis_rules(mesh, {"batch": "data", "embed": "data", "heads": "model", ...: None}):
        model = weft.init(Model, key=key)
        loss, model, opt = step(model, opt, batch)

One table is for parameters and activations. A field is placed by its `Sharded` names or by its dims, and an argument or
result of a function under contract by its dims.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Generator, Mapping
from types import EllipsisType
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh
from weft.core import hooks
from weft.core.errors import AxisError
from weft.core.logical_axes import FREE, AnyMesh, AxisRules, axes_of, in_force, interned, show_mesh
from weft.core.records.filters import Maybe
from weft.modules.sharding.conventions import CONVENTIONAL
from weft.modules.sharding.placing import axis_rules_of
from weft.modules.sharding.rules import Rules, check_axes, optional_names, read_rules
from weft.modules.sharding.unnamed import is_near


class UnusedRuleWarning(UserWarning):
    """A rule is for a name that no traced array had, and that looks like another one misspelt."""


@contextlib.contextmanager
def axis_rules(mesh: AnyMesh, rules: Rules, *, strict: bool = False) -> Generator[AxisRules]:
    """Places annotated arrays by the names of their axes: the field's logical axis rules, without a call for each.

    Inside of the block each program that is traced (`weft.jit`, `jax.jit`) has the arguments and results of functions
    under contract constrained to lie on the mesh as the names of their dims say, and the fields of records that are
    made. So do the cotangents of these arrays. Nothing is moved eagerly. `weft.shard`, `weft.named_shardings`,
    `weft.init` and `weft.plan` take mesh and rules of the block.

    An array's axes take axes of the mesh in the order of the table, each once: under `{"batch": "data", "embed":
    "data"}` a `Float[Array, "batch seq embed"]` has its batch divided and its features whole.

    Args:
        mesh: a mesh of `jax.make_mesh`. On an automatic mesh an array is constrained; on an explicit one, an array
            whose type says otherwise is resharded. An explicit mesh is set for the block (`jax.set_mesh`).
        rules: maps names to axes of the mesh (a name, a tuple of names, or None: whole), as a mapping or as pairs. A
            name without a rule is left to the compiler; the rule for `...` holds for all other names. Dims such as
            `#n`, `n+1`, `3` and `_` have no name. Of a `*name`, the rule for `"*name"` divides the first axis.
        strict: whether an array that lies otherwise on an explicit mesh is an error, and not moved.

    Returns:
        A context manager; the block belongs to its thread or task. Of two nested blocks, the inner one holds.

    Raises:
        AxisError: for a rule with an axis that the mesh does not have, or two rules for a name; when a program is
            traced, for an axis that the mesh does not divide.
        ContractError: when a program is traced, with `strict`, for an array that lies otherwise.

    Warns:
        UnusedRuleWarning: at the end of the block, for a rule whose name no array had, but almost.

    Source: the logical axis rules of T5X and flax, `flax.linen.logical_axis_rules`.

    >>> import jax.numpy as jnp, weft
    >>> from jaxtyping import Array, Float
    >>> @weft.jit
    ... def double(x: Float[Array, "batch embed"]) -> Float[Array, "batch embed"]:
    ...     return 2 * x
    >>> mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> with axis_rules(mesh, {"batch": "data", ...: None}):
    ...     weft.debug.placements(double, jnp.ones((4, 2))).placed[0].spec
    P('data', None)
    """
    _check(mesh, rules)
    table = read_rules(rules)
    check_axes(mesh, table)
    block = interned(axis_rules_of(mesh, table, strict, optional_names(rules)))
    # Contracts say what an array's axes are called, also where they check nothing.
    if hooks.installed is None:
        hooks.load_contracts()
    with in_force(block), _set(mesh):
        yield block
    met = block.met - {FREE}
    unused = {name for name in block.table if isinstance(name, str)} - met - block.optional
    misspelt = sorted(name for name in unused - set(CONVENTIONAL) if is_near(name, met))
    if misspelt:
        warnings.warn(
            f"axis_rules: no array that was traced has an axis called {', '.join(map(repr, misspelt))}, but "
            f"{', '.join(sorted(map(repr, met - block.table.keys())))}",
            UnusedRuleWarning,
            stacklevel=3,
        )


def _check(mesh: Any, rules: Any) -> None:
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise AxisError(f"rules are for a mesh, not for a {type(mesh).__name__}", fix="axis_rules(mesh, rules)")
    pairs = list(rules.items()) if isinstance(rules, Mapping) else list(rules)
    strange = [pair for pair in pairs if not _is_rule(pair)]
    if strange:
        raise AxisError(
            "rules map names to different axes of a mesh",
            at=[repr(each) for each in strange],
            fix='give a name, a tuple of names, or None for each: {"batch": ("data", "fsdp"), "seq": None, ...: None}',
        )
    names = [name for name, _ in pairs]
    twice = sorted({repr(name) for name in names if names.count(name) > 1})
    if twice:
        raise AxisError(
            f"there are two rules for {', '.join(twice)}",
            fix='keep one of them; an axis may be divided over several axes of the mesh: "batch": ("data", "fsdp")',
        )


def _is_rule(pair: Any) -> bool:
    if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str | Maybe | EllipsisType):
        return False
    # An axis of the mesh cannot divide an axis of an array twice.
    axes = axes_of(pair[1])
    return len(set(axes)) == len(axes)


def _set(mesh: AnyMesh) -> contextlib.AbstractContextManager[Any]:
    """Sets an explicit mesh, without which operations on its arrays raise."""
    current = jax.sharding.get_abstract_mesh()
    if AxisType.Explicit not in mesh.axis_types or current.shape == mesh.shape:
        return contextlib.nullcontext()
    if not isinstance(mesh, Mesh):
        return jax.sharding.use_abstract_mesh(mesh)
    try:
        return jax.set_mesh(mesh)
    except ValueError:
        raise AxisError(
            f"the explicit mesh {show_mesh(mesh)} cannot be set in a function that is being compiled",
            fix="open the block around the call of the compiled function, or jax.set_mesh(mesh) around that",
        ) from None
