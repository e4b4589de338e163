"""Patches: functions of JAX's, Python's and programs' that are replaced for a while, for the code that asks for it.

Where weft has to see or change a call and no hook leads there, a *dispatcher* takes the place of the function in its
module, class or object. Whether it calls the function or the replacement is told by a context variable: other threads
and tasks get the function itself. Code that keeps the dispatcher, and calls it when all blocks have ended, does too.

A dispatcher stays as long as any block has it open, in whatever order blocks of several threads end. No lock is taken
while a block is open: a replacement may run a user's program, which may wait for another thread that opens a block.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

# The replacement of a function: it is called with the function and with the arguments of the call.
Replacement = Callable[..., Any]


@dataclass(eq=False)
class _Block:
    """A `with` block of `patched`; tasks that were started in it may live longer, with a copy of its context."""

    patches: list[_Patch] = field(default_factory=list["_Patch"])
    is_open: bool = True


# What the running code has replaced, the innermost block last. Each block takes its own entries away again, because
# generators enter and leave blocks in any order, and a token can be reset in the order of entering only.
_Running = dict["_Patch", tuple[tuple[_Block, Replacement], ...]]
_running: ContextVar[_Running | None] = ContextVar("weft_patches", default=None)

# Reentrant, because the garbage collector may run a finaliser of the user's within, and that may open a block.
_lock = threading.RLock()
# By the id of their dispatcher.
_patches: weakref.WeakValueDictionary[int, _Patch] = weakref.WeakValueDictionary()


def _attributes(owner: Any) -> Mapping[str, Any]:
    return cast(Any, vars(owner))


class _Patch:
    """A dispatcher in the place of an attribute, and how many blocks have it open.

    Args:
        owner: a module, a class or an object.
        name: the name of a function there: of a class, one that an instance calls as its method.
    """

    def __init__(self, owner: Any, name: str):
        self.owner, self.name, self.blocks = owner, name, 0
        # An inherited attribute is deleted afterwards. Were it written back, a change of the base would be hidden.
        self.is_own = name in _attributes(owner)
        original: Any = inspect.getattr_static(owner, name) if isinstance(owner, type) else getattr(owner, name)
        if isinstance(original, staticmethod | classmethod) or not callable(original):
            raise TypeError(f"{name} of {owner} is a {type(cast(Any, original)).__name__}, and no method or function")
        self.original = original

        @functools.wraps(original)
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            __tracebackhide__ = True
            running, call = _running.get(), original
            if running:  # the test is all that a call costs other threads
                for block, replacement in running.get(self, ()):
                    if block.is_open:
                        call = functools.partial(replacement, call)
            return call(*args, **kwargs)

        self.dispatcher = dispatch
        setattr(owner, name, dispatch)

    def close(self) -> None:
        self.blocks -= 1
        # If someone else has replaced the name meanwhile, theirs stays. It may put the dispatcher back when it ends.
        if self.blocks or _attributes(self.owner).get(self.name) is not self.dispatcher:
            return
        if self.is_own:
            setattr(self.owner, self.name, self.original)
        else:
            delattr(self.owner, self.name)


def _opened(owner: Any, name: str) -> _Patch:
    patch = _patches.get(id(_attributes(owner).get(name)))
    if patch is None or patch.owner is not owner or patch.name != name:
        patch = _Patch(owner, name)
        _patches[id(patch.dispatcher)] = patch
    patch.blocks += 1
    return patch


@contextlib.contextmanager
def patched(*replacements: tuple[Any, str, Replacement]) -> Generator[None]:
    """A `with` block in which functions are replaced, for code that runs in its context.

    Within another block for the same function, a replacement gets that block's replacement as the function.

    Args:
        replacements: for each function its owner (a module, a class or an object), its name there, and what is called
            in its place: `replacement(function, *args, **kwargs)`.

    Raises:
        AttributeError: if there is no such name.
        TypeError: if it is no function, or its owner's attributes cannot be set. Nothing is replaced then.

    >>> import math
    >>> with patched((math, "sqrt", lambda sqrt, x: sqrt(x) + 1)):
    ...     math.sqrt(4.0)
    3.0
    >>> math.sqrt(4.0)
    2.0
    """
    block = _Block()
    try:
        with _lock:
            for owner, name, _ in replacements:
                block.patches.append(_opened(owner, name))
        running = dict(_running.get() or {})
        for patch, (*_, replacement) in zip(block.patches, replacements, strict=True):
            running[patch] = *running.get(patch, ()), (block, replacement)
        _running.set(running)
        yield
    finally:
        block.is_open = False
        with _lock:
            for patch in block.patches:
                patch.close()
        # Whatever the context is in which the block ends: a generator may be closed in another one than it began in.
        rest = {patch: tuple(e for e in entries if e[0].is_open) for patch, entries in (_running.get() or {}).items()}
        _running.set({patch: entries for patch, entries in rest.items() if entries})
