"""Contracts under pmap and shard_map, where a function sees a device's part, and under the transforms of `weft.nnx`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float
from weft import ContractError, nnx
from weft.typecheck import contract

MESH = Mesh(np.array(jax.devices()[:4]), ("rows",))
ROWS, WHOLE = PartitionSpec("rows"), PartitionSpec()
X, XS, WEIGHT = jnp.ones(5), jnp.ones((8, 5)), jnp.ones((3, 5))


def failure(call: Any) -> ContractError:
    with pytest.raises(ContractError) as caught:
        call()
    return caught.value


# ---- pmap and shard_map ---------------------------------------------------------------------------------------------


def apply(weight: Float[Array, "out in"], x: Float[Array, "in"]) -> Float[Array, "out"]:
    return weight @ x


def apply_rows(weight: Float[Array, "out in"], x: Float[Array, "2 in"]) -> Float[Array, "2 out"]:
    return x @ weight.T


def apply_all(weight: Float[Array, "out in"], x: Float[Array, "8 in"]) -> Float[Array, "8 out"]:
    return x @ weight.T


def sharded(function: Any, *specs: PartitionSpec) -> Any:
    return weft.shard_map(function, mesh=MESH, in_specs=specs, out_specs=ROWS)


def test_what_fits_runs():
    assert weft.pmap(apply, in_axes=(None, 0))(WEIGHT, XS).shape == (8, 3)
    assert sharded(apply_rows, WHOLE, ROWS)(WEIGHT, XS).shape == (8, 3)
    assert weft.jit(sharded(apply_rows, WHOLE, ROWS))(WEIGHT, XS).shape == (8, 3)


def four_rows(x: Float[Array, "rows d"]) -> Float[Array, "rows"]:
    return x


@pytest.mark.parametrize(
    ("call", "message", "fix", "inside"),
    [
        (
            lambda: weft.pmap(apply, in_axes=(0, None))(jnp.ones((4, 3, 5)), jnp.ones((4, 5))),
            "argument x of apply should be f32[in=5], and is f32[4,5]",
            "its leading axis is as long as the axis that pmap maps over (4): map this argument, too",
            "pmap(size=4)",
        ),
        (
            lambda: weft.pmap(apply)(jnp.ones((4, 5)), jnp.ones((4, 5))),
            "argument weight of apply should be f32[out,in], and is f32[5]",
            "pmap removed an axis of size 4, so this function sees one example: drop 'out' from its annotation",
            "pmap(size=4)",
        ),
        (
            lambda: sharded(apply_rows, WHOLE, WHOLE)(WEIGHT, XS),
            "argument x of apply_rows should be f32[2,in=5], and is f32[8,5]",
            "axis 0 is not split here, and as long as 4 shards: split it over 'rows' in in_specs",
            "shard_map(mesh={'rows': 4})",
        ),
        (
            lambda: sharded(apply_all, WHOLE, ROWS)(WEIGHT, XS),
            "argument x of apply_all should be f32[8,in=5], and is f32[2,5]",
            "axis 0 is split over 'rows', so a shard has 2 of 8: do not split it in in_specs",
            "shard_map(mesh={'rows': 4})",
        ),
        (
            lambda: sharded(apply_rows, PartitionSpec(None, "rows"), ROWS)(jnp.ones((3, 8)), jnp.ones((8, 8))),
            "argument x of apply_rows should be f32[2,in=2], and is f32[2,8]",
            "axis 1 is not split here, and as long as 4 shards: split it over 'rows' in in_specs",
            "shard_map(mesh={'rows': 4})",
        ),
        (
            lambda: weft.jit(sharded(four_rows, ROWS))(XS),
            "return value of four_rows should be f32[rows=2], and is f32[2,5]",
            None,
            "jit > shard_map(mesh={'rows': 4})",
        ),
    ],
)
def test_a_devices_part_is_what_counts(call: Any, message: str, fix: str | None, inside: str):
    error = failure(call)
    assert (error.what, error.inside) == (message, inside)
    assert error.fix is None if fix is None else error.fix.startswith(fix)


def test_the_function_around_is_held_to_the_whole_arrays():
    def outer(weight: Float[Array, "out in"], x: Float[Array, "2 in"]) -> Float[Array, "2 out"]:
        return sharded(apply_rows, WHOLE, ROWS)(weight, x)

    assert failure(lambda: weft.jit(outer)(WEIGHT, XS)).what == (
        "argument x of outer should be f32[2,in=5], and is f32[8,5]"
    )


# ---- weft.nnx -------------------------------------------------------------------------------------------------------


class Affine(nnx.Module):
    kernel: nnx.Param[Float[Array, "din dout"]]

    def __init__(self, din: int, dout: int):
        self.kernel = nnx.Param(jnp.ones((din, dout)))

    def __call__(self, x: Float[Array, "*batch din"]) -> Float[Array, "*batch dout"]:
        return x @ self.kernel[...]

    @contract
    def apply(self, x: Float[Array, "din"]) -> Float[Array, "dout"]:
        return x @ self.kernel[...]

    @contract
    def grow(self, x: Float[Array, "din"]) -> Float[Array, "2*dout"]:
        self.kernel[...] = self.kernel[...] * 2
        return x @ self.kernel[...]


def batched(model: Affine, x: Float[Array, "b din"]) -> Float[Array, "b dout"]:
    return model(x)


def example(model: Affine, x: Float[Array, "din"]) -> Float[Array, "dout"]:
    return model(x)


def loss(model: Affine, x: Float[Array, "b din"]) -> Float[Array, ""]:
    return model(x).sum()


def losses(model: Affine, x: Float[Array, "b din"]) -> Float[Array, ""]:
    return model(x)


def step(carry: Float[Array, "d"], x: Float[Array, "d"]) -> tuple[Float[Array, "d"], Float[Array, ""]]:
    return carry + x, x.sum()


def scanned(function: Any) -> Any:
    return nnx.scan(function, in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))


MODES = [{}, {"graph_updates": False}, {"graph": False}]


@pytest.mark.parametrize("mode", MODES, ids=["graph", "no updates", "tree"])
def test_what_fits_runs_under_nnx(mode: dict[str, bool]):
    model = Affine(5, 3)
    assert nnx.jit(batched, **mode)(model, XS).shape == (8, 3)
    assert nnx.vmap(example, in_axes=(None, 0), **mode)(model, XS).shape == (8, 3)
    assert [leaf.shape for leaf in jax.tree.leaves(nnx.grad(loss, **mode)(model, XS))] == [(5, 3)]
    assert scanned(step)(X, XS)[1].shape == (8,)
    assert nnx.jit(Affine.__call__, **mode)(model, XS).shape == (8, 3)


@pytest.mark.parametrize(
    ("call", "message", "fix"),
    [
        (
            lambda model: nnx.jit(batched)(model, X),
            "argument x of batched should be f32[b,din], and is f32[5]",
            "the axis 'b' is missing: add it with x[None]",
        ),
        (
            lambda model: nnx.jit(example)(model, XS),
            "argument x of example should be f32[din], and is f32[8,5]",
            "this per-example function was given a batch",
        ),
        (
            lambda model: nnx.vmap(example, in_axes=(None, None), axis_size=8)(model, XS),
            "argument x of example should be f32[din], and is f32[8,5]",
            "its leading axis is as long as the axis that vmap maps over (8)",
        ),
        (lambda model: nnx.grad(losses)(model, XS), "return value of losses should be f32[], and is f32[8,3]", None),
        (lambda model: nnx.jit(batched)(XS, XS), "argument model of batched should be Affine, and is f32[8,5]", None),
        (
            lambda model: scanned(step)(XS, XS),
            "argument carry of step should be f32[d], and is f32[8,5]",
            "its leading axis is as long as the scan (8): it looks like a scanned argument passed as carry",
        ),
        (
            lambda model: nnx.jit(Affine.__call__)(model, jnp.ones((2, 4))),
            "argument x of Affine.__call__ should be f32[*batch,din=5], and is f32[2,4]",
            None,
        ),
        (
            lambda model: model.apply(jnp.ones(4)),
            "argument x of Affine.apply should be f32[din=5], and is f32[4]",
            None,
        ),
        (
            lambda model: nnx.vmap(lambda m, x: m.apply(x), in_axes=(None, 0))(model, jnp.ones((2, 4))),
            "argument x of Affine.apply should be f32[din=5], and is f32[4]",
            None,
        ),
    ],
)
def test_nnx_transforms_and_methods_are_held_to_annotations(call: Any, message: str, fix: str | None):
    error = failure(lambda: call(Affine(5, 3)))
    assert error.what == message
    assert fix is None or error.fix.startswith(fix)


def test_where_an_objects_dim_was_bound_is_said():
    error = failure(lambda: Affine(5, 3).apply(jnp.ones(4)))
    assert 'din = 5 from field Affine.kernel: Param[Float[Array, "din dout"]] is f32[5,3]' in str(error)
    assert f"{__file__.rpartition('/')[2]}:" in str(error)


def test_a_contract_that_fails_inside_leaves_the_object_as_it_was():
    model = Affine(5, 3)
    with pytest.raises(ContractError, match=r"return value of Affine\.grow should be"):
        nnx.jit(lambda m, x: m.grow(x))(model, X)
    assert model.kernel[...].sum() == 15


def test_methods_are_free_of_contracts_that_nobody_asked_for():
    # Programs written for flax.nnx run unmodified, whatever their annotations say.
    class Loose(nnx.Module):
        def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
            return x

    assert Loose()(np.ones((2, 2))).shape == (2, 2)
    assert nnx.jit(lambda m, x: m(x))(Loose(), XS).shape == (8, 5)
