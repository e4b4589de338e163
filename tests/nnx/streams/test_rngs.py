"""Random streams: the same seeds give the same numbers as flax.nnx."""

import jax
import jax.numpy as jnp
import pytest
from weft import nnx
from weft.nnx.streams import rngs as our_rngs


def drawing(nnx):
    rngs = nnx.Rngs(0, params=1, dropout=jax.random.key(7))
    return (
        [rngs(), rngs.params(), rngs.dropout(), rngs.other(), rngs["params"](), rngs.default(), rngs],
        list(rngs),
        len(rngs),
    )


def seeds(nnx):
    old = jax.random.PRNGKey(3)
    return nnx.Rngs(old), nnx.Rngs({"a": 1, "b": 2}, b=3), nnx.Rngs(a=nnx.Rngs(5).default), nnx.RngStream(4, tag="t")


def forks(nnx):
    rngs = nnx.Rngs(0, params=1)
    fork, split, by = rngs.fork(), rngs.split(3), rngs.split({"params": (2, 2), ...: None})
    broadcast = rngs.broadcast({"params": 2, ...: None})
    stream = rngs.params
    return (
        fork,
        split,
        by,
        broadcast,
        rngs,
        fork.params(),
        stream.split(2),
        stream.fork(),
        stream.broadcast((2, 1)),
        rngs.fork(split=2),
    )


def methods(nnx):
    rngs = nnx.Rngs(0)
    return (
        rngs.normal((2,)), rngs.uniform((2,), minval=1.0, maxval=2.0), rngs.default.randint((3,), 0, 10),
        rngs.permutation(4), rngs.lecun_normal()((2, 3)), rngs.glorot_uniform(in_axis=0)((2, 2), jnp.float32),
        rngs.categorical(jnp.zeros(3)), rngs.bernoulli(0.5, (3,)), rngs.items().__class__.__name__ is None,
    )  # fmt: skip


class _Model:
    @staticmethod
    def make(nnx):
        class Layer(nnx.Module):
            def __init__(self, rngs):
                self.rngs = rngs.dropout.fork()
                self.shared = rngs
                self.w = nnx.Param(rngs.params.normal((2,)))

        rngs = nnx.Rngs(params=0, dropout=1)
        return nnx.Dict(a=Layer(rngs), b=Layer(rngs))


def splitting(nnx):
    m = _Model.make(nnx)
    backups = nnx.split_rngs(m, splits=3, only="dropout")
    shapes = m.a.rngs.key.shape, m.a.shared.params.key.shape, len(list(backups))
    inside = m.a.rngs.key.get_value()
    nnx.restore_rngs(backups)
    with nnx.split_rngs(m, splits=(2, 1)):
        block = m.b.rngs.count.get_value()
    squeezed = nnx.split_rngs(nnx.Rngs(0), splits=1, squeeze=True, graph_updates=False)
    copied = nnx.split_rngs(m, splits=2, graph_updates=False)
    return shapes, inside, block, m, squeezed, copied.a.rngs


def split_decorator(nnx):
    @nnx.split_rngs(splits=2)
    def f(rngs):
        return rngs.default.key.get_value()

    @nnx.split_rngs(splits=2, graph_updates=False)
    def g(rngs):
        return rngs

    rngs = nnx.Rngs(0)
    return f(rngs), rngs, g(rngs), rngs


def forking(nnx):
    rngs = nnx.Rngs(params=0, dropout=1)
    backups = nnx.fork_rngs(rngs, split={"params": 2, "dropout": None})
    inside = nnx.clone(rngs)
    nnx.restore_rngs(backups)

    @nnx.fork_rngs()
    def f(rngs):
        return rngs.params()

    return inside, rngs, f(rngs), rngs, nnx.fork_rngs(rngs, graph=False)


def with_rngs(nnx):
    rngs = nnx.Rngs(params=0, dropout=1, noise=2)

    @nnx.with_rngs(split={"params": 2}, fork=..., graph=False)
    def f(rngs):
        return rngs

    return (
        nnx.with_rngs(rngs, split=4, graph=False),
        nnx.with_rngs(rngs, split={"params": 2}, fork=nnx.Not("params"), graph=False),
        nnx.with_rngs({"r": rngs}, broadcast={"noise": (2,)}, only=nnx.Not("dropout"), graph=True, graph_updates=False),
        f(rngs), rngs,
    )  # fmt: skip


def reseeding(nnx):
    m = _Model.make(nnx)
    nnx.reseed(m, dropout=5)
    rngs = nnx.Rngs(a=1).split(3)
    nnx.reseed(rngs, policy="match_shape", a=2)
    split_rngs = nnx.Rngs(a=1).split(2)
    nnx.reseed(split_rngs, policy=lambda path, key, shape: jnp.broadcast_to(key, shape), a=3)
    return m, rngs, split_rngs, nnx.rnglib.backup_keys(nnx.Rngs(0))


PROGRAMS = [drawing, seeds, forks, methods, splitting, split_decorator, forking, with_rngs, reseeding]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(agree, program):
    agree(program)


@pytest.mark.parametrize("name", sorted(our_rngs._RANDOM))
def test_every_function_of_jax_random_is_a_method(name):
    assert callable(getattr(nnx.Rngs, name))
    assert callable(getattr(nnx.RngStream, name))


def outer_stream(nnx):
    rngs = nnx.Rngs(0)
    jax.jit(lambda: rngs())()


RAISING = {
    "no stream": lambda nnx: nnx.Rngs(params=0).dropout,
    "no item": lambda nnx: nnx.Rngs(params=0)["dropout"],
    "no seed": lambda nnx: nnx.Rngs("x"),
    "float key": lambda nnx: nnx.Rngs(jnp.ones(2)),
    "squeeze": lambda nnx: nnx.split_rngs(nnx.Rngs(0), splits=2, squeeze=True),
    "with_rngs in place": lambda nnx: nnx.with_rngs(nnx.Rngs(0), split=2, graph=True, graph_updates=True),
    "two rules": lambda nnx: nnx.with_rngs(nnx.Rngs(a=0), split={"a": 2}, fork="a", graph=False),
    "array reseeded": lambda nnx: nnx.reseed(nnx.Rngs(a=0).split(2), a=1),
    "policy": lambda nnx: nnx.reseed(nnx.Rngs(a=0), policy="nope", a=1),
    "another level": outer_stream,
}


@pytest.mark.parametrize("case", sorted(RAISING))
def test_errors_are_of_the_same_builtin(agree, case):
    agree(RAISING[case], expect=Exception)


def test_the_missing_stream_is_named():
    with pytest.raises(AttributeError, match=r"^No RngStream named 'dropout' found in Rngs\.$"):
        nnx.Rngs(params=0).dropout()


@pytest.mark.parametrize("wrong", [None, 3, "x", ((1, 2),), [()]])
def test_what_is_no_backup_is_refused_and_restores_nothing(wrong):
    rngs = nnx.Rngs(params=0)
    backups = nnx.split_rngs(rngs, splits=2)
    rows = [*backups, *wrong] if isinstance(wrong, tuple | list) else wrong
    with pytest.raises(TypeError, match="restore_rngs takes the backups of streams, not"):
        nnx.restore_rngs(rows)
    assert rngs.params.key.shape == (2,)
