"""init: the eager constructor's model, made by one program that is kept, and nothing else that is."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jax.sharding import NamedSharding, PartitionSpec

KEY = jax.random.key(0)


class Table(weft.Module):
    rows: jax.Array
    scale: int | float

    made = 0

    def __init__(self, rows, scale, *, key, activation=jnp.tanh):
        Table.made += 1
        self.rows = activation(rows * scale + jax.random.normal(key, rows.shape))
        self.scale = scale


@pytest.fixture
def made():
    Table.made = 0
    return lambda: Table.made


def shardings():
    mesh = jax.make_mesh((8,), ("d",))
    return NamedSharding(mesh, PartitionSpec("d"))


def test_a_model_has_the_structure_and_numbers_of_the_eager_constructor():
    block = weft.init(weft.TransformerBlock, 8, 2, causal=True, key=KEY)
    eager = weft.TransformerBlock(8, 2, causal=True, key=KEY)
    assert jax.tree.structure(block) == jax.tree.structure(eager)
    for mine, theirs in zip(jax.tree.leaves(block), jax.tree.leaves(eager), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_a_second_call_runs_what_the_first_has_compiled(made):
    first = weft.init(Table, jnp.ones(2), 3, key=KEY)
    second = weft.init(Table, jnp.zeros(2), 3, key=jax.random.key(1))
    assert made() == 1
    assert first.rows.tolist() != second.rows.tolist()


def test_functions_written_in_the_call_are_the_same_configuration_again(made):
    for _ in range(2):
        weft.init(Table, jnp.ones(2), 3, key=KEY, activation=lambda x: x + 1)
    assert made() == 1


@pytest.mark.parametrize(("scale", "again"), [(1, True), (1, 1.0)])
def test_numbers_are_configuration_told_apart_by_type(made, scale, again):
    assert weft.init(Table, jnp.ones(2), scale, key=KEY).scale is scale
    assert type(weft.init(Table, jnp.ones(2), again, key=KEY).scale) is type(again)


def test_no_array_that_a_call_was_given_or_closed_over_is_kept_alive():
    arrays = [jnp.ones(3), jnp.ones(4), jnp.ones(3)]
    alive = [weakref.ref(array) for array in arrays]
    weft.init(Table, arrays[0], 3, key=KEY)
    weft.init(lambda key, array=arrays[1]: Table(array, 3, key=key), key=KEY)
    weft.init(Table, jnp.ones(3), 3, key=KEY, activation=lambda x, array=arrays[2]: x + array)
    del arrays
    gc.collect()
    assert [one() for one in alive] == [None, None, None]


def test_an_abstract_model_has_shapes_and_needs_no_key():
    abstract = weft.init(weft.Stack, lambda key: weft.Linear(4, 4, key=key), 3, abstract=True)
    assert abstract.layers.kernel == jax.ShapeDtypeStruct((3, 4, 4), jnp.float32)
    assert abstract.n == 3


@pytest.mark.parametrize("how", ["one", "by kind", "a function"])
def test_arrays_are_made_where_shardings_say(how):
    wanted = shardings()
    argument = {
        "one": wanted,
        "by kind": weft.axes({weft.Param: wanted}),
        "a function": lambda model: jax.tree.map(lambda leaf: wanted, model),
    }[how]
    made = weft.init(weft.Linear, 8, 16, key=KEY, shardings=argument)
    assert made.kernel.sharding == made.bias.sharding == wanted
    abstract = weft.init(weft.Linear, 8, 16, shardings=argument, abstract=True)
    assert abstract.kernel.sharding == wanted


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: weft.init(weft.Linear, 2, 3, key=0),
            weft.errors.SeedError,
            "Linear draws its parameters from a typed key",
        ),
        (
            lambda: weft.init(weft.Linear, 2, -3, key=KEY),
            weft.errors.ConfigError,
            "out_features must be positive, not -3",
        ),
        (
            lambda: weft.init(3, key=KEY),
            weft.errors.ConfigError,
            "init takes a class or function that makes a model, not a int",
        ),
        (lambda: weft.init(Table, jnp.ones(2), {"a": {1}}, key=KEY), weft.errors.StaticError, "at: args[1].a"),
        (
            lambda: weft.init(weft.Linear, 2, 3, key=KEY, shardings=weft.axes({weft.BatchStat: shardings()})),
            weft.errors.AxisError,
            "at: kernel: Param",
        ),
    ],
)
def test_what_does_not_fit_is_named(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)
