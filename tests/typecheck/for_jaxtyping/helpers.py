"""What jaxtyping's own tests import, and its source archive leaves out, over weft or over jaxtyping itself."""

import os

import equinox as eqx
import jax

DOOR = os.environ["CHECKED_BY"]

if DOOR != "jaxtyping":
    import weft
    from weft import ContractError
    from weft.typecheck import contract
    from weft.typecheck.calls.importing import ImportHook

    def method(function):
        """Calls a method of a new class of records; the tests were given their `self` when they were copied."""
        record = type("Record", (weft.Module,), {"__call__": function})()
        return lambda *args, **kwargs: record(*args, **kwargs)

    checker = {"contract": contract, "hook": ImportHook(()).checked, "jit": weft.jit, "method": method}[DOOR]
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
