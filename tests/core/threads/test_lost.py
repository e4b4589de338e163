"""debug_successors: a successor that nothing uses is an error with its path and line, and nothing else is."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from weft import BatchStat, Keys, SuccessorError, drop_successor, nnx
from weft.core.threads import lost
from weft.debug import debug_successors


class Norm(weft.Module):
    scale: jax.Array
    mean: Annotated[jax.Array, BatchStat]
    inference: bool = weft.static(default=False)

    def __call__(self, x: Any) -> Any:
        y = (x - self.mean) * self.scale
        return y, self if self.inference else self.replace(mean=self.mean * 0.5 + x.mean())

    def pure(self, x: Any) -> Any:
        return x * self.scale


class Net(weft.Module):
    first: Norm
    second: Norm
    keys: Keys

    def __call__(self, x: Any) -> Any:
        with weft.thread(self) as t:
            return t.done(t.second(t.first(x)))

    def by_hand(self, x: Any) -> Any:
        x, first = self.first(x)
        x, second = self.second(x)
        return x, self.replace(first=first, second=second)

    def careless(self, x: Any) -> Any:
        x, first = self.first(x)
        x, _ = self.second(x)
        return x, self.replace(first=first)

    def draw(self, x: Any) -> Any:
        with weft.thread(self) as t:
            return t.done(x + jax.random.normal(t.keys("noise")))

    def careless_draw(self, x: Any) -> Any:
        key, _ = self.keys.next()
        return x + jax.random.normal(key), self

    def in_a_block(self, x: Any) -> Any:
        with weft.thread(self) as t:
            x, _ = weft.peek(t.first)(x)
            x, _ = weft.peek(t.first)(x)
            return t.done(x)


class Deep(weft.Module):
    nets: list[Net]

    def __call__(self, x: Any) -> Any:
        with weft.thread(self) as t:
            for net in t.nets:
                x = net(x)
            return t.done(x)

    def careless(self, x: Any) -> Any:
        with weft.thread(self) as t:
            for net in t.nets:
                x = net.careless(x)
            return t.done(x)


class Stack(weft.Module):
    norms: Norm

    def __call__(self, x: Any) -> Any:
        with weft.thread(self) as t:
            return t.done(weft.scan(weft.remat(t.norms))(x))


def norm(inference: bool = False, *lead: int) -> Norm:
    return Norm(jnp.full(lead, 2.0), jnp.zeros(lead), inference)


def net(inference: bool = False) -> Net:
    return Net(norm(inference), norm(inference), Keys(0))


X = jnp.arange(4.0)
XS = jnp.stack([X, X + 1, X * 2])
MODEL = net()


def loss(model: Any, x: Any) -> Any:
    y, model = model(x)
    return (y**2).sum(), model


def loss_alone(model: Any, x: Any) -> Any:
    return loss(model, x)[0]


def scanned(model: Any, xs: Any) -> Any:
    def step(model: Any, x: Any) -> Any:
        y, model = model(x)
        return model, y

    return jax.lax.scan(step, model, xs)


def in_a_while_loop(model: Any, x: Any) -> Any:
    def step(carry: Any) -> Any:
        i, x, model = carry
        x, model = model(x)
        return i + 1, x, model

    return jax.lax.while_loop(lambda carry: carry[0] < 3, step, (0, x, model))[1:]


@weft.custom_vjp
def scaled(model: Any, x: Any) -> Any:
    return model(x)


def scaled_forward(model: Any, x: Any) -> Any:
    return scaled(model, x), (model, x)


def scaled_backward(saved: Any, cotangents: Any) -> Any:
    model, x = saved
    return jax.tree.map(jnp.zeros_like, model), jnp.ones_like(x)


scaled.defvjp(scaled_forward, scaled_backward)


def steps(model: Any, x: Any) -> Any:
    """A step of training, as users write it."""
    (value, new), gradient = weft.value_and_grad(loss, has_aux=True)(model, x)
    return value, jax.tree.map(lambda p, g: p if g is None else p - 0.1 * g, new, gradient, is_leaf=lambda n: n is None)


# Each returns what it changed, in one way or another.
RIGHT: list[tuple[str, Callable[[], Any]]] = [
    ("a call", lambda: weft.jit(lambda m, x: m(x))(net(), X)),
    ("by hand", lambda: weft.jit(lambda m, x: m.by_hand(x))(net(), X)),
    ("called twice", lambda: weft.jit(lambda m, x: m(m(x)[0])[1])(net(inference=True), X)),
    ("nested", lambda: weft.jit(lambda m, x: m(x))(Deep([net(), net()]), X)),
    ("a training step", lambda: weft.jit(lambda m, x: weft.value_and_grad(loss, has_aux=True)(m, x))(net(), X)),
    (
        "a step that only moves statistics",
        lambda: weft.jit(lambda m, x: weft.tree.select(loss(m, x)[1], BatchStat))(net(), X),
    ),
    ("grad of jax", lambda: weft.jit(jax.value_and_grad(loss, has_aux=True))(norm(), X)),
    ("a stack", lambda: weft.jit(lambda m, x: m(x))(Stack(norm(False, 3)), X)),
    ("gradients of a stack", lambda: weft.jit(weft.value_and_grad(loss, has_aux=True))(Stack(norm(False, 3)), X)),
    ("remat", lambda: weft.jit(weft.value_and_grad(weft.remat(loss), has_aux=True))(net(), X)),
    ("jax.checkpoint", lambda: weft.jit(jax.value_and_grad(jax.checkpoint(loss), has_aux=True))(norm(), X)),
    ("scan", lambda: weft.jit(scanned)(norm(), jnp.stack([X, X]))),
    (
        "scan whose last state is not needed",
        lambda: weft.jit(lambda m, xs: scanned(m, xs)[1])(norm(), jnp.stack([X, X])),
    ),
    (
        "a gradient of what a scan carries",
        lambda: weft.jit(weft.grad(lambda m, xs: scanned(m, xs)[1].sum()))(norm(), XS),
    ),
    ("the same of jax", lambda: weft.jit(jax.jacfwd(lambda m, xs: scanned(m, xs)[1].sum()))(norm(), XS)),
    ("the same under vmap", lambda: weft.jit(jax.vmap(jax.grad(lambda m: scanned(m, XS)[1].sum())))(norm(False, 2))),
    ("eager scan", lambda: weft.scan(lambda m, x: m(x)[::-1])(norm(), jnp.stack([X, X]))),
    ("while_loop", lambda: weft.jit(in_a_while_loop)(norm(), X)),
    ("cond", lambda: weft.jit(lambda f, m, x: weft.cond(f, lambda m: m(x), lambda m: (x, m), m))(True, norm(), X)),
    ("vmap", lambda: weft.jit(weft.vmap(lambda m, x: m(x), in_axes=(None, 0)))(norm(), jnp.stack([X, X]))),
    ("custom_vjp", lambda: weft.jit(scaled)(norm(), X)),
    (
        "gradients of custom_vjp",
        lambda: weft.jit(jax.grad(lambda x, m: scaled(m, x)[0].sum()))(X, norm(inference=True)),
    ),
    ("capture", lambda: weft.jit(weft.capture(lambda m, x: m(x)))(norm(), X)),
    ("sequential", lambda: weft.jit(lambda m, x: m(x))(weft.StatefulSequential(norm(), jax.nn.relu, norm()), X)),
    ("keys", lambda: weft.jit(lambda m, x: m.draw(x))(net(), X)),
    ("inference", lambda: weft.jit(lambda m, x: m(x)[0])(net(inference=True), X)),
    ("a gradient in inference", lambda: weft.jit(weft.grad(loss_alone))(net(inference=True), X)),
    ("pure methods", lambda: weft.jit(lambda m, x: m.first.pure(x))(net(), X)),
    ("records made inside", lambda: weft.jit(lambda x: norm()(x)[0])(X)),
    ("a record made of an argument", lambda: weft.jit(lambda x: loss_alone(Norm(x[0], x[1]), x))(X)),
    ("a stream made inside", lambda: weft.jit(lambda seed: jax.random.normal(Keys(seed).next()[0]))(jax.random.key(0))),
    ("abstract evaluation", lambda: weft.jit(lambda m, x: m(x)[0]).eval_shape(norm(), X)),
    ("abstract evaluation inside", lambda: weft.jit(lambda m, x: jax.eval_shape(lambda: m(x)[0]) and m(x))(norm(), X)),
    ("overwritten by the next", lambda: weft.jit(lambda m: m.set(1.0).set(2.0))(Setter(jnp.array(0.0)))),
    ("dropped", lambda: weft.jit(lambda m, x: drop_successor(m(x))[0])(net(), X)),
    ("dropped in a loss", lambda: weft.jit(weft.grad(lambda m, x: drop_successor(m(x))[0].sum()))(net(), X)),
    (
        "dropped in a scan",
        lambda: weft.jit(lambda m, xs: jax.lax.map(lambda x: drop_successor(m(x))[0], xs))(norm(), jnp.stack([X])),
    ),
    (
        "dropped after a scan",
        lambda: weft.jit(lambda m, xs: (lambda out: (drop_successor(out[0]), out[1])[1])(scanned(Last(m), xs)))(
            norm(), jnp.stack([X])
        ),
    ),
    (
        "dropped in the gradient of a scan of remat",
        lambda: weft.jit(
            jax.grad(lambda m, xs: jax.lax.map(jax.checkpoint(lambda x: drop_successor(m(x))[0]), xs).sum())
        )(norm(), jnp.stack([X])),
    ),
]


class Setter(weft.Module):
    value: jax.Array

    def set(self, value: Any) -> Any:
        return self.replace(value=jnp.asarray(value))


class Last(weft.Module):
    norm: Norm

    def __call__(self, x: Any) -> Any:
        _, norm = self.norm(x)
        return self.norm.pure(x), self.replace(norm=norm)


@pytest.mark.parametrize("program", [program for _, program in RIGHT], ids=[name for name, _ in RIGHT])
def test_a_right_program_raises_no_alarm_and_computes_the_same(program: Callable[[], Any]):
    with debug_successors(False):
        expected = program()
    with debug_successors():
        actual = program()
    leaves = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    for a, b in leaves:
        if isinstance(a, jax.Array) and not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_array_equal(a, b)


def line_of(function: Callable[..., Any], text: str) -> str:
    function = inspect.unwrap(function)
    lines, start = inspect.getsourcelines(function)
    return f"{inspect.getsourcefile(function)}:{start + next(i for i, line in enumerate(lines) if text in line)}"


CARELESS = line_of(Net.careless, "self.second(x)")
LOSS = line_of(loss, "model(x)")

# Each loses something: (name, program, the places that the error names, without the leaves).
LOST: list[tuple[str, Callable[[], Any], list[tuple[str, str]]]] = [
    ("y, _ = self.bn(x)", lambda: weft.jit(lambda m, x: m.careless(x))(net(), X), [("Net.second(...)", CARELESS)]),
    (
        "in a list of parts",
        lambda: weft.jit(lambda m, x: m.careless(x))(Deep([net(), net()]), X),
        [("Deep.nets[0].second(...)", CARELESS), ("Deep.nets[1].second(...)", CARELESS)],
    ),
    ("a loss that returns no successor", lambda: weft.jit(weft.grad(loss_alone))(net(), X), [("Net(...)", LOSS)]),
    ("of a stack", lambda: weft.jit(weft.grad(loss_alone))(Stack(norm(False, 3)), X), [("Stack(...)", LOSS)]),
    ("of remat", lambda: weft.jit(weft.grad(weft.remat(loss_alone)))(net(), X), [("Net(...)", LOSS)]),
    ("in jax.checkpoint", lambda: weft.jit(weft.grad(jax.checkpoint(loss_alone)))(norm(), X), [("Norm(...)", LOSS)]),
    (
        "in the body of a scan",
        lambda: weft.jit(lambda m, xs: jax.lax.map(lambda x: loss_alone(m, x), xs))(norm(), jnp.stack([X, X])),
        [("Norm(...)", LOSS)],
    ),
    (
        "in the gradient of a scan",
        lambda: weft.jit(weft.grad(lambda m, xs: jax.lax.map(lambda x: loss_alone(m, x), xs).sum()))(
            norm(), jnp.stack([X])
        ),
        [("Norm(...)", LOSS)],
    ),
    (
        "in a branch",
        lambda: weft.jit(lambda f, m, x: weft.cond(f, loss_alone, lambda m, x: x.sum(), m, x))(True, norm(), X),
        [("Norm(...)", LOSS)],
    ),
    (
        "in an eager loop",
        lambda: weft.fori_loop(0, 2, lambda i, c: (loss_alone(c[1], X), c[1]), (0.0, norm())),
        [("Norm(...)", LOSS)],
    ),
    (
        "in a while_loop",
        lambda: weft.jit(lambda m, x: jax.lax.while_loop(lambda c: c < 3, lambda c: loss_alone(m, x * c), 0.5))(
            norm(), X
        ),
        [("Norm(...)", LOSS)],
    ),
    (
        "under vmap",
        lambda: weft.jit(weft.vmap(loss_alone, in_axes=(None, 0)))(norm(), jnp.stack([X, X])),
        [("Norm(...)", LOSS)],
    ),
    (
        "after custom_vjp",
        lambda: weft.jit(lambda m, x: scaled(m, x)[0])(norm(), X),
        [("Norm(...)", line_of(scaled.function, "return model(x)"))],
    ),
    (
        "in a chain",
        lambda: weft.jit(lambda m, x: m(x)[0])(weft.StatefulSequential(norm(), jax.nn.relu), X),
        [("StatefulSequential(...)", "")],
    ),
    (
        "a key",
        lambda: weft.jit(lambda m, x: m.careless_draw(x))(net(), X),
        [("Net.keys.next(...)", line_of(Net.careless_draw, "next()"))],
    ),
    (
        "in a thread block, by hand",
        lambda: weft.jit(lambda m, x: m.in_a_block(x))(net(), X),
        [
            ("Net.first(...)", line_of(Net.in_a_block, "peek")),
            ("Net.first(...)", re.sub(r"\d+$", lambda n: str(int(n[0]) + 1), line_of(Net.in_a_block, "peek"))),
        ],
    ),
    ("in jax.vmap", lambda: weft.jit(jax.vmap(loss_alone, (None, 0)))(norm(), XS), [("Norm(...)", LOSS)]),
    ("in jax.grad", lambda: weft.jit(jax.grad(loss_alone))(norm(), X), [("Norm(...)", LOSS)]),
    ("a jitted loss", lambda: weft.jit(weft.grad(weft.jit(loss_alone)))(net(), X), [("Net(...)", LOSS)]),
    (
        "what an inner jit returns",
        lambda: weft.jit(lambda m, x: weft.jit(loss)(m, x)[0])(net(), X),
        [("Net(...)", LOSS)],
    ),
    (
        "the aux of a gradient of a gradient",
        lambda: weft.jit(lambda m, x: weft.grad(lambda x: weft.value_and_grad(loss, has_aux=True)(m, x)[0][0])(x))(
            norm(), X
        ),
        [("Norm(...)", LOSS)],
    ),
    ("in a scan", lambda: weft.jit(weft.scan(lambda m, x: (m, loss_alone(m, x))))(norm(), XS), [("Norm(...)", LOSS)]),
    ("in an eager scan", lambda: weft.scan(lambda m, x: (m, loss_alone(m, x)))(norm(), XS), [("Norm(...)", LOSS)]),
    (
        "after a scan",
        lambda: weft.jit(lambda m, xs: weft.scan(lambda m, x: loss(m, x)[::-1])(Last(m), xs)[1])(norm(), XS),
        [("Last(...)", LOSS)],
    ),
    (
        "in a map",
        lambda: weft.jit(lambda m, xs: weft.lax_map(lambda x: loss_alone(m, x), xs))(norm(), XS),
        [("Norm(...)", LOSS)],
    ),
    ("in jvp", lambda: weft.jit(lambda m, x: weft.jvp(lambda x: m(x)[0], (x,), (x,)))(norm(), X), [("Norm(...)", "")]),
    ("in jacrev", lambda: weft.jit(lambda m, x: weft.jacrev(lambda x: m(x)[0])(x))(norm(), X), [("Norm(...)", "")]),
    (
        "what a while_loop carries to its end",
        lambda: weft.jit(lambda m, x: weft.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1](x)[1]), (0, m))[0])(
            norm(), X
        ),
        [("Norm(...)", "")],
    ),
    (
        "under nnx",
        lambda: nnx.jit(lambda graph, m, x: nnx.grad(lambda graph: loss_alone(m, graph(x)))(graph))(
            nnx.Linear(4, 4, rngs=nnx.Rngs(0)), norm(), X
        ),
        [("Norm(...)", LOSS)],
    ),
    ("a model that is closed over", lambda: weft.jit(lambda x: MODEL(x)[0])(X), [("Net(...)", "")]),
]


@pytest.mark.parametrize(("program", "places"), [lost[1:] for lost in LOST], ids=[lost[0] for lost in LOST])
def test_a_lost_successor_is_named_with_its_path_file_and_line(
    program: Callable[[], Any], places: list[tuple[str, str]]
):
    with debug_successors(False):
        program()
    with debug_successors(), pytest.raises(SuccessorError, match=r"lost: nothing that leaves \S+ uses") as error:
        program()
    matches = [re.fullmatch(r"(.*) at (/.*:\d+): ([\w., \[\]']+)", place) for place in error.value.at]
    assert [match and match[1] for match in matches] == [name for name, _ in places]
    for match, (_, line) in zip(matches, places, strict=True):
        assert match is not None
        assert match[2] == line or not line
    assert "weft.drop_successor(successor)" in str(error.value)


# What weft does not trace, and what JAX prunes before weft can look: (name, program, the call that is named, why).
UNSEEN: list[tuple[str, Callable[[], Any], str, str]] = [
    ("Python alone", lambda: net()(X), "Net(...)", "weft does not compile"),
    (
        "an eager value_and_grad",
        lambda: weft.value_and_grad(loss, has_aux=True)(norm(), X),
        "Norm(...)",
        "weft does not",
    ),
    ("an eager vmap", lambda: weft.vmap(loss, in_axes=(None, 0))(norm(), XS), "Norm(...)", "weft does not compile"),
    ("jax.jit", lambda: jax.jit(loss_alone)(norm(), X), "Norm(...)", "weft does not compile"),
    (
        "a gradient of remat",
        lambda: weft.jit(jax.grad(jax.checkpoint(lambda m, x: loss_alone(m, x))))(norm(), X),
        "Norm(...)",
        "pruned it",
    ),
    (
        "a gradient of a scan",
        lambda: weft.jit(jax.grad(lambda m, xs: jax.lax.map(lambda x: loss_alone(m, x), xs).sum()))(norm(), XS),
        "Norm(...)",
        "pruned it",
    ),
]


@pytest.mark.parametrize(("program", "name", "why"), [row[1:] for row in UNSEEN], ids=[row[0] for row in UNSEEN])
def test_what_is_not_looked_at_is_said_once(program: Callable[[], Any], name: str, why: str):
    lost._warned.clear()  # pyright: ignore[reportPrivateUsage]
    said = rf"cannot follow the successor of {re.escape(name)}: .*{why}(.|\n)*at: {re.escape(__file__)}:\d+\n  fix: "
    with debug_successors(), pytest.warns(UserWarning, match=said) as warned:
        program()
    assert len(warned) == 1
    with debug_successors(False):
        program()


def test_a_program_that_was_compiled_before_is_looked_at_too():
    step = weft.jit(lambda m, x: m.careless(x))
    with debug_successors(False):
        step(net(), X)
        step(net(), X)
        step(net(), X)
    with debug_successors(), pytest.raises(SuccessorError, match=r"Net.second"):
        step(net(), X)
    with debug_successors(False):
        step(net(), X)


def test_the_leaves_that_changed_are_named():
    with (
        debug_successors(),
        pytest.raises(SuccessorError, match=r"Net\(...\) at /.*:\d+: first.mean, second.mean\n"),
    ):
        weft.jit(lambda m, x: m(x)[0])(net(), X)


def test_drop_gives_back_what_it_was_given():
    tree = (X, net(), "text")
    assert drop_successor(tree) is tree
    assert weft.jit(lambda m, x: drop_successor(m(x)))(net(), X)[0].shape == X.shape


def test_debugging_leaves_nothing_behind_that_holds_a_trace(checking_leaks: Any):
    with debug_successors(), checking_leaks():
        weft.jit(lambda m, x: m(x))(net(), X)
        weft.jit(weft.value_and_grad(loss, has_aux=True))(net(), X)


PROGRAM = """
import jax, weft
def step(keys):
    key, _ = keys.next()
    return jax.random.normal(key)
weft.jit(step)(weft.Keys(0))
"""


@pytest.mark.slow
@pytest.mark.parametrize("value", ["1", "0"])
def test_the_environment_turns_it_on_for_the_whole_process(value: str):
    environment = {**os.environ, "WEFT_DEBUG_SUCCESSORS": value}
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert (run.returncode != 0) == (value == "1")
    assert ("Keys.next(...) at <string>:4: streams.default.count\n" in run.stderr) == (value == "1")


SUITE = """
import jax, weft

def test_step():
    weft.jit(lambda keys: keys.next()[0])(weft.Keys(0))

def test_the_right_one():
    weft.jit(lambda keys: keys.next())(weft.Keys(0))
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["one process", "workers"])
def test_the_pytest_option_turns_it_on_for_a_run(tmp_path: Any, workers: Any):
    (tmp_path / "test_it.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *workers, str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_DEBUG")}

    def run(*options: str) -> str:
        done = subprocess.run([*command, *options], capture_output=True, text=True, cwd=tmp_path, env=environment)
        return done.stdout

    assert "1 failed, 1 passed" in (report := run("--weft-debug-successors")), report
    assert "a successor is lost" in report
    if not workers:  # how workers learn of an option does not depend on there being none
        assert "2 passed" in (report := run()), report
