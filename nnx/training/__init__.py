"""Training: optimizers over optax, metrics, and moving averages of models."""

from weft.nnx.training import ema as ema
from weft.nnx.training import metrics as metrics
from weft.nnx.training import optimizer as optimizer
from weft.nnx.training.ema import EMA as EMA
from weft.nnx.training.metrics import Metric as Metric
from weft.nnx.training.metrics import MultiMetric as MultiMetric
from weft.nnx.training.optimizer import ModelAndOptimizer as ModelAndOptimizer
from weft.nnx.training.optimizer import OptArray as OptArray
from weft.nnx.training.optimizer import Optimizer as Optimizer
from weft.nnx.training.optimizer import OptState as OptState
from weft.nnx.training.optimizer import OptVariable as OptVariable
