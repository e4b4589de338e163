"""Metrics that are updated in place: `metric.update(values=losses)` after each batch, `metric.compute()` at the end.

What a metric has counted is in Variables of the kind `MetricState`, so that it goes through `nnx.jit`, `nnx.split` and
checkpoints like any state. The records of `weft.metrics` count the same without mutation, and exactly: here
sums are float32 and counts int32, as in flax.
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
    """What a metric has counted so far."""


class MetricArgumentError(WeftError, ValueError):
    """Arguments that a metric cannot count."""


class MissingArgumentError(WeftError, TypeError):
    """An argument that a metric reads, and was not given."""


class ThresholdError(WeftError, TypeError):
    """A threshold that is no float."""


def _zero(dtype: Any) -> jax.Array:
    return jnp.array(0, dtype=dtype)


class Metric(Pytree):
    """Base of metrics; one of your own defines `__init__`, `reset`, `update` and `compute`.

    >>> class Largest(Metric):
    ...     def __init__(self):
    ...         self.found = MetricState(jnp.array(-jnp.inf))
    ...     def reset(self):
    ...         self.found[...] = jnp.array(-jnp.inf)
    ...     def update(self, *, values, **_):
    ...         self.found[...] = jnp.maximum(self.found[...], values.max())
    ...     def compute(self):
    ...         return self.found[...]
    >>> metric = MultiMetric(largest=Largest(), average=Average())
    >>> metric.update(values=jnp.array([1.0, 5.0]))
    >>> {name: float(value) for name, value in metric.compute().items()}
    {'largest': 5.0, 'average': 3.0}
    """

    def __init__(self) -> None:
        raise _unwritten(self, "__init__")

    def reset(self) -> None:
        """Forgets what was counted.

        Raises:
            NotImplementedError: if the metric does not say how.
        """
        raise _unwritten(self, "reset")

    def update(self, **kwargs: Any) -> None:
        """Counts a batch.

        Args:
            kwargs: what the metric reads, and maybe more: metrics that are updated together share their arguments.

        Raises:
            NotImplementedError: if the metric does not say how.
        """
        raise _unwritten(self, "update")

    def compute(self) -> Any:
        """What comes of everything that was counted.

        Raises:
            NotImplementedError: if the metric does not say how.
        """
        raise _unwritten(self, "compute")

    def split(self, *filters: Filter) -> Any:
        """The metric's structure and state, as `nnx.split` gives them.

        >>> metric = Average()
        >>> metric.update(values=jnp.array([1.0, 3.0]))
        >>> graphdef, state = metric.split()
        >>> float(splitting.merge(graphdef, state).compute())
        2.0
        """
        return splitting.split(self, *filters)


def _unwritten(metric: Metric, name: str) -> UnwrittenMethodError:
    return UnwrittenMethodError(
        f"Must override `{name}()` method: {type(metric).__name__} is a Metric and defines none",
        fix="define __init__, reset, update and compute",
    )


def _read(metric: Metric, argname: str, kwargs: Mapping[str, Any]) -> Any:
    """The values to count: a number, or what has the methods of an array."""
    if argname not in kwargs:
        name, given = type(metric).__name__, ", ".join(map(repr, kwargs)) or "none"
        raise MissingArgumentError(
            f"Expected keyword argument {argname!r}, which {name} reads; given: {given}",
            fix=f"update({argname}=...), or {name}({next(iter(kwargs), 'name')!r}), which reads another",
        )
    values = kwargs[argname]
    return values if isinstance(values, int | float) or hasattr(values, "size") else jnp.asarray(values)


class Average(Metric):
    """The average of values.

    Args:
        argname: the argument of `update` that holds them.

    >>> metric = Average("loss")
    >>> metric.update(loss=jnp.array([1.0, 2.0])), metric.update(loss=6.0)
    (None, None)
    >>> float(metric.compute())
    3.0
    """

    def __init__(self, argname: str = "values"):
        self.argname = argname
        self.total = MetricState(_zero(jnp.float32))
        self.count = MetricState(_zero(jnp.int32))

    def reset(self) -> None:
        """Forgets all values."""
        self.total[...], self.count[...] = _zero(jnp.float32), _zero(jnp.int32)

    def update(self, mask: jax.Array | None = None, **kwargs: Any) -> None:
        """Counts values: a number, or an array of any shape.

        Args:
            mask: broadcasts against the values, True or 1 for those that count.
            kwargs: the values by the metric's `argname`; others are left alone.

        Raises:
            TypeError: if the values are missing.
            ValueError: for a mask of a number.
        """
        values = _read(self, self.argname, kwargs)
        if isinstance(values, int | float):
            if mask is not None:
                raise MetricArgumentError(
                    f"If mask is provided, {self.argname} should be a jax array, not a {type(values).__name__}"
                )
            total, count = values, 1
        elif mask is None:
            total, count = values.sum(), values.size
        else:
            weighted = values * mask.astype(values.dtype)
            total = weighted.sum()
            # Of a mask that broadcasts each value counts: else the average of ones could be more than one.
            counted = mask if config.nnx_flax_faults else jnp.broadcast_to(mask, weighted.shape)
            count = counted.sum().astype(self.count.dtype)
        self.total[...] += total
        self.count[...] += count

    def compute(self) -> jax.Array:
        """The average; NaN of nothing."""
        return self.total[...] / self.count[...]


class Statistics(FrozenRecord):
    """What `Welford` computes.

    Attributes:
        mean: of all values.
        standard_error_of_mean: the standard deviation divided by the root of their number.
        standard_deviation: the root of their mean squared distance from the mean.
    """

    mean: Any
    standard_error_of_mean: Any
    standard_deviation: Any


class Welford(Metric):
    """Mean and standard deviation of values, in one pass.

    Args:
        argname: the argument of `update` that holds them.

    >>> metric = Welford()
    >>> metric.update(values=jnp.array([1.0, 2.0, 3.0, 4.0]))
    >>> found = metric.compute()
    >>> float(found.mean), round(float(found.standard_deviation), 4)
    (2.5, 1.118)

    Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979.
    """

    def __init__(self, argname: str = "values"):
        self.argname = argname
        self.count = MetricState(_zero(jnp.int32))
        self.mean = MetricState(_zero(jnp.float32))
        self.m2 = MetricState(_zero(jnp.float32))

    def reset(self) -> None:
        """Forgets all values."""
        self.count[...] = _zero(jnp.int32)
        self.mean[...], self.m2[...] = _zero(jnp.float32), _zero(jnp.float32)

    def update(self, **kwargs: Any) -> None:
        """Counts values: a number, or an array of any shape.

        Args:
            kwargs: the values by the metric's `argname`; others are left alone.

        Raises:
            TypeError: if the values are missing.
        """
        values = _read(self, self.argname, kwargs)
        is_number = isinstance(values, int | float)
        count, center = (1, values) if is_number else (values.size, values.mean())
        spread = 0.0 if is_number else values.var() * count
        before, after = self.count[...], self.count[...] + count
        delta = center - self.mean[...]
        self.count[...] = after
        self.mean[...] += delta * count / after
        self.m2[...] += spread + delta * delta * count * before / after

    def compute(self) -> Statistics:
        """The statistics; the deviations are NaN of nothing."""
        deviation = (self.m2[...] / self.count[...]) ** 0.5
        return Statistics(self.mean[...], deviation / self.count[...] ** 0.5, deviation)


class Accuracy(Average):
    """The share of labels that are predicted right.

    Args:
        threshold: for two classes: a logit at least this large predicts the positive one. None: the largest logit
            predicts its class.
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
        """Counts a batch.

        Args:
            logits: `(*batch, classes)`, or `(*batch,)` with a threshold.
            labels: numbers of classes, `(*batch,)`, int32 or int64; with a threshold, positive ones are of the class.
            mask: broadcasts against `(*batch,)`, True or 1 for those that count.

        Raises:
            ValueError: for other shapes, or labels that are no such integers.
        """
        binary = self.threshold is not None
        if logits.ndim != labels.ndim + (not binary):
            kind, more = ("binary", "") if binary else ("multi-class", "+1")
            raise MetricArgumentError(
                f"For {kind} classification, expected logits.ndim==labels.ndim{more}, "
                f"got {logits.ndim} and {labels.ndim}",
                at=[f"logits: {jax.typeof(logits)}", f"labels: {jax.typeof(labels)}"],
                fix="give class numbers, not one-hots; Accuracy(threshold=0.5) is for two classes with one logit",
            )
        if labels.dtype not in (jnp.int32, jnp.int64):
            raise MetricArgumentError(f"Expected labels.dtype==jnp.int32, got {labels.dtype}", fix="cast the labels")
        labels = jnp.asarray(labels, jnp.int32)
        threshold = self.threshold
        right = logits.argmax(axis=-1) == labels if threshold is None else (logits >= threshold) == (labels > 0)
        super().update(mask=mask, **{self.argname: right})


class MultiMetric(Metric):
    """Metrics that are updated together, from the same arguments.

    Args:
        metrics: the metrics; each is an attribute of its name.

    Raises:
        ValueError: for a name that is a method's.

    >>> metrics = MultiMetric(accuracy=Accuracy(), loss=Average("loss"))
    >>> metrics.update(logits=jnp.array([[0.1, 0.9]]), labels=jnp.array([1]), loss=jnp.array([0.25]))
    >>> {name: float(value) for name, value in metrics.compute().items()}
    {'accuracy': 1.0, 'loss': 0.25}
    """

    def __init__(self, **metrics: Any):
        taken = metrics.keys() & {"reset", "update", "compute"}
        if taken:
            raise MetricArgumentError(
                f"a metric cannot be named {sorted(taken)[0]!r}, which is what MultiMetric itself does",
                fix="give it another name",
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
            updates: what the metrics read; each is given all of it. `mask` is one for all metrics, or a dict of masks
                by the metrics' names.

        Raises:
            TypeError: if something is missing.
        """
        mask = updates.pop("mask", None)
        leaves = [leaf for _, leaf in to_flat_state(splitting.state(self, graph=True))]
        before = [(leaf, leaf.get_raw_value()) for leaf in leaves if isinstance(leaf, Variable)]
        try:
            for name in self._metric_names:
                own = mask.get(name) if isinstance(mask, dict) else mask
                getattr(self, name).update(**updates, **({} if own is None else {"mask": own}))
        except BaseException:  # an interrupt too leaves all or nothing
            for variable, value in before:
                variable.set_raw_value(value)
            raise

    def compute(self) -> dict[str, Any]:
        """What comes of each metric, by its name."""
        return {name: getattr(self, name).compute() for name in self._metric_names}
