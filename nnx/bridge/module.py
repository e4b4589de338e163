"""bridge.Module: an NNX module that is written like a Linen module.

Its constructor takes configuration; `init` and `apply` make a copy, give it a *scope* (where keys come from, and
whether variables are being made) and the variables as attributes, and call it. Submodules and parameters made in a
method under `compact`, or in `setup`, become attributes of the copy:

    class Linear(bridge.Module):
        features: int

        @bridge.compact
        def __call__(self, x):
            return x @ self.param("kernel", nnx.initializers.lecun_normal(), (x.shape[-1], self.features))

Variables of a submodule that does not exist yet wait under its name, as a `ModuleState`. Binding the submodule to its
parent gives it the scope and these, and runs its `setup`.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard, TypeVar

import jax
from flax.core import FrozenDict, meta
from typing_extensions import dataclass_transform
from weft.core.paths import Path
from weft.nnx.bridge.variables import as_state, linen_vars_to_nnx_attrs, nnx_attrs_to_linen_vars, to_nnx_var
from weft.nnx.errors import StructureError
from weft.nnx.graphs.nodes import child_items, get_node_impl
from weft.nnx.graphs.splitting import clone
from weft.nnx.graphs.updating import update
from weft.nnx.modules import module as nnx_module
from weft.nnx.modules.pytree import Pytree
from weft.nnx.objects.attributes import data, is_annotation, is_array_leaf, register_data_type
from weft.nnx.objects.objects import attributes_of
from weft.nnx.states.states import State
from weft.nnx.states.traversals import unflatten_mapping
from weft.nnx.streams.rngs import Rngs
from weft.nnx.variable.kinds import Param, RngState, variable_type_from_name
from weft.nnx.variable.variable import Variable

F = TypeVar("F", bound=Callable[..., Any])
RngsLike = int | jax.Array | Mapping[str, Any] | Rngs | None


class AttrPriority(enum.IntEnum):
    """Under which of its attributes something shared is found in the variables: the lowest number, then by name."""

    HIGH = 0
    INIT_PARENT = 20
    DEFAULT = 50
    LOW = 100


@dataclasses.dataclass
class ModuleStackEntry:
    """A module at work: in one of its methods under `compact`, in `setup`, or in what `apply` called."""

    module: Module
    in_compact: bool
    type_counter: defaultdict[str, int] = dataclasses.field(default_factory=lambda: defaultdict(int))
    names: set[str] = dataclasses.field(default_factory=set)

    def auto_name(self, kind: type) -> str:
        """The next name for a submodule of a class."""
        self.type_counter[kind.__name__] += 1
        return f"{kind.__name__}_{self.type_counter[kind.__name__] - 1}"


@dataclasses.dataclass
class ModuleContext(threading.local):
    """The modules at work in this thread, the innermost last."""

    module_stack: list[ModuleStackEntry | None] = dataclasses.field(default_factory=lambda: [None])


MODULE_CONTEXT = ModuleContext()


def current_context() -> ModuleStackEntry | None:
    """The innermost module at work, and what is known of its call; None outside of `init` and `apply`."""
    return MODULE_CONTEXT.module_stack[-1]


def current_module() -> Module | None:
    """The innermost module at work; None outside of `init` and `apply`.

    >>> current_module() is None
    True
    """
    context = current_context()
    return context.module if context is not None else None


def _at_work(module: Module, in_compact: bool, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    MODULE_CONTEXT.module_stack.append(ModuleStackEntry(module, in_compact))
    try:
        return function(*args, **kwargs)
    finally:
        MODULE_CONTEXT.module_stack.pop()


def compact(f: F) -> F:
    """Lets a method make submodules and parameters where it needs them; see `Module`."""

    @functools.wraps(f)
    def in_compact(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, Module):
            raise TypeError(f"compact is for methods of a bridge.Module, and this is a {type(self).__name__}")
        return _at_work(self, True, f, self, *args, **kwargs)

    return in_compact  # type: ignore[return-value]


class ModuleState(State):
    """Variables of a submodule that is yet to be made."""


register_data_type(ModuleState)


class Scope(Pytree):
    """What `init` and `apply` give to all modules of a model.

    Attributes:
        rngs: where keys come from.
        mutable: the collections that may change, as Linen modules inside are told.
        initializing: whether variables are being made.
    """

    def __init__(self, rngs: Rngs, mutable: Any, initializing: bool = False):
        self.rngs = rngs
        self.mutable = mutable
        self.initializing = initializing

    def copy(self) -> Scope:
        """Another scope with the same streams."""
        return Scope(self.rngs, self.mutable, self.initializing)


class ModuleMeta(nnx_module.ModuleMeta):
    """Makes modules submodules of the one at work."""

    def _pytree_meta_construct(cls, self: Any, *args: Any, **kwargs: Any) -> None:
        context = current_context()
        fields = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        orphan = "parent" in kwargs and "parent" not in fields and kwargs.pop("parent") is None
        bound = context is not None and not orphan
        name = kwargs.get("name")
        if name is not None and bound and "name" not in fields:
            del kwargs["name"]
        self.scope = data(None)
        self.__init__(*args, **kwargs)
        self.attr_priorities = {}
        if context is not None and bound and (name is not None or context.in_compact):
            add_submodule(context, self, name)


class ModuleBase:
    """What tells a `bridge.Module` from other modules: attributes that are no fields of its dataclass."""

    scope: Any
    attr_priorities: dict[str, AttrPriority]


def has_setup(x: Any) -> TypeGuard[Any]:
    """Whether an object has a method `setup`."""
    return callable(getattr(x, "setup", None))


@dataclass_transform()
class Module(nnx_module.Module, ModuleBase, metaclass=ModuleMeta):
    """Base of NNX modules that are written like Linen modules: dataclasses with `setup` and methods under `compact`.

    In a method under `compact` a new submodule is an attribute of its parent by its class' name (`Linear_0`), by the
    one that it is given (`Linear(4, name="first")`), or not at all (`parent=None`).

    >>> import jax.numpy as jnp
    >>> class Scale(Module):
    ...     factor: float
    ...     @compact
    ...     def __call__(self, x):
    ...         return x * self.param("scale", lambda key: jnp.array(self.factor))
    >>> variables = Scale(2.0).init(0, 3.0)
    >>> variables["params"]["scale"].item(), Scale(2.0).apply(variables, 3.0).item()
    (2.0, 6.0)
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Modules are told apart by identity, as all objects.
        dataclasses.dataclass(cls, repr=False, eq=False)

    def _setattr(self, name: str, value: Any) -> None:
        given = value.metadata["nnx_value"] if is_annotation(value) else value
        if name not in ("scope", "attr_priorities") and attributes_of(self).get("scope") is not None:
            held = attributes_of(self).get(name)
            if isinstance(given, Module):
                _bind(self, given, held)
            elif isinstance(given, Pytree) and isinstance(held, ModuleState):
                update(given, held)
        if (
            given is value
            and isinstance(value, Mapping)
            and not isinstance(value, ModuleState)
            and _has_variables(value)
        ):
            value = as_state(value, ModuleState)
        elif given is value and isinstance(value, list | tuple | dict) and _has_variables(value):
            value = data(value)
        super()._setattr(name, value)

    def set_attr_priority(self, name: str, value: AttrPriority) -> None:
        """Says how early an attribute is looked at for what is shared with others; see `AttrPriority`."""
        self.attr_priorities = {**self.attr_priorities, name: value}

    def make_rng(self, name: str = "default") -> jax.Array:
        """The next key of a stream.

        Raises:
            ValueError: outside of `init` and `apply`.
        """
        if self.scope is None:
            raise StructureError(
                "Can't use RNGs on unbound modules",
                at=type(self).__name__,
                fix="call the module through its init or apply, or inside of another one",
            )
        return self.scope.rngs[name]()

    def param(
        self, name: str, init_fn: Callable[..., Any], *init_args: Any, unbox: bool = True, **init_kwargs: Any
    ) -> Any:
        """A parameter of this module, made the first time.

        Args:
            name: its name.
            init_fn: makes the value, from a key and the further arguments.
            unbox: whether what Linen's boxes say becomes the Param's metadata.

        Returns:
            The `Param`.
        """
        return self._variable(
            Param, "params", name, lambda: init_fn(self.make_rng("params"), *init_args, **init_kwargs), unbox
        )

    def variable(
        self,
        col: str,
        name: str,
        init_fn: Callable[..., Any] | None = None,
        *init_args: Any,
        unbox: bool = True,
        **init_kwargs: Any,
    ) -> Any:
        """A variable of this module in a collection, made the first time. See `param`; `init_fn` is given no key.

        Returns:
            The Variable, of the type of the collection.

        Raises:
            ValueError: if it is not there and `init_fn` is not given.
        """

        def make() -> Any:
            if init_fn is None:
                raise StructureError(
                    f"there is no variable {name!r} in the collection {col!r}",
                    at=type(self).__name__,
                    fix="give an init_fn that makes it, or variables that have it to apply",
                )
            return init_fn(*init_args, **init_kwargs)

        return self._variable(variable_type_from_name(col, allow_register=True), col, name, make, unbox)

    def _variable(self, kind: type, col: str, name: str, make: Callable[[], Any], unbox: bool) -> Any:
        if current_module() is not self:
            raise StructureError(
                "Parameters must be initialized in `setup()` or in a method wrapped in `@compact`",
                at=f"{type(self).__name__}, {name!r}",
                fix="put @bridge.compact on the method, and call the module through init or apply",
            )
        held = attributes_of(self).get(name)
        if held is None:
            value = make()
            boxed = unbox and isinstance(value, meta.AxisMetadata)
            held = to_nnx_var(col, value) if boxed else kind(value)
            setattr(self, name, held)
            self.set_attr_priority(name, AttrPriority.INIT_PARENT)
        if not isinstance(held, kind):
            raise StructureError(
                f"the variable {name!r} of the collection {col!r} cannot be a {type(held).__name__}",
                at=f"{type(self).__name__}.{name}",
                fix="give the attribute or the variable another name",
            )
        return held

    def _get_variables(self) -> dict[str, Any]:
        found = dict(_variables_of(self, (), set()))
        return nnx_attrs_to_linen_vars(unflatten_mapping(found))

    @property
    def variables(self) -> FrozenDict[str, Any]:
        """The variables of this module and those inside of it, as collections."""
        return FrozenDict(self._get_variables())

    def apply(
        self,
        variables: Mapping[str, Any],
        *args: Any,
        rngs: RngsLike = None,
        method: Callable[..., Any] | str = "__call__",
        mutable: Any = False,
        _initialize: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Calls a copy of this module with variables.

        Args:
            variables: collections by name.
            rngs: a seed or key for the stream `default`, seeds and keys by stream, or an `Rngs`, which is drawn from.
            method: what to call instead of `__call__`: a name, or a function of the module.
            mutable: whether to return the variables too: anything but False.

        Returns:
            The output; with `mutable`, the output and all collections as they are after the call.
        """
        module = clone(self, graph=True)
        for name, value in linen_vars_to_nnx_attrs(variables).items():
            held = attributes_of(module).get(name)
            if held is not None and get_node_impl(held) is not None and isinstance(value, Mapping):
                update(held, as_state(value, ModuleState))
            else:
                setattr(module, name, value)
        _enter(module, Scope(rngs if isinstance(rngs, Rngs) else Rngs(rngs), mutable, _initialize))
        function = getattr(type(module), method) if isinstance(method, str) else getattr(method, "__func__", method)
        out = _at_work(module, False, function, module, *args, **kwargs)
        return out if mutable is False else (out, module._get_variables())

    def init(
        self, rngs: RngsLike = None, *args: Any, method: Callable[..., Any] | str = "__call__", **kwargs: Any
    ) -> dict[str, Any]:
        """The variables of a first call. See `apply`."""
        return self.init_with_output(rngs, *args, method=method, **kwargs)[1]

    def init_with_output(
        self,
        rngs: RngsLike = None,
        *args: Any,
        method: Callable[..., Any] | str = "__call__",
        mutable: Any = True,
        **kwargs: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """The output and the variables of a first call. See `apply`."""
        return self.apply({}, *args, rngs=rngs, method=method, mutable=True, _initialize=True, **kwargs)

    def is_initializing(self) -> bool:
        """Whether variables are being made: in a call of `init`."""
        return self.scope is not None and self.scope.initializing


def add_submodule(context: ModuleStackEntry, child: Any, name: str | None, kind: type | None = None) -> None:
    """Makes an object an attribute of the module at work.

    Args:
        context: the call that it is made in.
        child: a module of any sort.
        name: its name; by default its class and a number.
        kind: the class to name it by, if not its own.

    Raises:
        ValueError: if the call has made a submodule of this name.
    """
    name = context.auto_name(kind or type(child)) if name is None else name
    if name in context.names:
        raise StructureError(
            f"two submodules of one call are named {name!r}",
            at=type(context.module).__name__,
            fix="give each a name of its own, or call the first one twice",
        )
    context.names.add(name)
    setattr(context.module, name, child)
    context.module.set_attr_priority(name, AttrPriority.INIT_PARENT)


def _bind(parent: Module, child: Module, held: Any) -> None:
    """Gives a submodule its scope and what was kept under its name; one that has a scope already keeps its own."""
    if child.scope is not None:
        return
    if isinstance(held, ModuleState):
        update(child, held)
    elif isinstance(held, Module):  # an earlier call of the same method made it
        for name, value in attributes_of(held).items():
            if name not in attributes_of(child):
                setattr(child, name, data(value))
    _enter(child, parent.scope.copy())


def _enter(module: Module, scope: Scope) -> None:
    module.scope = scope
    for value in list(attributes_of(module).values()):
        if isinstance(value, Module):
            _bind(module, value, None)
    if has_setup(module):
        _at_work(module, False, module.setup)


def _has_variables(value: Any) -> bool:
    def is_one(leaf: Any) -> bool:
        return isinstance(leaf, Variable | Pytree)

    return any(map(is_one, jax.tree.leaves(value, is_leaf=is_one)))


def _variables_of(node: Any, path: Path, seen: set[int]) -> Iterator[tuple[Path, Any]]:
    """Variables and arrays with their paths, each under the first of its paths by priority."""
    if isinstance(node, Variable):
        if not isinstance(node, RngState) and id(node) not in seen:
            seen.add(id(node))
            yield path, node
    elif is_array_leaf(node):
        yield path, node
    elif get_node_impl(node) is not None and id(node) not in seen:
        seen.add(id(node))
        children = child_items(node)
        if isinstance(node, Module):
            rank = node.attr_priorities
            children = [(name, one) for name, one in children if name not in ("scope", "attr_priorities")]
            children.sort(key=lambda item: (rank.get(item[0], AttrPriority.DEFAULT), item[0]))
        for name, child in children:
            yield from _variables_of(child, (*path, name), seen)
