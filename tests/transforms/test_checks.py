"""error_if: the same error eagerly and under every transform, and nothing where the condition does not hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft.core.errors import exceptions
from weft.errors import CheckError

GOOD, BAD = jnp.array([1.0, 4.0]), jnp.array([1.0, -4.0])


def root(x: Any) -> Any:
    return jnp.sqrt(weft.error_if(x, x < 0, "no root of a negative number"))


CALLS: dict[str, Callable[[Any], Any]] = {
    "eager": root,
    "jit": weft.jit(root),
    "grad": weft.grad(lambda x: root(x).sum()),
    "jit of grad": weft.jit(weft.grad(lambda x: root(x).sum())),
    "vmap": weft.vmap(root),
    "jit of vmap": weft.jit(weft.vmap(root)),
    "scan": lambda x: weft.scan(lambda c, x: (c, root(x)))(0.0, x)[1],
    "cond": lambda x: weft.cond(jnp.array(True), root, jnp.negative, x),
    "while_loop": lambda x: weft.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, root(c[1])), (0, x))[1],
    "bounded": lambda x: weft.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, root(c[1])), (0, x), max_steps=3)[1],
    "remat": weft.jit(weft.grad(weft.remat(lambda x: root(x).sum()))),
    "checkify": lambda x: weft.checkify(root)(x)[1],
}


@pytest.mark.parametrize("name", CALLS)
def test_error_if_raises_the_same_error_everywhere(name: str):
    with pytest.raises(CheckError, match=r"^no root of a negative number(\n  inside: grad)?$"):
        jax.block_until_ready(CALLS[name](BAD))


@pytest.mark.parametrize("name", CALLS)
def test_error_if_changes_nothing_where_the_condition_does_not_hold(name: str):
    wanted = 0.5 / jnp.sqrt(GOOD) if "grad" in name or name == "remat" else jnp.sqrt(GOOD)
    np.testing.assert_allclose(CALLS[name](GOOD), wanted, rtol=1e-6)


def test_a_check_is_tied_to_the_arrays_of_a_record():
    linear = weft.Linear(2, 2, key=jax.random.key(0))

    @weft.jit
    def checked(linear: Any, limit: Any) -> Any:
        return weft.error_if(linear, jnp.abs(linear.kernel) > limit, "too large")

    assert weft.tree.equal(checked(linear, 100.0), linear)
    with pytest.raises(CheckError, match=r"^too large$"):
        jax.block_until_ready(checked(linear, 0.0))
    with pytest.raises(TypeError, match="ties its check to the arrays of x, and there is none"):
        weft.jit(lambda x: weft.error_if("name", x > 0, "never"))(1.0)


def test_errors_of_the_two_libraries_are_told_apart():
    with pytest.raises(eqx.EquinoxRuntimeError):
        root(BAD)
    with pytest.raises(eqx.EquinoxRuntimeError, match=r"^below$") as caught:
        jax.block_until_ready(weft.jit(lambda x: eqx.error_if(x, x < 0, "below"))(BAD))
    assert not isinstance(caught.value, CheckError)


def test_a_program_that_jax_compiled_says_the_message():
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"weft\.error_if: no root of a negative number"):
        jax.block_until_ready(jax.jit(root)(BAD))


@pytest.mark.parametrize(("value", "fails"), [(1.0, False), (-1.0, True)])
def test_a_condition_on_a_static_number_is_known_inside_of_a_trace(value: float, fails: bool):
    # `eqx.filter_jit` passes Python numbers as they are, and `jnp.any` of a constant is a tracer inside of it.
    call = cast(Any, eqx).filter_jit(lambda y, x: y + weft.error_if(x, x < 0, "x is negative"))
    if fails:
        with pytest.raises(CheckError, match="x is negative"):
            call(GOOD, value)
    else:
        assert call(GOOD, value).tolist() == (GOOD + 1).tolist()


def test_an_eager_check_keeps_no_exception_and_a_text_is_never_taken_for_one():
    before = len(exceptions)
    with pytest.raises(KeyError, match="eager alone"):
        weft.error_if(BAD, BAD < 0, KeyError("eager alone"))
    assert len(exceptions) == before
    with pytest.raises(ValueError, match="both"):
        weft.jit(lambda x: weft.error_if(x, x < 0, ValueError("both")))(BAD)
    with pytest.raises(CheckError, match="ValueError: both"):
        weft.error_if(BAD, BAD < 0, "ValueError: both")
