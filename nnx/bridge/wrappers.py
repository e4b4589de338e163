"""ToNNX and ToLinen: wrap a module of one library as a module of the other.

A Linen module initialises its variables from its first input, and takes keys in each call; an NNX module owns both.
`ToNNX` has the variables as attributes, and draws keys from its own streams; `lazy_init` initialises the variables.
`ToLinen` creates its NNX module again in each call, and writes the variables that Linen passes into it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar, cast

import jax
from flax import linen
from flax.core import FrozenDict
from weft.nnx.bridge.module import current_module
from weft.nnx.bridge.variables import as_state, linen_vars_to_nnx_attrs, nnx_attrs_to_linen_vars, to_linen_var
from weft.nnx.errors import MISSING, Missing, StructureError
from weft.nnx.graphs.definitions import GraphDef
from weft.nnx.graphs.splitting import call, split, state
from weft.nnx.graphs.updating import update
from weft.nnx.modules.module import Module, iter_modules
from weft.nnx.modules.pytree_state import INITIALIZING
from weft.nnx.objects.attributes import data, static
from weft.nnx.objects.objects import attributes_of
from weft.nnx.states.filters import Not
from weft.nnx.states.states import State, merge_state
from weft.nnx.streams.rngs import Rngs
from weft.nnx.variable.kinds import RngState
from weft.nnx.variable.variable import Variable

M = TypeVar("M", bound=Module)
Method = Callable[..., Any] | str | None

# Prefixes of attributes that are no variables: the wrapper's own, and NNX's marks.
_OWN = ("to_nnx__", "_nnx_", INITIALIZING)


@dataclasses.dataclass
class Functional(Generic[M]):
    """An NNX class as two pure functions, made by `functional`."""

    module_type: type[M]
    graphdef: GraphDef[M] | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def init(self, *, rngs: Rngs | None = None) -> State:
        """Creates a module and returns its State.

        Args:
            rngs: the argument `rngs` of the constructor, if it has one.
        """
        keywords = {**self.kwargs, **({} if rngs is None else {"rngs": rngs})}
        self.graphdef, made = split(self.module_type(*self.args, **keywords), graph=True)
        return made

    def apply(self, *states: Any) -> Any:
        """Calls the module with a State: `functional.apply(state)(x)` returns the output and (structure, new State).

        Raises:
            ValueError: before `init`.
        """
        if self.graphdef is None:
            raise StructureError("this Functional has no structure yet", fix="call its init(rngs=...) first")
        return call((self.graphdef, merge_state(*states)))


def functional(cls: type[M]) -> Callable[..., Functional[M]]:
    """Converts an NNX class to pure functions that create and call its instances.

    >>> import jax.numpy as jnp
    >>> from weft import nnx
    >>> linear = functional(nnx.Linear)(2, 3)
    >>> state = linear.init(rngs=nnx.Rngs(0))
    >>> linear.apply(state)(jnp.ones((1, 2)))[0].shape
    (1, 3)
    """
    return lambda *args, **kwargs: Functional(cls, None, args, kwargs)


# ---------------------------------------------------------------------- Linen in NNX


class ToNNX(Module):
    """Wraps a Linen module as an NNX module, with its variables as attributes.

    Args:
        module: the Linen module.
        rngs: `Rngs`, of which a fork is stored; each call draws a key from every stream. A single key is for the stream
            `params`.

    >>> import jax.numpy as jnp
    >>> from flax import linen
    >>> from weft import nnx
    >>> model = ToNNX(linen.Dense(3), rngs=nnx.Rngs(0)).lazy_init(jnp.ones((1, 2)))
    >>> model(jnp.ones((1, 2))).shape, type(model.kernel).__name__
    ((1, 3), 'Param')
    """

    def __init__(self, module: linen.Module, rngs: Rngs | jax.Array | None = None):
        # Static, because a Linen module has no variables: it is configuration, and a part of this module's structure.
        self.to_nnx__module = static(module)
        if isinstance(rngs, jax.Array | int):
            # Linen's `init` takes a bare key as that of the stream `params`.
            rngs = Rngs(params=rngs)
        elif rngs is not None:
            # A fork, so that calls of this module do not advance the caller's streams.
            rngs = rngs.fork()
        self.to_nnx__rngs = data(rngs)

    def _setattr(self, name: str, value: Any) -> None:
        # The variables of a Linen submodule are a plain dict of Variables, which by its type would be static.
        super()._setattr(name, data(value) if isinstance(value, Mapping) else value)

    def lazy_init(self, *args: Any, **kwargs: Any) -> ToNNX:
        """Initialises the variables by a call, and returns this module. See the function `lazy_init`."""
        return lazy_init(self, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        attributes = attributes_of(self)
        # `copy` and `pickle` look up dunder methods, and do so before the object has any attribute.
        if not name.startswith("__") and "to_nnx__module" in attributes:
            if name in ("module", "rngs"):
                warnings.warn(
                    f"'.{name}' of ToNNX is deprecated, use '.to_nnx__{name}'", DeprecationWarning, stacklevel=2
                )
                return attributes[f"to_nnx__{name}"]
            method = getattr(type(attributes["to_nnx__module"]), name, None)
            if callable(method):
                return functools.partial(self.__call__, method=method)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __call__(
        self,
        *args: Any,
        rngs: Rngs | jax.Array | None = None,
        method: Method = None,
        mutable: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Calls the Linen module.

        Args:
            args: the arguments of the Linen module.
            rngs: `Rngs` for this call, or the `rngs` of Linen's `apply`; by default the wrapper's own streams.
            method: the method to call instead of `__call__`: its name, or a function of the Linen module.
            mutable: the mutable collections, as in Linen's `apply`; changes are written into the attributes. By default
                none, or those of the `bridge.Module` around.

        Returns:
            The output.
        """
        keys = self._keys(rngs)
        inside = current_module()
        if INITIALIZING in attributes_of(self) or (inside is not None and inside.is_initializing()):
            out, changed = self.to_nnx__module.init_with_output(keys, *args, method=method, **kwargs)
        else:
            own = {name: value for name, value in attributes_of(self).items() if not name.startswith(_OWN)}
            variables = nnx_attrs_to_linen_vars(own)
            # `mutable` of the outer `apply` holds for the Linen modules inside, whose calls do not pass it on.
            if mutable is None and inside is not None:
                mutable = inside.scope.mutable
            options = {"method": method, **kwargs}
            if mutable is None or mutable is False:
                return self.to_nnx__module.apply(variables, *args, rngs=keys, **options)
            out, changed = self.to_nnx__module.apply(variables, *args, rngs=keys, mutable=mutable, **options)
        for name, value in linen_vars_to_nnx_attrs(changed).items():
            setattr(self, name, _updated(attributes_of(self).get(name), value))
        return out

    def _keys(self, rngs: Any) -> Any:
        """Draws a key from each stream. Linen's fallback stream is `params`, NNX's is `default`."""
        rngs = self.to_nnx__rngs if rngs is None else rngs
        if not isinstance(rngs, Rngs):
            return {} if rngs is None else rngs
        keys = {name: stream() for name, stream in rngs.items()}
        if "params" not in keys and "default" in keys:
            keys["params"] = keys.pop("default")
        return keys


def _updated(old: Any, new: Any) -> Any:
    """Writes new values into the existing Variables, and returns them together with new Variables."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {**old, **{name: _updated(old.get(name), value) for name, value in new.items()}}
    # The existing Variable is updated, so that other references to it see the new value.
    if isinstance(old, Variable) and type(old) is type(new) and not old.ref:
        old.update_from_state(new)
        return old
    return new


def lazy_init(fn: Module | Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Initialises the variables of all `ToNNX` in a module by a call.

    Args:
        fn: the module, or a method of it.
        args, kwargs: the arguments of the call.

    Returns:
        `fn` itself.

    Raises:
        ValueError: if `fn` is neither.

    >>> import jax.numpy as jnp
    >>> from flax import linen
    >>> from weft import nnx
    >>> lazy_init(ToNNX(linen.Dense(3), rngs=nnx.Rngs(0)), jnp.ones((1, 2))).kernel.shape
    (2, 3)
    """
    module = fn
    while not isinstance(module, Module) and module is not None:
        module = module.func if isinstance(module, functools.partial) else getattr(module, "__self__", None)
    if module is None:
        raise StructureError(
            f"fn = {fn!r} needs to be a method of an NNX Module.", fix="pass the module, or one of its methods"
        )
    with _initializing(module):
        cast(Any, fn)(*args, **kwargs)
    return fn


@contextlib.contextmanager
def _initializing(module: Module) -> Iterator[None]:
    # Listed before the call: a module that the call replaces must lose its mark, too.
    marked = _modules_in(module)
    try:
        _set_initializing(module, initializing=True)
        yield
    finally:
        for marked_module in (*marked, module):
            _set_initializing(marked_module, initializing=False)


def _set_initializing(module: Module, *, initializing: bool) -> None:
    for submodule in _modules_in(module):
        submodule._pytree__state._initializing = initializing


def _modules_in(module: Module) -> list[Module]:
    return [submodule for _, submodule in iter_modules(module, graph=True)]


# ---------------------------------------------------------------------- NNX in Linen


def linen_rngs_dict(linen_module: linen.Module, add_default: bool = False) -> dict[str, Any]:
    """Draws a key from each stream of a Linen module.

    Args:
        linen_module: a module inside `init` or `apply`.
        add_default: whether to add a constant stream `default`, for a call without keys.
    """
    scope = linen_module.scope
    if scope is None:
        raise StructureError("this Linen module has no scope", fix="call it through init or apply")
    keys: dict[str, Any] = {name: linen_module.make_rng(name) for name in scope.rngs}
    return {**keys, "default": 0} if add_default and "default" not in keys else keys


def current_linen_module() -> linen.Module | None:
    """Returns the innermost Linen module that is being called; None outside `init` and `apply`.

    >>> current_linen_module() is None
    True
    """
    return linen.module._context.module_stack[-1]  # Linen has no public function for it


class ToLinen(linen.Module):
    """Wraps an NNX class as a Linen module.

    Attributes:
        nnx_class: the class, or a function that makes a module.
        args, kwargs: the arguments of its constructor.
        skip_rng: whether its constructor has no argument `rngs`.
        metadata_fn: converts a Variable to a Linen variable; None to use its value.

    >>> import jax, jax.numpy as jnp
    >>> from weft import nnx
    >>> model = ToLinen(nnx.Linear, args=(2, 3))
    >>> variables = model.init(jax.random.key(0), jnp.ones((1, 2)))
    >>> variables["params"]["kernel"].shape, model.apply(variables, jnp.ones((1, 2))).shape
    ((2, 3), (1, 3))
    """

    nnx_class: Callable[..., Module]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = FrozenDict({})
    skip_rng: bool = False
    metadata_fn: Callable[[Variable[Any]], Any] | None = to_linen_var

    @linen.compact
    def __call__(self, *args: Any, nnx_method: Method = None, **kwargs: Any) -> Any:
        """Calls the module, or its method `nnx_method`, which is a name or a function of the module."""
        # A shared submodule is called several times in `init`; only its first call makes variables, and later calls use
        # them.
        making = self.is_initializing() and not self.variables
        # The constructor needs keys, but `apply` may be called without any. Then a constant stream serves: the
        # variables overwrite everything that is initialised with it.
        keys = {} if self.skip_rng else {"rngs": Rngs(**linen_rngs_dict(self, add_default=not making))}
        module = self.nnx_class(*self.args, **{**self.kwargs, **keys})
        method = _get_module_method(module, nnx_method)
        if making:
            # Stored before the call: as in Linen's own layers, updates of the first call are not initial variables.
            _store(self, module)
            return method(module, *args, **kwargs)
        update(module, as_state(linen_vars_to_nnx_attrs(self.variables)))
        out = method(module, *args, **kwargs)
        # In `init`, the updates of a later call are not initial variables either.
        if not self.is_initializing():
            _store(self, module)
        return out

    def __getattr__(self, name: str) -> Any:
        kind = vars(self).get("nnx_class")
        method = getattr(kind, name, None) if isinstance(kind, type) and not name.startswith("_") else None
        if callable(method):
            return functools.partial(self.__call__, nnx_method=method)
        return super().__getattr__(name)


def _get_module_method(module: Module, method: Method) -> Callable[..., Any]:
    if method is None:
        return type(module).__call__
    function = getattr(type(module), method) if isinstance(method, str) else method
    if not callable(function):
        raise TypeError(f"nnx_method must be the name of a method or a function, got {method!r}")
    return function


def _store(linen_module: ToLinen, module: Module) -> None:
    """Writes an NNX module's state into the mutable collections of a Linen module."""
    # Without random state: Linen passes keys to each call.
    variables = state(module, Not(RngState), graph=True)
    for collection, tree in nnx_attrs_to_linen_vars(variables, linen_module.metadata_fn).items():
        # Linen raises for a write into any other collection, and an `apply` without `mutable` has none that may be
        # written.
        if linen_module.is_mutable_collection(collection):
            for name, value in tree.items():
                linen_module.put_variable(collection, name, value)


def to_linen(
    nnx_class: Callable[..., Module],
    *args: Any,
    metadata_fn: Callable[[Variable[Any]], Any] | None = to_linen_var,
    name: str | None = None,
    skip_rng: bool = False,
    abstract_init: bool = True,
    **kwargs: Any,
) -> ToLinen:
    """Makes a `ToLinen` from an NNX class and its constructor's arguments.

    Args:
        nnx_class: the class.
        args, kwargs: its constructor's arguments.
        metadata_fn, name, skip_rng: as in `ToLinen`.
        abstract_init: has no effect, as in flax.

    >>> import jax, jax.numpy as jnp
    >>> from weft import nnx
    >>> to_linen(nnx.Linear, 2, out_features=3).init(jax.random.key(0), jnp.ones((1, 2)))["params"]["bias"].shape
    (3,)
    """
    return ToLinen(
        nnx_class, args=args, kwargs=FrozenDict(kwargs), metadata_fn=metadata_fn, skip_rng=skip_rng, name=name
    )


# flax has a class of its own in this module, and an instance, which programs import.
_Missing, _MISSING = Missing, MISSING


def to_linen_class(
    base_nnx_class: type[M],
    base_metadata_fn: Callable[[Variable[Any]], Any] | None = to_linen_var,
    base_skip_rng: bool = False,
    **partial_kwargs: Any,
) -> type[ToLinen]:
    """Makes a Linen class from an NNX class, to create modules or to derive from.

    Args:
        base_nnx_class: the NNX class.
        base_metadata_fn, base_skip_rng: defaults of `metadata_fn` and `skip_rng`; see `ToLinen`.
        partial_kwargs: default arguments of its constructor.

    Returns:
        A subclass of `ToLinen`, whose constructor takes the NNX class's arguments as keywords.

    >>> from weft import nnx
    >>> Dense = to_linen_class(nnx.Linear, use_bias=False)
    >>> dict(Dense(in_features=2, out_features=3).kwargs)
    {'use_bias': False, 'in_features': 2, 'out_features': 3}
    """

    def __init__(
        self: Any,
        args: Any = None,
        kwargs: Any = None,
        nnx_class: Any = None,
        skip_rng: bool | None = None,
        # None is a value of these: a `metadata_fn` of None stores the plain value of each Variable.
        metadata_fn: Any = MISSING,
        name: Any = MISSING,
        parent: Any = MISSING,
        **other_kwargs: Any,
    ) -> None:
        linen_options = {key: value for key, value in (("name", name), ("parent", parent)) if value is not MISSING}
        ToLinen.__init__(
            self,
            nnx_class=base_nnx_class if nnx_class is None else nnx_class,
            args=() if args is None else args,
            kwargs=FrozenDict({**partial_kwargs, **(kwargs or {}), **other_kwargs}),
            skip_rng=base_skip_rng if skip_rng is None else skip_rng,
            metadata_fn=base_metadata_fn if metadata_fn is MISSING else metadata_fn,
            **linen_options,
        )

    class ToLinenPartial(ToLinen):
        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            # Linen generates a dataclass constructor for each subclass, which would replace this one.
            cls.__init__ = __init__  # type: ignore[method-assign]

    # For the class itself: its `__init_subclass__` runs for subclasses only.
    ToLinenPartial.__init__ = __init__  # type: ignore[method-assign]
    return ToLinenPartial
