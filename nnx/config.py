"""The switches of `weft.nnx`: process-wide defaults, and scoped switches that override them.

A default is read from the environment (`NNX_GRAPH_MODE`, `NNX_GRAPH_UPDATES`, `FLAX_ALWAYS_SHARD_VARIABLE`, ...), and
`config.update` changes it. A *scoped switch* overrides it for the current thread:

    nnx.set_graph_mode(False)            # from here on
    with nnx.set_graph_mode(False): ...  # for a block
    @nnx.set_graph_mode(False)           # for a function's calls
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_TRUE = frozenset(("1", "true", "yes", "on", "y", "t"))
_FALSE = frozenset(("0", "false", "no", "off", "n", "f"))


def _flag(name: str, *, default: bool) -> Any:
    """A field of `Config` that the environment variable of its name in capitals sets."""

    def read() -> bool:
        text = os.environ.get(name.upper())
        if text is None:
            return default
        # Refused, because a misspelt value would otherwise pass for false.
        if text.lower() not in _TRUE | _FALSE:
            raise ValueError(f"{name.upper()}={text!r} in the environment is neither true nor false")
        return text.lower() in _TRUE

    return dataclasses.field(default_factory=read)


@dataclasses.dataclass
class Config:
    """The process-wide defaults."""

    flax_pytree_module: bool = _flag("flax_pytree_module", default=True)
    flax_max_repr_depth: int | None = dataclasses.field(
        default_factory=lambda: int(depth) if (depth := os.environ.get("FLAX_MAX_REPR_DEPTH")) else None
    )
    flax_always_shard_variable: bool = _flag("flax_always_shard_variable", default=True)
    flax_hijax_variable: bool = _flag("flax_hijax_variable", default=False)
    nnx_graph_mode: bool = _flag("nnx_graph_mode", default=True)
    nnx_graph_updates: bool = _flag("nnx_graph_updates", default=True)
    nnx_sow_capture_noop: bool = _flag("nnx_sow_capture_noop", default=False)
    # Whether to reproduce results of flax that are wrong without an error; see docs/differences.md.
    nnx_flax_faults: bool = _flag("nnx_flax_faults", default=False)

    def update(self, name: str, value: Any, /) -> None:
        """Sets the default of an option.

        Raises:
            LookupError: if there is no such option.
        """
        if name not in self.__dataclass_fields__:
            raise LookupError(f"no option {name!r}; there are {', '.join(self.__dataclass_fields__)}")
        setattr(self, name, value)

    @contextlib.contextmanager
    def temp_flip_flag(self, name: str, value: Any) -> Iterator[None]:
        """Sets `flax_<name>` for the length of a `with` block."""
        before = getattr(self, f"flax_{name}")
        self.update(f"flax_{name}", value)
        try:
            yield
        finally:
            self.update(f"flax_{name}", before)


config = Config()


# For each thread: a `with` block must not change the mode of a trace that runs in another thread.
class _Overrides(threading.local):
    """The overrides of this thread: a stack for each option, of which the last entry counts."""

    def __init__(self) -> None:
        self.stacks: dict[str, list[Any]] = {}

    def stack(self, name: str) -> list[Any]:
        return self.stacks.setdefault(name, [])


_overrides = _Overrides()


class _Scoped:
    """A scoped switch: overrides at once; a `with` block ends it, and a decorated function has it during its calls."""

    def __init__(self, values: Mapping[str, Any]):
        self._values = dict(values)
        # A plain call (`set_graph_mode(False)`) replaces the current override for good. Whether this is a plain call
        # is not known here, so the replaced one is stored: `with` and decorators restore it.
        self._replaced = {name: stack.pop() for name in self._values if (stack := _overrides.stack(name))}
        self._push(self._values)

    @staticmethod
    def _push(values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            _overrides.stack(name).append(value)

    def _pop(self) -> None:
        for name in self._values:
            _overrides.stack(name).pop()

    # The constructor has pushed the values already; they are pushed again above the override that they replaced.
    def __enter__(self) -> None:
        self._pop()
        self._push(self._replaced)
        self._push(self._values)

    def __exit__(self, *exception: Any) -> None:
        self._pop()

    def __call__(self, f: F) -> F:
        self._pop()
        self._push(self._replaced)

        # Decorating switches nothing: the constructor's override is undone here, and only calls of `f` have it.
        @functools.wraps(f)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._push(self._values)
            try:
                return f(*args, **kwargs)
            finally:
                self._pop()

        return cast(F, wrapper)


def _current(name: str) -> Any:
    stack = _overrides.stacks.get(name)
    return stack[-1] if stack else getattr(config, name)


class BaseConfigContext(_Scoped):
    """A scoped switch for one option."""

    option: ClassVar[str]

    def __init__(self, value: bool, /):
        super().__init__({self.option: value})

    @classmethod
    def get_default(cls) -> Any:
        return getattr(config, cls.option)

    @classmethod
    def get_stack(cls) -> list[Any]:
        return _overrides.stack(cls.option)

    @classmethod
    def current_value(cls) -> Any:
        """Returns the current value for this thread."""
        return _current(cls.option)


class set_graph_mode(BaseConfigContext):
    """Sets whether functions work on graphs (True) or trees (False) if their argument `graph` is None.

    >>> with set_graph_mode(False):
    ...     set_graph_mode.current_value()
    False
    """

    option = "nnx_graph_mode"


class set_graph_updates(BaseConfigContext):
    """Sets whether structural changes reach the caller's objects if a transform's `graph_updates` is None.

    >>> with set_graph_updates(False):
    ...     set_graph_updates.current_value()
    False
    """

    option = "nnx_graph_updates"


class use_eager_sharding(BaseConfigContext):
    """Sets whether a new Variable with sharding metadata is put on the mesh at once.

    >>> with use_eager_sharding(False):
    ...     using_eager_sharding()
    False
    """

    option = "flax_always_shard_variable"


def setting() -> tuple[Hashable, ...]:
    """Returns the values of all switches for this thread, as a part of cache keys."""
    # `variable_ref` has no default in `Config`, so only its override counts.
    return (*map(_current, _SWITCHES), *_overrides.stack(_REF_OPTION)[-1:])


def using_eager_sharding() -> bool:
    """Returns whether new Variables with sharding metadata are put on the mesh at once.

    >>> with use_eager_sharding(True):
    ...     using_eager_sharding()
    True
    """
    return use_eager_sharding.current_value()


@dataclasses.dataclass(frozen=True)
class VarDefaults(Mapping[str, Any]):
    """The default modes of new Variables: `hijax`, and `ref` (the value is in a JAX ref)."""

    hijax: bool
    ref: bool

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)


class VarDefaultsContext(_Scoped):
    """The scoped switch that `var_defaults(...)` returns."""


_REF_OPTION = "variable_ref"
_SWITCHES = ("nnx_graph_mode", "nnx_graph_updates", "flax_always_shard_variable", "flax_hijax_variable")


def var_defaults(*, hijax: bool | None = None, ref: bool | None = None) -> VarDefaults | VarDefaultsContext:
    """Returns the default modes of new Variables, or sets those that are passed, as a scoped switch.

    >>> with var_defaults(ref=True):
    ...     dict(var_defaults())
    {'hijax': False, 'ref': True}
    """
    overrides = {"flax_hijax_variable": hijax, _REF_OPTION: ref}
    overrides = {name: value for name, value in overrides.items() if value is not None}
    if overrides:
        return VarDefaultsContext(overrides)
    return VarDefaults(hijax=hijax_default(), ref=ref_default())


def hijax_default() -> bool:
    """Whether new Variables are hijax Variables by default."""
    return _current("flax_hijax_variable")


def ref_default() -> bool:
    """Whether new Variables keep their value in a JAX ref by default."""
    stack = _overrides.stack(_REF_OPTION)
    return stack[-1] if stack else False


def graph_mode(graph: bool | None) -> bool:
    """Returns the argument `graph`, or the current mode if it is None."""
    return _current("nnx_graph_mode") if graph is None else graph


def graph_updates_mode(graph_updates: bool | None) -> bool:
    """Returns the argument `graph_updates`, or the current mode if it is None."""
    return _current("nnx_graph_updates") if graph_updates is None else graph_updates
