"""A module that jaxtyping's tests import under the hook, in the place of those which its source archive leaves out."""

import jax.numpy as jnp
import pytest
from jaxtyping import Array, Float

from .helpers import ParamError, ReturnError


def transposed(x: Float[Array, "rows cols"], as_it_is: bool) -> Float[Array, "cols rows"]:
    """A function that keeps its contract unless it is asked not to."""
    return x if as_it_is else x.T


transposed(jnp.ones((2, 3)), False)
with pytest.raises(ReturnError):
    transposed(jnp.ones((2, 3)), True)
with pytest.raises(ParamError):
    transposed(jnp.ones(2), False)
