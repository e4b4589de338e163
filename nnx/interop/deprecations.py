"""Deprecated names of functions, which work and warn."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from weft.nnx.graphs.splitting import as_pure
from weft.nnx.modules.views import with_vars


def deprecated(new_fn: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function for its old name: warns, and calls the function."""

    @functools.wraps(new_fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(
            f"This function is deprecated. Use {new_fn.__qualname__} instead.", DeprecationWarning, stacklevel=2
        )
        return new_fn(*args, **kwargs)

    wrapper.__doc__ = f"Deprecated: use `{new_fn.__qualname__}`."
    return wrapper


pure = deprecated(as_pure)
vars_as = deprecated(with_vars)
