"""Metrics as records: sums over all batches so far, which can be merged.

    metric = weft.metrics.Average()
    metric = metric.update(values=losses)       # the successor
    metric.compute()                            # the value over everything since the start

All of a metric follows from `merge`: `update` merges the metric of one batch, `all_reduce` merges those of several
devices, and two runs can be merged as well. A new metric defines its value for one batch (`of_batch`), the merge of two
metrics (`of_both`) and the result (`compute`). Its fields are of kind `MetricState`, so no filter takes them for
parameters.

Sums and counts are exact far beyond what one float holds (see `exact`): a loss averaged over 2**30 tokens still moves.
The names are those of `flax.nnx.metrics`, as far as they go.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, UInt32
from weft.core.errors import WeftError
from weft.core.records.kinds import MetricState
from weft.core.records.module import Module, static
from weft.core.records.storage import fields_of
from weft.modules.learning.exact import (
    add_counts,
    add_sums,
    count_as_sum,
    count_of,
    exact_sum,
    ratio,
    rounded,
    words_of,
    zero_sum,
)

Sum = Annotated[Float[Array, "2"], MetricState]
Count = Annotated[UInt32[Array, "2"], MetricState]


__all__ = ["Accuracy", "Average", "Metric", "MultiMetric", "Statistics", "Welford", "merge_stack"]


def __dir__() -> list[str]:
    return sorted(__all__)


class MetricError(WeftError, ValueError, TypeError):
    """Raised for arguments that a metric cannot count, and for metrics that cannot be merged."""


class Metric(Module):
    """Base of metrics.

    A subclass has fields of kind `MetricState`, zero at first, and defines `reads`, `of_batch`, `of_both`, `compute`.

    >>> metric = Average().update(values=jnp.array([1.0, 3.0]))
    >>> isinstance(metric, Metric), metric.reads, metric.compute().item()
    (True, ('values',), 2.0)
    """

    @property
    @abc.abstractmethod
    def reads(self) -> tuple[str, ...]:
        """The names of the arguments that `update` takes in addition to `mask`."""

    @abc.abstractmethod
    def of_batch(self, arguments: Mapping[str, Any], mask: Array | None) -> Self:
        """Returns a metric of this kind that has counted one batch only."""

    @abc.abstractmethod
    def of_both(self, metric: Any) -> Self:
        """Returns the metric of everything that this metric and another have counted."""

    @abc.abstractmethod
    def compute(self) -> Any:
        """Returns the value over everything that was counted."""

    def update(self, *, mask: Array | None = None, axis_name: Any = None, **arguments: Any) -> Self:
        """Returns the successor, which has counted one more batch: `metric = metric.update(values=losses)`.

        Args:
            mask: booleans, or integers of which 0 leaves a value out; it broadcasts against the values.
            axis_name: a named axis (of `vmap`, `pmap` or `shard_map`), each index of which holds a part of the batch:
                the successor has counted all parts, and is the same for each index.
            arguments: what the metric reads, by name.

        Raises:
            MetricError: for an argument that is missing, that the metric does not read, or that does not fit.
        """
        _check_names(type(self).__qualname__, self.reads, arguments)
        # A metric only observes. Inside of a loss, its sums would otherwise be differentiated, and keep activations
        # alive.
        batch = self.of_batch(lax.stop_gradient(arguments), mask)
        return self.merge(batch if axis_name is None else batch.all_reduce(axis_name))

    def merge(self, metric: Self) -> Self:
        """Returns the metric of everything that both metrics have counted.

        Raises:
            MetricError: if the other metric has another class or other options.
        """
        if type(self) is not type(metric) or jax.tree.structure(self) != jax.tree.structure(metric):
            mine, theirs = type(self).__qualname__, type(metric).__qualname__
            raise MetricError(
                f"a {mine} merges with a metric of the same class, names and options, not with this {theirs}",
                at=[str(jax.tree.structure(self)), str(jax.tree.structure(metric))],
                fix="construct both in the same way",
            )
        return self.of_both(metric)

    def reset(self) -> Self:
        """Returns the same metric with nothing counted."""
        return jax.tree.map(jnp.zeros_like, self)

    def all_reduce(self, axis_name: Any) -> Self:
        """Merges the metrics of all indices of a named axis, for metrics that *started empty* inside of the axis.

        Anything counted before the axis was entered would count once for each index: use `update(axis_name=)` for a
        metric that goes on.

        Args:
            axis_name: a name, or a tuple of names.
        """
        index, size = lax.axis_index(axis_name), lax.axis_size(axis_name)

        def gather(leaf: Array) -> Array:
            # A `psum` in which each index fills its own row, and not `all_gather`: `shard_map` knows that the result of
            # `psum` is the same on all devices, and sums with zeros are exact.
            rows = jnp.zeros((size, *leaf.shape), leaf.dtype).at[index].set(leaf)
            return lax.psum(rows, axis_name)

        return merge_stack(jax.tree.map(gather, self))


def merge_stack(stack: Any) -> Any:
    """Merges many metrics, stacked in one record along a leading axis as `vmap` and `scan` return them.

    >>> stack = jax.vmap(lambda values: Average().update(values=values))(jnp.arange(6.0).reshape(3, 2))
    >>> float(merge_stack(stack).compute())
    2.5
    """
    first, rest = jax.tree.map(lambda leaf: leaf[0], stack), jax.tree.map(lambda leaf: leaf[1:], stack)
    # In a fixed order, so that all devices get the same bits.
    return lax.scan(lambda merged, metric: (merged.merge(metric), None), first, rest)[0]


class Average(Metric):  # weft: skip(the names of arguments are given at run time)
    """The average of values.

    Args:
        argname: the argument of `update` that holds them, "values" if not given.

    >>> metric = Average()
    >>> metric = metric.update(values=jnp.array([1, 2, 3, 4])).update(values=jnp.array([3, 2, 1, 0]))
    >>> float(metric.compute())
    2.0
    >>> metric = Average("loss").update(loss=jnp.array([1.0, 5.0]), mask=jnp.array([True, False]))
    >>> float(metric.compute())
    1.0
    """

    total: Sum
    count: Count
    argname: str = static()

    def __init__(self, argname: str = "values"):
        self.argname = argname
        self.total, self.count = zero_sum(), count_of(0)

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.argname,)

    def of_batch(self, arguments: Mapping[str, Any], mask: Array | None) -> Self:
        """Returns a metric with the sum and the number of the values of one batch."""
        values, mask, count = _counted(arguments[self.argname], mask, self.argname)
        return self.replace(total=_masked_sum(values, mask, self.total.dtype), count=count)

    def of_both(self, metric: Any) -> Self:
        """Returns the average over the values of both metrics."""
        return self.replace(total=add_sums(self.total, metric.total), count=add_counts(self.count, metric.count))

    def compute(self) -> Float[Array, ""]:
        """Returns the average; NaN before the first value."""
        return ratio(self.total, self.count)


class Accuracy(Average):  # weft: skip(the names of arguments are given at run time)
    """The share of labels that are predicted right.

    Args:
        threshold: for two classes: a logit at least this large predicts the positive one. None: the largest logit
            predicts its class.

    >>> logits = jnp.array([[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]])
    >>> metric = Accuracy().update(logits=logits, labels=jnp.array([1, 0, 0]))
    >>> round(float(metric.compute()), 4)
    0.6667
    >>> metric = Accuracy(threshold=0.5).update(logits=jnp.array([0.2, 0.7]), labels=jnp.array([0, 1]))
    >>> float(metric.compute())
    1.0
    """

    threshold: float | None = static()

    def __init__(self, threshold: float | None = None):
        super().__init__()
        self.threshold = threshold

    @property
    def reads(self) -> tuple[str, ...]:
        # Logits (*batch, classes), or (*batch,) with a threshold, and integer labels (*batch,).
        return ("logits", "labels")

    def of_batch(self, arguments: Mapping[str, Any], mask: Array | None) -> Self:
        """Returns a metric with the number of labels of one batch, and of those predicted right."""
        logits, labels = jnp.asarray(arguments["logits"]), jnp.asarray(arguments["labels"])
        expected = logits.shape if self.threshold is not None else logits.shape[:-1]
        if labels.shape != expected or (self.threshold is None and not logits.ndim):
            raise MetricError(
                "labels do not fit logits",
                at=[f"logits: {jax.typeof(logits)}", f"labels: {jax.typeof(labels)}"],
                fix="logits (*batch, classes) with labels (*batch,); with a threshold, both of one shape",
            )
        if not (jnp.issubdtype(labels.dtype, jnp.integer) or labels.dtype == bool):
            raise MetricError(
                f"labels must be integers, one class index each, not {labels.dtype}",
                at=f"labels: {jax.typeof(labels)}",
                fix="labels.astype(int); one-hot labels: labels.argmax(-1)",
            )
        if self.threshold is not None:
            right = (logits >= self.threshold) == (labels > 0)
        else:
            # Compared in int32 at least: in uint8, class 256 would equal class 0.
            dtype = jnp.promote_types(labels.dtype, jnp.int32)
            right = jnp.argmax(logits, axis=-1).astype(dtype) == labels.astype(dtype)
        return super().of_batch({self.argname: right}, mask)


class Statistics(NamedTuple):
    """The result of `Welford`: scalars, which are NaN before the first value.

    >>> statistics = Welford().update(values=jnp.array([1.0, 3.0])).compute()
    >>> statistics.mean.item(), statistics.standard_deviation.item()
    (2.0, 1.0)
    """

    mean: Float[Array, ""]
    standard_error_of_mean: Float[Array, ""]
    standard_deviation: Float[Array, ""]


class Welford(Metric):  # weft: skip(the names of arguments are given at run time)
    """Mean and standard deviation of values, without keeping them.

    Args:
        argname: the argument of `update` that holds them, "values" if not given.

    >>> metric = Welford().update(values=jnp.array([1, 2, 3, 4])).update(values=jnp.array([3, 2, 1, 0]))
    >>> [round(float(number), 6) for number in metric.compute()]
    [2.0, 0.433013, 1.224745]

    Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
    """

    count: Count
    mean: Sum
    m2: Sum
    argname: str = static()

    def __init__(self, argname: str = "values"):
        self.argname = argname
        self.count, self.mean, self.m2 = count_of(0), zero_sum(), zero_sum()

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.argname,)

    def of_batch(self, arguments: Mapping[str, Any], mask: Array | None) -> Self:
        """Returns a metric with the mean and the sum of squared deviations of one batch."""
        values, mask, count = _counted(arguments[self.argname], mask, self.argname)
        dtype = self.mean.dtype
        # Two passes: deviations from a point near the mean are small, so their squares lose no digits. The mean of the
        # deviations then corrects the point.
        offset = _or_zero(ratio(_masked_sum(values, mask, dtype), count), count)
        high, low = words_of(values, dtype)
        deviations = (high - offset) + low
        off, number = _masked_sum(deviations, mask, dtype), count_as_sum(count, dtype)
        shift = _or_zero(ratio(off, count), count)
        squares = _masked_sum(deviations * deviations, mask, dtype)
        mended = add_sums(squares, jnp.stack([-(shift * shift * rounded(number)), jnp.zeros((), dtype)]))
        mean = add_sums(jnp.stack([offset, jnp.zeros((), dtype)]), jnp.stack([shift, jnp.zeros((), dtype)]))
        return self.replace(count=count, mean=mean, m2=jnp.where(mended[0] < 0, jnp.zeros_like(mended), mended))

    def of_both(self, metric: Any) -> Self:
        """Returns the statistics of the values of both metrics."""
        dtype, count = self.mean.dtype, add_counts(self.count, metric.count)
        mine, theirs, both = (rounded(count_as_sum(n, dtype)) for n in (self.count, metric.count, count))
        none = jnp.zeros((), dtype)
        # Two empty metrics would divide 0 by 0, and NaN would stay in the mean for ever.
        share = jnp.where(both > 0, theirs / both, none)
        difference = rounded(add_sums(metric.mean, -self.mean))
        # The correction is small compared with the mean, so one float is exact enough for it.
        mean = add_sums(self.mean, jnp.stack([difference * share, none]))
        m2 = add_sums(add_sums(self.m2, metric.m2), jnp.stack([difference * difference * mine * share, none]))
        # An empty metric takes the other's mean, which is a pair: the correction would round it to one float.
        return self.replace(count=count, mean=jnp.where(mine > 0, mean, metric.mean), m2=m2)

    def compute(self) -> Statistics:
        """Returns mean, standard error of the mean, and standard deviation (of the values, not of a sample)."""
        deviation = jnp.sqrt(ratio(self.m2, self.count))
        number = rounded(count_as_sum(self.count, self.mean.dtype))
        mean = jnp.where(number > 0, rounded(self.mean), jnp.nan)
        return Statistics(mean, deviation / jnp.sqrt(number), deviation)


class MultiMetric(Metric):  # weft: skip(the names of arguments are given at run time)
    """Several metrics that are updated by one call; each takes the arguments that it reads.

    Args:
        metrics: the metrics by name; `compute` returns their values, and attributes the metrics, under these names.

    Raises:
        MetricError: if one of them is not a metric, or has the name of an attribute of MultiMetric.

    >>> metrics = MultiMetric(accuracy=Accuracy(), loss=Average("loss"))
    >>> metrics = metrics.update(logits=jnp.array([[0.0, 1.0]]), labels=jnp.array([1]), loss=0.5)
    >>> {name: float(value) for name, value in metrics.compute().items()}
    {'accuracy': 1.0, 'loss': 0.5}
    >>> float(metrics.loss.compute())
    0.5
    """

    metrics: dict[str, Metric]

    def __init__(self, **metrics: Metric):
        for name, metric in metrics.items():
            if not isinstance(metric, Metric):
                raise MetricError(
                    f"{name} must be a metric, not a {type(metric).__qualname__}", fix=f"{name}=Average()"
                )
            if hasattr(type(self), name) or name == "metrics":
                raise MetricError(
                    f"{name!r} is an attribute of MultiMetric, so no metric can have this name", fix="rename it"
                )
        self.metrics = metrics

    def __getattr__(self, name: str) -> Metric:
        # Python calls this for names that are not fields. While `__init__` runs, the field `metrics` does not exist
        # yet, and reading it would call this method again.
        metrics = {} if name.startswith("__") else fields_of(self).get("metrics", {})
        if name in metrics:
            return self.metrics[name]
        raise AttributeError(f"MultiMetric has no metric {name!r}; it has {', '.join(metrics) or 'none'}")

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for metric in self.metrics.values() for name in metric.reads))

    def of_batch(self, arguments: Mapping[str, Any], mask: Array | None) -> Self:
        """Returns each metric after one batch."""
        return self.replace(
            metrics={
                name: metric.of_batch({argument: arguments[argument] for argument in metric.reads}, mask)
                for name, metric in self.metrics.items()
            }
        )

    def of_both(self, metric: Any) -> Self:
        """Returns each metric merged with the other's metric of the same name."""
        return self.replace(metrics={name: mine.merge(metric.metrics[name]) for name, mine in self.metrics.items()})

    def compute(self) -> dict[str, Any]:
        """Returns the values of the metrics, by name."""
        return {name: metric.compute() for name, metric in self.metrics.items()}


def _check_names(owner: str, reads: tuple[str, ...], arguments: Mapping[str, Any]) -> None:
    missing = [name for name in reads if name not in arguments]
    unread = [name for name in arguments if name not in reads]
    if missing:
        raise MetricError(
            f"{owner}.update needs {', '.join(missing)}", fix=f"update({', '.join(f'{n}=' for n in reads)})"
        )
    # A misspelt `mask` would be ignored, and padding would count for a whole run.
    if unread:
        raise MetricError(
            f"this {owner} reads no argument {', '.join(unread)}",
            fix=f"it reads {', '.join(reads)}; Average({unread[0]!r}) would read {unread[0]}",
        )


def _counted(values: Any, mask: Any, name: str) -> tuple[Array, Array | None, UInt32[Array, "2"]]:
    """Returns the values, their mask, and the number of values that the mask keeps."""
    values = jnp.asarray(values)
    if jnp.issubdtype(values.dtype, jnp.complexfloating):
        raise MetricError(f"{name} are complex, but a metric takes real numbers", at=f"{name}: {jax.typeof(values)}")
    if mask is None:
        return values, None, count_of(values.size)
    mask = jnp.asarray(mask)
    # A float mask may be meant as weights, which a count of values would silently ignore.
    if not (mask.dtype == bool or jnp.issubdtype(mask.dtype, jnp.integer)):
        raise MetricError(
            f"a mask must be boolean or integer, not {mask.dtype}",
            at=f"mask: {jax.typeof(mask)}",
            fix="mask=mask != 0; for weights, divide an Average of values * weights by an Average of weights",
        )
    try:
        mask = jnp.broadcast_to(mask != 0, values.shape)
    except ValueError:
        raise MetricError(
            f"the mask does not broadcast against {name}",
            at=[f"mask: {jax.typeof(mask)}", f"{name}: {jax.typeof(values)}"],
            fix="give it the shape of the values, with size 1 on axes along which it is constant",
        ) from None
    return values, mask, count_of(jnp.sum(mask, dtype=jnp.uint32))


def _masked_sum(values: Array, mask: Array | None, dtype: Any) -> Float[Array, "2"]:
    # A `where` and not a product with the mask: padding may be NaN, and 0 * NaN is NaN.
    return exact_sum(values if mask is None else jnp.where(mask, values, jnp.zeros_like(values)), dtype)


def _or_zero(value: Array, count: UInt32[Array, "2"]) -> Array:
    return jnp.where((count[0] | count[1]) > 0, value, jnp.zeros_like(value))
