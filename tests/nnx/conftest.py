"""The same program under both libraries: `agree(program)` runs `program(nnx)` with flax.nnx and with weft.nnx."""

import builtins
import warnings

import jax
import numpy as np
import pytest
from flax import nnx as flax_nnx
from weft import nnx as weft_nnx

from . import agreement


def describe(value, nnx):
    """A value in terms that both libraries share."""

    def again(inner):
        return describe(inner, nnx)

    if isinstance(value, nnx.Variable):
        metadata = value.get_metadata(exclude_required=True)
        return (value.var_type.__name__, again(value.get_value()), {k: again(v) for k, v in sorted(metadata.items())})
    if isinstance(value, nnx.FlatState):
        return ["FlatState", *[(path, again(leaf)) for path, leaf in value]]
    if isinstance(value, (nnx.State, nnx.GraphState)):
        return {"State": {key: again(value[key]) for key in value}}
    if isinstance(value, nnx.Pytree):
        _, state = nnx.split(value, graph=True)
        return (type(value).__name__, again(state), sorted(map(str, vars(value).keys() - BOOKKEEPING)))
    if isinstance(value, nnx.GraphDef):
        return ("GraphDef", value.num_leaves)
    if isinstance(value, dict):
        return {key: again(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(again, value)) if type(value) in (list, tuple) else tuple(map(again, value))
    if isinstance(value, (jax.Array, np.ndarray)):
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        return agreement.Values(value.shape, str(value.dtype), np.asarray(value))
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, float):
        return agreement.Values((), "float", np.asarray(value))
    return value if isinstance(value, (int, str, bool, type(None))) else type(value).__name__


BOOKKEEPING = {"_pytree__nodes", "_pytree__state"}


def run(program, nnx):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return describe(program(nnx), nnx)
        except Exception as error:
            return error


def builtin_of(error):
    return next(base for base in type(error).__mro__ if base.__module__ == builtins.__name__)


@pytest.fixture
def agree():
    def check(program, expect=None):
        theirs, ours = run(program, flax_nnx), run(program, weft_nnx)
        if isinstance(theirs, Exception):
            assert isinstance(ours, builtin_of(theirs)), (theirs, ours)
            assert expect is None or isinstance(ours, expect), ours
        else:
            if isinstance(ours, Exception):
                raise ours
            assert expect is None, theirs
            assert ours == theirs
        return ours

    return check
