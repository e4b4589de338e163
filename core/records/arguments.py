"""The error for arguments that the constructor of a record does not take: it lists the parameters and the nearest."""

from __future__ import annotations

import difflib
import inspect
from inspect import Parameter
from typing import Any, get_args, is_typeddict

from weft.core.errors import WeftError


class ArgumentError(WeftError, TypeError):
    """The constructor of a record is called with arguments that it does not take, or without one that it needs."""


def refused_arguments(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ArgumentError | None:
    """Returns the error for a call of a constructor, or None if its signature takes the arguments.

    It is asked after a constructor raised: to bind a signature takes longer than to make a small layer.

    >>> from weft.modules import Dropout
    >>> print(refused_arguments(Dropout, (0.5,), {"brodcast_dims": 2}))
    Dropout() got an unexpected keyword argument 'brodcast_dims'
      fix: broadcast_dims=; Dropout takes (rate, *, broadcast_dims, inference)
    """
    init = cls.__init__
    # Layers made of layers take the options of these by `**options: Unpack[LinearOptions]`, whose fields are names. In
    # a user's class the name of the type may be known to type checkers only.
    try:
        signature = inspect.signature(init, eval_str=True)
    except NameError:
        signature = inspect.signature(init)
    names = {p.name: p for p in list(signature.parameters.values())[1:]}
    last = next(reversed(names.values()), None)
    if last is not None and last.kind is Parameter.VAR_KEYWORD:
        for options in filter(is_typeddict, get_args(last.annotation)):
            del names[last.name]
            names |= {name: Parameter(name, Parameter.KEYWORD_ONLY, default=None) for name in options.__annotations__}
    signature = signature.replace(parameters=list(names.values()), return_annotation=Parameter.empty)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        wrong = next((name for name in kwargs if name not in names), "")
        nearest = "".join(f"{name}=; " for name in difflib.get_close_matches(wrong, names, 1))
        bare = [p.replace(annotation=Parameter.empty, default=Parameter.empty) for p in names.values()]
        takes = f"{cls.__qualname__} takes {signature.replace(parameters=bare)}"
        return ArgumentError(f"{cls.__qualname__}() {error}", fix=nearest + takes)
    return None
