"""Training: optimizers over optax."""

from weft.nnx.training import optimizer as optimizer
from weft.nnx.training.optimizer import ModelAndOptimizer, OptArray, Optimizer, OptState, OptVariable

__all__ = ["ModelAndOptimizer", "OptArray", "OptState", "OptVariable", "Optimizer", "optimizer"]
