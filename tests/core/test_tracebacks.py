"""What of an error's traceback is left, when it went through methods and transforms."""

import os
import subprocess
import sys
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
import weft
from weft import nnx
from weft.core.edge._tracers import whole_tracebacks

KEY = jax.random.key(0)


class Inner(weft.Module):
    layer: weft.Linear

    def __call__(self, x):
        return self.layer(x) @ jnp.ones((7, 3))  # 3 meets 7


class Outer(weft.Module):
    inner: Inner

    def __call__(self, x):
        with weft.thread(self) as t:
            return t.done(t.inner(x))


def loss(model, x):
    return model(x)[0].sum()


@pytest.fixture(scope="module")
def outer():
    return Outer(Inner(weft.Linear(2, 3, key=KEY)))


def frames_of(call):
    with pytest.raises(TypeError) as caught:
        call()
    return traceback.extract_tb(caught.value.__traceback__)


def is_own(frame):
    return Path(frame.filename) == Path(__file__)


@pytest.mark.parametrize(
    "call",
    [
        loss,
        weft.jit(weft.grad(loss)),
        lambda model, x: weft.vmap(weft.remat(loss), in_axes=(None, 0))(model, x[None]),
        lambda model, x: weft.scan(lambda model, x: (model, loss(model, x)))(model, x[None]),
    ],
    ids=["eager", "jit", "vmap", "scan"],
)
def test_an_error_of_jaxs_shows_the_users_frames_and_where_it_was_raised(outer, call):
    frames = frames_of(lambda: call(outer, jnp.ones((4, 2))))
    own = [frame.name for frame in frames if is_own(frame)]
    assert own[-3:] == ["loss", "__call__", "__call__"]
    between = [frame for frame in frames[frames.index(next(filter(is_own, frames))) :] if not is_own(frame)]
    # The way to the outermost call, and JAX's end; it was 50 frames.
    assert len([frame for frame in between if "/jax/" not in frame.filename]) <= 2
    assert "/jax/" in frames[-1].filename


def test_objects_too():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.layer = nnx.Linear(2, 3, rngs=rngs)

        def __call__(self, x):
            return self.layer(x) @ jnp.ones((7, 3))

    frames = frames_of(lambda: nnx.jit(nnx.grad(lambda model, x: model(x).sum()))(Model(nnx.Rngs(0)), jnp.ones((4, 2))))
    assert len([frame for frame in frames if not is_own(frame) and "/jax/" not in frame.filename]) <= 2


def test_an_error_inside_of_a_library_keeps_its_end(outer):
    frames = frames_of(lambda: weft.jit(outer.inner.layer)(jnp.ones((4, 2)), wrong=1))
    assert not is_own(frames[-1])


def test_what_an_error_was_raised_from_is_cut_too():
    """JAX says where an operation was written that fails once it is transposed."""
    mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Explicit,))
    x = jax.device_put(jnp.ones((8, 2)), jax.NamedSharding(mesh, jax.P("data")))
    with pytest.raises(weft.errors.MeshError) as caught:
        weft.jit(lambda layer: weft.grad(lambda layer, x: layer(x).sum())(layer, x))(weft.Linear(2, 3, key=KEY))
    of_jax = caught.value.__cause__
    assert [is_own(frame) for frame in traceback.extract_tb(of_jax.__traceback__)] == [False]
    # Since JAX 0.11 the innermost frame alone is kept.
    where = [is_own(frame) for frame in traceback.extract_tb(of_jax.__cause__.__traceback__)]
    assert where[-2:] in ([True, False], [False])


X = jnp.ones((4, 2))
MODEL = {"layer": weft.Linear(2, 3, key=KEY), "name": "model"}


class Wide(weft.Module):
    layer: weft.Linear

    def __init__(self):
        self.layer = weft.Linear(2, 3, key=KEY)
        self.other = 1


def pulled_back():
    return weft.vjp(lambda x: x * 2, X)[1](jnp.ones(7))


ONE_CALL = {
    "a constructor": lambda: weft.Linear(2, -3, key=KEY),
    "a constructor of fields": lambda: Inner(3),
    "a constructor of the user's": Wide,
    "load_checkpoint": lambda: weft.load_checkpoint(__file__, MODEL),
    "at": lambda: weft.at(MODEL, "tag"),
    "at(...).field": lambda: weft.at(MODEL)["layer"].weight,
    "at(...)[...]": lambda: weft.at(MODEL)["other"],
    "at(...).replace": lambda: weft.at(MODEL)["layer"].replace(weight=1),
    "at(...).set": lambda: weft.at(MODEL, weft.filters.Inside("layer.kernel")).set(jnp.ones(7)),
    "select": lambda: weft.tree.select(MODEL, "tag"),
    "split": lambda: weft.tree.split(MODEL, weft.BatchStat),
    "merge": lambda: weft.tree.merge(*weft.tree.split(MODEL, ...), {}),
    "tree.map": lambda: weft.tree.map(lambda leaf: leaf, MODEL, filter="tag"),
    "tree.stack": lambda: weft.tree.stack([MODEL["layer"], MODEL]),
    "tree.size": lambda: weft.tree.size(MODEL, "tag"),
    "jit": lambda: weft.jit(lambda model, x: model["layer"](x[:, :1]))(MODEL, X),
    "jit of a static": lambda: weft.jit(lambda x, n: x, static_argnums=1)(X, X),
    "jit.trace": lambda: weft.jit(lambda x: weft.grad(lambda x: x)(x)).trace(X),
    "jit.partial": lambda: weft.jit(lambda x, y: weft.grad(lambda x: x)(x)).partial(X)(X),
    "grad": lambda: weft.grad(lambda model: model["layer"](X))(MODEL),
    "vjp": lambda: weft.vjp(lambda model: model, 1),
    "a pullback": pulled_back,
    "jvp": lambda: weft.jvp(lambda x: x, (X,), (jnp.ones(7),)),
    "vmap": lambda: weft.vmap(lambda x: x, in_axes=3)(X),
    "scan": lambda: weft.scan(lambda carry, x: (carry, x, x))(X, X),
    "remat": lambda: weft.remat(lambda x, n: x, static_argnums=1)(X, X),
    "cond": lambda: weft.cond(True, lambda x: x, lambda x: [x], X),
    "while_loop": lambda: weft.while_loop(lambda x: True, lambda x: x[:1], X),
    "fori_loop": lambda: weft.fori_loop(0, 3, lambda i, x: x[:1], X),
    "map": lambda: weft.lax_map(lambda x: x, (X, jnp.ones(3))),
    "eval_shape": lambda: weft.eval_shape(weft.grad(lambda x: x), X),
    "custom_vjp": lambda: weft.custom_vjp(lambda x: x)(X),
    "nnx.jit": lambda: nnx.jit(lambda x, n: x, static_argnums=1)(X, X),
    "nnx.grad": lambda: nnx.grad(lambda x: x)(X),
    "nnx.vmap": lambda: nnx.vmap(lambda x: x, in_axes=3)(X),
}


@pytest.mark.parametrize("name", ONE_CALL)
def test_an_error_of_wefts_shows_no_frame_of_wefts(name):
    with pytest.raises(weft.WeftError) as caught:
        ONE_CALL[name]()
    root = Path(weft.__file__).parent
    files = [Path(frame.filename) for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert [file for file in files if root in file.parents and root / "tests" not in file.parents] == []
    assert files[0] == Path(__file__)


def test_all_frames_can_be_had(outer):
    with whole_tracebacks():
        assert len(frames_of(lambda: loss(outer, jnp.ones((4, 2))))) > 15


@pytest.mark.slow
def test_jaxs_own_switch_keeps_all_frames():
    program = (
        "import os, jax, jax.numpy as jnp, weft\nweft.jit(weft.vmap(lambda x: x @ jnp.ones(7)))(jnp.ones((2, 3)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_TRACEBACK_FILTERING": "off"},
    )
    assert "interpret.py" in done.stderr
    assert "rules.py" in done.stderr
