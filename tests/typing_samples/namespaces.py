"""What static checkers see of the namespaces: each comment is the type that they must reveal."""

from typing import reveal_type

import jax
import weft
import weft.tree  # error: could not be resolved from source
from weft.debug import watch  # error: could not be resolved from source
from weft.errors import AxisError, ConfigError
from weft.filters import Inside, Not  # error: could not be resolved from source
from weft.metrics import Average  # error: could not be resolved from source
from weft.ops import linear  # error: could not be resolved from source
from weft.tree import map, update  # error: could not be resolved from source


def names(model: weft.MLP) -> None:
    reveal_type(update(model))  # MLP
    reveal_type(map(jax.numpy.ones_like, model))  # MLP
    reveal_type(weft.tree.unstack(model))  # list[MLP]
    reveal_type(AxisError("no").fix)  # str | None
    reveal_type(weft.errors.ConfigError("no").what)  # str
    reveal_type(Not(Inside("a")))  # Not
    reveal_type(weft.filters.Maybe("a"))  # Maybe
    reveal_type(Average())  # Average
    reveal_type(weft.ContractError("no"))  # ContractError
    print(watch, linear, ConfigError, weft.debug.explain_retraces)
    weft.split(model)  # error: "split" is not a known attribute of module "weft"
    weft.errors.WeftError("no")  # error: "WeftError" is not a known attribute of module "weft.errors"
