"""The edge to JAX's symbolic dimensions: registers weft's class of sizes with JAX.

JAX treats any object with `dimension_as_value` as a symbolic dimension. Its tables by class (abstract values, dtypes,
plans of einsums) need an entry for weft's class, which `register` adds.
"""

# JAX annotates in part; see `_jax.py`.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from weft.core.edge.moved import Names
from weft.core.edge.names import is_generated

__all__ = ["Tracer", "caller", "is_library", "length", "looks_for_symbols", "register", "register_numbers",
           "takes_for_integer", "value_of"]  # fmt: skip

_FEATURE = "proofs for all sizes"
_core = Names("jax._src.core", _FEATURE, "pytype_aval_mappings", "dim_value_aval")
_dtypes = Names(
    "jax._src.dtypes", _FEATURE,
    "register_weak_scalar_type", "python_scalar_types", "python_scalar_types_to_dtypes",
    "register_canonicalize_value_handler",
)  # fmt: skip
_einsum = Names("jax._src.numpy.einsum", _FEATURE, "_poly_einsum_handlers")

# `jax.vmap(module)` prints the module for its debug info, which equinox leaves to wadler_lindig: a text that nobody
# reads is no use of the number.
_SPECS = map(importlib.util.find_spec, ("jax", "numpy", "wadler_lindig"))
_LIBRARIES = tuple(f"{Path(spec.origin).parent}{os.sep}" for spec in _SPECS if spec and spec.origin) + (
    "<frozen",
    "<__array_function__",
)
_PYTHON, _PACKAGES = f"{Path(os.__file__).parent}{os.sep}", f"{os.sep}site-packages{os.sep}"
# The modules in which JAX tests whether a size is a number, by whether `operator.index` accepts it; and the function
# there that needs a number and does not only test.
_TRYING = tuple(os.path.join("jax", "_src", *parts) for parts in (("core.py",), ("numpy", "indexing.py")))
_ASKS_FOR_NUMBER = "concrete_or_error"
# The functions that test this only to refuse symbolic sizes get the number, so that other sizes stay symbolic.
_REFUSES_SYMBOLS = ("associative_scan",)
# The functions that test whether a size is an integer: they would refuse a symbolic size as an index, and would not
# compare the numbers of elements of a reshape.
_TAKES_INTEGERS = ("_is_integer_index", "to_gather", "_compute_newshape")


def caller(frame: FrameType) -> FrameType:
    """The nearest frame, from `frame` outwards, that runs neither Python's own library nor generated methods."""
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not (file.startswith(_PYTHON) and _PACKAGES not in file) and not is_generated(frame.f_code):
            break
        frame = frame.f_back
    return frame


def is_library(file: str) -> bool:
    """Whether a file holds code of JAX, of NumPy, or of the library that prints equinox's modules."""
    return file.startswith(_LIBRARIES)


def takes_for_integer(frame: FrameType) -> bool:
    """Whether JAX tests in a frame whether an index, or a size of a reshape, is an integer."""
    if frame.f_code.co_name == "<genexpr>" and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_name in _TAKES_INTEGERS and is_library(caller(frame).f_code.co_filename)


def looks_for_symbols(frame: FrameType) -> bool:
    """Whether the caller of `__index__` only tests whether a size is a number."""
    code, tester = frame.f_code, frame.f_back
    refuses = tester is not None and tester.f_code.co_name in _REFUSES_SYMBOLS
    return code.co_filename.endswith(_TRYING) and code.co_name != _ASKS_FOR_NUMBER and not refuses


def length(of_int: type) -> Callable[..., Any]:
    """A replacement of `len`, for `patched`: a traced array's length is its first axis's size, of weft's class.

    Python's `len` makes an `int` of what it gets, so that a proof would lose the size.

    Args:
        of_int: weft's class of sizes, which stand for integers and are no subclass of `int`.
    """

    def length_of(plain: Callable[[Any], int], of: Any, /) -> Any:
        if isinstance(of, Tracer) and of.shape and type(of.shape[0]) is of_int:
            return of.shape[0]
        return plain(of)

    return length_of


def value_of(number: int | float) -> Any:
    """A number as a traced array: `* 1` makes it a tracer of the running trace, so that Python cannot read its
    value."""
    return jnp.asarray(number) * 1


def _aval(_: Any) -> Any:
    return _core.dim_value_aval()


def register(of_int: type, of_float: type, number: Callable[[Any], int]) -> None:
    """Registers a class of sizes with JAX, and a class of the floats that are computed from them.

    Args:
        of_int, of_float: the classes.
        number: a size's value as a number, which the plan of an einsum needs.
    """
    register_numbers({of_int: int, of_float: float})
    _core.pytype_aval_mappings[of_int] = _aval
    if _einsum.present:
        _einsum._poly_einsum_handlers[of_int] = functools.partial(_planned, number)


def register_numbers(classes: Mapping[type, type]) -> None:
    """Registers classes with JAX that stand for Python's numbers, each with the class of numbers that it stands for."""
    for cls, python in classes.items():
        _core.pytype_aval_mappings[cls] = _core.pytype_aval_mappings[python]
        _dtypes.register_weak_scalar_type(cls)
        _dtypes.python_scalar_types.add(cls)
        _dtypes.python_scalar_types_to_dtypes[cls] = _dtypes.python_scalar_types_to_dtypes[python]
        _dtypes.register_canonicalize_value_handler(cls, None)


def _planned(number: Callable[[Any], int], *operands: Any, **options: Any) -> Any:
    """The plan of an einsum for the values of its sizes. opt_einsum gets arrays of these shapes, which take no
    memory."""
    opt_einsum: Any = importlib.import_module("opt_einsum")

    def stand_in(operand: Any) -> Any:
        if isinstance(operand, str) or not hasattr(operand, "shape"):
            return operand
        return np.broadcast_to(np.float32(0), tuple(map(number, operand.shape)))

    stand_ins = list(map(stand_in, operands))
    operand_of = {id(planned): operand for planned, operand in zip(stand_ins, operands, strict=True)}
    subscripts, _, arrays = opt_einsum.parser.parse_einsum_input(stand_ins)
    sizes: dict[str, Any] = {}
    for labels, array in zip(subscripts.split(","), arrays, strict=True):
        for label, size in zip(labels, operand_of[id(array)].shape, strict=True):
            # The proof notes that the sizes must be equal. opt_einsum compares numbers, which notes nothing.
            bool(sizes.setdefault(label, size) == size)
    planned, contractions = opt_einsum.contract_path(*stand_ins, **options)
    return [operand_of[id(array)] for array in planned], contractions
