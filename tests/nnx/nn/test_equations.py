"""A layer's jaxpr has flax's equations in flax's order: what walks through one, or intercepts, meets the same program.

`make_jaxpr` only traces, so every layer and option is looked at. What differs is said by name: `FEWER`, where flax
computes what cannot change the result, and `ANOTHER_ORDER`. `stop_gradient` computes nothing, and is not compared.
"""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from .test_layers import CASES, ramp
from .twins import LIBRARIES

X, IDS = ramp(2, 6, 4), jnp.arange(6).reshape(2, 3) % 5
FEWER = {
    "RMSNorm": Counter(reshape=1, sub=1),  # of a mean that is zero
    "Conv: causal": Counter(convert_element_type=1, pad=1),  # the convolution pads
    "Embed.attend": Counter(transpose=1),  # the product goes over the table's second axis
}
ANOTHER_ORDER = {"LSTMCell"}  # the gates are opened when all four sums are there


def called(layer, x):
    return layer(x)


def of(name, *args, call=called, **options):
    """A row of the table: how a library makes the layer, and how it is called."""
    return lambda library: getattr(library, name)(*args, **options, rngs=library.Rngs(0)), call


def around(name, **options):
    """A row for a layer that holds a `Linear`."""
    return (
        lambda lib: getattr(lib, name)(lib.Linear(4, 4, rngs=lib.Rngs(0)), rngs=lib.Rngs(1), **options),
        called,
    )


def step(cell, x):
    return cell((x, x) if "LSTM" in type(cell).__name__ else x, x)


def recurrent(**options):
    return lambda lib: lib.RNN(lib.GRUCell(4, 4, rngs=lib.Rngs(0)), **options)


def both_ways(lib):
    return lib.Bidirectional(recurrent()(lib), recurrent()(lib))


def lengths(rnn, x):
    return rnn(x, seq_lengths=jnp.array([2, 5]))


OTHERS = {
    "Embed": of("Embed", 5, 4, call=lambda layer, x: layer(IDS)),
    "Embed.attend": of("Embed", 5, 4, call=lambda layer, x: layer.attend(x)),
    "Dropout": of("Dropout", 0.5, broadcast_dims=(1,)),
    "PReLU": (lambda library: library.PReLU(), called),
    "MultiHeadAttention": of("MultiHeadAttention", 2, 4, decode=False),
    "MultiHeadAttention: normalized": of("MultiHeadAttention", 2, 4, decode=False, normalize_qk=True),
    "MultiHeadAttention: dropout": of("MultiHeadAttention", 2, 4, decode=False, dropout_rate=0.5, deterministic=False),
    "WeightNorm": around("WeightNorm"),
    "SpectralNorm": around("SpectralNorm", n_steps=2),
    "LoRA": of("LoRA", 4, 2, 4),
    "LoRALinear": of("LoRALinear", 4, 4, lora_rank=2),
    **{name: of(name, 4, 4, call=step) for name in ("SimpleCell", "GRUCell", "LSTMCell", "OptimizedLSTMCell")},
    "RNN": (recurrent(), called),
    "RNN: lengths, reverse, keep order": (recurrent(reverse=True, keep_order=True), lengths),
    "RNN: lengths, carry, time major": (recurrent(return_carry=True, time_major=True), lambda rnn, x: rnn(x)),
    "Bidirectional": (both_ways, called),
    "Bidirectional: lengths": (both_ways, lengths),
}


def equations(jaxpr):
    """The names of all equations in order, those of inner programs in their places."""
    for equation in jaxpr.eqns:
        inner = [value.jaxpr for value in equation.params.values() if hasattr(value, "jaxpr")]
        name = equation.primitive.name
        if name not in ("jit", "stop_gradient"):
            yield name
        for program in inner:
            yield from equations(program)


def program(library, make, call, x):
    graphdef, state = library.split(make(library))
    jaxpr = jax.make_jaxpr(lambda state, x: call(library.merge(graphdef, state), x))(state, x)
    return list(equations(jaxpr.jaxpr))


def assert_alike(name, make, call, x):
    theirs, ours = (program(library, make, call, x) for library in LIBRARIES.values())
    if name in FEWER:
        remaining = iter(theirs)
        assert all(one in remaining for one in ours), "not in flax's order"
        assert Counter(theirs) - Counter(ours) == FEWER[name]
    elif name in ANOTHER_ORDER:
        assert sorted(ours) == sorted(theirs)
    else:
        assert ours == theirs


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("layer", "args", "options", "shapes"), CASES)
def test_a_layers_equations_are_flaxs_in_order(layer, args, options, shapes):
    name = "Conv: causal" if options.get("padding") == "CAUSAL" else layer
    assert_alike(name, *of(layer, *args, **options), ramp(*shapes[0]))


@pytest.mark.parametrize("name", OTHERS)
def test_a_layer_of_parts_has_flaxs_equations_in_order(name):
    assert_alike(name, *OTHERS[name], X)
