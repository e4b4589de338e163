"""Retraces are told: a static that changes at every call is warned of, and why each trace was made can be asked."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import weft
from weft import nnx
from weft.errors import RetraceWarning


class State(weft.Module):
    weight: jax.Array
    step: int = 0
    name: str = "state"
    scale: float = weft.static(default=1.0)
    activation: Callable[[Any], Any] = jnp.tanh


def fresh() -> Any:
    """A jitted function that no other test has traced."""
    return weft.jit(lambda state, x, **more: state.activation(x * state.weight) * state.scale)


STATE, X = State(jnp.ones(2)), jnp.ones(2)


def warned(run: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RetraceWarning)
        run()
    assert all(warning.category is RetraceWarning and warning.filename == __file__ for warning in caught)
    return [str(warning.message) for warning in caught]


# ---- the warning ------------------------------------------------------------------------------------------------


def test_a_counter_in_a_record_is_warned_of_at_its_third_value():
    step = fresh()
    assert warned(lambda: [step(STATE.replace(step=i), X) for i in range(2)]) == []
    (message,) = warned(lambda: step(STATE.replace(step=2), X))
    assert "is traced and compiled again for each value of a static: 3 times so far" in message
    assert "\n  at: state.step: 0, 1, 2\n" in message
    assert "fix: make it an array (jnp.asarray), and it is traced once; if each value is meant" in message
    assert "static_argnames" in message


def test_it_is_warned_of_once():
    step = fresh()
    assert len(warned(lambda: [step(STATE.replace(step=i), X) for i in range(9)])) == 1


def test_a_function_transformed_again_each_time_is_warned_of_too():
    def step(state: Any, x: Any) -> Any:
        return x * state.weight

    assert len(warned(lambda: [weft.jit(step)(STATE.replace(step=i), X) for i in range(4)])) == 1


def test_static_fields_and_leaves_and_functions_made_anew_are_told():
    step = fresh()
    assert (
        "at: state.scale: 0.0, 1.0, 2.0"
        in warned(lambda: [step(STATE.replace(scale=float(i)), X) for i in range(3)])[0]
    )
    step = fresh()
    assert "at: name: 'a', 'b', 'c'" in warned(lambda: [step(STATE, X, name=name) for name in "abc"])[0]
    step = fresh()
    (message,) = warned(lambda: [step(STATE.replace(activation=lambda x: x), X) for _ in range(3)])
    assert "at: state.activation: <lambda> (test_retraces.py:" in message
    assert "another <lambda> (test_retraces.py:" in message
    assert "fix: define the function once" in message


def test_two_statics_that_change_together_are_told_together():
    step = fresh()
    (message,) = warned(lambda: [step(STATE.replace(step=i, scale=i / 2), X) for i in range(4)])
    assert "at: state.scale: 0.0, 0.5, 1.0" in message
    assert "at: state.step: 0, 1, 2" in message


def test_what_is_not_the_same_static_each_time_is_no_warning():
    step = fresh()
    # Two values; another static; other shapes beside it; functions that are others; the same again.
    calls = [
        (STATE.replace(step=1), X), (STATE.replace(step=2), X), (STATE.replace(name="b"), X),
        (STATE.replace(step=3), jnp.ones(1)), (STATE.replace(activation=jnp.sin), X),
        (STATE.replace(activation=jnp.cos), X), (STATE.replace(activation=jnp.exp), X), (STATE.replace(step=1), X),
    ]  # fmt: skip
    assert warned(lambda: [step(*call) for call in calls]) == []


def test_shapes_are_no_static():
    step = fresh()
    assert warned(lambda: [step(STATE, jnp.ones((i, 2))) for i in range(1, 6)]) == []


def test_what_was_said_to_be_static_is_meant():
    by_name = weft.jit(lambda x, n: x * n, static_argnames="n")
    by_number = weft.jit(lambda x, n: x * n, static_argnums=1)
    assert warned(lambda: [(by_name(X, n=i), by_number(X, i)) for i in range(5)]) == []


def test_a_warning_that_is_an_error_leaves_the_function_usable():
    step = fresh()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RetraceWarning)
        with pytest.raises(RetraceWarning):
            [step(STATE.replace(step=i), X) for i in range(3)]
        assert step(STATE.replace(step=2), X).shape == (2,)


# ---- asked --------------------------------------------------------------------------------------------------------


REASONS: dict[str, tuple[Any, Any, str]] = {
    "static": (STATE, STATE.replace(step=1), "static: tree.step: 0 -> 1"),
    "static leaf": ({"a": "x"}, {"a": "y"}, "static: tree.a: 'x' -> 'y'"),
    "static function": (STATE, STATE.replace(activation=jnp.sin), "static: tree.activation: tanh -> sin"),
    "type of a static": (STATE.replace(step=1), STATE.replace(step=True), "static: tree.step: 1 -> True"),
    "shape": ([X], [jnp.ones(3)], "shape: tree[0]: float32[2] -> float32[3]"),
    "dtype": (X, jnp.ones(2, int), "dtype: tree: float32[2] -> int32[2]"),
    "weak type": (1.0, jnp.float32(1), "weak type: tree: float32[] (weak) -> float32[]"),
    "another leaf": ({"a": X}, {"a": X, "b": X}, "kind of tree: tree.b: nothing -> float32[2]"),
    "list for tuple": ([X], (X,), "kind of tree: tree: list -> tuple"),
    "None for an array": ({"a": X}, {"a": None}, "kind of tree: tree.a: float32[2] -> None"),
    "static for an array": ({"a": X}, {"a": "x"}, "kind of tree: tree.a: float32[2] -> static 'x'"),
}


@pytest.mark.parametrize("name", REASONS)
def test_it_says_why_each_trace_was_made(name: str, capsys: Any):
    before, after, reason = REASONS[name]
    look = weft.jit(lambda tree: 0)
    with weft.debug.explain_retraces() as told:
        look(before)
        look(after)
        look(before)
    first, second = told
    assert first.startswith("weft.jit(<lambda>), trace 1, called at ")
    header, *reasons = second.splitlines()
    assert reasons == [f"  {reason}"]
    assert header.startswith("weft.jit(<lambda>), trace 2, called at ")
    assert header.endswith("in test_it_says_why_each_trace_was_made")
    assert __file__ in header
    assert capsys.readouterr().out == first + "\n" + second + "\n"


def test_the_nearest_of_earlier_traces_is_what_it_is_compared_with():
    look = weft.jit(lambda x, y, z: 0)
    with weft.debug.explain_retraces(file=io.StringIO()) as told:
        look(X, X, X)
        look(jnp.ones(3), jnp.ones(3), "z")
        look(X, X, jnp.ones(1))
    assert told[-1].splitlines()[1:] == ["  shape: z: float32[2] -> float32[1]"]


def test_settings_of_jax_are_told_apart_from_arguments():
    look = weft.jit(lambda x: x @ x)
    with weft.debug.explain_retraces(file=io.StringIO()) as told:
        look(X)
        with jax.default_matmul_precision("float32"):
            look(X)
    assert "JAX: other settings" in told[-1]


def test_a_function_made_anew_is_told():
    with weft.debug.explain_retraces(file=io.StringIO()) as told:
        for _ in range(2):
            weft.jit(lambda x: x + 1)(X)
    assert "the first trace" in told[0]
    assert "defined again by the same lines" in told[1]


def test_a_function_can_be_asked_afterwards():
    step = fresh()
    step(STATE, X)
    step(STATE.replace(name="b"), X)
    file = io.StringIO()
    told = weft.debug.explain_retraces(step, file=file)
    assert len(told) == 2
    assert "static: state.name: 'state' -> 'b'" in told[1]
    assert file.getvalue() == "\n".join(told) + "\n"
    with pytest.raises(TypeError, match="a function that weft"):
        weft.debug.explain_retraces(len)


def test_outside_of_it_nothing_is_printed(capsys: Any):
    fresh()(STATE, X)
    assert capsys.readouterr().out == ""


def test_traces_inside_of_other_transforms_are_told():
    inner = weft.jit(lambda x, name: x)
    with weft.debug.explain_retraces(file=io.StringIO()) as told:
        weft.vmap(lambda x: inner(x, "a") + inner(x, "b"))(X)
    assert "static: name: 'a' -> 'b'" in told[1]


def test_nnx_tells_when_it_is_asked_and_does_not_warn():
    class Model(nnx.Module):
        def __init__(self) -> None:
            self.count = 0
            self.weight = nnx.Param(jnp.ones(2))

    @nnx.jit
    def step(model: Any, x: Any) -> Any:
        return model.weight[...] * x

    model = Model()

    def run() -> None:
        for i in range(4):
            model.count = i
            step(model, 1.0)
        model.weight = nnx.Param(jnp.ones(3))
        step(model, 1.0)

    with weft.debug.explain_retraces(file=io.StringIO()) as told:
        assert warned(run) == []
    assert [one.splitlines()[1] for one in told[1:]] == [
        "  static: model.count: 0 -> 1",
        "  static: model.count: 1 -> 2",
        "  static: model.count: 2 -> 3",
        "  shape: model.weight: float32[2] -> float32[3]",
    ]
