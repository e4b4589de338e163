"""Metrics are flax's: what they count, under jit and scan too, what they compute, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx as flax_nnx
from weft import nnx
from weft.core.records import kinds
from weft.nnx.config import config
from weft.nnx.interop.installing import twin_module

from ..nn.twins import assert_equal, assert_same_state, attributes, twins

pytestmark = [
    pytest.mark.wide,
    # flax resets a count with another dtype, and says so.
    pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types:FutureWarning"),
]


@pytest.fixture(autouse=True)
def flax_counts_of_masks(monkeypatch):
    """Masks that broadcast count as in flax here; test_faults_of_flax.py has what is right."""
    monkeypatch.setattr(config, "nnx_flax_faults", True)


VALUES = jax.random.normal(jax.random.key(0), (3, 4))
LOGITS = jax.random.normal(jax.random.key(1), (5, 3))
LABELS = jnp.array([0, 2, 1, 1, 0])

METRICS = {
    "average": lambda m: m.Average(),
    "named": lambda m: m.Average("loss"),
    "welford": lambda m: m.Welford(),
    "accuracy": lambda m: m.Accuracy(),
    "binary": lambda m: m.Accuracy(threshold=0.5),
}
# name: batches
BATCHES = {
    "average": [
        {"values": VALUES},
        {"values": 3},
        {"values": 2.5, "other": None},
        {"values": VALUES.astype(jnp.bfloat16)},
        {"values": jnp.arange(4)},
        {"values": np.float64(0.1)},
        {"values": np.ones((2, 2), np.float32)},
        {"values": VALUES, "mask": VALUES > 0},
        {"values": VALUES, "mask": jnp.ones((3, 1), jnp.int32)},
        {"values": jnp.array(True)},
    ],
    "named": [{"loss": VALUES}, {"loss": VALUES, "mask": jnp.arange(4) > 1}],
    "welford": [
        {"values": VALUES},
        {"values": 3},
        {"values": 2.5},
        {"values": VALUES.astype(jnp.bfloat16)},
        {"values": jnp.arange(4)},
        {"values": np.ones((2, 2), np.float32)},
    ],
    "accuracy": [
        {"logits": LOGITS, "labels": LABELS},
        {"logits": LOGITS, "labels": np.asarray(LABELS, np.int64), "other": 3},
        {"logits": LOGITS, "labels": LABELS, "mask": LABELS > 0},
        {"logits": LOGITS.reshape(1, 5, 3), "labels": LABELS[None]},
    ],
    "binary": [
        {"logits": LOGITS[:, 0], "labels": LABELS},
        {"logits": LOGITS[:, 1], "labels": LABELS, "mask": jnp.array([1, 1, 0, 0, 1])},
    ],
}


def made(name):
    return twins(lambda library: METRICS[name](library.metrics))


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_counts_and_computes_what_flaxs_does(name):
    theirs, ours = made(name)
    assert list(attributes(flax_nnx, theirs)) == list(attributes(nnx, ours))
    for _ in range(2):
        assert_same_state(theirs, ours)
        assert_equal(theirs.compute(), ours.compute())
        for batch in BATCHES[name]:
            theirs.update(**batch), ours.update(**batch)
            assert_same_state(theirs, ours, 1e-6)
            assert_equal(theirs.compute(), ours.compute(), 1e-6)
        theirs.reset(), ours.reset()


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_in_a_compiled_step_counts_what_flaxs_does(name):
    results = []
    for library, metric in zip((flax_nnx, nnx), made(name), strict=True):

        @library.jit
        def step(metric, batch):
            metric.update(**batch)
            return metric.compute()

        results.append([step(metric, BATCHES[name][0]), step(metric, BATCHES[name][-1]), library.state(metric)])
    assert_equal(*results, 1e-6)


def test_a_metric_in_a_loop_counts_what_flaxs_does():
    def run(library):
        metrics = library.MultiMetric(loss=library.metrics.Average(), spread=library.metrics.Welford())

        @library.scan(in_axes=(library.StateAxes({...: library.Carry}), 0), out_axes=0)
        def steps(metrics, values):
            metrics.update(values=values)
            return metrics.compute()["loss"]

        return steps(metrics, VALUES), metrics.compute()

    assert_equal(*twins(run), 1e-6)


def many(library):
    metrics = library.metrics
    return library.MultiMetric(accuracy=metrics.Accuracy(), loss=metrics.Average(), other=metrics.Average("other"))


MASKS = {"none": None, "one": LABELS > 0, "each": {"accuracy": LABELS > 0, "loss": LABELS > 1}}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_many_metrics_count_and_compute_what_flaxs_do(mask):
    theirs, ours = twins(many)
    batch = {"logits": LOGITS, "labels": LABELS, "values": LOGITS[:, 0], "other": LOGITS[:, 1]}
    batch |= {} if mask is None else {"mask": mask}
    for metrics in (theirs, ours):
        metrics.update(**batch)
    assert_same_state(theirs, ours, 1e-6)
    assert list(theirs.compute()) == list(ours.compute())
    assert_equal(theirs.compute(), ours.compute(), 1e-6)
    assert_equal(theirs.loss.compute(), ours.loss.compute(), 1e-6)
    theirs.reset(), ours.reset()
    assert_same_state(theirs, ours)


def test_metrics_train_with_a_model_like_flaxs():
    def run(library):
        import optax

        model = library.Linear(3, 3, rngs=library.Rngs(0))
        optimizer = library.Optimizer(model, optax.adam(1e-2), wrt=library.Param)
        metrics = library.MultiMetric(loss=library.metrics.Average("loss"), accuracy=library.metrics.Accuracy())

        @library.jit
        def step(model, optimizer, metrics, x, labels):
            def loss_of(model):
                logits = model(x)
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), logits

            (loss, logits), grads = library.value_and_grad(loss_of, has_aux=True)(model)
            metrics.update(loss=loss, logits=logits, labels=labels)
            optimizer.update(model, grads)

        for _ in range(3):
            step(model, optimizer, metrics, LOGITS, LABELS)
        graphdef, state = metrics.split()
        return metrics.compute(), library.merge(graphdef, state).compute()

    assert_equal(*twins(run), 1e-5)


def test_statistics_are_a_frozen_pytree():
    theirs, ours = (library.metrics.Statistics(1.0, 2.0, 3.0) for library in (flax_nnx, nnx))
    assert repr(theirs) == repr(ours)
    assert jax.tree.leaves(theirs) == jax.tree.leaves(ours)
    assert theirs.replace(mean=5.0).mean == ours.replace(mean=5.0).mean
    with pytest.raises(AttributeError):
        ours.mean = 2.0


def test_what_a_metric_counts_is_of_a_kind_of_its_own():
    metric = nnx.metrics.Average()
    assert len(nnx.to_flat_state(nnx.state(metric, nnx.metrics.MetricState))) == 2
    assert isinstance(metric.total, kinds.MetricState)
    assert twin_module("flax.nnx.training.metrics") is nnx.metrics


class Nothing(nnx.Metric):
    def __init__(self):
        pass


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.metrics.Average().update(loss=1.0), TypeError, "Expected keyword argument 'values'"),
        (lambda m: m.metrics.Welford("a").update(), TypeError, "Expected keyword argument 'a'"),
        (lambda m: m.metrics.Average().update(values=1, mask=LABELS), ValueError, "If mask is provided, values should"),
        (lambda m: m.metrics.Accuracy(threshold=1), TypeError, "Expected threshold to be a float, got"),
        (
            lambda m: m.metrics.Accuracy().update(logits=LOGITS, labels=LOGITS),
            ValueError,
            r"For multi-class classification, expected logits.ndim==labels.ndim\+1, got 2 and 2",
        ),
        (
            lambda m: m.metrics.Accuracy(threshold=0.5).update(logits=LOGITS, labels=LABELS),
            ValueError,
            "For binary classification, expected logits.ndim==labels.ndim, got 2 and 1",
        ),
        (
            lambda m: m.metrics.Accuracy().update(logits=LOGITS, labels=LABELS.astype(jnp.uint8)),
            ValueError,
            "Expected labels.dtype==jnp.int32, got uint8",
        ),
        (lambda m: m.Metric(), NotImplementedError, r"Must override `__init__\(\)` method"),
    ],
)
def test_bad_input_is_refused_as_flaxs_class_of_error_in_its_words(call, error, message):
    for library in (flax_nnx, nnx):
        with pytest.raises(error, match=message):
            call(library)


@pytest.mark.parametrize("method", ["reset", "update", "compute"])
def test_a_metric_that_lacks_a_method_says_which(method):
    with pytest.raises(NotImplementedError, match=rf"Must override `{method}\(\)` method: Nothing is a Metric"):
        getattr(Nothing(), method)()


def test_a_metric_cannot_take_the_name_of_a_method():
    with pytest.raises(ValueError, match="a metric cannot be named 'update'"):
        nnx.MultiMetric(update=nnx.metrics.Average())


def test_an_update_that_fails_changes_none_of_the_metrics():
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average(), accuracy=nnx.metrics.Accuracy())
    with pytest.raises(ValueError, match="For multi-class classification"):
        metrics.update(values=VALUES, logits=LOGITS, labels=LOGITS)
    assert not any(jax.tree.leaves(nnx.to_pure_dict(nnx.state(metrics))))
