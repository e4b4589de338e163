"""What the errors of `nonfinite` and `debug_keys` say: operands, signs, hints that fit, transforms of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft

X = jnp.array([1.0, 2.0, 3.0])

# The program, its argument, what the error says and what it does not.
NONFINITE: dict[str, tuple[Callable[[Any], Any], Any, list[str], list[str]]] = {
    "the operand of a softmax": (
        lambda x: jax.nn.softmax(jnp.where(x > 9, x, -jnp.inf)),
        X,
        ["inputs: jnp.where(x > 9, x, -jnp.inf) f32[3], 3 of 3 are -inf", "a row that is masked as a whole"],
        ["inputs: -1"],
    ),
    "minus infinity": (lambda x: jnp.log(x * 0), X, ["log of 0 gives -inf"], []),
    "infinity": (lambda x: 1 / (x * 0), X, ["gives inf,"], ["-inf"]),
    "log of a negative number": (
        lambda x: jnp.log(-x),
        X,
        ["log of -1 gives nan", "log is finite above 0"],
        [" at 0", "log of 0"],
    ),
    "square root of a negative number": (lambda x: jnp.sqrt(-x), X, ["sqrt of -1 gives nan"], [" at 0"]),
    "a matrix without an inverse": (
        jnp.linalg.inv,
        jnp.zeros((2, 2)),
        ["gives nan", "f32[2,2] min 0 max 0"],
        ["vmap", "example"],
    ),
}


@pytest.mark.parametrize("name", NONFINITE)
def test_the_error_about_a_number_speaks_of_the_users_program(name: str):
    program, argument, said, unsaid = NONFINITE[name]
    with pytest.raises(weft.errors.NonFiniteError) as caught:
        weft.debug.nonfinite(weft.jit(program))(argument)
    text = str(caught.value)
    assert [part for part in said if part not in text] == [], text
    assert [part for part in unsaid if part in text] == [], text


def test_a_vmap_of_the_users_own_is_told():
    with pytest.raises(weft.errors.NonFiniteError, match="vmap"):
        weft.debug.nonfinite(weft.jit(weft.vmap(lambda x: jnp.log(x))))(X - 1)


class Twice(weft.Module):
    first: weft.Dropout
    second: weft.Dropout

    def __call__(self, x: Any, key: Any) -> Any:
        return self.second(self.first(x, key=key), key=key)


def test_a_key_that_is_used_twice_is_told_with_both_layers_and_without_the_program():
    model = Twice(weft.Dropout(0.5), weft.Dropout(0.5))
    compiled = weft.jit(lambda model, x, key: model(x, key))
    for run, uses in ((compiled, ["Twice.first", "Twice.second"]), (Twice.__call__, [])):
        with (
            pytest.raises(jax.errors.KeyReuseError, match="the same key is used twice") as caught,
            weft.debug.debug_keys(),
        ):
            run(model, X, jax.random.key(0))
        lines = str(caught.value).splitlines()
        # A jaxpr has a line for each equation, and a draw has dozens.
        assert len(lines) <= 4
        assert "test_messages.py" in lines[1]
        assert [use for use in uses if not any(f"{use} (Dropout.__call__)" in line for line in lines)] == []
        assert lines[-1] == "  fix: split it: first, second = jax.random.split(key), and use each once"
