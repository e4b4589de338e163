"""Records, functions and compiled steps are pickled after they were called, and lose nothing where they are loaded."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import pickle
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import optax
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


# ---- configuration that is compared by identity ----------------------------------------------------------------------

JAX_FUNCTIONS = {
    f"{module.__name__}.{name}": value
    for module in (jax.nn, jnp, jnp.linalg, jax.lax, jax.scipy.special)
    for name, value in vars(module).items()
    if name[0] != "_"
    and callable(value)
    and not isinstance(value, type)
    # Aliases, and functions that JAX made for other names, are in no module by their own.
    and getattr(module, getattr(value, "__name__", name), None) is value
}


@jax.jit
def jitted_here(x: Any) -> Any:
    return x


@jax.custom_jvp
def custom_here(x: Any) -> Any:
    return x


@pytest.mark.parametrize("how", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_functions_of_jax_are_pickled_and_copied_by_their_names(how: Any):
    functions = [*JAX_FUNCTIONS.values(), jitted_here, custom_here]
    assert {jax.nn.relu, jax.nn.silu, jnp.sin, jnp.add, jnp.linalg.norm, jax.scipy.special.erf} <= set(functions)
    for function in functions:
        assert how.loads(how.dumps(function)) is function is copy.deepcopy(function), function


def test_a_function_that_has_no_name_is_still_sent_by_value():
    for made in (jax.jit(lambda x: x + 1), jnp.frompyfunc(lambda x, y: x + y, nin=2, nout=1)):
        with pytest.raises((pickle.PicklingError, AttributeError)):
            pickle.dumps(made)
    assert cloudpickle.loads(cloudpickle.dumps(jax.jit(lambda x: x + 1)))(1) == 2


class Setting:
    """Compared by identity."""

    def scale(self, x: Any) -> Any:
        return x


class Configured(weft.Module):
    w: jax.Array
    setting: Any
    declared: Any = weft.static(default=None)


def closure(by: float) -> Any:
    return lambda x: x * by


RECORDS: dict[str, Any] = {
    "activations": weft.MLP(2, 2, 2, key=jax.random.key(0)),
    "an optimizer": weft.Optimizer({"w": XS}, optax.chain(optax.clip(1.0), optax.adam(optax.linear_schedule(1, 0, 9)))),
    "an optimizer of a model": weft.Optimizer(weft.MLP(2, 2, 2, key=jax.random.key(0)), optax.adam(0.1)),
    "an optimizer with groups": weft.Optimizer({"w": XS}, {...: optax.sgd(0.1)}),
    "accumulated steps": weft.Optimizer({"w": XS}, optax.MultiSteps(optax.adam(0.1), 2)),
    "a closure": Configured(XS, closure(2.0), closure(3.0)),
    "closures in containers": Configured(XS, [closure(2.0), {"a": (closure(3.0), XS)}], (closure(4.0), 1)),
    "a partial application": Configured(XS, functools.partial(total, power=3)),
    "an object": Configured(XS, Setting(), Setting()),
    "a bound method": Configured(XS, Setting().scale),
    "an initializer": Configured(XS, jax.nn.initializers.he_normal()),
    "a jitted lambda": Configured(XS, jax.jit(lambda x: x)),
}  # fmt: skip


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_is_pickled_by_value_has_the_treedef_that_it_had(name: str):
    record = RECORDS[name]
    treedef, sent = jax.tree.structure(record), cloudpickle.dumps(record)
    again = pickle.loads(sent)
    assert jax.tree.structure(again) == treedef == jax.tree.structure(copy.deepcopy(record))
    assert hash(jax.tree.structure(again)) == hash(treedef)
    assert pickle.loads(cloudpickle.dumps(treedef)) == treedef
    assert jax.tree.structure(pickle.loads(cloudpickle.dumps(again))) == treedef
    with contextlib.suppress(pickle.PicklingError, AttributeError):  # by reference, where that is possible
        assert jax.tree.structure(pickle.loads(pickle.dumps(record))) == treedef


@pytest.mark.slow
def test_two_messages_of_one_process_have_one_treedef_in_another(tmp_path: Path):
    for part in range(2):
        Path(tmp_path, f"{part}").write_bytes(cloudpickle.dumps(RECORDS["an optimizer"]))
    program = """
        import pickle, sys, jax
        first, second = [pickle.load(open(f"{sys.argv[1]}/{part}", "rb")) for part in range(2)]
        print(jax.tree.structure(first) == jax.tree.structure(second))
        import cloudpickle
        open(f"{sys.argv[1]}/back", "wb").write(cloudpickle.dumps(second))
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    back = pickle.loads(Path(tmp_path, "back").read_bytes())
    assert jax.tree.structure(back) == jax.tree.structure(RECORDS["an optimizer"])


def test_what_is_equal_to_its_copy_is_pickled_without_a_token():
    settings = (1, 0.5, "text", None, (1, (2, "a")), jnp.float32, jax.nn.relu, jax.lax.Precision.HIGH, weft.Linear)
    for setting in settings:
        assert pickle.dumps(Configured(XS, setting)) == pickle.dumps(Configured(XS, setting))
        assert b"_loaded" not in pickle.dumps(Configured(XS, setting))
    assert b"_loaded" in pickle.dumps(Configured(XS, Setting()))


def test_a_token_keeps_no_value_alive():
    record = Configured(XS, Setting())
    alive, sent = weakref.ref(record.setting), pickle.dumps(record)
    del record
    gc.collect()
    assert alive() is None
    assert jax.tree.structure(pickle.loads(sent)) != jax.tree.structure(Configured(XS, Setting()))
