"""metrax, as its users call it: metrics that are NNX objects without being pytrees, updated eagerly."""

import jax
import jax.numpy as jnp
import metrax.nnx as metrics
from flax import nnx

LOGITS = jax.random.uniform(jax.random.key(0), (12,))
LABELS = (LOGITS + 0.3 * jax.random.normal(jax.random.key(1), (12,)) > 0.5).astype(jnp.int32)
BINARY = ["AUCPR", "AUCROC", "Precision", "Recall", "Accuracy", "MSE", "RMSE", "MAE", "RSQUARED"]

for name in BINARY:
    metric = getattr(metrics, name)()
    print(name, isinstance(metric, nnx.metrics.Metric), sorted(key for key in vars(metric) if not key.startswith("_")))
    for part in (slice(0, 6), slice(6, 12)):
        metric.update(predictions=LOGITS[part], labels=LABELS[part])
    print(name, f"{float(metric.compute()):.4f}")
    metric.reset()
    metric.update(predictions=LOGITS, labels=LABELS)
    print(name, f"{float(metric.compute()):.4f}")

average = metrics.Average()
average.update(values=jnp.array([1.0, 2.0, 6.0]))
print("Average", float(average.compute()))
perplexity = metrics.Perplexity()
perplexity.update(predictions=jax.nn.softmax(jnp.arange(24.0).reshape(2, 3, 4)), labels=jnp.ones((2, 3), jnp.int32))
print("Perplexity", f"{float(perplexity.compute()):.3f}")
together = nnx.MultiMetric(mse=metrics.MSE(), mae=metrics.MAE())
together.update(predictions=LOGITS, labels=LABELS)
print({name: f"{float(value):.4f}" for name, value in together.compute().items()})
try:
    nnx.jit(lambda metric: metric.update(predictions=LOGITS, labels=LABELS))(metrics.MSE())
    print("in jit")
except Exception as error:
    print("in jit", next(base.__name__ for base in type(error).__mro__ if base.__module__ == "builtins"))
