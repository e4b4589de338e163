"""Metrics that are updated in place: `metric.update(values=losses)` after each batch, `metric.compute()` at the end.

A metric's counts are Variables of the kind `MetricState`, so `nnx.jit`, `nnx.split` and checkpoints treat them like any
state. The records of `weft.metrics` compute the same without mutation, and exactly: here sums are float32 and counts
int32, as in flax.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from weft.core.errors import WeftError
from weft.core.records import kinds
from weft.nnx.config import config
from weft.nnx.errors import UnwrittenMethodError
from weft.nnx.graphs import splitting
from weft.nnx.modules.pytree import Pytree
from weft.nnx.states.filters import Filter
from weft.nnx.states.states import to_flat_state
from weft.nnx.training.trainstate import FrozenRecord
from weft.nnx.variable.variable import Variable

__all__ = ["Accuracy", "Average", "Metric", "MetricState", "MultiMetric", "Statistics", "Welford"]

A = TypeVar("A")


class MetricState(Variable[A], kinds.MetricState):
    """A sum or count of a metric."""


class MetricArgumentError(WeftError, ValueError):
    """Raised for arguments of a wrong shape, dtype or type."""


class MissingArgumentError(WeftError, TypeError):
    """Raised if `update` lacks the argument that a metric reads."""


class ThresholdError(WeftError, TypeError):
    """Raised for a threshold that is no float."""


def _zero(dtype: Any) -> jax.Array:
    return jnp.array(0, dtype=dtype)


class Metric(Pytree):
    """Base class of metrics. A subclass defines `__init__`, `reset`, `update` and `compute`.

    >>> class Largest(Metric):
    ...     def __init__(self):
    ...         self.largest = MetricState(jnp.array(-jnp.inf))
    ...     def reset(self):
    ...         self.largest[...] = jnp.array(-jnp.inf)
    ...     def update(self, *, values, **_):
    ...         self.largest[...] = jnp.maximum(self.largest[...], values.max())
    ...     def compute(self):
    ...         return self.largest[...]
    >>> metric = MultiMetric(largest=Largest(), average=Average())
    >>> metric.update(values=jnp.array([1.0, 5.0]))
    >>> {name: float(value) for name, value in metric.compute().items()}
    {'largest': 5.0, 'average': 3.0}
    """

    def __init__(self) -> None:
        raise _unwritten(self, "__init__")

    def reset(self) -> None:
        """Resets the metric to its initial state.

        Raises:
            NotImplementedError: if the subclass does not define it.
        """
        raise _unwritten(self, "reset")

    def update(self, **kwargs: Any) -> None:
        """Adds a batch.

        Args:
            kwargs: the arguments that the metric reads. It must ignore others: metrics of a `MultiMetric` share them.

        Raises:
            NotImplementedError: if the subclass does not define it.
        """
        raise _unwritten(self, "update")

    def compute(self) -> Any:
        """Computes the result over all updates.

        Raises:
            NotImplementedError: if the subclass does not define it.
        """
        raise _unwritten(self, "compute")

    def split(self, *filters: Filter) -> Any:
        """Splits the metric into its structure and State, as `nnx.split` does.

        >>> metric = Average()
        >>> metric.update(values=jnp.array([1.0, 3.0]))
        >>> graphdef, state = metric.split()
        >>> float(splitting.merge(graphdef, state).compute())
        2.0
        """
        return splitting.split(self, *filters)


def _unwritten(metric: Metric, name: str) -> UnwrittenMethodError:
    return UnwrittenMethodError(
        f"Must override `{name}()` method: {type(metric).__name__} is a Metric and does not define it",
        fix="define __init__, reset, update and compute",
    )


def _read(metric: Metric, argname: str, kwargs: Mapping[str, Any]) -> Any:
    """Returns the values to count: a number, or an object with the methods of an array."""
    if argname not in kwargs:
        name, passed = type(metric).__name__, ", ".join(map(repr, kwargs)) or "none"
        raise MissingArgumentError(
            f"Expected keyword argument {argname!r}, which {name} reads; passed: {passed}",
            fix=f"update({argname}=...), or create {name}({next(iter(kwargs), 'name')!r}) to read another argument",
        )
    values = kwargs[argname]
    return values if isinstance(values, int | float) or hasattr(values, "size") else jnp.asarray(values)


class Average(Metric):
    """The average of values.

    Args:
        argname: the name of the values among the arguments of `update`.

    >>> metric = Average("loss")
    >>> metric.update(loss=jnp.array([1.0, 2.0])), metric.update(loss=6.0)
    (None, None)
    >>> float(metric.compute())
    3.0
    """

    def __init__(self, argname: str = "values"):
        self.argname = argname
        # float32 and int32 as in flax, so that checkpoints of its metrics can be restored here; `weft.metrics` counts
        # exactly.
        self.total = MetricState(_zero(jnp.float32))
        self.count = MetricState(_zero(jnp.int32))

    def reset(self) -> None:
        """Resets the metric to its initial state."""
        self.total[...], self.count[...] = _zero(jnp.float32), _zero(jnp.int32)

    def update(self, mask: jax.Array | None = None, **kwargs: Any) -> None:
        """Adds values: a number, or an array of any shape.

        Args:
            mask: broadcasts against the values; True or 1 selects a value.
            kwargs: the values, under the name `argname`; other arguments are ignored.

        Raises:
            TypeError: if the values are missing.
            ValueError: for a mask, if the values are a Python number.
        """
        values = _read(self, self.argname, kwargs)
        if isinstance(values, int | float):
            if mask is not None:
                raise MetricArgumentError(
                    f"If mask is provided, {self.argname} should be a jax array, not a {type(values).__name__}"
                )
            total, count = values, 1
        elif mask is None:
            # The size is known while tracing, so counting costs no computation.
            total, count = values.sum(), values.size
        else:
            weighted = values * mask.astype(values.dtype)
            total = weighted.sum()
            # A mask that broadcasts counts once for each value that it selects. flax counts the mask's own elements,
            # so its average of ones can be larger than 1.
            counted = mask if config.nnx_flax_faults else jnp.broadcast_to(mask, weighted.shape)
            count = counted.sum().astype(self.count.dtype)
        self.total[...] += total
        self.count[...] += count

    def compute(self) -> jax.Array:
        """Returns the average; NaN without values."""
        return self.total[...] / self.count[...]


class Statistics(FrozenRecord):
    """The result of `Welford`.

    Attributes:
        mean: the mean of all values.
        standard_error_of_mean: the standard deviation divided by the square root of the number of values.
        standard_deviation: the square root of the mean squared distance from the mean.
    """

    mean: Any
    standard_error_of_mean: Any
    standard_deviation: Any


class Welford(Metric):
    """The mean and standard deviation of values, computed in one pass.

    Args:
        argname: the name of the values among the arguments of `update`.

    >>> metric = Welford()
    >>> metric.update(values=jnp.array([1.0, 2.0, 3.0, 4.0]))
    >>> result = metric.compute()
    >>> float(result.mean), round(float(result.standard_deviation), 4)
    (2.5, 1.118)

    Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
    """

    def __init__(self, argname: str = "values"):
        self.argname = argname
        self.count = MetricState(_zero(jnp.int32))
        self.mean = MetricState(_zero(jnp.float32))
        self.m2 = MetricState(_zero(jnp.float32))

    def reset(self) -> None:
        """Resets the metric to its initial state."""
        self.count[...] = _zero(jnp.int32)
        self.mean[...], self.m2[...] = _zero(jnp.float32), _zero(jnp.float32)

    def update(self, **kwargs: Any) -> None:
        """Adds values: a number, or an array of any shape.

        Args:
            kwargs: the values, under the name `argname`; other arguments are ignored.

        Raises:
            TypeError: if the values are missing.
        """
        values = _read(self, self.argname, kwargs)
        is_number = isinstance(values, int | float)
        count, center = (1, values) if is_number else (values.size, values.mean())
        spread = 0.0 if is_number else values.var() * count
        before, after = self.count[...], self.count[...] + count
        # Chan's formula for merging a batch into running moments: summing squares would cancel in float32.
        delta = center - self.mean[...]
        self.count[...] = after
        self.mean[...] += delta * count / after
        self.m2[...] += spread + delta * delta * count * before / after

    def compute(self) -> Statistics:
        """Returns the statistics; the deviations are NaN without values."""
        deviation = (self.m2[...] / self.count[...]) ** 0.5
        return Statistics(self.mean[...], deviation / self.count[...] ** 0.5, deviation)


class Accuracy(Average):
    """The fraction of correct predictions.

    Args:
        threshold: for two classes: a logit of at least this value predicts the positive class. None: the class with
            the largest logit is predicted.
        args, kwargs: as in `Average`.

    Raises:
        TypeError: if the threshold is no float.

    >>> metric = Accuracy()
    >>> metric.update(logits=jnp.array([[0.1, 0.9], [0.8, 0.2]]), labels=jnp.array([1, 1]))
    >>> float(metric.compute())
    0.5
    """

    def __init__(self, threshold: float | None = None, *args: Any, **kwargs: Any):
        if threshold is not None and not isinstance(threshold, float):
            raise ThresholdError(f"Expected threshold to be a float, got {type(threshold).__name__}")
        self.threshold = threshold
        super().__init__(*args, **kwargs)

    def update(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *, logits: jax.Array, labels: jax.Array, mask: jax.Array | None = None, **_: Any
    ) -> None:
        """Adds a batch.

        Args:
            logits: `(*batch, classes)`, or `(*batch,)` with a threshold.
            labels: class indices, `(*batch,)`, int32 or int64; with a threshold, any label > 0 is the positive class.
            mask: broadcasts against `(*batch,)`; True or 1 selects an example.

        Raises:
            ValueError: for other shapes or label dtypes.
        """
        binary = self.threshold is not None
        if logits.ndim != labels.ndim + (not binary):
            kind, more = ("binary", "") if binary else ("multi-class", "+1")
            raise MetricArgumentError(
                f"For {kind} classification, expected logits.ndim==labels.ndim{more}, "
                f"got {logits.ndim} and {labels.ndim}",
                at=[f"logits: {jax.typeof(logits)}", f"labels: {jax.typeof(labels)}"],
                fix="pass class indices, not one-hot vectors; for two classes with one logit, Accuracy(threshold=0.5)",
            )
        # As in flax. A float label equals the index of a class only if no step before has rounded it.
        if labels.dtype not in (jnp.int32, jnp.int64):
            raise MetricArgumentError(f"Expected labels.dtype==jnp.int32, got {labels.dtype}", fix="cast the labels")
        labels = jnp.asarray(labels, jnp.int32)
        threshold = self.threshold
        right = logits.argmax(axis=-1) == labels if threshold is None else (logits >= threshold) == (labels > 0)
        super().update(mask=mask, **{self.argname: right})


class MultiMetric(Metric):
    """Several metrics that are updated together, with the same arguments.

    Args:
        metrics: the metrics by name; each becomes an attribute.

    Raises:
        ValueError: for a name that is a method of `MultiMetric`.

    >>> metrics = MultiMetric(accuracy=Accuracy(), loss=Average("loss"))
    >>> metrics.update(logits=jnp.array([[0.1, 0.9]]), labels=jnp.array([1]), loss=jnp.array([0.25]))
    >>> {name: float(value) for name, value in metrics.compute().items()}
    {'accuracy': 1.0, 'loss': 0.25}
    """

    def __init__(self, **metrics: Any):
        # Each metric becomes an attribute, and would shadow the method of the same name.
        reserved = metrics.keys() & {"reset", "update", "compute"}
        if reserved:
            raise MetricArgumentError(
                f"a metric cannot be named {sorted(reserved)[0]!r}, which is a method of MultiMetric",
                fix="rename the metric",
            )
        self._metric_names = tuple(metrics)
        for name, metric in metrics.items():
            setattr(self, name, metric)

    def reset(self) -> None:
        """Resets all metrics."""
        for name in self._metric_names:
            getattr(self, name).reset()

    def update(self, **updates: Any) -> None:
        """Updates all metrics, or none if one fails.

        Args:
            updates: the arguments of all metrics; each metric gets all of them. `mask` is a mask for all metrics, or a
                dict of masks by metric name.

        Raises:
            TypeError: if an argument is missing.
        """
        mask = updates.pop("mask", None)
        # The raw values are stored before the first update, to restore all metrics if one fails.
        leaves = [leaf for _, leaf in to_flat_state(splitting.state(self, graph=True))]
        before = [(leaf, leaf.get_raw_value()) for leaf in leaves if isinstance(leaf, Variable)]
        try:
            for name in self._metric_names:
                own = mask.get(name) if isinstance(mask, dict) else mask
                getattr(self, name).update(**updates, **({} if own is None else {"mask": own}))
        except BaseException:  # also after an interrupt, no metric may have counted a batch that others lack
            for variable, value in before:
                variable.set_raw_value(value)
            raise

    def compute(self) -> dict[str, Any]:
        """Computes the results of all metrics, by name."""
        return {name: getattr(self, name).compute() for name in self._metric_names}
