"""NumPy's arrays, and tuples of any length: what a transform makes of them is no violation of their annotations."""

from __future__ import annotations

from typing import Any, TypeVarTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
import weft
from jaxtyping import Array, Float
from weft import ContractError

Ts = TypeVarTuple("Ts")
ONES = np.ones(2, np.float32)

ANNOTATIONS: dict[str, tuple[Any, Any]] = {
    "ndarray": (np.ndarray, ONES),
    "ndarray of a dtype": (np.ndarray[Any, np.dtype[np.float64]], ONES),
    "NDArray": (npt.NDArray[np.float32], ONES),
    "jaxtyping": (Float[np.ndarray, "n"], ONES),
    "in a list": (list[np.ndarray], [ONES]),
    "a scalar": (np.floating, np.float32(1)),
    "or none": (np.ndarray | None, ONES),
    "unpacked": (tuple[int, *tuple[int, ...]], (1, 2, 3)),
    "unpacked, of none": (tuple[int, *tuple[int, ...]], (1,)),
    "unpacked in the middle": (tuple[int, *tuple[int, ...], str], (1, 2, "a")),
    "unpacked, of a fixed length": (tuple[int, *tuple[int, str]], (1, 2, "a")),
    "unpacked arrays": (tuple[Float[Array, "n"], *tuple[Float[Array, "n"], ...]], (jnp.ones(2), jnp.ones(2))),
    "Unpack": (tuple[int, Unpack[tuple[int, ...]]], (1, 2, 3)),  # noqa: UP044  (the older way to write it)
    "a TypeVarTuple": (tuple[int, *Ts], (1, "a", 2.0)),
}


def record_of(annotation: Any) -> Any:
    names = {"__annotations__": {"field": annotation, "w": jax.Array}, "__module__": __name__}
    return type(weft.Module)("Holder", (weft.Module,), names)


@pytest.mark.parametrize("name", ANNOTATIONS)
def test_what_is_annotated_with_numpys_arrays_and_unpacked_tuples_goes_through_transforms(name: str):
    annotation, value = ANNOTATIONS[name]
    record = record_of(annotation)(value, jnp.ones(2))

    def typed(field: Any, x: Any) -> Any:
        return x

    typed.__annotations__ = {"field": annotation, "x": Float[Array, "2"]}

    def f(record: Any, x: Any) -> Any:
        return (weft.remat(typed)(record.field, record.w) * x).sum()

    assert weft.jit(f)(record, 2.0) == 4
    assert weft.grad(f)(record, 2.0).w.tolist() == [2, 2]
    assert weft.remat(lambda record: f(record, 1.0))(record) == 2
    weft.jit(lambda record: record)(record)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (tuple[int, *tuple[int, ...]], (1, 2, "a")),
        (tuple[int, *tuple[int, str]], (1, 2)),
        (Float[np.ndarray, "2"], np.ones(3, np.float32)),
        (np.ndarray, "an array"),
    ],
)
def test_what_is_none_of_them_is_refused(annotation: Any, value: Any):
    with pytest.raises(ContractError, match=r"Holder\.field"):
        record_of(annotation)(value, jnp.ones(2))
