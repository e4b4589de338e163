"""Module: the base of layers and models, with modes (`train`, `eval`) and recording (`sow`, `perturb`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from weft.core.paths import Path
from weft.modules.construct import ConfigError
from weft.nnx.config import config
from weft.nnx.errors import SowError, StructureError
from weft.nnx.graphs import walk
from weft.nnx.modules.pytree import Pytree, PytreeMeta
from weft.nnx.states.filters import Filter, to_predicate
from weft.nnx.variable.kinds import Perturbation, VariableType, variable_type_from_name
from weft.nnx.variable.variable import Variable

M = TypeVar("M", bound="Module")


class ModuleMeta(PytreeMeta):
    """The metaclass of Modules."""


# The default `init_fn` of `sow`. It and `tuple_reduce` have flax's names, because programs import and pass them.
tuple_init = tuple


def tuple_reduce(recorded: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """Appends a value to the tuple of recorded values: the default `reduce_fn` of `sow`."""
    if not isinstance(recorded, tuple | list):
        raise SowError(
            f"sow appends to a tuple, but a {type(recorded).__name__} is recorded under this name",
            fix="record it under another name, or pass a function that joins the two: reduce_fn=",
        )
    return (*recorded, value)


class Module(Pytree, metaclass=ModuleMeta):
    """Base class of layers and models: objects with Variables and other Modules as attributes.

    >>> import jax.numpy as jnp
    >>> from weft.nnx.variable.kinds import Param
    >>> class Scale(Module):
    ...     def __init__(self, factor):
    ...         self.factor = Param(jnp.array(factor))
    ...     def __call__(self, x):
    ...         return x * self.factor
    >>> Scale(2.0)(jnp.array(3.0)).item()
    6.0
    """

    _pytree__has_color = True

    def sow(
        self,
        variable_type: VariableType | str,
        name: str,
        value: Any,
        reduce_fn: Callable[[Any, Any], Any] = tuple_reduce,
        init_fn: Callable[[], Any] = tuple_init,
        capture_noop: bool | None = None,
    ) -> bool:
        """Records an intermediate value, for `nnx.capture` to collect.

        Args:
            variable_type: the kind of the recorded Variable, or its registered name.
            name: the name of the recorded value.
            value: the value.
            reduce_fn: joins the values recorded under this name so far with the new value.
            init_fn: makes the initial value that `reduce_fn` joins with the first value.
            capture_noop: whether `sow` does nothing outside `capture`. If False, it then stores the value in an
                attribute of this Module (deprecated). The default is the switch `nnx_sow_capture_noop`.

        Returns:
            Whether the value was recorded. Inside `capture`, only values of the requested kinds are.

        >>> from weft import nnx
        >>> class Net(nnx.Module):
        ...     def __call__(self, x):
        ...         self.sow(nnx.Intermediate, "doubled", 2 * x)
        ...         return x
        >>> _, seen = nnx.capture(Net(), nnx.Intermediate)(jnp.ones(2))
        >>> [value.tolist() for value in jax.tree.leaves(seen)]
        [[2.0, 2.0]]
        """
        kind = _kind_of(variable_type)
        captures = getattr(self, "__captures__", None)
        if captures is not None:
            box = next((box for box in captures if type(box) is kind), None)
            # The `capture` around this call collects other kinds.
            if box is None:
                return False
            box[name] = reduce_fn(box[name] if name in box else init_fn(), value)
            return True
        if config.nnx_sow_capture_noop if capture_noop is None else capture_noop:
            return False
        current: Any = getattr(self, name, _ABSENT)
        if current is _ABSENT:
            setattr(self, name, kind(reduce_fn(init_fn(), value)))
        else:
            _check_kind(self, name, current, kind, exact=True)
            current.set_value(reduce_fn(current.get_value(), value))
        _warn_outside_capture("sow")
        return True

    def perturb(
        self,
        name: str,
        value: Any,
        variable_type: VariableType | str = Perturbation,
        capture_noop: bool | None = None,
    ) -> Any:
        """Adds a zero Variable to an intermediate value: the gradient for the zero is the gradient of the value.

        Args:
            name: the name of the recorded value.
            value: any pytree of arrays.
            variable_type: the kind of the recorded Variable, or its registered name.
            capture_noop: whether `perturb` does nothing outside `capture`; as in `sow`.

        Returns:
            The value plus the zero; use this in place of the value.
        """
        kind = _kind_of(variable_type)
        captures = getattr(self, "__captures__", None)
        if captures is not None:
            box = next((box for box in captures if type(box) is kind), None)
            if box is None:
                return value
            if name not in box:
                # Made in a first call. A second call gets the zeros by `init`, and is differentiated with respect to
                # them.
                box[name] = jax.tree.map(jnp.zeros_like, value)
            return box[name] + value
        if config.nnx_sow_capture_noop if capture_noop is None else capture_noop:
            return value
        if hasattr(self, name):
            _check_kind(self, name, getattr(self, name), kind, exact=False)
            zero = getattr(self, name).get_value()
        else:
            zero = jax.tree.map(jnp.zeros_like, value)
            setattr(self, name, kind(zero))
        _warn_outside_capture("perturb")
        return zero + value

    def set_attributes(
        self, *filters: Filter, raise_if_not_found: bool = True, graph: bool | None = None, **attributes: Any
    ) -> None:
        """Sets attributes of this Module and of all Modules inside it, where they exist already.

        Args:
            filters: the Modules to change; without filters, all.
            raise_if_not_found: whether an attribute that no Module has is an error.
            graph: whether to walk a graph or a tree.
            attributes: names and values.

        Raises:
            ValueError: naming the attributes that no Module has.

        >>> from weft import nnx
        >>> model = nnx.Sequential(nnx.Dropout(0.5), nnx.Dropout(0.1))
        >>> model.set_attributes(rate=0.0)
        >>> [layer.rate for layer in model.layers]
        [0.0, 0.0]
        """
        set_where_found(self, filters or (True,), attributes, raise_if_not_found, graph)

    def train(self, **attributes: Any) -> None:
        """Sets `deterministic` and `use_running_average` to `False` wherever Modules have them, and other attributes
        as given.

        >>> from weft import nnx
        >>> model = nnx.Sequential(nnx.Dropout(0.5, rngs=nnx.Rngs(0)), nnx.BatchNorm(2, rngs=nnx.Rngs(0)))
        >>> model.eval()
        >>> model.layers[0].deterministic, model.layers[1].use_running_average
        (True, True)
        >>> model.train()
        >>> model.layers[0].deterministic, model.layers[1].use_running_average
        (False, False)
        """
        self.set_attributes(
            **{"deterministic": False, "use_running_average": False, **attributes}, raise_if_not_found=False
        )

    def eval(self, **attributes: Any) -> None:
        """Sets `deterministic` and `use_running_average` to `True` wherever Modules have them, and other attributes
        as given.

        >>> from weft import nnx
        >>> layer = nnx.Dropout(0.5)
        >>> layer.eval()
        >>> layer(jnp.ones(3)).tolist()
        [1.0, 1.0, 1.0]
        """
        self.set_attributes(
            **{"deterministic": True, "use_running_average": True, **attributes}, raise_if_not_found=False
        )

    def iter_modules(self) -> Iterator[tuple[Path, Module]]:
        """Deprecated: `nnx.iter_modules(module)`."""
        _warn_method("iter_modules")
        yield from iter_modules(self)

    def iter_children(self) -> Iterator[tuple[Any, Any]]:
        """Deprecated: `nnx.iter_children(module)`."""
        _warn_method("iter_children")
        yield from walk.iter_children(self)


_ABSENT = object()


def iter_modules(module: Any, /, *, graph: bool | None = None) -> Iterator[tuple[Path, Module]]:
    """Iterates over all Modules in a graph with their paths: inner Modules first, the root last.

    Raises:
        ValueError: in tree mode, for a shared node.

    >>> from weft import nnx
    >>> model = nnx.Dict(head=nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    >>> [(path, type(module).__name__) for path, module in nnx.iter_modules(model)]
    [(('head',), 'Linear'), ((), 'Dict')]
    """
    return ((path, value) for path, value in walk.iter_graph(module, graph=graph) if isinstance(value, Module))


def set_where_found(
    node: Any, filters: Filter, attributes: Mapping[str, Any], raise_if_not_found: bool, graph: bool | None
) -> None:
    """Sets existing attributes of all Modules in a graph that filters match.

    Raises:
        StructureError: naming the attributes that no Module has, before any attribute is set.
    """
    test = to_predicate(filters)
    chosen = [module for path, module in iter_modules(node, graph=graph) if test(path, module)]
    # Checked before anything is set, so that a misspelt name leaves the model unchanged.
    missing = {name for name in attributes if not any(hasattr(module, name) for module in chosen)}
    if missing and raise_if_not_found:
        raise StructureError(
            f"Could not find at least one instance of the following attributes: {sorted(missing)}",
            fix="correct the names, or pass raise_if_not_found=False",
        )
    for module in chosen:
        for name, value in attributes.items():
            if hasattr(module, name):
                setattr(module, name, value)


def _kind_of(variable_type: VariableType | str) -> VariableType:
    if isinstance(variable_type, str):
        return variable_type_from_name(variable_type, allow_register=True)
    return variable_type


def _check_kind(module: Module, name: str, current: Any, kind: VariableType, *, exact: bool) -> None:
    fits = type(current) is kind if exact else isinstance(current, kind)
    if not isinstance(current, Variable) or not fits:
        expected = f"to be of type {kind.__name__!r}" if isinstance(current, Variable) else "to be a Variable"
        raise StructureError(
            f"Expected {name!r} {expected}, got {type(current).__name__!r}",
            at=f"{type(module).__name__}.{name}",
            fix="record it under another name",
        )


def _warn_outside_capture(method: str) -> None:
    warnings.warn(
        f"Module.{method}() outside of nnx.capture() is deprecated: it leaves its Variables in the Module",
        DeprecationWarning,
        stacklevel=3,
    )


def _warn_method(name: str) -> None:
    warnings.warn(
        f"the method {name}() is deprecated, use the function nnx.{name}(module)", DeprecationWarning, stacklevel=3
    )


def first_from(*args: Any, error_msg: str) -> Any:
    """Returns the first argument that is not None: a layer's option from its call, or else from its constructor.

    Args:
        args: the options, the most important one first.
        error_msg: the error's message.

    Raises:
        ValueError: if all are None.

    >>> first_from(None, 0, 1, error_msg="no rate was given")
    0
    """
    for arg in args:
        if arg is not None:
            return arg
    raise ConfigError(error_msg)
