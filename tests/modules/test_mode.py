"""inference and training: one flag, everywhere in a tree."""

import equinox as eqx
import jax
import jax.numpy as jnp
from weft import inference_mode, training_mode
from weft.modules import BatchNorm, Dropout, Linear, StatefulSequential


def model():
    chain = StatefulSequential(Linear(2, 2, key=jax.random.key(0)), BatchNorm(2), Dropout(0.5))
    return {"chain": chain, "rest": [eqx.nn.Dropout(0.5), jnp.ones(2), None, "name", jax.nn.relu]}


def test_every_record_changes_mode_and_arrays_are_shared():
    tree = model()
    after = inference_mode(tree)
    assert after["chain"][1].inference
    assert after["chain"][2].inference
    assert after["rest"][0].inference
    assert after["chain"][0] is tree["chain"][0]
    assert all(
        new is old for new, old in zip(jax.tree.leaves(after["chain"]), jax.tree.leaves(tree["chain"]), strict=True)
    )


def test_training_undoes_inference():
    tree = model()
    assert jax.tree.structure(training_mode(inference_mode(tree))) == jax.tree.structure(tree)


def test_a_tree_already_in_the_mode_comes_back_as_it_is():
    tree = model()["chain"]
    assert training_mode(tree) is tree


def test_inference_needs_no_key_and_changes_no_statistics():
    chain = inference_mode(model()["chain"])
    y, after = chain(jnp.ones((3, 2)))
    assert y.shape == (3, 2)
    assert after is chain
