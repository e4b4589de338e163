"""The first line of an error has the words that flax's users search for."""

import jax
import jax.numpy as jnp
import pytest
from weft import nnx


class Model(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(jnp.ones(2))


class NoTree(nnx.Pytree, pytree=False):
    pass


def shared():
    model = Model()
    model.v = model.w
    return model


def with_data(value):
    model = nnx.Dict(a="static")
    model.a = value


class Late(nnx.Module):
    def __init__(self):
        self.layers = []
        self.layers.append(nnx.Param(1))


def scanned(f, *args, **options):
    return nnx.scan(f, in_axes=nnx.Carry, out_axes=nnx.Carry, length=3, **options)(*args)


ERRORS = {
    "a bound method": (lambda: nnx.value_and_grad(Model().eval), "nnx.value_and_grad does not support bound methods"),
    "a bound method with its first arguments": (
        lambda: nnx.jit_partial(Model().eval, graph_updates=False),
        "nnx.jit_partial does not support bound methods",
    ),
    "a key of a stream that holds several": (
        lambda: nnx.Rngs(dropout=0).split(2).dropout(),
        r"a single key, but 'dropout' holds a key array of shape \(2,\)",
    ),
    "shared in a tree": (lambda: nnx.split(shared(), graph=False), "Duplicate Param.* found at paths"),
    "shared in what is given at first": (
        lambda: nnx.jit_partial(lambda a, b: a, Model(), shared(), graph=False),
        "Duplicate Param.* found at paths",
    ),
    "no tree": (lambda: nnx.split([NoTree()], graph=False), r"pytree=False. Found at path: \[0\]"),
    "returned": (lambda: nnx.jit(lambda m: m, graph_updates=False)(Model()), "Duplicate Param.* Variable aliasing"),
    "data declared static": (lambda: with_data(nnx.static(jnp.ones(2))), "Found data in value of type 'ArrayImpl'"),
    "data assigned": (lambda: with_data(["a", jnp.ones(2)]), "Found data on value of type 'list'"),
    "data that came later": (Late, "Found unexpected data on value of type 'list'"),
    "states of two structures": (
        lambda: nnx.merge(nnx.unpack(Model()), nnx.unpack(nnx.Dict(a=nnx.Param(1)))),
        "GraphDef must be the same",
    ),
    "a state among graph states": (
        lambda: nnx.merge(nnx.unpack(Model()), nnx.state(Model())),
        "Expected GraphState object",
    ),
    "two carries": (lambda: nnx.scan(in_axes=(nnx.Carry, nnx.Carry)), "Found multiple Carry definitions"),
    "a carry that does not come out": (
        lambda: nnx.scan(in_axes=(nnx.Carry, 0), out_axes=0),
        "If one of in_axes or out_axes has Carry, the other must also have Carry",
    ),
    "a carry beside the carry": (
        lambda: scanned(lambda m, x: m, Model(), 0),
        "When in_axes=Carry, the function must take exactly one argument",
    ),
    "another object carried out": (lambda: scanned(nnx.clone, Model()), "Carry references must be the same"),
    "another Variable carried out": (
        lambda: scanned(nnx.clone, Model(), graph_updates=False),
        "scan Variable identity must be preserved",
    ),
    "an object as a prefix": (lambda: nnx.vmap(in_axes=(Model(),)), "Graph nodes are not allowed as prefixes"),
    "a Variable as a prefix": (
        lambda: nnx.vmap(in_axes=(nnx.Param(0),), graph=False),
        "Variables prefixes are not supported",
    ),
    "filters that leave something": (lambda: nnx.split(Model(), nnx.BatchStat), "Non-exhaustive filters, got a"),
    "no streams": (lambda: nnx.Dropout(0.5)(jnp.ones(2)), "`deterministic` is False, but no `rngs` argument was"),
}


def layer(make, *shape, **options):
    """A call of a layer, which is made in the call."""
    return lambda: make(nnx.Rngs(0))(jnp.ones(shape), **options)


def attention(rngs, **options):
    return nnx.MultiHeadAttention(2, 4, rngs=rngs, **{"decode": False} | options)


# What layers and Variables say of wrong sizes and options.
OF_LAYERS = {
    "features": (layer(attention, 1, 2, 5), "Incompatible input dimension"),
    "heads": (lambda: nnx.MultiHeadAttention(3, 4, rngs=nnx.Rngs(0)), "Memory dimension.* must be divisible by"),
    "no cache": (layer(lambda r: attention(r, decode=True), 1, 1, 4), "Autoregressive cache not initialized"),
    "floats": (layer(lambda r: nnx.Embed(3, 4, rngs=r), 2), "Input type must be an integer"),
    "axes": (layer(lambda r: nnx.LinearGeneral((3, 2), 4, rngs=r)), "in_features and axis must have the same length"),
    "no arrow": (layer(lambda r: nnx.Einsum("ab,bc", (2, 3), rngs=r)), "equation must be explicit"),
    "one operand": (layer(lambda r: nnx.Einsum("ab->ab", (2, 3), rngs=r)), "must have exactly two operands"),
    "mask": (
        layer(lambda r: nnx.Conv(3, 4, (3,), mask=jnp.ones(3), rngs=r), 1, 8, 3),
        "Mask needs to have the same shape as weights",
    ),
    "causal": (
        layer(lambda r: nnx.Conv(3, 4, (3, 3), padding="CAUSAL", rngs=r), 1, 8, 8, 3),
        "Causal padding is only .* 1D convolutions",
    ),
    "padding": (
        layer(lambda r: nnx.Conv(3, 4, (3, 3), padding=(1, 2, 3), rngs=r), 1, 8, 8, 3),
        "Invalid padding format",
    ),
    "groups": (layer(lambda r: nnx.GroupNorm(6, num_groups=4, rngs=r)), "does not divide the number of channels"),
    "no matrix": (
        layer(
            lambda r: nnx.SpectralNorm(nnx.Conv(1, 2, (3,), rngs=r), error_on_non_matrix=True, rngs=r),
            1, 4, 1, update_stats=True,
        ),
        "error_on_non_matrix is True",
    ),
    "a ref": (lambda: nnx.Param(jax.new_ref(jnp.ones(2))), "Cannot pass a Ref"),
    "a taken name": (lambda: nnx.register_variable_name("params", nnx.BatchStat), "already mapped to type"),
    "keys": (lambda: nnx.reseed(nnx.Rngs(0).split(2), default=1), "Cannot reseed"),
    "no mesh": (lambda: nnx.Param(jnp.ones(2), out_sharding=("a",)), "mesh context is required"),
    "axes of an array": (
        lambda: nnx.scan(in_axes=(nnx.StateAxes({...: 0}),), out_axes=0)(lambda x: x)(jnp.ones(2)),
        "Cannot use StateAxes on",
    ),
    "no table": (lambda: nnx.tabulate(5), "Expected a graph node"),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_LAYERS)
def test_an_error_of_a_layer_has_the_words_that_flax_has_for_it(name):
    call, words = OF_LAYERS[name]
    with pytest.raises(ValueError, match=rf"\A[^\n]*{words}"):
        call()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nnx.Param(1.0).__iadd__(1), NotImplementedError, "In-place operations are not"),
        (lambda: nnx.switch(0.5, [abs], 1), TypeError, r"index.* must be an integer.* float32"),
        (lambda: nnx.Dropout(0.5, rngs=3), TypeError, "rngs must be a Rngs"),
        (lambda: nnx.List([1])["a"], TypeError, "Invalid index type"),
        (lambda: nnx.Param(1.0).set_metadata({"a": 1}, b=2), TypeError, "Cannot mix"),
        (lambda: nnx.Param(1.0).get_metadata(default=1), TypeError, "Cannot provide a default value"),
        (lambda: nnx.Param(1.0).get_metadata("a", exclude_required=True), TypeError, "Cannot specify both"),
        (lambda: Model().sow(nnx.Param, "w", 1), TypeError, "sow appends to a tuple"),
        (lambda: nnx.jit(lambda m: m, donate_argnums="a")(Model()), TypeError, "cannot be interpreted as an integer"),
    ],
)
def test_an_error_of_another_class_has_them_too(call, error, words):
    with pytest.raises(error, match=rf"\A[^\n]*{words}"):
        call()


@pytest.mark.parametrize("returned", [lambda c, x: c, lambda c, x: (c, x, x), lambda c, x: None])
def test_a_step_that_returns_no_pair_is_told_so(returned):
    with pytest.raises(ValueError, match="the function of scan must return 2 values"):
        nnx.scan(returned)(jnp.zeros(()), jnp.ones(2))


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_begins_with_the_words_that_flax_has_for_it(name):
    call, words = ERRORS[name]
    with pytest.raises(ValueError, match=words) as caught:
        call()
    assert caught.match(rf"\A[^\n]*{words}")


def test_what_a_trace_counts_does_not_make_its_loop_trace_again():
    count = 0

    @nnx.scan
    def step(carry, x):
        nonlocal count
        count += 1
        return carry + x, carry

    for _ in range(3):
        step(jnp.array(0), jnp.arange(3))
    assert count == 1


def test_prefixes_made_together_tell_that_a_variable_is_under_two():
    model, second = Model(), Model()
    second.w = model.w
    axes = nnx.prefix((model, second), lambda path, leaf: path[0], graph=True)
    f = nnx.vmap(lambda model, other: model.w + other.w, in_axes=axes, graph=True, graph_updates=False)
    with pytest.raises(ValueError, match=r"Inconsistent aliasing(.|\n)*at: model.w: 0\n  at: other.w: 1"):
        f(model, second)
