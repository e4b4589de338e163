"""Metrics: what flax says of the same batches, merging in any order, and nothing lost however much is counted."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from weft.errors import MetricError
from weft.metrics import Accuracy, Average, MultiMetric, Welford, merge_stack
from weft.modules.learning.exact import count_of

pytestmark = pytest.mark.slow

VALUES = jax.random.normal(jax.random.key(0), (4, 6))
LOGITS = jax.random.normal(jax.random.key(1), (4, 6, 3))
LABELS = jax.random.randint(jax.random.key(2), (4, 6), 0, 3)


def many():
    return MultiMetric(accuracy=Accuracy(), loss=Average("loss"), spread=Welford("loss"))


def fed(metric, rows):
    for i in rows:
        metric = metric.update(loss=VALUES[i], logits=LOGITS[i], labels=LABELS[i])
    return metric


def close(actual, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-6), actual, expected)


def test_metrics_are_those_of_flax():
    theirs = nnx.MultiMetric(
        accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"), spread=nnx.metrics.Welford("loss")
    )
    for i in range(4):
        theirs.update(loss=VALUES[i], logits=LOGITS[i], labels=LABELS[i])
    ours, expected = fed(many(), range(4)).compute(), theirs.compute()
    close(ours["accuracy"], expected["accuracy"])
    close(ours["loss"], expected["loss"])
    for name in ("mean", "standard_error_of_mean", "standard_deviation"):
        close(getattr(ours["spread"], name), getattr(expected["spread"], name))


@pytest.mark.parametrize("mask", [LABELS[0] > 0, (LABELS[0] > 0).astype(int)], ids=["bool", "int"])
def test_masked_values_do_not_count_whatever_they_are(mask):
    poisoned = jnp.where(LABELS[0] > 0, VALUES[0], jnp.nan)
    counted = VALUES[0][LABELS[0] > 0]
    close(Average().update(values=poisoned, mask=mask).compute(), jnp.mean(counted))
    close(Welford().update(values=poisoned, mask=mask).compute()[::2], (jnp.mean(counted), jnp.std(counted)))
    right = (LOGITS[0].argmax(-1) == LABELS[0])[LABELS[0] > 0]
    close(Accuracy().update(logits=LOGITS[0], labels=LABELS[0], mask=mask).compute(), jnp.mean(right))


def test_a_mask_that_broadcasts_counts_every_value_that_it_lets_in():
    metric = Average().update(values=VALUES, mask=jnp.array([True, False, True, True])[:, None])
    close(metric.compute(), jnp.mean(VALUES[jnp.array([0, 2, 3])]))


def test_accuracy_of_two_classes_goes_by_a_threshold():
    labels = jnp.array([0, 1, 0, 1, 1])
    logits = jnp.array([0.2, 0.7, 0.6, 0.5, 0.1])
    theirs = nnx.metrics.Accuracy(threshold=0.5)
    theirs.update(logits=logits, labels=labels)
    close(Accuracy(threshold=0.5).update(logits=logits, labels=labels > 0).compute(), theirs.compute())


def test_metrics_merge_in_any_order_to_the_same():
    first, second = fed(many(), [0]), fed(many(), [1, 2, 3])
    whole = fed(many(), range(4)).compute()
    close(first.merge(second).compute(), whole)
    close(second.merge(first).compute(), whole)
    close(many().merge(first).merge(many()).merge(second).compute(), whole)


def test_update_returns_a_successor_and_reset_starts_anew():
    metric = Average()
    after = metric.update(values=VALUES)
    assert np.isnan(metric.compute())
    assert float(after.compute()) == pytest.approx(float(VALUES.mean()), rel=1e-6)
    assert np.isnan(after.reset().compute())
    assert jax.tree.structure(after.reset()) == jax.tree.structure(metric)
    assert all(np.isnan(number) for number in Welford().compute())


def test_a_count_beyond_what_a_float_or_an_int32_holds_is_not_lost():
    full = Average().replace(count=count_of(2**32 - 1), total=jnp.array([2.0**32, -1.0]))
    after = full.update(values=jnp.array([1.0, 1.0]))
    assert after.count.tolist() == [1, 1]
    assert float(after.total[0]) + float(after.total[1]) == 2**32 + 1
    assert float(after.compute()) == 1.0


def test_a_sum_beyond_2_to_the_24_still_moves():
    @jax.jit
    def steps(metric):
        return jax.lax.fori_loop(0, 1000, lambda _, metric: metric.update(values=1.0), metric)

    full = Average().replace(count=count_of(2**26), total=jnp.array([0.0, 0.0]))
    # A thousand ones: a float32 would stand still at 2**26.
    after = steps(full.replace(total=jnp.array([2.0**26, 0.0])))
    assert float(after.total[0]) + float(after.total[1]) == 2**26 + 1000
    assert np.float32(2.0**26) + np.float32(1) == np.float32(2.0**26)


def test_large_integers_are_averaged_exactly():
    values = jnp.array([2**30 + 1, 2**30 + 3], jnp.int32)
    metric = Average().update(values=values)
    assert Fraction(float(metric.total[0])) + Fraction(float(metric.total[1])) == 2**31 + 4
    _, _, deviation = Welford().update(values=values).compute()
    assert float(deviation) == 1.0


def test_the_mean_of_many_batches_is_not_worn_away():
    def run(metric, draws):
        def step(metric, key):
            return metric.update(values=1000.0 + jax.random.uniform(key, (8,))), None

        return jax.lax.scan(step, metric, draws)[0]

    keys = jax.random.split(jax.random.key(3), 3000)
    values = np.asarray(jax.vmap(lambda key: 1000.0 + jax.random.uniform(key, (8,)))(keys), np.float64)
    mean, _, deviation = jax.jit(run)(Welford(), keys).compute()
    assert float(mean) == pytest.approx(values.mean(), rel=1e-7)
    assert float(deviation) == pytest.approx(values.std(), rel=1e-5)
    assert float(jax.jit(run)(Average(), keys).compute()) == pytest.approx(values.mean(), rel=6e-8)


def test_parts_of_a_batch_under_a_mapped_axis_are_one_batch():
    begun = fed(many(), [0])

    def update(metric, loss, logits, labels):
        return metric.update(loss=loss, logits=logits, labels=labels, axis_name="batch")

    rows = (VALUES[1:], LOGITS[1:], LABELS[1:])
    after = weft.vmap(update, in_axes=(None, 0, 0, 0), out_axes=None, axis_name="batch")(begun, *rows)
    close(after.compute(), fed(begun, [1, 2, 3]).compute())


def test_metrics_of_devices_reduce_to_one():
    mesh = Mesh(np.array(jax.devices()[:4]), ("batch",))
    spec = PartitionSpec("batch")

    def shard(loss, logits, labels):
        return many().update(loss=loss, logits=logits, labels=labels).all_reduce("batch")

    on_devices = weft.jit(weft.shard_map(shard, mesh=mesh, in_specs=spec, out_specs=PartitionSpec()))
    close(on_devices(VALUES, LOGITS, LABELS).compute(), fed(many(), range(4)).compute())


def test_sharded_arrays_under_jit_are_counted_as_a_whole():
    mesh = Mesh(np.array(jax.devices()[:4]), ("batch",))
    rows = [jax.device_put(one, NamedSharding(mesh, PartitionSpec("batch"))) for one in (VALUES, LOGITS, LABELS)]

    @weft.jit(donate_argnums=0)
    def step(metric, loss, logits, labels):
        return metric.update(loss=loss, logits=logits, labels=labels)

    close(step(many(), *rows).compute(), fed(many(), range(4)).compute())


def test_a_stack_of_metrics_merges_to_one():
    stack = weft.vmap(lambda row: many().update(loss=VALUES[row], logits=LOGITS[row], labels=LABELS[row]))(
        jnp.arange(4)
    )
    close(merge_stack(stack).compute(), fed(many(), range(4)).compute())


def test_a_metric_is_no_parameter_and_rides_along_in_a_loss():
    model = {"w": jnp.ones(3), "metric": many()}
    assert jax.tree.leaves(weft.tree.select(model, weft.Param))[0] is model["w"]
    assert len(jax.tree.leaves(weft.tree.select(model, weft.MetricState))) == 7

    def loss(w, metric):
        value = jnp.sum(w**2)
        return value, metric.update(values=value)

    gradient, metric = weft.jit(weft.grad(loss, has_aux=True))(model["w"], Average())
    np.testing.assert_array_equal(gradient, 2 * model["w"])
    assert float(metric.compute()) == 3.0


def test_a_multi_metric_gives_its_metrics_by_name():
    metrics = fed(many(), [0])
    close(metrics.loss.compute(), metrics.compute()["loss"])
    with pytest.raises(AttributeError, match="MultiMetric has no metric 'los'; it has accuracy, loss, spread"):
        _ = metrics.los


def test_a_metric_of_a_users_own_merges_and_reduces_like_the_others():
    class Largest(weft.metrics.Metric):
        value: weft.metrics.Sum

        @property
        def reads(self):
            return ("values",)

        def of_batch(self, arguments, mask):
            return self.replace(value=jnp.max(arguments["values"], keepdims=True).reshape(1).repeat(2))

        def of_both(self, metric):
            return self.replace(value=jnp.maximum(self.value, metric.value))

        def compute(self):
            return self.value[0]

    largest = weft.vmap(
        lambda row: Largest(jnp.zeros(2)).update(values=row, axis_name="rows"), axis_name="rows", out_axes=None
    )(VALUES)
    assert float(largest.compute()) == float(VALUES.max())


BAD = [
    (lambda: Average().update(value=1.0), "Average.update needs values"),
    (lambda: Average().update(values=1.0, loss=2.0), "this Average reads no argument loss"),
    (lambda: many().update(loss=1.0), "MultiMetric.update needs logits, labels"),
    (lambda: Average().update(values=1j), "values are complex"),
    (
        lambda: Average().update(values=VALUES, mask=VALUES),
        "a mask must be boolean or integer, not float32",
    ),
    (lambda: Average().update(values=VALUES, mask=jnp.ones(5, bool)), "the mask does not broadcast against values"),
    (lambda: Accuracy().update(logits=VALUES, labels=LABELS), "labels do not fit logits"),
    (lambda: Accuracy(0.5).update(logits=LOGITS, labels=LABELS), "labels do not fit logits"),
    (
        lambda: Accuracy().update(logits=LOGITS, labels=VALUES),
        "labels must be integers, one class index each, not float32",
    ),
    (lambda: Average().merge(Average("loss")), "merges with a metric of the same class, names and options"),
    (lambda: Average().merge(Accuracy()), "same class, names and options, not with this Accuracy"),
    (lambda: MultiMetric(compute=Average()), "'compute' is an attribute of MultiMetric"),
    (lambda: MultiMetric(loss=1.0), "loss must be a metric, not a float"),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message for _, message in BAD])
def test_what_cannot_be_counted_is_refused(call, message, unchecked):
    with pytest.raises(MetricError, match=message):
        call()
