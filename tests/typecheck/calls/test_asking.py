"""What a call has bound, for `isinstance(y, Float[Array, "n"])` in its body: the same at every door."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest
import weft
from jaxtyping import Array, Float, print_bindings
from weft import ContractError
from weft.typecheck import contract


def _sized(size: int, out: int) -> Callable[[Any], Any]:
    def asks(x: Float[Array, "n"]) -> Float[Array, "m"]:
        if not isinstance(jnp.ones(size), Float[Array, "n+1"]):
            raise LookupError("n is another in the body")
        assert isinstance(jnp.ones(2), Float[Array, "m"])
        print_bindings()
        return jnp.ones(out)

    return asks


class Record(weft.Module):
    weight: Float[Array, "n"]

    def __call__(self, size: int, out: int) -> Float[Array, "m"]:
        if not isinstance(jnp.ones(size), Float[Array, "n+1"]):
            raise LookupError("n is another in the body")
        assert isinstance(jnp.ones(2), Float[Array, "m"])
        print_bindings()
        return jnp.ones(out)


DOORS: dict[str, Callable[[int, int], Any]] = {
    "contract": lambda size, out: contract(_sized(size, out))(jnp.ones(3)),
    "weft.jit": lambda size, out: weft.jit(_sized(size, out))(jnp.ones(3)),
    "a record's method": lambda size, out: Record(jnp.ones(3))(size, out),
    "a record's method in weft.jit": lambda size, out: weft.jit(lambda r: r(size, out))(Record(jnp.ones(3))),
}


@pytest.mark.parametrize("door", DOORS)
def test_what_a_call_has_bound_holds_in_its_body_and_back(door: str, capsys: pytest.CaptureFixture[str]):
    assert DOORS[door](4, 2).shape == (2,)
    assert "n=3\nm=2" in capsys.readouterr().out
    with pytest.raises(LookupError, match="n is another in the body"):
        DOORS[door](3, 2)
    with pytest.raises(ContractError, match="m is 3 in the returned value, and has another size in the body"):
        DOORS[door](4, 3)
    assert isinstance(jnp.ones(9), Float[Array, "n"])  # no context stays open after a call that failed
