"""The dtype of every product of the gallery's programs, forwards and backwards, under a policy and after a cast."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft

from tests.examples.test_gallery import PROGRAMS, program_of
from tests.modules.test_dtypes import products

pytestmark = pytest.mark.slow

KEY, LOW = jax.random.key(0), jnp.bfloat16
IMAGES, LABELS, IDS = jnp.ones((8, 8, 8)), jnp.zeros(8, int), jnp.zeros((2, 9), int)
REPLAY = tuple(jnp.ones((128, size)) for size in (4, 1, 1, 4, 1))
# For each program the loss, and its arguments from the module and the model.
LOSSES: dict[str, tuple[str, Any]] = {
    "captured": ("loss", lambda program, model: (model, IMAGES, LABELS)),
    "diffusion": ("loss", lambda program, model: (model, IMAGES, KEY)),
    "dqn": ("loss", lambda program, model: (model, model, *REPLAY)),
    "ensemble": ("loss", lambda program, model: (model, IMAGES, LABELS)),
    "gan": ("critic_loss", lambda program, models: (*models[::-1], IMAGES.reshape(8, 64), KEY)),
    "gpt": ("loss", lambda program, model: (model, IDS)),
    "lora": ("loss", lambda program, model: (program.adapted(model, KEY), IMAGES, LABELS)),
    "mlp": ("loss_and_accuracy", lambda program, model: (model, IMAGES, LABELS)),
    "resnet": ("loss_and_model", lambda program, model: (model, IMAGES, LABELS)),
    "seq2seq": ("loss", lambda program, model: (model, IDS, IDS)),
    "vae": ("loss", lambda program, model: (model, IMAGES, KEY)),
}
# What is in another dtype, and why.
WIDE_GRADIENTS = {"gpt": (2, "JAX's attention sums logits in float32, so their cotangent is float32, too")}
WIDE_AFTER_CAST = {
    "gan": (6, "the program draws noise in float32, and without a policy a layer promotes"),
    "vae": (2, "the program draws noise in float32, and without a policy a layer promotes"),
}


def test_every_program_is_in_the_table():
    assert {*PROGRAMS} == LOSSES.keys()


@pytest.mark.parametrize("name", LOSSES)
def test_products_have_the_dtype_of_the_policy_or_of_the_parameters(name: str):
    program = program_of(name, "weft")
    loss_name, arguments = LOSSES[name]
    loss, args = getattr(program, loss_name), arguments(program, program.make(KEY))
    under_policy = weft.Policy(compute=LOW)(loss)

    def gradient(*args: Any) -> Any:
        return weft.grad(under_policy, has_aux=loss_name != "loss" and "_and_" in loss_name)(*args)

    def counts(function: Any, args: Any) -> tuple[int, int]:
        count = Counter(products(jax.make_jaxpr(function)(*args).jaxpr))
        return count[("bfloat16", "bfloat16")], count.total()

    def expected(total: int, table: dict[str, tuple[int, str]]) -> tuple[int, int]:
        return total - table.get(name, (0, ""))[0], total

    low, total = counts(under_policy, args)
    assert low == total > 0
    counted = counts(gradient, args)
    assert counted == expected(counted[1], WIDE_GRADIENTS)
    assert counts(loss, weft.tree.cast(args, LOW)) == expected(total, WIDE_AFTER_CAST)
