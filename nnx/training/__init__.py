"""Training: optimizers over optax, metrics, and the moving average of a model."""

from weft.nnx.training import ema as ema
from weft.nnx.training import metrics as metrics
from weft.nnx.training import optimizer as optimizer
from weft.nnx.training.ema import EMA
from weft.nnx.training.metrics import Metric, MultiMetric
from weft.nnx.training.optimizer import ModelAndOptimizer, OptArray, Optimizer, OptState, OptVariable

__all__ = [
    "EMA",
    "Metric",
    "ModelAndOptimizer",
    "MultiMetric",
    "OptArray",
    "OptState",
    "OptVariable",
    "Optimizer",
    "ema",
    "metrics",
    "optimizer",
]
