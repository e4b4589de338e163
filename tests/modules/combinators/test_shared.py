"""Shared: one leaf, wherever it goes, and the same model as one that writes the sharing out by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from weft import Embed, Linear, Param, Sequential, Shared

FIRST, SECOND, THIRD = jax.random.split(jax.random.key(0), 3)


class Tied(weft.Module):
    """A small language model, whose head is the embedding by hand."""

    embed: Embed
    hidden: Linear

    def __call__(self, ids: Any) -> Any:
        return self.embed.attend(jax.nn.tanh(self.hidden(self.embed(ids))))


class Model(weft.Module):
    """The same with a head of its own."""

    embed: Embed
    hidden: Linear
    head: Linear

    def __call__(self, ids: Any) -> Any:
        return self.head(jax.nn.tanh(self.hidden(self.embed(ids))))

    def features(self, ids: Any) -> Any:
        return self.embed(ids)


def parts() -> tuple[Embed, Linear]:
    return Embed(5, 3, key=FIRST), Linear(3, 3, key=SECOND)


def tied() -> Tied:
    return Tied(*parts())


def shared() -> Shared[Model]:
    model = Model(*parts(), Linear(3, 5, use_bias=False, key=THIRD))
    return Shared(model, {"head.kernel": ("embed.embedding", jnp.transpose)})


IDS = jnp.array([0, 3, 1, 4])


def loss(model: Any) -> Any:
    return (model(IDS) ** 2).mean()


def test_a_tied_head_is_the_embedding_transposed():
    model = shared()
    assert len(jax.tree.leaves(model)) == 3
    assert weft.tree.size(model) == weft.tree.size(tied())
    np.testing.assert_allclose(model(IDS), tied()(IDS), rtol=1e-6)
    np.testing.assert_array_equal(model.value.head.kernel, model.embed.embedding.T)


@pytest.mark.slow
def test_gradients_of_both_uses_add_up():
    gradient, by_hand = weft.grad(loss)(shared()), weft.grad(loss)(tied())
    np.testing.assert_allclose(gradient.model.embed.embedding, by_hand.embed.embedding, rtol=1e-5)
    plain = jax.grad(loss)(shared())
    np.testing.assert_allclose(plain.model.embed.embedding, by_hand.embed.embedding, rtol=1e-5)


def trained(model: Any) -> tuple[Any, Any]:
    opt = weft.Optimizer(model, OPTIMIZER)
    for _ in range(3):
        model, opt = STEP(model, opt)
    return model, opt


OPTIMIZER = optax.sgd(0.1, momentum=0.9)


@weft.jit(donate_argnums=(0, 1))
def STEP(model: Any, opt: Any) -> Any:
    return opt.update(model, weft.grad(loss)(model))


def test_training_keeps_the_tie_and_equals_the_model_by_hand():
    (model, opt), (by_hand, _) = trained(shared()), trained(tied())
    np.testing.assert_allclose(model.embed.embedding, by_hand.embed.embedding, rtol=1e-5)
    np.testing.assert_allclose(model.head.kernel, model.embed.embedding.T)
    assert len(jax.tree.leaves(opt.optax_state)) == 3


def test_it_survives_split_and_merge_transforms_and_checkpoints(tmp_path: Any):
    model = shared()
    structure, parameters, rest = weft.tree.split(model, weft.filters.Inside("model.embed"), ...)
    assert len(jax.tree.leaves(parameters)) == 1
    for same in (
        weft.tree.merge(structure, parameters, rest),
        weft.jit(lambda model: model)(model),
        jax.jit(lambda model: model)(model),
        jax.tree.map(lambda leaf: leaf, model),
        weft.tree.index(weft.tree.stack([model, model]), 0),
    ):
        assert jax.tree.structure(same) == jax.tree.structure(model)
        np.testing.assert_array_equal(same(IDS), model(IDS))
    weft.save_checkpoint(tmp_path / "model", model)
    loaded = weft.load_checkpoint(tmp_path / "model", jax.tree.map(jnp.zeros_like, model))
    np.testing.assert_array_equal(loaded(IDS), model(IDS))
    losses = weft.vmap(loss)(weft.tree.stack([model, model]))
    np.testing.assert_allclose(losses, loss(model), rtol=1e-6)

    @weft.scan(in_axes=(weft.Carry, 0), out_axes=(weft.Carry, 0))
    def run(model: Any, _: Any) -> Any:
        return jax.tree.map(lambda w, g: w - 0.1 * g, model, jax.grad(loss)(model)), loss(model)

    after, _ = run(model, jnp.arange(2))
    np.testing.assert_array_equal(after.head.kernel, after.embed.embedding.T)


def test_the_same_record_twice_is_found_without_being_named():
    layer, last = Linear(3, 3, key=FIRST), Linear(3, 2, key=SECOND)
    chain = Sequential(layer, jax.nn.relu, layer, last)
    with pytest.raises(weft.AliasError, match=r"model.layers\[2\]: the same Linear as model.layers\[0\]"):
        weft.Optimizer(chain, OPTIMIZER)
    model = Shared(chain)
    assert [tie.place for tie in model.ties] == [("layers", 2, "kernel"), ("layers", 2, "bias")]
    x = jnp.ones(3)
    np.testing.assert_array_equal(model(x), chain(x))
    weft.Optimizer(model, OPTIMIZER)
    gradient = weft.grad(lambda model: model(x).sum())(model)
    by_hand = jax.grad(lambda layer: last(layer(jax.nn.relu(layer(x)))).sum())(layer)
    np.testing.assert_allclose(gradient.model.layers[0].kernel, by_hand.kernel, rtol=1e-5)


def test_whole_records_may_be_tied():
    chain = Sequential(Linear(3, 3, key=FIRST), Linear(3, 3, key=SECOND))
    model = Shared(chain, {"layers[1]": "layers[0]"})
    assert len(jax.tree.leaves(model)) == 2
    np.testing.assert_array_equal(model.value.layers[1].kernel, model.value.layers[0].kernel)
    by_parts = Shared(chain, {("layers", 1): ("layers", 0)})
    assert by_parts.ties == model.ties


def test_attributes_and_methods_are_the_models():
    model = shared()
    np.testing.assert_array_equal(model.features(IDS), model.embed(IDS))
    assert isinstance(model.hidden, Linear)
    with pytest.raises(AttributeError, match="nonsense"):
        model.nonsense  # noqa: B018


class Counting(weft.Module):
    weight: jax.Array
    twin: jax.Array
    count: jax.Array

    def __call__(self, x: Any) -> Any:
        return x * self.weight * self.twin, self.replace(count=self.count + 1)

    def reset(self, twin: Any) -> Any:
        return self.replace(twin=twin)

    def both(self) -> Any:
        return None, self.replace(weight=self.weight + 1, twin=self.twin + 1)


def counting() -> Shared[Counting]:
    weight = jnp.array(2.0)
    return Shared(Counting(weight, weight, jnp.array(0)))


def test_the_successor_of_a_shared_model_is_shared():
    y, model = counting()(3.0)
    assert (float(y), int(model.count)) == (12, 1)
    assert isinstance(model, Shared)
    assert jax.tree.structure(model) == jax.tree.structure(counting())

    class Outer(weft.Module):
        inner: Shared[Counting]

        def __call__(self, x: Any) -> Any:
            with weft.thread(self) as t:
                return t.done(t.inner(t.inner(x)))

    y, outer = Outer(counting())(1.0)
    assert (float(y), int(outer.inner.count)) == (16, 2)


def test_what_changes_in_one_of_its_places_changes_in_all():
    model = counting().reset(jnp.array(5.0))
    assert (float(model.weight), float(model.twin)) == (5, 5)
    assert len(jax.tree.leaves(model)) == 2


def test_two_successors_of_one_thing_are_refused():
    with pytest.raises(weft.SuccessorError, match=r"has a different successor in each of these places") as caught:
        counting().both()
    assert "at: Counting.weight" in str(caught.value)
    assert "at: Counting.twin" in str(caught.value)


def test_ties_that_make_no_sense_are_refused():
    model = Model(*parts(), Linear(3, 5, key=THIRD))
    cases: list[tuple[Any, str]] = [
        ({"head.kernel": "embed.embedding"}, r"head.kernel: float32\[3,5\] -> float32\[5,3\]"),
        ({"head.kernal": "embed.embedding"}, "a Linear has no field 'kernal'"),
        ({"head": "hidden"}, "does not fit"),
        ({"hidden.bias": "hidden.bias"}, "hidden.bias is a source, but tied itself"),
        ({"hidden.bias": "head.bias", "head.bias": "hidden.bias"}, "does not fit"),
    ]
    for ties, message in cases:
        with pytest.raises(weft.errors.StructureError, match=message):
            Shared(model, ties)
    with pytest.raises(weft.AliasError, match="no array of this Model is in two places"):
        Shared(model)


def test_modes_and_casts_reach_it():
    model = weft.tree.cast(shared(), jnp.bfloat16)
    assert model.head.kernel.dtype == jnp.bfloat16
    assert weft.inference_mode(shared()).ties == shared().ties
    assert len(jax.tree.leaves(weft.tree.select(shared(), Param))) == 3


def test_what_belongs_transposed_is_told_how_to_be_turned():
    model = Sequential(Linear(2, 3, key=FIRST), Linear(3, 2, key=SECOND))
    with pytest.raises(
        weft.errors.StructureError, match=r"layers\[1\].kernel: float32\[3,2\] -> float32\[2,3\]"
    ) as caught:
        Shared(model, {"layers[1].kernel": "layers[0].kernel"})
    ties = caught.value.fix.partition("that transposes: ")[2]
    assert Shared(model, eval(ties, {"jnp": jnp}))(jnp.ones(2)).shape == (2,)


@pytest.mark.parametrize(
    ("place", "at", "fix"),
    [
        ("layers[1].weight", "Sequential.layers[1]", "its fields are kernel, bias"),
        ("layer[1].kernel", "Sequential", "its fields are layers"),
    ],
)
def test_a_path_that_leads_nowhere_lists_what_is_there(place: str, at: str, fix: str):
    model = Sequential(Linear(2, 3, key=FIRST), Linear(2, 3, key=SECOND))
    for ties in ({place: "layers[0].kernel"}, {"layers[0].kernel": place}):
        with pytest.raises(weft.errors.StructureError) as caught:
            Shared(model, ties)
        assert caught.value.at == (at,)
        assert caught.value.fix.startswith(fix)
