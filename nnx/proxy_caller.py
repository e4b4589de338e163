"""Proxies that record attribute and item accesses, and apply them to an object later."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.tree_util as jtu


@dataclasses.dataclass(frozen=True)
class GetItem:
    """An item access."""

    key: Any


@dataclasses.dataclass(frozen=True)
class GetAttr:
    """An attribute access."""

    name: str


# Static, because programs pass accessors to transforms as arguments.
@jtu.register_static
@dataclasses.dataclass(frozen=True)
class DelayedAccessor:
    """A chain of accesses, which a call applies to an object."""

    actions: tuple[GetItem | GetAttr, ...] = ()

    def __call__(self, target: Any) -> Any:
        for action in self.actions:
            target = target[action.key] if isinstance(action, GetItem) else getattr(target, action.name)
        return target

    def __getattr__(self, name: str) -> DelayedAccessor:
        return DelayedAccessor((*self.actions, GetAttr(name)))

    def __getitem__(self, key: Any) -> DelayedAccessor:
        return DelayedAccessor((*self.actions, GetItem(key)))


class CallableProxy:
    """A chain of accesses that ends in a call: `proxy.a[0](x)` calls the function with the chain and `x`."""

    def __init__(self, callable: Callable[..., Any], accessor: DelayedAccessor | None = None):
        self._callable = callable
        self._accessor = DelayedAccessor() if accessor is None else accessor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._callable(self._accessor, *args, **kwargs)

    def __getattr__(self, name: str) -> CallableProxy:
        return CallableProxy(self._callable, getattr(self._accessor, name))

    def __getitem__(self, key: Any) -> CallableProxy:
        return CallableProxy(self._callable, self._accessor[key])


ApplyCaller = CallableProxy
