"""Records, functions and compiled steps are pickled after they were called, and lose nothing where they are loaded."""

from __future__ import annotations

import contextlib
import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import pytest
import weft
from jax.sharding import PartitionSpec
from weft import nnx
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


def total(x: Any, power: int = 2) -> Any:
    return (x**power).sum()


def both(x: Any, y: Any) -> Any:
    return x + y, x * y


def clipped(x: Any) -> Any:
    return x * 2


def clipped_forward(x: Any) -> Any:
    return x * 2, None


def clipped_backward(_: Any, g: Any) -> Any:
    return (g * 10,)


def clipped_tangent(primals: Any, tangents: Any) -> Any:
    return primals[0] * 2, tangents[0] * 10


def clipped_term(t: Any, out: Any, x: Any) -> Any:
    return t * 10


def _defined(custom: Any, name: str, *rules: Any) -> Any:
    getattr(custom, name)(*rules)
    return weft.vmap(weft.grad(custom))


MESH = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
XS = jnp.arange(4.0)
TRANSFORMED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "jit": (weft.jit(total, static_argnums=1), (XS, 3)),
    "grad": (weft.grad(total), (XS,)),
    "grad of jit": (weft.grad(weft.jit(total)), (XS,)),
    "value_and_grad": (weft.value_and_grad(total), (XS,)),
    "grad with a filter": (weft.grad(both, wrt=weft.filters.Any(weft.Param, ...), has_aux=True), (jnp.array(1.0), 2.0)),
    "grad, as a decorator": (weft.grad(argnums=(0,))(total), (XS,)),
    "vmap": (weft.vmap(both, in_axes=(0, None)), (XS, 2.0)),
    "pmap": (weft.pmap(both), (XS[None], XS[None])),
    "scan": (weft.scan(both, reverse=True), (jnp.array(0.0), XS)),
    "remat": (weft.remat(total), (XS,)),
    "remat, static": (weft.remat(total, static_argnums=1), (XS, 3)),
    "jacfwd": (weft.jacfwd(both), (XS, XS)),
    "jacrev": (weft.jacrev(both, argnums=1), (XS, XS)),
    "hessian": (weft.hessian(total), (XS,)),
    "checkify": (weft.checkify(total), (XS,)),
    "make_jaxpr": (weft.make_jaxpr(total), (XS,)),
    "transform_metadata": (weft.vmap(weft.transform_metadata(both)), (XS, XS)),
    "shard_map": (
        weft.shard_map(clipped, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data")),
        (XS,),
    ),
    "custom_vjp": (_defined(weft.custom_vjp(clipped), "defvjp", clipped_forward, clipped_backward), (XS,)),
    "custom_jvp": (_defined(weft.custom_jvp(clipped), "defjvp", clipped_tangent), (XS,)),
    "custom_jvp by arguments": (_defined(weft.custom_jvp(clipped), "defjvps", clipped_term), (XS,)),
    "nnx.jit": (nnx.jit(total, static_argnames="power"), (XS,)),
}


@pytest.mark.parametrize("how", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_what_every_transform_makes_is_pickled_after_it_was_called(name: str, how: Any):
    function, args = TRANSFORMED[name]
    # Without a mesh it is the one in context. JAX's meshes are of devices, which are not pickled.
    with jax.set_mesh(MESH) if name == "shard_map" else contextlib.nullcontext():
        expected = function(*args)
        again = pickle.loads(how.dumps(function))
        assert str(again(*args)) == str(expected)
    assert again is not function
    assert type(again) is type(function)
    assert repr(again) == repr(function)


class Doubled(weft.Module):
    w: jax.Array

    @weft.jit
    def step(self, x: Any) -> Any:
        return self.w * x

    @weft.grad
    def slope(self, x: Any) -> Any:
        return (self.w * x).sum()


@weft.value_and_grad(argnums=1)
def decorated(w: Any, x: Any) -> Any:
    return (w * x).sum()


@pytest.mark.parametrize("how", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_what_a_transform_decorates_in_a_module_is_pickled_by_its_name(how: Any):
    assert pickle.loads(how.dumps((decorated, Doubled.step))) == (decorated, Doubled.step)
    model, step = pickle.loads(how.dumps((Doubled(XS), Doubled.slope)))
    assert jnp.array_equal(step(model, XS).w, XS)


def test_what_a_transform_made_is_shared_by_copies_as_a_function_is():
    function = weft.grad(total)
    assert copy.copy(function) is function
    assert copy.deepcopy([function])[0] is function
