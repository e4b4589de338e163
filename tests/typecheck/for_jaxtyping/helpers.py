"""What jaxtyping's own tests import, and its source archive leaves out, over weft or over jaxtyping itself."""

import os

import equinox as eqx
import jax

if os.environ["CHECKED_BY"] == "weft":
    from weft import ContractError
    from weft.typecheck import contract

    checker = contract
    ParamError = ReturnError = ContractError
else:
    from beartype import beartype
    from beartype.roar import BeartypeCallHintParamViolation, BeartypeCallHintReturnViolation
    from jaxtyping import TypeCheckError

    checker = beartype
    # Under jaxtyping's hook its own error is raised, with beartype's as the cause.
    ParamError = (BeartypeCallHintParamViolation, TypeCheckError)
    ReturnError = (BeartypeCallHintReturnViolation, TypeCheckError)


def make_mlp(key=None):
    """A small network."""
    return eqx.nn.MLP(2, 2, 2, 2, key=jax.random.key(0) if key is None else key)
