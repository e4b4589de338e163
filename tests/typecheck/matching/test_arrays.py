"""One array against one annotation: the same answers as jaxtyping's, and where it says more."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Array, Bool, Complex, Float, Inexact, Int, Integer, Key, Num, PyTree, Real, Shaped, UInt
from weft import ContractError
from weft.errors import AnnotationError
from weft.typecheck import check, contract

DIMS = ("a", "b", "#a", "2", "#2", "_", "*s", "*#s", "...", "a+1")
DTYPES = {"float32": Float, "bfloat16": Float, "int8": Int, "uint32": UInt, "bool": Bool, "complex64": Complex}


def accepts_jaxtyping(rows) -> bool:
    with jaxtyping.jaxtyped("context"):
        return all(isinstance(value, hint) for value, hint in rows)


def accepts_weft(rows) -> bool:
    values, hints = zip(*rows, strict=True)
    try:
        check(values, tuple[hints])
    except ContractError:
        return False
    return True


def shapes():
    dims = st.lists(st.sampled_from(DIMS), max_size=3).filter(
        lambda dims: sum(dim.startswith(("*", ".")) for dim in dims) < 2
    )
    size = st.lists(st.integers(1, 3), max_size=4)
    return st.lists(st.tuples(dims.map(" ".join), size.map(tuple)), min_size=1, max_size=3)


@given(shapes())
def test_shapes_are_accepted_as_by_jaxtyping(rows):
    # jaxtyping cannot evaluate an expression before its names are bound; here it waits for them.
    rows = [("a", (2,)), *rows]
    checked = [(np.zeros(shape), Shaped[np.ndarray, text]) for text, shape in rows]
    assert accepts_weft(checked) == accepts_jaxtyping(checked)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wanted", [Float, Int, UInt, Integer, Bool, Complex, Inexact, Real, Num, Shaped])
def test_dtypes_are_accepted_as_by_jaxtyping(dtype, wanted):
    value = jnp.zeros(2, dtype)
    assert accepts_weft([(value, wanted[Array, "n"])]) == isinstance(value, wanted[Array, "n"])


def test_keys_are_a_dtype_of_their_own():
    check(jax.random.key(0), Key[Array, ""])
    with pytest.raises(ContractError, match=r"should be Key\[\], and is u32\[2\]") as caught:
        check(jax.random.PRNGKey(0), Key[Array, ""])
    assert caught.value.fix == "make a typed key with jax.random.key(seed)"


@pytest.mark.parametrize("value", [np.zeros(2), 1.0, [1.0, 2.0], None, jax.ShapeDtypeStruct((3,), "float32")])
def test_only_jax_arrays_of_the_right_shape_are_arrays(value):
    with pytest.raises(ContractError):
        check(value, Float[Array, "2"])


def test_an_expression_waits_for_its_names():
    @contract
    def halves(x: Float[Array, "2*n"], y: Float[Array, "n"]) -> Float[Array, "n+{k}"]:
        return jnp.zeros(y.shape[0] + x.shape[0])

    with pytest.raises(AnnotationError, match="reads 'k', which nothing binds"):
        halves(jnp.ones(4), jnp.ones(2))

    @contract
    def extend(x: Float[Array, "2*n"], k: int = 2) -> Float[Array, "n+{k}"]:
        return jnp.zeros(x.shape[0] // 2 + k)

    assert extend(jnp.ones(6)).shape == (5,)
    with pytest.raises(ContractError, match=r"argument x of extend should be f32\[2\*n\], and is f32\[5\]"):
        extend(jnp.ones(5))


def test_an_expression_that_nothing_solves_is_one_line():
    @contract
    def function(x: Float[Array, "n*m"]): ...

    with pytest.raises(AnnotationError) as caught:
        function(jnp.ones(4))
    assert str(caught.value) == "argument x of function: the dim expression 'n*m' reads 'm', which nothing binds"


def test_dims_may_differ_from_leaf_to_leaf():
    @contract
    def add(x: PyTree[Float[Array, "?n"], "T"], y: PyTree[Float[Array, "?n"], "T"]) -> PyTree[Float[Array, "?n"], "T"]:
        return jax.tree.map(jnp.add, x, y)

    tree = {"a": jnp.ones(2), "b": jnp.ones(3)}
    add(tree, tree)
    with pytest.raises(ContractError, match=r"argument y.b of add should be f32\[\?n\], and is f32\[4\]"):
        add(tree, {"a": jnp.ones(2), "b": jnp.ones(4)})
    with pytest.raises(ContractError, match="argument y of add should have the structure T"):
        add(tree, {"a": jnp.ones(2)})


def test_the_size_of_a_leaf_is_not_that_of_a_dim_of_its_name():
    @contract
    def add(n: Float[Array, "n"], x: PyTree[Float[Array, "?n"], "T"], y: PyTree[Float[Array, "?n"], "T"]) -> None: ...

    with pytest.raises(ContractError) as caught:
        add(jnp.ones(5), {"a": jnp.ones(2)}, {"a": jnp.ones(4)})
    assert "f32[?n], and is f32[4]" in str(caught.value)
    assert "n = 2 from argument x.a of add" in str(caught.value)


@pytest.mark.parametrize(
    ("structure", "tree", "fits"),
    [
        ("S T", [{"x": 1}, {"x": 2}], True),
        ("S T", [1, 2], False),
        ("... T", ({"x": 1}, [{"x": 2}]), True),
        ("... T", ({"y": 1},), False),
        ("S ...", [(1, 2), 3], True),
        ("S ...", (1, 2), False),
    ],
)
@pytest.mark.parametrize("is_first", [False, True])
def test_structures_compose_in_any_order(structure, tree, fits, is_first):
    def last(s: PyTree[int, "S"], t: PyTree[int, "T"], tree): ...
    def first(tree, s: PyTree[int, "S"], t: PyTree[int, "T"]): ...

    function = first if is_first else last
    function.__annotations__["tree"] = PyTree[int, structure]
    structures = {"s": [1, 2], "t": {"x": 1}}
    if fits:
        contract(function)(tree=tree, **structures)
    else:
        with pytest.raises(ContractError, match=f"argument tree of {function.__name__} should have the structure"):
            contract(function)(tree=tree, **structures)


def test_a_structure_that_nothing_binds_is_told_how_it_is_bound():
    @contract
    def function(tree: PyTree[int, "... T"]): ...

    with pytest.raises(AnnotationError, match="nothing binds the structure 'T'") as caught:
        function(([1],))
    assert 'annotate one argument with that structure alone: PyTree[..., "T"]' in caught.value.fix
