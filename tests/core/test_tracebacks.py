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
from weft.core.tracebacks import whole_tracebacks

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
    with pytest.raises(weft.MeshError) as caught:
        weft.jit(lambda layer: weft.grad(lambda layer, x: layer(x).sum())(layer, x))(weft.Linear(2, 3, key=KEY))
    of_jax = caught.value.__cause__
    assert [is_own(frame) for frame in traceback.extract_tb(of_jax.__traceback__)] == [False]
    # Since JAX 0.11 the innermost frame alone is kept.
    where = [is_own(frame) for frame in traceback.extract_tb(of_jax.__cause__.__traceback__)]
    assert where[-2:] in ([True, False], [False])


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
