"""The edge to JAX's symbolic dimensions: what JAX has to know to take sizes of weft's own for them.

JAX takes any object with `dimension_as_value` for a symbolic dimension. What it keeps by class (its abstract value, its
dtype, how an einsum over it is planned) is told here, once.
"""

# JAX annotates in part; see `_jax.py`.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from weft.core.edge.moved import Names

__all__ = ["Tracer", "caller", "is_library", "looks_for_symbols", "register", "takes_for_integer", "value_of"]

_FEATURE = "proofs for all sizes"
_core = Names("jax._src.core", _FEATURE, "pytype_aval_mappings", "dim_value_aval")
_dtypes = Names(
    "jax._src.dtypes", _FEATURE,
    "register_weak_scalar_type", "python_scalar_types", "python_scalar_types_to_dtypes",
    "register_canonicalize_value_handler",
)  # fmt: skip
_einsum = Names("jax._src.numpy.einsum", _FEATURE, "_poly_einsum_handlers")

_LIBRARIES = tuple(f"{Path(one.__file__ or '').parent}{os.sep}" for one in (jax, np)) + (
    "<frozen",
    "<__array_function__",
)
_PYTHON, _PACKAGES = f"{Path(os.__file__).parent}{os.sep}", f"{os.sep}site-packages{os.sep}"
# The modules in which JAX finds out whether a size is a number, by whether `operator.index` takes it; and its function
# there that asks for a number whatever comes.
_TRYING = tuple(os.path.join("jax", "_src", *one) for one in (("core.py",), ("numpy", "indexing.py")))
_ASKS_FOR_NUMBER = "concrete_or_error"
# Where it finds out whether a size is an integer, and would say that a symbolic one is no index at all, or would not
# compare the numbers of elements of a reshape.
_TAKES_INTEGERS = ("_is_integer_index", "to_gather", "_compute_newshape")


def caller(frame: FrameType) -> FrameType:
    """The frame itself, or what called it where it runs Python's own library, or methods that this wrote."""
    while frame.f_back is not None and _is_pythons(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _is_pythons(file: str) -> bool:
    return file == "<string>" or (file.startswith(_PYTHON) and _PACKAGES not in file)


def is_library(file: str) -> bool:
    """Whether a file holds JAX's or NumPy's own code."""
    return file.startswith(_LIBRARIES)


def takes_for_integer(frame: FrameType) -> bool:
    """Whether JAX finds out in a frame what an index is, or a size of a reshape."""
    if frame.f_code.co_name == "<genexpr>" and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name in _TAKES_INTEGERS and is_library(caller(frame).f_code.co_filename)


def looks_for_symbols(frame: FrameType) -> bool:
    """Whether what calls `__index__` only finds out whether a size is a number."""
    code = frame.f_code
    return code.co_filename.endswith(_TRYING) and code.co_name != _ASKS_FOR_NUMBER


def value_of(number: int | float) -> Any:
    """A number as an array that the running trace knows nothing of: who looks at it meets a tracer."""
    return jnp.asarray(number) * 1


def _aval(_: Any) -> Any:
    return _core.dim_value_aval()


def register(of_int: type, of_float: type, number: Callable[[Any], int]) -> None:
    """Tells JAX of a class of sizes, and of a class of the floats that are computed from them.

    Args:
        of_int, of_float: the classes.
        number: the number that a size has where one is needed, to plan an einsum.
    """
    _core.pytype_aval_mappings[of_int] = _aval
    _core.pytype_aval_mappings[of_float] = _core.pytype_aval_mappings[float]
    for cls, python in ((of_int, int), (of_float, float)):
        _dtypes.register_weak_scalar_type(cls)
        _dtypes.python_scalar_types.add(cls)
        _dtypes.python_scalar_types_to_dtypes[cls] = _dtypes.python_scalar_types_to_dtypes[python]
        _dtypes.register_canonicalize_value_handler(cls, None)
    if _einsum.present:
        _einsum._poly_einsum_handlers[of_int] = functools.partial(_planned, number)


def _planned(number: Callable[[Any], int], *operands: Any, **options: Any) -> Any:
    """The plan of an einsum at the numbers that sizes have: arrays of no memory stand in for the operands."""
    opt_einsum: Any = importlib.import_module("opt_einsum")

    def stand_in(operand: Any) -> Any:
        if isinstance(operand, str) or not hasattr(operand, "shape"):
            return operand
        return np.broadcast_to(np.float32(0), tuple(map(number, operand.shape)))

    stand_ins = [stand_in(one) for one in operands]
    given = {id(other): one for other, one in zip(stand_ins, operands, strict=True)}
    subscripts, _, arrays = opt_einsum.parser.parse_einsum_input(stand_ins)
    sizes: dict[str, Any] = {}
    for labels, array in zip(subscripts.split(","), arrays, strict=True):
        for label, size in zip(labels, given[id(array)].shape, strict=True):
            bool(sizes.setdefault(label, size) == size)  # asked here, for opt_einsum sees numbers alone
    planned, contractions = opt_einsum.contract_path(*stand_ins, **options)
    return [given[id(one)] for one in planned], contractions
