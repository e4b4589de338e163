"""bridge.Module: an NNX module that is written like a Linen module.

Its constructor takes configuration. `init` and `apply` copy the module, give the copy a *scope* (the streams of keys,
and whether variables are initialised) and the variables as attributes, and call it. Submodules and parameters that are
created in `setup`, or in a method under `compact`, become attributes of the copy:

    class Linear(bridge.Module):
        features: int

        @bridge.compact
        def __call__(self, x):
            return x @ self.param("kernel", nnx.initializers.lecun_normal(), (x.shape[-1], self.features))

Variables of a submodule that does not exist yet are stored under its name, as a `ModuleState`. Binding the submodule to
its parent gives it the scope and these variables, and runs its `setup`.
"""

from __future__ import annotations

import contextlib
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
    """Decides under which path `variables` has a shared Variable: that of the lowest number, then the first name."""

    HIGH = 0
    INIT_PARENT = 20
    DEFAULT = 50
    LOW = 100


@dataclasses.dataclass
class ModuleStackEntry:
    """A module that is being called: in a method under `compact`, in `setup`, or in the method that `apply` calls."""

    module: Module
    in_compact: bool
    # Counted for each call and not for each module: a module that is called twice gives its submodules the same names
    # again, and so finds their variables.
    type_counter: defaultdict[str, int] = dataclasses.field(default_factory=lambda: defaultdict(int))
    names: set[str] = dataclasses.field(default_factory=set)

    def auto_name(self, kind: type) -> str:
        """Returns the next automatic name for a submodule of a class: `Linear_0`, `Linear_1`, ..."""
        self.type_counter[kind.__name__] += 1
        return f"{kind.__name__}_{self.type_counter[kind.__name__] - 1}"


@dataclasses.dataclass
class ModuleContext(threading.local):
    """The stack of modules that are being called in this thread, the innermost last."""

    # Starts with None, for code outside any module.
    module_stack: list[ModuleStackEntry | None] = dataclasses.field(default_factory=lambda: [None])


MODULE_CONTEXT = ModuleContext()


def current_context() -> ModuleStackEntry | None:
    """Returns the entry of the innermost module that is being called; None outside `init` and `apply`."""
    return MODULE_CONTEXT.module_stack[-1]


def current_module() -> Module | None:
    """Returns the innermost module that is being called; None outside `init` and `apply`.

    >>> current_module() is None
    True
    """
    context = current_context()
    return context.module if context is not None else None


@contextlib.contextmanager
def _at_work(module: Module, *, in_compact: bool) -> Iterator[None]:
    """The module is the innermost that is being called for the length of a `with` block."""
    MODULE_CONTEXT.module_stack.append(ModuleStackEntry(module, in_compact))
    try:
        yield
    finally:
        # Also after an error: a module left on the stack would adopt the modules that are created afterwards.
        MODULE_CONTEXT.module_stack.pop()


def compact(f: F) -> F:
    """Decorates a method, so that it can create submodules and parameters; see `Module`."""

    @functools.wraps(f)
    def in_compact(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, Module):
            raise TypeError(f"compact is for methods of a bridge.Module, got a {type(self).__name__}")
        with _at_work(self, in_compact=True):
            return f(self, *args, **kwargs)

    return in_compact  # type: ignore[return-value]


class ModuleState(State):
    """The variables of a submodule that does not exist yet."""


# A State is a mapping, which as an attribute would be static, and static attributes refuse Variables.
register_data_type(ModuleState)


class Scope(Pytree):
    """The data that `init` and `apply` pass to all modules of a model.

    Attributes:
        rngs: the streams of keys.
        mutable: the collections that Linen modules inside may change.
        initializing: whether variables are initialised, as in `init`.
    """

    def __init__(self, rngs: Rngs, mutable: Any, initializing: bool = False):
        self.rngs = rngs
        self.mutable = mutable
        self.initializing = initializing

    def copy(self) -> Scope:
        """Returns a new scope with the same streams."""
        return Scope(self.rngs, self.mutable, self.initializing)


class ModuleMeta(nnx_module.ModuleMeta):
    """The metaclass of `Module`: makes a new module a submodule of the module that is being called."""

    def _pytree_meta_construct(cls, self: Any, *args: Any, **kwargs: Any) -> None:
        context = current_context()
        fields = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        # `parent` and `name` are arguments of every module, as in Linen, unless a field has the name.
        orphan = "parent" in kwargs and "parent" not in fields and kwargs.pop("parent") is None
        bound = context is not None and not orphan
        name = kwargs.get("name")
        if name is not None and bound and "name" not in fields:
            # The constructor that `dataclasses` generated would refuse the keyword.
            del kwargs["name"]
        # Declared as data while it is None: `_enter` assigns a Scope later, which a static attribute would refuse.
        self.scope = data(None)
        self.__init__(*args, **kwargs)
        self.attr_priorities = {}
        if context is not None and bound and (name is not None or context.in_compact):
            add_submodule(context, self, name)


class ModuleBase:
    """Declares attributes of a `bridge.Module` that are no fields of its dataclass."""

    scope: Any
    attr_priorities: dict[str, AttrPriority]


def has_setup(x: Any) -> TypeGuard[Any]:
    """Whether an object has a method `setup`."""
    return callable(getattr(x, "setup", None))


@dataclass_transform()
class Module(nnx_module.Module, ModuleBase, metaclass=ModuleMeta):
    """Base class of NNX modules that are written like Linen modules: dataclasses with `setup` and `compact` methods.

    In a method under `compact`, a new submodule becomes an attribute of its parent, named by its class (`Linear_0`) or
    by the argument `name` (`Linear(4, name="first")`); with `parent=None` it does not.

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
        # `eq=False`: modules compare by identity, like all objects; plans look them up by it.
        dataclasses.dataclass(cls, repr=False, eq=False)

    def _setattr(self, name: str, value: Any) -> None:
        assigned = value.metadata["nnx_value"] if is_annotation(value) else value
        if name not in ("scope", "attr_priorities") and attributes_of(self).get("scope") is not None:
            # Variables that `apply` stored under this name are written into the submodule that is assigned now.
            present = attributes_of(self).get(name)
            if isinstance(assigned, Module):
                _bind(self, assigned, present)
            elif isinstance(assigned, Pytree) and isinstance(present, ModuleState):
                update(assigned, present)
        is_container = isinstance(value, Mapping | list | tuple) and not isinstance(value, ModuleState)
        if is_container and _has_variables(value):
            # A mapping has the variables of a submodule that does not exist yet: `_bind` writes them into it when it is
            # assigned under this name. Another plain container would be static by its type, and refuse the Variables.
            value = as_state(value, ModuleState) if isinstance(value, Mapping) else data(value)
        super()._setattr(name, value)

    def set_attr_priority(self, name: str, value: AttrPriority) -> None:
        """Sets an attribute's priority for the path of a shared Variable; see `AttrPriority`."""
        self.attr_priorities = {**self.attr_priorities, name: value}

    def make_rng(self, name: str = "default") -> jax.Array:
        """Draws the next key of a stream.

        Raises:
            ValueError: outside `init` and `apply`.
        """
        if self.scope is None:
            raise StructureError(
                "Can't use RNGs on unbound modules",
                at=type(self).__name__,
                fix="call the module through its init or apply, or inside another module",
            )
        return self.scope.rngs[name]()

    def param(
        self, name: str, init_fn: Callable[..., Any], *init_args: Any, unbox: bool = True, **init_kwargs: Any
    ) -> Any:
        """Returns a parameter of this module, and creates it in the first call.

        Args:
            name: its name.
            init_fn: a function from a key and `init_args` to the value.
            unbox: whether a Linen box around the value is converted to metadata of the Param.

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
        """Returns a variable of this module in a collection; the first call creates it by `init_fn`, without a key.

        Returns:
            The Variable, of the collection's type.

        Raises:
            ValueError: if there is neither such a variable nor an `init_fn`.
        """

        def make() -> Any:
            if init_fn is None:
                raise StructureError(
                    f"there is no variable {name!r} in the collection {col!r}",
                    at=type(self).__name__,
                    fix="pass an init_fn, or pass variables with this one to apply",
                )
            return init_fn(*init_args, **init_kwargs)

        return self._variable(variable_type_from_name(col, allow_register=True), col, name, make, unbox)

    def _variable(self, kind: type, col: str, name: str, make: Callable[[], Any], unbox: bool) -> Any:
        # Elsewhere a variable would exist only if the method happened to run in `init`, and `apply` would lack it.
        if current_module() is not self:
            raise StructureError(
                "Parameters must be initialized in `setup()` or in a method wrapped in `@compact`",
                at=f"{type(self).__name__}, {name!r}",
                fix="put @bridge.compact on the method, and call the module through init or apply",
            )
        variable = attributes_of(self).get(name)
        if variable is None:
            value = make()
            boxed = unbox and isinstance(value, meta.AxisMetadata)
            variable = to_nnx_var(col, value) if boxed else kind(value)
            setattr(self, name, variable)
            self.set_attr_priority(name, AttrPriority.INIT_PARENT)
        if not isinstance(variable, kind):
            raise StructureError(
                f"the variable {name!r} of the collection {col!r} cannot be a {type(variable).__name__}",
                at=f"{type(self).__name__}.{name}",
                fix="rename the attribute or the variable",
            )
        return variable

    def _get_variables(self) -> dict[str, Any]:
        by_path = dict(_variables_of(self, (), set()))
        return nnx_attrs_to_linen_vars(unflatten_mapping(by_path))

    @property
    def variables(self) -> FrozenDict[str, Any]:
        """The variables of this module and its submodules, as collections."""
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
            rngs: a seed or key for the stream `default`, a mapping of seeds and keys by stream, or an `Rngs`.
            method: the method to call instead of `__call__`: its name, or a function of the module.
            mutable: anything but False to return the variables, too.

        Returns:
            The output; with `mutable`, the output and all collections after the call.
        """
        # A copy, so that the module itself stays without variables, like a Linen module.
        module = clone(self, graph=True)
        for name, value in linen_vars_to_nnx_attrs(variables).items():
            present = attributes_of(module).get(name)
            if present is not None and get_node_impl(present) is not None and isinstance(value, Mapping):
                update(present, as_state(value, ModuleState))
            else:
                setattr(module, name, value)
        # After the variables are attributes: this runs `setup`, and the submodules that it assigns take their variables
        # from there.
        _enter(module, Scope(rngs if isinstance(rngs, Rngs) else Rngs(rngs), mutable, _initialize))
        # Unbound, to be called with the copy: a bound method would call the original module, which has no variables.
        function = getattr(type(module), method) if isinstance(method, str) else getattr(method, "__func__", method)
        with _at_work(module, in_compact=False):
            out = function(module, *args, **kwargs)
        return out if mutable is False else (out, module._get_variables())

    def init(
        self, rngs: RngsLike = None, *args: Any, method: Callable[..., Any] | str = "__call__", **kwargs: Any
    ) -> dict[str, Any]:
        """Initialises variables by a call, and returns them. See `apply`."""
        return self.init_with_output(rngs, *args, method=method, **kwargs)[1]

    def init_with_output(
        self,
        rngs: RngsLike = None,
        *args: Any,
        method: Callable[..., Any] | str = "__call__",
        mutable: Any = True,
        **kwargs: Any,
    ) -> tuple[Any, dict[str, Any]]:
        """Initialises variables by a call, and returns its output and the variables. See `apply`."""
        return self.apply({}, *args, rngs=rngs, method=method, mutable=True, _initialize=True, **kwargs)

    def is_initializing(self) -> bool:
        """Whether variables are initialised: inside `init`."""
        return self.scope is not None and self.scope.initializing


def add_submodule(context: ModuleStackEntry, child: Any, name: str | None, kind: type | None = None) -> None:
    """Makes an object an attribute of the module that is being called.

    Args:
        context: the entry of that module.
        child: a module of any sort.
        name: the attribute's name; by default the class's name and a number.
        kind: the class for the name, if not the child's own.

    Raises:
        ValueError: if the same call has already added a submodule of this name.
    """
    name = context.auto_name(kind or type(child)) if name is None else name
    # Two submodules of one name would share one set of variables without a word.
    if name in context.names:
        raise StructureError(
            f"two submodules of one call are named {name!r}",
            at=type(context.module).__name__,
            fix="give each its own name, or call the first submodule twice",
        )
    context.names.add(name)
    setattr(context.module, name, child)
    # A Variable that other modules have in an attribute as well is then listed under the module that created it.
    context.module.set_attr_priority(name, AttrPriority.INIT_PARENT)


def _bind(parent: Module, child: Module, stored: Any) -> None:
    """Gives a submodule its scope and the variables stored under its name, unless it has a scope already."""
    # A shared submodule is assigned to several parents, and has its variables from the first.
    if child.scope is not None:
        return
    if isinstance(stored, ModuleState):
        update(child, stored)
    elif isinstance(stored, Module):  # an earlier call of the same `compact` method created it
        for name, value in attributes_of(stored).items():
            if name not in attributes_of(child):
                setattr(child, name, data(value))
    _enter(child, parent.scope.copy())


def _enter(module: Module, scope: Scope) -> None:
    module.scope = scope
    for value in list(attributes_of(module).values()):
        if isinstance(value, Module):
            _bind(module, value, None)
    if has_setup(module):
        with _at_work(module, in_compact=False):
            module.setup()


def _has_variables(value: Any) -> bool:
    def is_variable(leaf: Any) -> bool:
        return isinstance(leaf, Variable | Pytree)

    return any(map(is_variable, jax.tree.leaves(value, is_leaf=is_variable)))


def _variables_of(node: Any, path: Path, seen: set[int]) -> Iterator[tuple[Path, Any]]:
    """Yields Variables and arrays with their paths; of several paths, the first by priority."""
    if isinstance(node, Variable):
        # As in Linen, keys are passed to each call and are no variables.
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
            children = [(name, child) for name, child in children if name not in ("scope", "attr_priorities")]
            children.sort(key=lambda item: (rank.get(item[0], AttrPriority.DEFAULT), item[0]))
        for name, child in children:
            yield from _variables_of(child, (*path, name), seen)
