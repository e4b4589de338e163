"""`jax.export` of functions over objects: called without weft, on the same trees."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from weft import nnx
from weft.core import StructureError

X = jnp.ones((1, 2))


@pytest.mark.parametrize("mode", [{}, {"graph": False}], ids=["graph", "tree"])
def test_a_function_of_an_object_is_exported_if_it_only_reads(mode: dict[str, Any]):
    @nnx.jit(**mode)
    def run(model: Any, x: Any) -> Any:
        return model(x)

    model = nnx.Sequential(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.BatchNorm(2, rngs=nnx.Rngs(0)))
    with pytest.raises(StructureError, match=r"layers\[1\]\.mean") as caught:
        export.export(run)(model, X)
    assert "return nnx.state(model)" in str(caught.value)
    model.eval()
    np.testing.assert_allclose(export.export(run)(model, X).call(model, X), model(X), rtol=1e-6)


def test_a_function_of_a_state_is_exported():
    graphdef, state = nnx.split(nnx.Linear(2, 3, rngs=nnx.Rngs(0)))
    exported = export.export(nnx.jit(lambda state, x: nnx.merge(graphdef, state)(x)))(state, X)
    np.testing.assert_allclose(exported.call(state, X), nnx.merge(graphdef, state)(X), rtol=1e-6)
