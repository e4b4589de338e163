"""Twins: the same thing made with flax.nnx and with weft.nnx, and whether the two are equal."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx as flax_nnx
from weft import nnx
from weft.modules.ops import hashable

# Named here, since lambdas in tables take the library as an argument.
LIBRARIES = {"flax": flax_nnx, "weft": nnx}


def twins(make):
    """What `make(nnx)` gives with each library: flax's first."""
    return make(flax_nnx), make(nnx)


def plain(value):
    """A value as NumPy has it."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value)


def wide(value):
    """Floats in double precision: NumPy compares no NaNs of the small ones."""
    return value if value.dtype.kind in "biu" else value.astype(np.float64)


def assert_equal(theirs, ours, tolerance=0.0, where=""):
    """Two pytrees of arrays have the same structure, dtypes, shapes and (up to the tolerance) values."""
    their_leaves, our_leaves = jax.tree.leaves(theirs), jax.tree.leaves(ours)
    assert len(their_leaves) == len(our_leaves), where
    for their, our in zip(their_leaves, our_leaves, strict=True):
        their, our = plain(their), plain(our)
        assert (their.dtype, their.shape) == (our.dtype, our.shape), where
        np.testing.assert_allclose(wide(our), wide(their), rtol=tolerance, atol=tolerance, err_msg=where)


def flat(library, node, **options):
    """The Variables of a node by path, in the order of paths."""
    return dict(library.to_flat_state(library.state(node, **options)))


def assert_same_state(their_node, our_node, tolerance=0.0, **options):
    """Two nodes have the same Variables: paths in the same order, kinds, metadata and values."""
    theirs, ours = flat(flax_nnx, their_node, **options), flat(nnx, our_node, **options)
    assert list(theirs) == list(ours)
    for path, their in theirs.items():
        our = ours[path]
        if not isinstance(their, flax_nnx.Variable):
            assert_equal(their, our, tolerance, f"at {path}")
            continue
        assert type(their).__name__ == type(our).__name__, path
        assert dict(their.get_metadata()) == dict(our.get_metadata()), path
        assert_equal(their.get_value(), our.get_value(), tolerance, f"at {path}")


def attributes(library, node):
    """The attributes of a node and of those in it: names, and values where they are plain."""
    values = {}
    for path, child in library.iter_graph(node):
        if isinstance(child, library.Pytree):
            for name, value in vars(child).items():
                if not name.startswith("_"):
                    value = hashable(value)  # lists among options are kept as tuples here
                    is_plain = isinstance(value, (bool, int, float, str, tuple, type(None)))
                    values[*map(str, path), name] = value if is_plain else None
    return values
