"""Sizes that the product of two others divides, and sizes to keep fixed."""

import equinox as eqx
import jax
import pytest
from jaxtyping import Array, Float
from weft.typecheck import verify
from weft.typecheck.errors import AnnotationError
from weft.typecheck.proofs.report import Verdict


def folded(x: Float[Array, "n d"], rows: int, columns: int) -> Float[Array, "n d"]:
    n, d = x.shape
    if d % (rows * columns):
        raise ValueError("rows * columns divide d")
    return x.reshape(n, rows, columns, d // (rows * columns)).reshape(n, d)


def divided(x: Float[Array, "n d"], rows: int, columns: int) -> Float[Array, "n d"]:
    if x.shape[1] % rows or x.shape[1] % columns:
        raise ValueError("rows and columns divide d")
    return x


def swapped(x: Float[Array, "n d"], rows: int, columns: int) -> Float[Array, "n d"]:
    n, d = x.shape
    if d % (rows * columns):
        raise ValueError("rows * columns divide d")
    return x.reshape(rows, columns, n, d // (rows * columns)).reshape(d, n)


def test_the_product_of_two_sizes_that_a_guard_asks_for_is_stated():
    (contract,) = verify(folded).contracts
    assert contract.assumptions == ("columns*rows divides d",)
    assert set(contract.symbolic) == {"n", "d", "rows", "columns"}


def test_two_divisors_are_no_product():
    (contract,) = verify(divided).contracts
    assert contract.assumptions == ("rows divides d", "columns divides d")


def test_behind_the_guard_a_fault_stays_one():
    assert not verify(swapped)


def test_a_size_to_keep_that_nothing_has_is_an_error_that_names_those_there_are():
    with pytest.raises(AnnotationError, match=r"'zz'.*there are columns, d, n, rows"):
        verify(folded, dims={"zz": 3})


class Turned(eqx.Module):
    """Each of `heads` parts of an axis is turned by a library that asks for an even number."""

    rotary: eqx.nn.RotaryPositionalEmbedding
    dim: int = eqx.field(static=True)
    heads: int = eqx.field(static=True)

    def __init__(self, dim: int, heads: int):
        self.rotary = eqx.nn.RotaryPositionalEmbedding(dim // heads)
        self.dim, self.heads = dim, heads

    def __call__(self, x: Float[Array, "n dim"]) -> Float[Array, "n dim"]:
        parts = x.reshape(len(x), self.heads, self.dim // self.heads)
        return jax.vmap(self.rotary, 1, 1)(parts).reshape(x.shape)


def test_what_is_folded_into_parts_may_have_to_have_even_ones():
    """The angles are computed while the layer is made, for which JAX needs the numbers of `dim` and `heads`."""
    (contract,) = verify(Turned).contracts
    assert contract.verdict is Verdict.HOLDS, str(contract)
    assert {"dim", "heads"} <= {*contract.sampled}
    assert all(sizes["dim"] % (2 * sizes["heads"]) == 0 for sizes in contract.tried)


class Chunked(eqx.Module):
    """`size` is a field that JAX would take for a leaf, as all that equinox's records hold is."""

    low: Float[Array, "n"]
    size: int

    def __call__(self, x: Float[Array, "b n"]) -> Float[Array, "b n"]:
        return (x + self.low).reshape(x.shape[0], -1, self.size).reshape(x.shape)


def test_an_integer_among_the_fields_of_a_record_stays_a_size():
    (contract,) = verify(Chunked).contracts
    assert contract.assumptions == ("size divides n",)
    assert {"n", "size"} <= {*contract.symbolic}
