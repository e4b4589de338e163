"""Kinds: the names of dtypes in checkpoints, of arrays and of Python numbers, as files tell them."""

from __future__ import annotations

import re
from typing import Any

import jax.numpy as jnp
import numpy as np

# Kinds come from files and are passed to `np.dtype`, which evaluates some texts as Python literals and parses others to
# structures. Only plain names get there.
_PLAIN = re.compile(r"[<>|]?[A-Za-z]\w{0,20}(\[\w{1,8}\])?", re.ASCII)
PYTHON = "Python "
# The dtype that holds a Python number.
NUMBER_DTYPES: dict[str, Any] = {"bool": np.bool_, "int": np.int64, "float": np.float64, "complex": np.complex128}


def dtype_of(kind: str) -> np.dtype[Any] | None:
    """Returns the dtype of a kind's items; None for random keys and for strings that are not a kind."""
    name = kind.removeprefix(PYTHON)
    if not _PLAIN.fullmatch(name):
        return None
    try:
        dtype = jnp.dtype(NUMBER_DTYPES.get(name, name) if name != kind else kind)
    except (TypeError, ValueError):
        return None
    return None if dtype.hasobject else dtype
