"""Records, functions and compiled steps are pickled after they were called, and lose nothing where they are loaded."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import cloudpickle
import jax.numpy as jnp
import pytest
import weft
from weft.core.errors import StructureError

# A program of the user's, whose functions and classes cloudpickle sends by value.
PROGRAM = """
import cloudpickle, sys, jax, jax.numpy as jnp, weft
from jaxtyping import Array, Float

class Net(weft.Module):
    w: Float[Array, "n"]
    power: int = 2
    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        return self.w * x**self.power

def total(w: Float[Array, "n"], x: Float[Array, "n"]) -> Float[Array, ""]:
    return (w * x).sum()

step, slope, batched = weft.jit(total), weft.grad(total), weft.vmap(total, in_axes=(None, 0))

@weft.jit
def train(net, x):
    return slope(net.w, x), batched(net.w, x[None])

net, x = Net(jnp.ones(3)), jnp.arange(3.0)
net(x), total(x, x), step(x, x), slope(x, x), batched(x, x[None]), weft.jit(net)(x), train(net, x)
for thing in (Net, net, total, step, slope, batched, train, (net, step)):
    sys.stdout.buffer.write(cloudpickle.dumps(thing))
"""


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    script = Path(tmp_path_factory.mktemp("program"), "program.py")
    script.write_text(PROGRAM)
    done = subprocess.run([sys.executable, script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.split(b"\x80\x05\x95")[1:]


def load(sent: list[bytes], place: int) -> object:
    return pickle.loads(b"\x80\x05\x95" + sent[place])


@pytest.mark.slow
def test_functions_and_classes_of_main_are_pickled_after_they_were_called(sent: list[bytes]):
    assert len(sent) == 8
    x = jnp.arange(3.0)
    for place, expected in ((2, 5.0), (3, 5.0)):
        assert float(load(sent, place)(x, x)) == expected
    assert load(sent, 4)(x, x).tolist() == x.tolist()
    assert load(sent, 5)(x, x[None]).tolist() == [5.0]
    with pytest.raises(weft.WeftError, match="total"):
        load(sent, 3)(x, jnp.ones(4))


def test_a_record_whose_class_jax_cannot_know_is_refused_where_it_is_loaded(sent: list[bytes]):
    with pytest.raises(StructureError, match="the class Net was pickled by value") as caught:
        load(sent, 1)
    assert "define it in a module that both processes import" in str(caught.value)


def test_a_step_over_records_of_a_module_goes_to_another_process_and_back():
    step = weft.jit(weft.Linear.__call__)
    linear = weft.Linear(2, 3, key=weft.Keys(0).next()[0])
    expected = step(linear, jnp.ones(2))
    again, model = cloudpickle.loads(cloudpickle.dumps((step, linear)))
    assert jnp.array_equal(again(model, jnp.ones(2)), expected)
