"""Contracts inside transforms: what is checked is what the function sees there, and errors say how it got so."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
import weft
from jaxtyping import Array, Float, Int
from weft import ContractError, Module
from weft.typecheck import Batched, contract

from ..layers import Linear, Single, linear, stack


def apply(layer: Single, x: Float[Array, "in"]) -> Float[Array, "out"]:
    return layer(x)


ONE = Single(jnp.ones((3, 5)))
MANY = jax.vmap(lambda scale: Single(scale * jnp.ones((3, 5))))(jnp.ones(4))
X, XS = jnp.ones(5), jnp.ones((4, 5))


def failure(call) -> ContractError:
    with pytest.raises(ContractError) as caught:
        call()
    return caught.value


def test_a_compiled_call_is_not_checked_again():
    seen = []

    @contract
    def watched(x: Float[Array, "n"]) -> Float[Array, "n"]:
        seen.append(x)
        return x

    jitted = weft.jit(watched)
    jitted(X), jitted(X)
    assert len(seen) == 1


def test_vmap_is_checked_against_one_example():
    assert weft.vmap(apply)(MANY, XS).shape == (4, 3)
    assert weft.vmap(apply, in_axes=(None, 0))(ONE, XS).shape == (4, 3)


@pytest.mark.parametrize(
    ("in_axes", "arguments", "message", "fix"),
    [
        (
            (None, 0),
            (MANY, XS),
            "argument layer of apply should be a single Single, and is a stack: all its arrays have extra leading "
            "axes (4)",
            "its leading axis is as long as the axis that vmap maps over (4)",
        ),
        (
            (0, 0),
            (ONE, jnp.ones((3, 5))),
            "argument layer of apply should be a whole Single, and every array in it has an axis too few",
            "vmap removed an axis from a Single for a single example: pass it unmapped (in_axes None)",
        ),
        (
            (0, None),
            (MANY, XS),
            "argument x of apply should be f32[in], and is f32[4,5]",
            "its leading axis is as long as the axis that vmap maps over (4): map this argument, too",
        ),
        (
            (0, 0),
            (MANY, jnp.ones(4)),
            "argument x of apply should be f32[in], and is f32[]",
            "vmap removed an axis of size 4, so this function sees one example: drop 'in' from its annotation",
        ),
    ],
)
def test_batches_and_examples_are_told_apart(in_axes, arguments, message, fix):
    error = failure(lambda: weft.vmap(apply, in_axes=in_axes)(*arguments))
    assert error.what == message
    assert fix in error.fix
    assert error.inside.startswith("vmap(size=")


def test_an_unannotated_function_is_protected_by_the_records_methods():
    error = failure(lambda: weft.vmap(lambda layer, x: layer(x), in_axes=(None, 0))(MANY, XS))
    assert error.what.startswith("argument self of Single.__call__ should be a single Single, and is a stack")
    error = failure(lambda: weft.vmap(lambda layer, x: layer(x))(ONE, jnp.ones((3, 5))))
    assert error.what == "Single should be a whole Single, and every array in it has an axis too few"


def test_a_per_example_function_given_a_batch():
    error = failure(lambda: weft.jit(apply)(ONE, XS))
    assert error.what == "argument x of apply should be f32[in], and is f32[4,5]"
    assert "this per-example function was given a batch: map it over axis 0 with weft.vmap" in error.fix


def step(carry: Float[Array, "d"], x: Float[Array, "d"]) -> tuple[Float[Array, "d"], Float[Array, ""]]:
    return carry + x, carry.sum()


def test_scan_is_checked_carry_and_slice():
    carry, ys = weft.scan(step)(X, XS)
    assert (carry.shape, ys.shape) == ((5,), (4,))
    assert failure(lambda: weft.scan(step)(X, jnp.ones((4, 3)))).what == (
        "argument x of step should be f32[d=5], and is f32[3]"
    )


def test_a_scanned_argument_passed_as_carry():
    error = failure(lambda: weft.scan(step)(XS, XS))
    assert error.what == "argument carry of step should be f32[d], and is f32[4,5]"
    assert "its leading axis is as long as the scan (4): it looks like a scanned argument passed as carry" in error.fix
    assert error.inside == "scan(length=4)"


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda c, x: (c[:2], c.sum()), r"return value[0] of wrong should be f32[d=5], and is f32[2]"),
        (lambda c, x: (c, x), r"return value[1] of wrong should be f32[], and is f32[5]"),
        (lambda c, x: (c.astype(int), c.sum()), r"return value[0] of wrong should be Float[d=5], and is i32[5]"),
    ],
)
def test_the_carry_out_and_the_output_are_checked(returned, message):
    def wrong(carry: Float[Array, "d"], x: Float[Array, "d"]) -> tuple[Float[Array, "d"], Float[Array, ""]]:
        return returned(carry, x)

    assert failure(lambda: weft.jit(weft.scan(wrong))(X, XS)).what == message


def test_a_stack_of_layers_is_scanned():
    class Deep(Module):
        layers: Batched[Linear, "depth"]

        def __call__(self, x: Float[Array, "width"]) -> Float[Array, "width"]:
            def through(x: Float[Array, "width"], layer: Linear) -> tuple[Float[Array, "width"], None]:
                return layer(x), None

            return weft.scan(through)(x, self.layers)[0]

    assert weft.jit(Deep(stack(4, 5, 5)))(X).shape == (5,)
    error = failure(lambda: weft.jit(Deep(stack(4, 3, 3)))(X))
    assert error.what == "argument x of Linear.__call__ should be f32[*batch,in=3], and is f32[5]"
    assert error.at[0] == "in Deep.layers (Linear)"
    assert error.inside == "jit > scan(length=4)"


def vector(x: Float[Array, "n"]) -> Float[Array, "n"]:
    return x


def matrix(x: Float[Array, "n m"]) -> Float[Array, "n m"]:
    return x


@pytest.mark.parametrize(
    ("call", "inside"),
    [
        (lambda: weft.cond(True, vector, matrix, X), "cond"),
        (lambda: weft.switch(0, [vector, matrix], X), "switch"),
        (lambda: weft.while_loop(lambda x: x.sum() < 3, matrix, X), "while_loop"),
        (lambda: weft.remat(matrix)(X), "remat"),
        (lambda: weft.jit(matrix)(X), "jit"),
        (lambda: weft.jvp(matrix, (X,), (X,)), "jvp"),
        (lambda: weft.vjp(matrix, X), "vjp"),
        (lambda: weft.eval_shape(matrix, X), "eval_shape"),
    ],
)
def test_every_transform_checks_the_function_it_is_given(call, inside):
    error = failure(call)
    assert error.what == "argument x of matrix should be f32[n,m], and is f32[5]"
    assert error.inside.startswith(inside)


def test_the_index_of_a_loop_is_an_argument_too():
    def body(i: Int[Array, ""], x: Float[Array, "n"]) -> Float[Array, "n"]:
        return x + i

    assert weft.fori_loop(0, 3, body, X).shape == (5,)
    assert (
        failure(lambda: weft.fori_loop(0, 3, body, XS)).what == "argument x of body should be f32[n], and is f32[4,5]"
    )


def loss(layer: Linear, x: Float[Array, "batch in"]) -> Float[Array, ""]:
    return layer(x).sum()


def test_a_gradient_has_its_arguments_contract():
    gradient = weft.grad(loss)(linear(3, 5), XS)
    assert contract(lambda layer: layer)(gradient) is gradient
    assert contract_of_linear(gradient).weight.shape == (3, 5)
    assert failure(lambda: weft.grad(loss)(linear(3, 5), X)).fix == "the axis 'batch' is missing: add it with x[None]"


@contract
def contract_of_linear(layer: Linear) -> Linear:
    return layer


def test_transforms_nest_and_the_stack_is_cited():
    def inner(x: Float[Array, "n m"]) -> Float[Array, ""]:
        return x.sum()

    def outer(xs: Float[Array, "k n"]) -> Float[Array, ""]:
        return weft.vmap(inner, axis_name="rows")(xs).sum()

    error = failure(lambda: weft.jit(weft.grad(outer))(XS))
    assert error.inside == "jit > grad > vmap(axis_name='rows', size=4)"


def test_jaxs_own_transforms_check_the_methods_inside():
    error = failure(lambda: jax.jit(lambda layer, x: layer(x))(linear(3, 5), jnp.ones(4)))
    assert error.what == "argument x of Linear.__call__ should be f32[*batch,in=5], and is f32[4]"
    assert jax.vmap(linear(3, 5))(XS).shape == (4, 3)


def test_numbers_that_a_transform_made_arrays_pass():
    def scaled(x: Float[Array, "n"], rate: float, steps: int = 2) -> Float[Array, "n"]:
        return x * rate * steps

    assert weft.jit(scaled)(X, 0.5, steps=3).shape == (5,)


def test_a_successor_is_checked():
    class Counter(Module):
        count: Int[Array, ""]

        def __call__(self, x: Float[Array, "n"]) -> tuple[Float[Array, "n"], Counter]:
            return x, self.replace(count=self.count + 1)

    _, after = weft.jit(Counter(jnp.array(1)))(X)
    assert int(after.count) == 2
