"""RNN and Bidirectional are flax's: state, attributes, outputs, gradients, state after calls."""

import inspect
import logging

import jax
import jax.numpy as jnp
import pytest
from flax import nnx as flax_nnx
from flax.nnx.nn import recurrent as flax_recurrent
from jax.nn import initializers
from weft import nnx
from weft.nnx.interop.installing import twin_module
from weft.nnx.nn import recurrent
from weft.nnx.objects.attributes import is_data
from weft.nnx.objects.stability import is_stable

from .twins import assert_equal, assert_same_state, twins

pytestmark = [
    pytest.mark.wide,
    pytest.mark.filterwarnings("ignore:.*keep_rngs.*deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*carry_init.*:UserWarning"),
]

CELLS = ["SimpleCell", "GRUCell", "LSTMCell", "OptimizedLSTMCell"]
NORMAL = initializers.normal(0.5)
LENGTHS = jnp.array([2, 5, 1])


def x_of(*shape, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(7), shape).astype(dtype)


def rnns(name="GRUCell", **options):
    def make(library):
        return library.RNN(getattr(library, name)(3, 4, rngs=library.Rngs(3, carry=5)), **options)

    return twins(make)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", CELLS)
def test_gradients_through_a_sequence_are_flaxs(name):
    def loss(rnn, x):
        return (rnn(x, seq_lengths=LENGTHS, reverse=True) ** 3).sum()

    theirs, ours = rnns(name)
    x = x_of(3, 5, 3)
    assert_equal(
        flax_nnx.grad(loss, argnums=(0, 1))(theirs, x), nnx.grad(loss, argnums=(0, 1))(ours, x), 1e-5, "gradients"
    )
    assert_same_state(theirs, ours)


CALLS = {
    "plain": {},
    "carry": {"return_carry": True},
    "lengths": {"seq_lengths": LENGTHS},
    "lengths and carry": {"seq_lengths": LENGTHS, "return_carry": True},
    "reverse": {"reverse": True, "return_carry": True},
    "in order": {"reverse": True, "keep_order": True},
    "reverse, padded": {"reverse": True, "seq_lengths": LENGTHS, "return_carry": True},
    "in order, padded": {"reverse": True, "keep_order": True, "seq_lengths": LENGTHS, "return_carry": True},
    "order alone": {"keep_order": True, "seq_lengths": LENGTHS},
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("time_major", [False, True], ids=["batch major", "time major"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_sequence_is_run_like_flaxs_whether_options_are_the_layers_or_the_calls(call, time_major):
    x = x_of(5, 3, 3) if time_major else x_of(3, 5, 3)
    for name in ("GRUCell", "LSTMCell"):
        theirs, ours = rnns(name)
        expected = theirs(x, time_major=time_major, **call)
        assert_equal(expected, ours(x, time_major=time_major, **call), 1e-5)
        assert_same_state(theirs, ours)
        lengths = {key: value for key, value in call.items() if key == "seq_lengths"}
        options = {key: value for key, value in call.items() if key != "seq_lengths"}
        _, own = rnns(name, time_major=time_major, **options)
        assert_equal(expected, own(x, **lengths), 1e-5)


@pytest.mark.parametrize("shape", [(5, 3), (3, 5, 3), (2, 3, 5, 3)])
@pytest.mark.parametrize("reverse", [False, True])
def test_there_may_be_any_number_of_batch_axes(shape, reverse):
    theirs, ours = rnns("OptimizedLSTMCell", return_carry=True, reverse=reverse, unroll=2)
    assert_equal(theirs(x_of(*shape)), ours(x_of(*shape)), 1e-5)


@pytest.mark.slow
def test_padded_sequences_of_two_batch_axes_end_with_their_own_carries():
    # flax selects carries along one batch axis only.
    _, ours = rnns("LSTMCell", return_carry=True)
    x, lengths = x_of(2, 3, 5, 3), jnp.array([[1, 5, 3], [2, 4, 1]])
    (memory, _), ys = ours(x, seq_lengths=lengths)
    for i in range(2):
        for j in range(3):
            (final_memory, _), y = ours(x[i, j, : int(lengths[i, j])])
            assert_equal((final_memory, y), (memory[i, j], ys[i, j, : int(lengths[i, j])]), 1e-5)


def test_a_first_carry_may_be_given():
    theirs, ours = rnns("LSTMCell", return_carry=True)
    carry, x = (x_of(3, 4), x_of(3, 4) * 2), x_of(3, 5, 3)
    assert_equal(theirs(x, initial_carry=carry), ours(x, initial_carry=carry), 1e-5)
    assert_same_state(theirs, ours)


@pytest.mark.parametrize(
    "streams",
    [lambda n: True, lambda n: False, lambda n: n.Rngs(4), lambda n: n.Rngs(carry=4)],
    ids=["own", "none", "Rngs", "carry"],
)
def test_the_stream_of_the_first_carry_is_flaxs(streams):
    def make(library):
        cell = library.GRUCell(3, 4, carry_init=NORMAL, rngs=library.Rngs(0))
        return library.RNN(cell, rngs=streams(library))

    theirs, ours = twins(make)
    assert_same_state(theirs, ours)
    x = x_of(3, 5, 3)
    for _ in range(2):
        if theirs.rngs is not None:
            assert_equal(theirs(x), ours(x), 1e-5)
        their_rngs, our_rngs = flax_nnx.Rngs(6), nnx.Rngs(6)
        assert_equal(theirs(x, rngs=their_rngs), ours(x, rngs=our_rngs), 1e-5)
        assert_same_state(their_rngs, our_rngs)
        assert_same_state(theirs, ours)


@pytest.mark.slow
def test_jit_vmap_and_scan_of_recurrent_layers_are_flaxs():
    def jitted(library, rnn, x):
        return library.jit(lambda rnn, x: rnn(x, seq_lengths=LENGTHS, return_carry=True))(rnn, x)

    def ensemble(library, rnn, x):
        make = library.vmap(lambda rngs: library.RNN(library.LSTMCell(3, 4, rngs=rngs)))
        members = make(library.Rngs(0).split(2))
        return library.vmap(lambda member, x: member(x), in_axes=(0, None))(members, x)

    def stacked(library, rnn, x):
        layers = library.vmap(lambda rngs: library.RNN(library.GRUCell(3, 3, rngs=rngs), rngs=rngs))(
            library.Rngs(0).split(2)
        )
        return library.scan(lambda x, layer: layer(x), in_axes=(library.Carry, 0), out_axes=library.Carry)(x, layers)

    theirs, ours = rnns("LSTMCell")
    x = x_of(3, 5, 3)
    for program in (jitted, ensemble, stacked):
        assert_equal(program(flax_nnx, theirs, x), program(nnx, ours, x), 1e-5, program.__name__)
        assert_same_state(theirs, ours)


def test_bfloat16_sequences_are_flaxs():
    def make(library):
        options = {"dtype": jnp.bfloat16, "param_dtype": jnp.bfloat16, "rngs": library.Rngs(0)}
        return library.RNN(library.LSTMCell(3, 4, **options))

    theirs, ours = twins(make)
    assert_same_state(theirs, ours)
    x = x_of(3, 5, 3, dtype=jnp.bfloat16)
    assert_equal(theirs(x), ours(x), 2e-2)


def dropped(library, streams):
    """A cell with dropout between steps."""

    class Dropped(library.OptimizedLSTMCell):
        def __init__(self, *args, rngs):
            super().__init__(*args, rngs=rngs)
            self.dropout = library.Dropout(0.5, rng_collection="recurrent", rngs=rngs)
            self.steps = library.BatchStat(jnp.array(0))

        def __call__(self, carry, x):
            (memory, h), y = super().__call__(carry, x)
            self.steps[...] += 1
            return (memory, self.dropout(h)), y

    return library.RNN(Dropped(3, 4, rngs=library.Rngs(0, recurrent=1)), **streams)


@pytest.mark.parametrize("streams", [{}, {"broadcast_rngs": "recurrent"}], ids=["each step", "once"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_dropout_between_steps_draws_what_flaxs_draws(streams, compiled):
    theirs, ours = twins(lambda library: dropped(library, streams))
    x = x_of(3, 5, 3)
    for _ in range(2):
        outputs = [
            library.jit(lambda rnn, x: rnn(x))(rnn, x) if compiled else rnn(x)
            for library, rnn in ((flax_nnx, theirs), (nnx, ours))
        ]
        assert_equal(*outputs, 1e-5)
        assert_same_state(theirs, ours)
    assert int(ours.cell.steps[...]) == 10


def test_variables_of_a_cell_may_ride_otherwise():
    def make(library):
        axes = library.StateAxes({library.Param: None, ...: library.Carry})
        return library.RNN(library.GRUCell(3, 4, rngs=library.Rngs(0)), state_axes=axes)

    theirs, ours = twins(make)
    assert_equal(theirs(x_of(3, 5, 3)), ours(x_of(3, 5, 3)), 1e-5)
    _, all_carried = twins(lambda n: n.RNN(n.GRUCell(3, 4, rngs=n.Rngs(0)), state_axes={...: n.Carry}))
    assert_equal(all_carried(x_of(3, 5, 3)), ours(x_of(3, 5, 3)), 1e-6)


@pytest.mark.slow
def test_a_cell_of_ones_own_may_have_several_axes_of_features():
    def run(library, time_major):
        class Blur(library.RNNCellBase):
            def __init__(self, rngs):
                self.conv = library.Conv(2, 2, (3, 3), rngs=rngs)

            @property
            def num_feature_axes(self):
                return 3

            def initialize_carry(self, input_shape, rngs=None, carry_init=None):
                return jnp.zeros(input_shape)

            def __call__(self, carry, x):
                y = self.conv(x) + carry
                return y, y

        rnn = library.RNN(Blur(library.Rngs(0)), time_major=time_major, return_carry=True)
        x = x_of(5, 2, 4, 4, 2) if time_major else x_of(2, 5, 4, 4, 2)
        return rnn(x), rnn(x, reverse=True, seq_lengths=jnp.array([2, 4]), keep_order=True)

    for time_major in (False, True):
        assert_equal(run(flax_nnx, time_major), run(nnx, time_major), 1e-5)


def test_an_eager_call_compiles_its_loop_once():
    _, first = rnns()
    _, second = rnns()
    first(x_of(3, 5, 3))
    with jax.log_compiles(False), jax.check_tracer_leaks(False):
        counted = []
        jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: counted.append(name))
        try:
            second(x_of(3, 5, 3))
        finally:
            jax.monitoring.clear_event_listeners()
    assert not any("compile" in name for name in counted), counted


# ------------------------------------------------------------------------------------------------- Bidirectional


def both(library, **options):
    forward, backward = (library.RNN(library.LSTMCell(3, 4, rngs=library.Rngs(seed))) for seed in (0, 1))
    return library.Bidirectional(forward, backward, **options)


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({}, {}),
        ({"return_carry": True}, {"seq_lengths": LENGTHS}),
        ({}, {"return_carry": True, "time_major": True}),
        ({"time_major": True, "merge_fn": jnp.add}, {}),
        ({"rngs": False}, {"return_carry": True}),
    ],
)
def test_both_directions_are_flaxs(options, call):
    theirs, ours = twins(lambda library: both(library, **options))
    assert_same_state(theirs, ours)
    x = x_of(3, 3, 3)
    for _ in range(2):
        their_rngs, our_rngs = flax_nnx.Rngs(9), nnx.Rngs(9)
        assert_equal(theirs(x, **call), ours(x, **call), 1e-5)
        assert_equal(theirs(x, rngs=their_rngs, **call), ours(x, rngs=our_rngs, **call), 1e-5)
        assert_same_state(their_rngs, our_rngs)
        assert_same_state(theirs, ours)


def test_both_directions_may_be_given_their_carries_and_streams():
    carries = [tuple(x_of(3, 4) * k for k in (1, 2)), tuple(x_of(3, 4) * k for k in (3, 4))]
    for streams in (lambda n: n.Rngs(4), lambda n: n.Rngs(carry=4).carry):
        theirs, ours = twins(lambda library, streams=streams: both(library, rngs=streams(library)))
        x = x_of(3, 5, 3)
        assert_equal(theirs(x, initial_carry=carries), ours(x, initial_carry=carries), 1e-5)
        assert_equal(theirs(x), ours(x), 1e-5)
        assert_same_state(theirs, ours)


def test_one_network_in_both_directions_is_said(caplog):
    rnn = nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0)))
    with caplog.at_level(logging.WARNING):
        nnx.Bidirectional(rnn, rnn)(x_of(3, 5, 3))
    assert "they share their parameters" in caplog.text


# ------------------------------------------------------------------------------------------------- the rest


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("lengths", [None, jnp.array([[1, 4, 2], [3, 3, 4]])])
def test_sequences_are_flipped_like_flaxs(lengths, time_major):
    x = jnp.arange(2 * 3 * 4 * 2).reshape((4, 2, 3, 2) if time_major else (2, 3, 4, 2))
    assert_equal(
        flax_recurrent.flip_sequences(x, lengths, 2, time_major), recurrent.flip_sequences(x, lengths, 2, time_major)
    )


def test_lengths_may_be_numpy_or_a_tuple_of_another_dtype():
    theirs, ours = rnns(return_carry=True)
    lengths = jnp.array([2, 5, 1], jnp.uint8)
    x = x_of(3, 5, 3)
    assert_equal(theirs(x, seq_lengths=lengths), ours(x, seq_lengths=lengths), 1e-5)


@pytest.mark.parametrize("name", [*CELLS, "RNNCellBase", "RNN", "Bidirectional"])
def test_constructors_and_calls_have_flaxs_parameters_and_defaults(name):
    for method in ("__init__", "__call__", "initialize_carry"):
        theirs = getattr(getattr(flax_nnx, name), method, None)
        if theirs is None or (name == "RNNCellBase" and method == "__init__"):
            continue
        expected = inspect.signature(theirs).parameters
        actual = inspect.signature(getattr(getattr(nnx, name), method)).parameters
        assert list(expected) == list(actual), method
        for parameter in expected.values():
            assert parameter.kind == actual[parameter.name].kind, parameter
            if isinstance(parameter.default, (bool, int, float, str, tuple, type(None))):
                assert actual[parameter.name].default == parameter.default, parameter


@pytest.mark.parametrize("name", CELLS)
def test_what_a_recurrent_layer_keeps_cannot_change_behind_a_plans_back(name):
    rnn = nnx.RNN(getattr(nnx, name)(3, 4, rngs=nnx.Rngs(0)), broadcast_rngs=["a", "b"])
    for layer in (rnn, rnn.cell, both(nnx)):
        assert [key for key, value in vars(layer).items() if not (is_data(value) or is_stable(value))] == []


def test_the_module_of_recurrent_layers_has_what_programs_import_from_it():
    assert twin_module("flax.nnx.nn.recurrent") is recurrent
    names = [*CELLS, "RNN", "Bidirectional", "RNNCellBase", "RNNBase", "flip_sequences", "modified_orthogonal"]
    names += ["default_kernel_init", "default_bias_init", "Carry", "Output", "Array"]
    assert [name for name in names if not hasattr(recurrent, name)] == []
    key = jax.random.key(0)
    for dtype in (jnp.float32, jnp.bfloat16):
        theirs = flax_recurrent.modified_orthogonal(key, (4, 4), dtype)
        assert_equal(theirs, recurrent.modified_orthogonal(key, (4, 4), dtype))


class NoStart(nnx.RNNCellBase):
    num_feature_axes = 1


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: nnx.RNN(NoStart(), rngs=3),
            ValueError,
            "RNN draws its initial carry from Rngs or a stream, got a int",
        ),
        (lambda: both(nnx, rngs=3), TypeError, "Bidirectional draws its initial carries from Rngs or a stream"),
        (lambda: nnx.RNN(NoStart())(x_of(5, 3)), NotImplementedError, "`initialize_carry`, but NoStart defines none"),
        (lambda: NoStart()(None, x_of(3)), NotImplementedError, "`__call__`, but NoStart defines none"),
        (lambda: nnx.RNNCellBase().num_feature_axes, NotImplementedError, "define initialize_carry, __call__ and"),
        (lambda: rnns()[1](jnp.array(1.0)), ValueError, r"the inputs of an RNN need a time axis"),
        (lambda: rnns()[1](x_of(2, 5, 7)), TypeError, "Linear takes 3 features on the last axis, not 7"),
    ],
)
def test_bad_input_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
