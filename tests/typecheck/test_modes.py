"""Modes: off, on and strict, by context, process, environment and pytest option."""

from __future__ import annotations

import cProfile
import os
import re
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import optax
import pytest
import weft
from jaxtyping import Array, Float
from weft import ContractError
from weft.core import hooks
from weft.errors import ModeError, PromotionError
from weft.typecheck import contract, current_mode, mode, set_mode

from .layers import linear


@pytest.fixture
def process_mode():
    before = current_mode()
    yield
    set_mode(before)


def test_off_checks_nothing():
    with mode("off"):
        assert linear(3, 5).replace(bias=jnp.ones((1, 1, 3)))(jnp.ones(5)).shape == (1, 1, 3)
    assert current_mode() == "on"


@contract
def add(x: Float[Array, "n m"], y: Float[Array, "m"]) -> Float[Array, "n m"]:
    return x + y


@contract
def shift(x: Float[Array, "n"], n: Float[Array, ""]) -> Float[Array, "n"]:
    return x + n.astype("bfloat16")


def test_strict_refuses_rank_and_dtype_promotion():
    x, y = jnp.ones((2, 3)), jnp.ones(3)
    add(x, y), shift(y, y[0])
    with mode("strict"):
        with pytest.raises(ValueError, match="Operands could not be broadcast together"):
            add(x, y)
        with pytest.raises(Exception, match="no available implicit dtype promotion path"):
            shift(y, y[0])
        assert weft.jit(linear(3, 5))(jnp.ones(5)).shape == (3,)
    add(x, y)


class Shift(weft.Module):
    by: Float[Array, "n"]

    def __call__(self, x: Float[Array, "b n"]) -> Float[Array, "b n"]:
        return x + self.by


class Shifts(weft.Module):
    last: Shift

    def __call__(self, x: Float[Array, "b n"]) -> Float[Array, "b n"]:
        return self.last(x)


@pytest.mark.parametrize("transform", [lambda f: f, weft.jit])
def test_what_strict_refuses_is_an_error_of_wefts_own(transform):
    with mode("strict"), pytest.raises(PromotionError) as caught:
        transform(Shifts(Shift(jnp.ones(3))))(jnp.ones((2, 3)))
    message, model, line, fix, *_ = str(caught.value).splitlines()
    assert message.endswith("for add on shapes (2, 3) (3,): the mode 'strict' promotes no ranks implicitly")
    assert model == "  at: in Shifts.last (Shift)"
    assert re.fullmatch(r"  at: __call__ \(test_modes.py:\d+\): return x \+ self.by", line)
    assert fix == "  fix: add the missing axes, as in x[None, :]"
    with mode("strict"), pytest.raises(PromotionError, match=r"fix: cast one operand, as in x\.astype"):
        transform(shift)(jnp.ones(3), jnp.ones(()))


def test_strict_leaves_other_errors_as_they_are():
    @contract
    def raises(x: Float[Array, "n"]) -> Float[Array, "n"]:
        raise ValueError("of the user's own")

    with mode("strict"), pytest.raises(ValueError, match=r"^of the user's own$"):
        raises(jnp.ones(3))


@contract
def step(params: Float[Array, "n"], gradient: Float[Array, "n"]) -> Float[Array, "n"]:
    optimizer = optax.chain(optax.stateless(lambda updates, _: SCHEDULE(updates)), optax.scale(jnp.bfloat16(-0.5)))
    updates, _ = optimizer.update(gradient, optimizer.init(params))
    return optax.apply_updates(params, updates)


def as_it_is(updates):
    return updates


def promoting(updates):
    return updates + jnp.ones((1, 1))


SCHEDULE = as_it_is


def test_strict_leaves_libraries_alone(monkeypatch):
    x = jnp.ones(3)
    with mode("strict"):
        assert jax.jit(step)(x, x).tolist() == [0.5] * 3
        assert weft.jit(step)(x, x).tolist() == [0.5] * 3
        monkeypatch.setitem(globals(), "SCHEDULE", promoting)
        with pytest.raises(ValueError, match="Operands could not be broadcast together for add on shapes"):
            jax.jit(lambda *args: step(*args))(x, x)
        assert (x + jnp.ones((1, 1))).shape == (1, 3)


def test_strict_goes_beside_a_profiler():
    profiler = cProfile.Profile()
    with mode("strict"), profiler, pytest.raises(ValueError, match="Operands could not be broadcast together"):
        add(jnp.ones((2, 3)), jnp.ones(3))
    assert profiler.getstats()


def test_modes_nest_and_belong_to_a_thread():
    seen = []
    with mode("off"), mode("strict"):
        thread = threading.Thread(target=lambda: seen.append(current_mode()))
        thread.start()
        thread.join()
        assert current_mode() == "strict"
    assert seen == ["on"]


def test_the_process_has_a_mode(process_mode):
    assert set_mode("strict") == "strict"
    with pytest.raises(ValueError, match="Operands could not be broadcast together"):
        add(jnp.ones((2, 3)), jnp.ones(3))
    assert jax.config.jax_numpy_rank_promotion == "allow"
    set_mode("off")
    linear(3, 5)(jnp.ones((2, 5)))


def test_a_mode_brings_the_hook_back():
    previous = hooks.install_contracts(None)
    try:
        linear(3, 5).replace(weight=jnp.ones((3, 5, 1, 1)))
        with mode("on"), pytest.raises(ContractError):
            linear(3, 5).replace(bias=jnp.ones((3, 5, 1, 1)))
    finally:
        hooks.install_contracts(previous)


@pytest.mark.parametrize("name", ["ON", "", "quick"])
def test_an_unknown_mode_is_one_line(name):
    with pytest.raises(ModeError) as caught:
        set_mode(name)
    assert str(caught.value) == f"unknown mode {name!r}: it is one of off, on, strict"
    with pytest.raises(ModeError), mode(name):
        pass


PROGRAM = """
import sys
import jax.numpy as jnp
import weft
assert "weft.typecheck" not in sys.modules
from jaxtyping import Array, Float
class Box(weft.Module):
    value: Float[Array, "n"]
try:
    Box(jnp.ones(()))
except (TypeError, ValueError) as error:
    print(error.what)
print("weft.typecheck" in sys.modules, "beartype.door" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "lines"),
    [
        ({}, ["field Box.value should be f32[n], and is f32[]", "True False"]),
        ({"WEFT_TYPECHECK": "off"}, ["False False"]),
        (
            {"WEFT_TYPECHECK": "fast"},
            ["unknown WEFT_TYPECHECK 'fast': it is one of off, on, strict", "True False"],
        ),
    ],
)
def test_the_checker_loads_with_the_first_record(variables, lines):
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("WEFT_")}, **variables}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.splitlines() == lines


TEST = """
from weft.typecheck import current_mode

def test_mode(weft_typecheck):
    assert current_mode() == {mode!r}
    with weft_typecheck("off"):
        assert current_mode() == "off"

def test_again():
    assert current_mode() == {mode!r}
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_the_pytest_option_sets_the_mode(tmp_path, workers):
    (tmp_path / "test_it.py").write_text(TEST.format(mode="strict"))
    done = pytest_run(tmp_path, "--weft-typecheck=strict", *workers)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
def test_the_pytest_option_refuses_other_modes(tmp_path):
    (tmp_path / "test_it.py").write_text(TEST.format(mode="on"))
    assert "invalid choice: 'fast'" in pytest_run(tmp_path, "--weft-typecheck=fast").stderr
    assert "2 passed" in pytest_run(tmp_path).stdout


def pytest_run(folder, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)
