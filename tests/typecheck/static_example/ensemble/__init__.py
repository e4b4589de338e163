"""A small package written with weft, as a user would: it must pass pyright and mypy in their strict modes."""

from ensemble.layers import Encoder, Linear, RunningNorm
from ensemble.training import apply_ensemble, evaluate, make_ensemble, train_step

__all__ = ["Encoder", "Linear", "RunningNorm", "apply_ensemble", "evaluate", "make_ensemble", "train_step"]
