"""Recurrent cells and networks: against flax, equinox and the formulas; padding, directions, transforms."""

from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from flax import nnx
from weft.core import SuccessorError
from weft.errors import AxisError, ConfigError
from weft.modules import RNN, Bidirectional, Dropout, GRUCell, LSTMCell, OptimizedLSTMCell, RecurrentCell, SimpleCell

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (3, 6, 5))
LENGTHS = jnp.array([6, 2, 4])
FLAX = {
    SimpleCell: nnx.SimpleCell,
    GRUCell: nnx.GRUCell,
    LSTMCell: nnx.LSTMCell,
    OptimizedLSTMCell: nnx.OptimizedLSTMCell,
}
CELLS = list(FLAX)


def cell_of(cls, key=KEY, **options):
    return cls(5, 4, key=key, bias_init=jax.nn.initializers.normal(), **options)


def in_flax(cell, **options):
    """flax's cell with a cell's parameters."""
    theirs = FLAX[type(cell)](5, 4, rngs=nnx.Rngs(0), **options)
    for name, linear in vars(theirs).items():
        if isinstance(linear, nnx.Linear):
            linear.kernel[...] = getattr(cell, name).kernel
            if getattr(cell, name).bias is not None:
                linear.bias[...] = getattr(cell, name).bias
    return theirs


def assert_close(ours, theirs):
    for actual, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cls", CELLS)
def test_a_cell_equals_flax(cls):
    cell = cell_of(cls)
    theirs, carry = in_flax(cell), cell.initial_carry(X[:, 0])
    assert_close(carry, theirs.initialize_carry((3, 5), nnx.Rngs(0)))
    for i in range(2):
        expected = theirs(carry, X[:, i])
        carry, y = cell(carry, X[:, i])
        assert_close((carry, y), expected)


@pytest.mark.parametrize(
    ("cls", "ours", "theirs"),
    [
        (SimpleCell, {"residual": True, "activation": jax.nn.relu}, {"residual": True, "activation_fn": jax.nn.relu}),
        (GRUCell, {"gate": jax.nn.hard_sigmoid}, {"gate_fn": jax.nn.hard_sigmoid}),
        (LSTMCell, {"activation": jax.nn.silu}, {"activation_fn": jax.nn.silu}),
        (OptimizedLSTMCell, {"activation": jax.nn.silu}, {"activation_fn": jax.nn.silu}),
    ],
)
def test_a_cell_with_other_activations_equals_flax(cls, ours, theirs):
    cell, carry = cell_of(cls, **ours), cell_of(cls).initial_carry(X[:, 0])
    carry = jax.tree.map(lambda leaf: leaf + 0.5, carry)
    assert_close(cell(carry, X[:, 0]), in_flax(cell, **theirs)(carry, X[:, 0]))


@pytest.mark.slow
def test_a_gru_equals_equinox():
    cell, theirs = cell_of(GRUCell, use_bias=False), eqx.nn.GRUCell(5, 4, use_bias=False, key=KEY)
    kernels = [cell.dense_i.kernel.T, cell.dense_h.kernel.T]
    theirs = eqx.tree_at(lambda theirs: [theirs.weight_ih, theirs.weight_hh], theirs, kernels)
    carry = jnp.full(4, 0.3)
    assert_close(cell(carry, X[0, 0])[0], theirs(X[0, 0], carry))


def test_an_lstm_equals_equinox():
    cell, theirs = cell_of(OptimizedLSTMCell), eqx.nn.LSTMCell(5, 4, key=KEY)
    arrays = [cell.dense_i.kernel.T, cell.dense_h.kernel.T, cell.dense_h.bias]
    theirs = eqx.tree_at(lambda theirs: [theirs.weight_ih, theirs.weight_hh, theirs.bias], theirs, arrays)
    memory, hidden = jnp.full(4, 0.3), jnp.full(4, -0.2)
    expected_hidden, expected_memory = theirs(X[0, 0], (hidden, memory))
    assert_close(cell((memory, hidden), X[0, 0]), ((expected_memory, expected_hidden), expected_hidden))


def test_the_two_lstms_are_one():
    lstm = cell_of(LSTMCell)
    optimized = cell_of(OptimizedLSTMCell)
    inputs = [part.kernel for part in (lstm.ii, lstm.if_, lstm.ig, lstm.io)]
    hidden = [lstm.hi, lstm.hf, lstm.hg, lstm.ho]
    optimized = weft.at(optimized).dense_i.kernel.set(jnp.concatenate(inputs, 1))
    optimized = weft.at(optimized).dense_h.kernel.set(jnp.concatenate([part.kernel for part in hidden], 1))
    optimized = weft.at(optimized).dense_h.bias.set(jnp.concatenate([part.bias for part in hidden]))
    assert_close(RNN(optimized)(X), RNN(lstm)(X))


@pytest.mark.parametrize("cls", CELLS)
def test_recurrent_kernels_begin_orthogonal(cls):
    kernels = weft.tree.select(
        cell_of(cls), weft.filters.Any(weft.filters.PathContains("dense_h"), weft.filters.PathContains("hi"))
    )
    kernel = next(leaf for leaf in jax.tree.leaves(kernels) if leaf.ndim == 2)
    assert_close(kernel @ kernel.T, jnp.eye(4))
    half = cls(5, 4, key=KEY, param_dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(half)} == {jnp.dtype(jnp.bfloat16)}


def by_hand(cell, x, steps, carry):
    """A cell step by step over some of the steps of one sequence; zeros elsewhere."""
    outputs = [None] * len(x)
    for i in steps:
        carry, outputs[i] = cell(carry, x[i])
    zeros = jnp.zeros(4)
    return carry, jnp.stack([zeros if y is None else y for y in outputs])


@pytest.mark.parametrize("cls", [GRUCell, LSTMCell])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_a_network_is_its_cell_over_the_steps_that_there_are(cls, reverse, padded):
    cell = cell_of(cls)
    x = X.at[1, 2:].set(jnp.nan) if padded else X
    carry, y = RNN(cell, reverse=reverse)(x, lengths=LENGTHS if padded else None, return_carry=True)
    for i in range(3):
        steps = range(int(LENGTHS[i]) if padded else 6)
        expected = by_hand(cell, x[i], steps[::-1] if reverse else steps, cell.initial_carry(x[i, 0]))
        assert_close((jax.tree.map(lambda leaf, i=i: leaf[i], carry), y[i]), expected)


@pytest.mark.parametrize("cls", CELLS)
@pytest.mark.parametrize("reverse", [False, True])
def test_a_network_equals_flax(cls, reverse):
    cell = cell_of(cls)
    theirs = nnx.RNN(in_flax(cell), reverse=reverse, keep_order=True, return_carry=True)
    ours = RNN(cell, reverse=reverse)
    carry, y = ours(X, return_carry=True)
    assert_close((carry, y), theirs(X))
    carry, y = ours(X, lengths=LENGTHS, return_carry=True)
    their_carry, their_y = theirs(X, seq_lengths=LENGTHS)
    assert_close(carry, their_carry)
    there = jnp.arange(6) < LENGTHS[:, None]
    assert_close(y, jnp.where(there[..., None], their_y, 0))


def test_a_mask_says_the_same_as_lengths_and_more():
    rnn, there = RNN(cell_of(GRUCell)), jnp.arange(6) < LENGTHS[:, None]
    assert_close(rnn(X, mask=there, return_carry=True), rnn(X, lengths=LENGTHS, return_carry=True))
    holes = there.at[0, 2].set(False)
    expected = by_hand(rnn.cell, X[0], [0, 1, 3, 4, 5], jnp.zeros(4))
    carry, y = rnn(X, mask=holes, return_carry=True)
    assert_close((carry[0], y[0]), expected)


def test_a_sequence_without_steps_gives_the_carry_back():
    carry, y = RNN(cell_of(GRUCell))(
        X, lengths=jnp.array([0, 1, 2]), initial_carry=jnp.full((3, 4), 0.5), return_carry=True
    )
    assert_close(carry[0], jnp.full(4, 0.5))
    assert not y[0].any()


def test_an_initial_carry_goes_on_where_another_run_ended():
    rnn = RNN(cell_of(LSTMCell))
    carry, first = rnn(X[:, :2], return_carry=True)
    assert_close(jnp.concatenate([first, rnn(X[:, 2:], initial_carry=carry)], 1), rnn(X))


@pytest.mark.parametrize(("axis", "order"), [(0, (1, 0, 2)), (-2, (0, 1, 2)), (1, (0, 1, 2))])
def test_any_axis_may_be_time(axis, order):
    cell = cell_of(GRUCell)
    y = RNN(cell, time_axis=axis)(X.transpose(order), lengths=LENGTHS)
    assert_close(y.transpose(order), RNN(cell)(X, lengths=LENGTHS))


@pytest.mark.parametrize("batch", [(), (2, 3)])
def test_a_network_takes_any_leading_axes(batch):
    rnn, x = RNN(cell_of(GRUCell)), jax.random.normal(KEY, (*batch, 6, 5))
    lengths = jnp.full(batch, 4)
    y = rnn(x, lengths=lengths)
    assert y.shape == (*batch, 6, 4)
    assert_close(y.reshape(-1, 6, 4)[0], rnn(x.reshape(-1, 6, 5)[:1], lengths=jnp.array([4]))[0])


def test_padding_leaves_no_trace_in_gradients():
    rnn = RNN(cell_of(GRUCell))
    dirty = jnp.where((jnp.arange(6) < LENGTHS[:, None])[..., None], X, jnp.nan)

    def loss(rnn, x):
        return jnp.sum(rnn(x, lengths=LENGTHS) ** 2)

    gradient = weft.grad(loss)(rnn, dirty)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert_close(gradient, weft.grad(loss)(rnn, X))


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_bidirectional_runs_one_in_each_direction(lengths):
    first, second = (RNN(cell_of(GRUCell, key)) for key in jax.random.split(KEY))
    both = Bidirectional(first, second)
    carries, y = both(X, lengths=lengths, return_carry=True)
    forward = first(X, lengths=lengths, return_carry=True)
    backward = second(X, lengths=lengths, reverse=True, return_carry=True)
    assert_close(carries, (forward[0], backward[0]))
    assert_close(y, jnp.concatenate([forward[1], backward[1]], -1))
    assert_close(both(X, lengths=lengths), y)
    summed = Bidirectional(first, second, merge=jnp.add)(X, initial_carry=carries)
    theirs = first(X, initial_carry=carries[0]) + second(X, initial_carry=carries[1], reverse=True)
    assert_close(summed, theirs)


def test_bidirectional_equals_flax():
    first, second = (cell_of(LSTMCell, key) for key in jax.random.split(KEY))
    theirs = nnx.Bidirectional(nnx.RNN(in_flax(first)), nnx.RNN(in_flax(second)))
    assert_close(Bidirectional(RNN(first), RNN(second))(X), theirs(X))


def test_one_network_is_not_two(unchecked):
    rnn = RNN(cell_of(GRUCell))
    with pytest.raises(ConfigError, match="Bidirectional needs two networks, and got the same one twice"):
        Bidirectional(rnn, rnn)


class Noisy(RecurrentCell[Any]):
    """A cell of a user's own that drops."""

    inner: GRUCell
    dropout: Dropout

    def __call__(self, carry, x, *, key=None):
        return self.inner(carry, self.dropout(x, key=key))

    def initial_carry(self, x):
        return self.inner.initial_carry(x)


def test_each_step_of_a_cell_that_draws_gets_a_key_of_its_own():
    rnn = RNN(Noisy(cell_of(GRUCell), Dropout(0.5)))
    expected = []
    carry = jnp.zeros((3, 4))
    for i, key in enumerate(jax.random.split(KEY, 6)):
        carry, y = rnn.cell(carry, X[:, i], key=key)
        expected.append(y)
    assert_close(rnn(X, key=KEY), jnp.stack(expected, 1))
    assert_close(weft.inference_mode(rnn)(X), RNN(rnn.cell.inner)(X))


class Counting(RecurrentCell[Any]):
    """A cell that changes beside its carry."""

    calls: Annotated[jax.Array, weft.Buffer]

    def __call__(self, carry, x):
        return (carry, x), self.replace(calls=self.calls + 1)

    def initial_carry(self, x):
        return jnp.zeros(())


def test_a_cell_does_not_lose_a_successor():
    with pytest.raises(SuccessorError, match="a Counting returns a successor, and RNN would lose it"):
        RNN(Counting(jnp.zeros(())))(X)


@pytest.mark.slow
@pytest.mark.parametrize("cls", CELLS)
def test_networks_cross_every_transform(cls, tmp_path):
    cell = cls(5, 5, key=KEY)
    rnn = RNN(cell)
    y = rnn(X)
    assert_close(weft.jit(lambda rnn, x: rnn(x))(rnn, X), y)
    assert_close(weft.vmap(rnn)(X), y)
    assert_close(weft.scan(lambda rnn, x: (rnn, rnn(x)))(rnn, X)[1], y)
    carry = cell.initial_carry(X[:, 0])
    assert_close(jnp.moveaxis(weft.scan(cell)(carry, jnp.moveaxis(X, 1, 0))[1], 0, 1), y)
    stack = weft.Stack(lambda key: RNN(cls(5, 5, key=key)), 2, key=KEY, remat=True)
    assert_close(stack(X), stack[1](stack[0](X)))
    chain = weft.Sequential(rnn, weft.Linear(5, 2, key=KEY))
    assert chain(X).shape == (3, 6, 2)

    def loss(rnn):
        return jnp.sum(rnn(X) ** 2)

    assert_close(weft.grad(weft.remat(loss))(rnn), weft.grad(loss)(rnn))
    weft.save_checkpoint(tmp_path / "rnn", rnn)
    assert_close(weft.load_checkpoint(tmp_path / "rnn", RNN(cls(5, 5, key=jax.random.key(7))))(X), y)


@pytest.mark.parametrize("cls", CELLS)
@pytest.mark.parametrize("x_dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("options", [{"dtype": jnp.bfloat16}, {"param_dtype": jnp.bfloat16}, {}])
def test_a_carry_is_of_the_dtype_that_steps_compute_in(cls, x_dtype, options):
    cell, x = cell_of(cls, **options), X.astype(x_dtype)
    carry, y = jax.eval_shape(lambda x: RNN(cell)(x, return_carry=True), x)
    wanted = options.get("dtype") or jnp.result_type(x_dtype, options.get("param_dtype", jnp.float32))
    assert {leaf.dtype for leaf in jax.tree.leaves((carry, y))} == {jnp.dtype(wanted)}


def test_eager_calls_share_one_compiled_loop():
    traces = []

    class Seen(GRUCell):
        def __call__(self, carry, x):
            traces.append(None)
            return super().__call__(carry, x)

    for seed in range(3):
        RNN(Seen(5, 4, key=jax.random.key(seed)))(X)
        RNN(Seen(5, 4, key=jax.random.key(seed)))(X)
    assert len(traces) <= 2


@pytest.mark.parametrize(
    "make", [RNN, lambda cell: Bidirectional(RNN(cell), RNN(GRUCell(3, 4, key=jax.random.key(1))))]
)
def test_a_sequence_without_steps_gives_none(make):
    cell = GRUCell(3, 4, key=jax.random.key(0))
    y = make(cell)(jnp.ones((2, 0, 3)))
    assert y.shape[:2] == (2, 0)


def test_networks_run_under_strict_promotion():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for cls in CELLS:
            jax.eval_shape(lambda x, cls=cls: RNN(cell_of(cls))(x, lengths=LENGTHS), X)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"lengths": jnp.array([1, 2])},
            AxisError,
            r"lengths must have the shape of the batch, one length for each sequence\n  at: lengths: \(2,\)",
        ),
        ({"mask": jnp.ones((3, 5), bool)}, AxisError, "the mask of a sequence must have all its axes but the features"),
        ({"mask": jnp.ones((3, 6), bool), "lengths": LENGTHS}, ConfigError, "both lengths and a mask were passed"),
    ],
)
def test_what_says_which_steps_there_are_must_fit(options, error, message, unchecked):
    with pytest.raises(error, match=message):
        RNN(cell_of(GRUCell))(X, **options)


def test_one_vector_is_no_sequence_for_a_network(unchecked):
    with pytest.raises(AxisError, match="a sequence needs an axis of steps and one of features"):
        RNN(cell_of(GRUCell))(X[0, 0])
    with pytest.raises(ConfigError, match="GRUCell: hidden_features must be positive, not 0"):
        GRUCell(3, 0, key=KEY)
