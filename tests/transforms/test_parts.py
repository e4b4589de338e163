"""Parts of a threaded record as functions of transforms: the record is an argument, its successor comes back."""

from __future__ import annotations

import gc
import inspect
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from jax.experimental import checkify
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float
from weft import BatchStat, Carry, SuccessorError
from weft.core.threads import blocks
from weft.errors import AxisError, TraceLevelError


class Block(weft.Module):
    weight: Float[Array, "n n"]
    seen: Annotated[Float[Array, "n"], BatchStat]

    def __call__(self, x: Float[Array, "*batch n"]) -> Any:
        y = jnp.tanh(x @ self.weight)
        return y, self.replace(seen=self.seen + y.reshape(-1, y.shape[-1]).mean(0))

    def with_outputs(self, x: Float[Array, "n"], scale: Any = 1.0) -> Any:
        y, block = self(x * scale)
        return y, y.sum(), block

    def pair(self, carry: Any) -> Any:
        (h, c), (y, block) = carry, self(carry[0])
        return (y, c + h), block

    def pure(self, x: Float[Array, "*batch n"]) -> Any:
        return x @ self.weight

    def loss(self, x: Float[Array, "n"]) -> Any:
        y, block = self(x)
        return (y**2).sum(), block

    def loss_and_aux(self, x: Float[Array, "n"]) -> Any:
        loss, block = self.loss(x)
        return loss, {"x": x}, block


class Norm(weft.Module):
    """Statistics over a named axis, and a count that depends on no example."""

    mean: Annotated[jax.Array, BatchStat]
    count: Annotated[jax.Array, BatchStat]
    axis: str | None = weft.static(default="batch")

    def __call__(self, x: Float[Array, "n"]) -> Any:
        mean = x if self.axis is None else jax.lax.pmean(x, self.axis)
        return x - mean, self.replace(mean=mean, count=self.count + 1)

    def grow(self, x: Any) -> Any:
        return x, self.replace(mean=jnp.zeros(7))


class Net(weft.Module):
    blocks: Block
    block: Block
    norm: Norm
    row: list[Block]

    def __call__(self, x: Any) -> Any:
        with weft.thread(self) as t:
            x = weft.scan(weft.remat(t.blocks))(x)
            x = weft.jit(t.block)(x)
            return t.done(x)


N, DEPTH = 3, 4


def block(seed: int, *lead: int) -> Block:
    weight = jax.random.normal(jax.random.key(seed), (*lead, N, N))
    shell = Block(jnp.eye(N), jnp.zeros(N))
    return shell.replace(weight=weight, seen=jnp.zeros((*lead, N)))


def net(axis: str | None = "batch") -> Net:
    stack = jax.tree.map(lambda *rows: jnp.stack(rows), *[block(i) for i in range(DEPTH)])
    return Net(stack, block(9), Norm(jnp.zeros(N), jnp.array(0), axis), [block(7)])


X = jnp.arange(3.0)


def layers(stack: Block) -> list[Block]:
    return [jax.tree.map(lambda leaf, i=i: leaf[i], stack) for i in range(DEPTH)]


def in_a_loop(stack: Block, x: Any) -> tuple[Any, Any]:
    seen = []
    for layer in layers(stack):
        x, layer = layer(x)
        seen.append(layer.seen)
    return x, jnp.stack(seen)


def close(a: Any, b: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), a, b)


def run(body: Any, record: Any = None) -> Any:
    with weft.thread(net() if record is None else record) as t:
        return t.done(body(t))


SCANS = [
    ("scan", lambda t: weft.scan(t.blocks)(X)),
    ("scan of remat", lambda t: weft.scan(weft.remat(t.blocks))(X)),
    ("scan of jit", lambda t: weft.scan(weft.jit(t.blocks))(X)),
    ("jit of scan of remat", lambda t: weft.jit(weft.scan(weft.remat(t.blocks)))(X)),
    ("as decorators", lambda t: weft.scan(unroll=2)(weft.remat(policy=None)(t.blocks))(X)),
    ("with a carry given by name", lambda t: weft.scan(t.blocks, in_axes=(Carry,), out_axes=Carry)(X)),
    ("of __call__", lambda t: weft.scan(t.blocks.__call__)(X)),
]


@pytest.mark.parametrize("scan", [scan for _, scan in SCANS], ids=[name for name, _ in SCANS])
def test_scan_runs_through_a_stack_and_stacks_the_successors(scan: Any):
    record = net()
    y, after = run(scan, record)
    expected, seen = in_a_loop(record.blocks, X)
    close(y, expected)
    close(after.blocks.seen, seen)
    assert after.blocks.weight is record.blocks.weight
    assert after.block is record.block


def test_outputs_beside_the_carry_are_stacked():
    record = net()
    (x, ys), after = run(lambda t: weft.scan(t.blocks.with_outputs)(X), record)
    (z, zs), _ = run(lambda t: weft.scan(t.blocks.with_outputs)(X, jnp.full(DEPTH, 2.0)), record)
    expected, seen = in_a_loop(record.blocks, X)
    close(x, expected)
    assert ys.shape == zs.shape == (DEPTH,)
    close(ys[-1], expected.sum())
    close(after.blocks.seen, seen)
    assert not np.allclose(z, x)


def test_a_carry_may_be_a_pair():
    record = net()
    (h, c), after = run(lambda t: weft.scan(t.blocks.pair)((X, X)), record)
    close(h, in_a_loop(record.blocks, X)[0])
    assert c.shape == (N,)
    close(after.blocks.seen, in_a_loop(record.blocks, X)[1])


def test_a_pure_method_of_a_stack_is_scanned_and_the_record_stays():
    record = net()
    y, after = run(lambda t: weft.scan(t.blocks.pure)(X), record)
    x = X
    for layer in layers(record.blocks):
        x = layer.pure(x)
    close(y, x)
    assert after is record


def test_the_rest_is_the_same_at_every_step_where_in_axes_say_so():
    record = net()
    axes = (Carry, None)
    (y, _), after = run(lambda t: weft.scan(t.blocks.with_outputs, in_axes=axes)(X, jnp.array(1.0)), record)
    close(y, in_a_loop(record.blocks, X)[0])
    close(after.blocks.seen, in_a_loop(record.blocks, X)[1])


def test_gradients_pass_through_and_are_those_of_a_python_loop():
    record = net()

    def threaded(model: Net, x: Any) -> Any:
        y, model = model(x)
        return (y**2).sum(), model

    def by_hand(model: Net, x: Any) -> Any:
        x, seen = in_a_loop(model.blocks, x)
        y, block = model.block(x)
        return (y**2).sum(), (seen, block)

    (value, after), gradient = weft.jit(weft.value_and_grad(threaded, has_aux=True))(record, X)
    (expected, _), same = weft.value_and_grad(by_hand, has_aux=True)(record, X)
    close(value, expected)
    close(gradient.blocks.weight, same.blocks.weight)
    close(gradient.block.weight, same.block.weight)
    close(after.blocks.seen, in_a_loop(record.blocks, X)[1])


def test_vmap_has_one_record_for_all_examples():
    xs = jnp.stack([X, X + 2])
    record = net()
    y, after = run(lambda t: weft.vmap(t.norm, axis_name="batch")(xs), record)
    close(y, xs - xs.mean(0))
    close(after.norm.mean, xs.mean(0))
    assert after.norm.count == 1
    z, _ = run(lambda t: weft.vmap(t.block.pure, in_axes=1, out_axes=1)(xs.T), record)
    close(z, jax.vmap(record.block.pure)(xs).T)


def test_options_by_the_name_of_a_parameter_are_those_of_the_method():
    record = net()
    xs = jnp.stack([X, X + 2])
    y, _ = run(lambda t: weft.vmap(t.block.pure, in_axes={"x": 0})(xs), record)
    close(y, jax.vmap(record.block.pure)(xs))


def test_what_differs_between_examples_cannot_be_written_back_and_is_named():
    record = net(axis=None)
    with weft.thread(record) as t:
        with pytest.raises(
            AxisError,
            match=r"a batched value is returned under axis None(.|\n)*at: Net.norm.mean: ",
        ) as error:
            weft.vmap(t.norm)(jnp.stack([X, X]))
        assert "reduce it over the mapped one" in str(error.value)
        _, after = t.done(None)
    assert after is record


def test_vmap_inside_scan_and_scan_inside_vmap():
    class Stack(weft.Module):
        norms: Norm

    record = Stack(jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), net().norm))
    xs = jnp.stack([X, X + 2])
    y, after = run(lambda t: weft.scan(weft.vmap(t.norms, axis_name="batch"))(xs), record)
    z, same = run(lambda t: weft.vmap(weft.scan(t.norms), axis_name="batch")(xs), record)
    close(y, z)
    close(after, same)
    assert after.norms.count.tolist() == [1, 1]


COMPILED = [
    ("jit", lambda part: weft.jit(part)(1.0)),
    ("jit of remat", lambda part: weft.jit(weft.remat(part))(1.0)),
    ("jit of vmap", lambda part: weft.jit(weft.vmap(part, axis_size=2, in_axes=None))(1.0)),
    ("jit of grad", lambda part: weft.jit(weft.value_and_grad(part))(1.0)),
]


@pytest.mark.parametrize("call", [call for _, call in COMPILED], ids=[name for name, _ in COMPILED])
def test_what_was_compiled_for_a_part_is_found_again_in_the_next_block(call: Any):
    traces = []

    class Traced(weft.Module):
        count: jax.Array

        def __call__(self, x: Any) -> Any:
            traces.append(1)
            return x + self.count, self.replace(count=self.count + 1)

    class Owner(weft.Module):
        part: Traced

    record = Owner(Traced(jnp.array(0)))
    for _ in range(3):
        _, record = run(lambda t: call(t.part), record)
    assert record.part.count == 3
    assert len(traces) == 1


def test_jit_takes_options_for_the_users_arguments():
    def body(t: Any) -> Any:
        x = weft.jit(t.block.with_outputs, static_argnames="scale")(X, scale=2.0)
        y = weft.jit(t.block.with_outputs, static_argnums=1)(X, 2.0)
        z = weft.jit(t.block.with_outputs, donate_argnums=0)(X + 0, 2.0)
        return x, y, z

    record = net()
    (x, y, z), after = run(body, record)
    close(x, y)
    close(x, z)
    close(after.block.seen, record.block(X * 2)[1].seen * 3)


def test_shard_map_runs_a_replicated_record():
    mesh = Mesh(np.array(jax.devices()[:2]), ("batch",))
    xs = jnp.stack([X, X + 2])

    class Shards(weft.Module):
        mean: jax.Array

        def __call__(self, x: Any) -> Any:
            mean = jax.lax.pmean(x.mean(0), "batch")
            return x - mean, self.replace(mean=mean)

    class Owner(weft.Module):
        part: Shards

    spec = PartitionSpec("batch")
    y, after = run(
        lambda t: weft.shard_map(t.part, mesh=mesh, in_specs=spec, out_specs=spec)(xs), Owner(Shards(jnp.zeros(N)))
    )
    close(y, xs - xs.mean(0))
    close(after.part.mean, xs.mean(0))


def test_derivatives_are_those_of_the_arguments_and_the_successor_is_written_back():
    record = net()
    gradient, after = run(lambda t: weft.grad(t.block.loss)(X), record)
    close(gradient, jax.grad(lambda x: record.block.loss(x)[0])(X))
    close(after.block.seen, record.block(X)[1].seen)
    (value, same), after = run(lambda t: weft.value_and_grad(t.block.loss)(X), record)
    close((value, same), (record.block.loss(X)[0], gradient))
    ((_, aux), again), after = run(lambda t: weft.value_and_grad(t.block.loss_and_aux, has_aux=True)(X), record)
    close((aux["x"], again), (X, gradient))
    close(after.block.seen, record.block(X)[1].seen)


def identity(x: Any) -> Any:
    return x


@pytest.mark.parametrize("pred", [True, False])
def test_cond_changes_the_record_of_the_branch_that_is_taken_alone(pred: bool):
    record = net()

    def choose(flag: Any, record: Any) -> Any:
        return run(lambda t: weft.cond(flag, t.block, identity, X), record)

    for call in (choose, weft.jit(choose)):
        y, after = call(jnp.array(pred), record)
        expected, block = record.block(X) if pred else (X, record.block)
        close(y, expected)
        close(after.block.seen, block.seen)
        close(after.row[0].seen, record.row[0].seen)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_switch_between_parts_keeps_those_that_are_not_taken(index: int):
    record = net()

    def body(t: Any) -> Any:
        return weft.switch(index, [t.block, weft.remat(t.row[0]), identity], X)

    y, after = run(body, record)
    parts = [record.block, record.row[0]]
    close(y, (parts[index](X)[0] if index < 2 else X))
    for place, (was, now) in enumerate(zip(parts, [after.block, after.row[0]], strict=True)):
        close(now.seen, was(X)[1].seen if place == index else was.seen)


def test_branches_may_be_a_record_and_a_part_of_it():
    record = net()
    y, after = run(lambda t: weft.cond(True, t.row[0], t, X), record)
    close(y, record.row[0](X)[0])
    close(after.row[0].seen, record.row[0](X)[1].seen)
    y, after = run(lambda t: weft.cond(False, t.row[0], t, X), record)
    close(y, record(X)[0])
    close(after.blocks.seen, record(X)[1].blocks.seen)


def test_branches_that_differ_are_named_by_the_users_output():
    with weft.thread(net()) as t:
        with pytest.raises(weft.errors.BranchError, match=r"output: float32\[3\] -> float32\[2\]"):
            weft.cond(True, t.block, lambda x: x[:2], X)
        t.done(None)


def test_a_successor_of_another_structure_is_refused_by_name():
    with weft.thread(net()) as t:
        for transform in (weft.jit, weft.remat, lambda f: weft.vmap(f, axis_name="b")):
            with pytest.raises(SuccessorError, match=r"Net.norm.grow\(...\).mean: float32\[3\] -> float32\[7\]"):
                transform(t.norm.grow)(jnp.stack([X]))
        t.done(None)


def test_a_threaded_function_may_be_kept_and_uses_the_latest_record():
    def body(t: Any) -> Any:
        step = weft.jit(t.block)
        return step(step(X))

    record = net()
    y, after = run(body, record)
    first, block = record.block(X)
    second, block = block(first)
    close(y, second)
    close(after.block.seen, block.seen)


def test_parts_among_the_arguments_are_their_records():
    class Other(weft.Module):
        def __call__(self, block: Block, x: Any) -> Any:
            return block.pure(x)

    class Owner(weft.Module):
        other: Other
        block: Block

    record = Owner(Other(), block(1))
    y, _ = run(lambda t: weft.jit(t.other)(t.block, X), record)
    close(y, record.block.pure(X))


def changed_once(record: Net, after: Net) -> None:
    close(after.block.seen, record.block(X)[1].seen)
    assert after.block.weight is record.block.weight
    assert after.blocks is record.blocks


def test_vjp_jvp_and_linearize_differentiate_the_arguments_and_write_the_successor_back():
    record = net()

    def by_hand(x: Any) -> Any:
        return record.block(x)[0]

    (y, gradient), after = run(lambda t: pulled(weft.vjp(t.block, X)), record)
    expected, pullback = jax.vjp(by_hand, X)
    close((y, gradient), (expected, pullback(jnp.ones(N))))
    changed_once(record, after)
    pushed, after = run(lambda t: weft.jvp(t.block, [X], [jnp.ones(N)]), record)
    close(pushed, jax.jvp(by_hand, (X,), (jnp.ones(N),)))
    changed_once(record, after)
    (y, push), after = run(lambda t: weft.linearize(t.block, X), record)
    close((y, push(jnp.ones(N))), jax.jvp(by_hand, (X,), (jnp.ones(N),)))
    changed_once(record, after)


def pulled(result: Any) -> Any:
    y, pullback = result
    return y, pullback(jnp.ones(N))


def test_vjp_of_a_part_takes_auxiliary_output():
    record = net()
    (loss, pullback, aux), after = run(lambda t: weft.vjp(t.block.loss_and_aux, X, has_aux=True), record)
    close(pullback(jnp.array(1.0)), jax.vjp(lambda x: record.block.loss(x)[0], X)[1](jnp.array(1.0)))
    close((loss, aux["x"]), (record.block.loss(X)[0], X))
    changed_once(record, after)


JACOBIANS = [
    ("jacfwd", weft.jacfwd, lambda block: jax.jacfwd(lambda x: block(x)[0])),
    ("jacrev", weft.jacrev, lambda block: jax.jacrev(lambda x: block(x)[0])),
    ("hessian", weft.hessian, lambda block: jax.hessian(lambda x: block(x)[0])),
    ("jit of jacrev", lambda part: weft.jit(weft.jacrev(part)), lambda block: jax.jacrev(lambda x: block(x)[0])),
]


@pytest.mark.parametrize(("name", "of_part", "by_hand"), JACOBIANS, ids=[name for name, _, _ in JACOBIANS])
def test_jacobians_are_those_of_the_arguments_and_the_successor_is_written_back(name: str, of_part: Any, by_hand: Any):
    record = net()
    jacobian, after = run(lambda t: of_part(t.block)(X), record)
    close(jacobian, by_hand(record.block)(X))
    changed_once(record, after)


def test_map_gives_each_slice_the_record_that_the_one_before_left():
    xs, record = jnp.stack([X, X + 2, X - 1]), net(axis=None)
    ys, after = run(lambda t: weft.lax_map(t.norm, xs), record)
    close(ys, xs - xs)
    assert after.norm.count == 3
    close(after.norm.mean, xs[-1])
    ys, after = run(lambda t: weft.lax_map(t.block.pure, xs, batch_size=2), record)
    close(ys, xs @ record.block.weight)
    assert after is record


def test_map_of_several_slices_at_once_cannot_have_one_record_follow_all():
    with weft.thread(net(axis=None)) as t:
        with pytest.raises(SuccessorError, match=r"lax_map with batch_size(.|\n)*Net.norm(.|\n)*vmap"):
            weft.lax_map(t.norm, jnp.stack([X, X]), batch_size=2)
        t.done(None)


class Walk(weft.Module):
    steps: jax.Array

    def __call__(self, x: Any) -> Any:
        return x * 2 + self.steps, self.replace(steps=self.steps + 1)

    def at(self, i: Any, x: Any) -> Any:
        return x + i * self.steps, self.replace(steps=self.steps + 1)

    def goes_on(self, x: Any) -> Any:
        return (x < 20) & (self.steps < 4)

    def counts(self, x: Any) -> Any:
        return x < 20, self.replace(steps=self.steps + 1)


class Walker(weft.Module):
    walk: Walk


def walked(x: int, steps: int, most: int) -> tuple[int, int]:
    while x < 20 and steps < most:
        x, steps = x * 2 + steps, steps + 1
    return x, steps


@pytest.mark.parametrize("options", [{}, {"max_steps": 8}])
def test_while_loop_carries_along_what_changes_of_a_part(options: Any):
    record = Walker(Walk(jnp.array(0)))
    start = jnp.array(1)
    x, after = run(lambda t: weft.while_loop(lambda x: x < 20, t.walk, start, **options), record)
    assert (int(x), int(after.walk.steps)) == walked(1, 0, 99)
    x, after = run(lambda t: weft.while_loop(t.walk.goes_on, t.walk, start, **options), record)
    assert (int(x), int(after.walk.steps)) == walked(1, 0, 4)
    x, after = weft.jit(lambda r: run(lambda t: weft.while_loop(t.walk.goes_on, lambda x: x + 7, start), r))(record)
    assert (int(x), int(after.walk.steps)) == (22, 0)


def test_the_condition_of_a_loop_has_no_successor():
    with weft.thread(Walker(Walk(jnp.array(0)))) as t:
        with pytest.raises(SuccessorError, match=r"cannot be returned: in the(.|\n)*Walker.walk.steps"):
            weft.while_loop(t.walk.counts, t.walk, jnp.array(1))
        t.done(None)


@pytest.mark.parametrize("upper", [4, jnp.array(4)], ids=["known", "traced"])
def test_fori_loop_carries_along_what_changes_of_a_part(upper: Any):
    record = Walker(Walk(jnp.array(2)))
    x, after = run(lambda t: weft.fori_loop(0, upper, t.walk.at, jnp.array(0)), record)
    assert int(x) == sum(i * (2 + i) for i in range(4))
    assert after.walk.steps == 6
    x, after = run(lambda t: weft.fori_loop(3, upper - 4, t.walk.at, jnp.array(5)), record)
    assert (int(x), int(after.walk.steps)) == (5, 2)


def test_checkify_gives_the_error_and_writes_the_successor_back():
    record = net()
    (error, y), after = run(lambda t: weft.checkify(t.block)(X), record)
    error.throw()
    close(y, record.block(X)[0])
    changed_once(record, after)
    (error, _), _ = run(lambda t: weft.jit(weft.checkify(t.block, errors=checkify.float_checks))(X * jnp.nan), record)
    assert "nan generated" in error.get()


def test_pmap_has_one_record_for_all_devices():
    xs, record = jnp.stack([X, X + 2]), net()
    y, after = run(lambda t: weft.pmap(t.norm, axis_name="batch")(xs), record)
    close(y, xs - xs.mean(0))
    close(after.norm.mean, xs.mean(0))


def test_what_is_only_looked_at_leaves_the_record_as_it_is():
    record = net()
    shape, after = run(lambda t: weft.eval_shape(t.block, X), record)
    assert (shape.shape, shape.dtype) == (X.shape, X.dtype)
    assert after is record
    (jaxpr, _), after = run(lambda t: weft.make_jaxpr(t.block, return_shape=True)(X), record)
    assert "tanh" in str(jaxpr)
    assert after is record


class Clipped(weft.Module):
    weight: jax.Array
    calls: Annotated[jax.Array, BatchStat]

    def __call__(self, x: Any) -> Any:
        return x * self.weight, self.replace(calls=self.calls + 1)

    def forward(self, x: Any) -> Any:
        y, after = self(x)
        return y, x, after


class OfClipped(weft.Module):
    part: Clipped

    def loss(self, x: Any) -> Any:
        with weft.thread(self) as t:
            function = weft.custom_vjp(t.part)
            function.defvjp(t.part.forward, lambda x, g: (10 * g,))
            return t.done(function(x))


def test_custom_vjp_of_a_part_has_a_method_as_its_forward_function():
    record = OfClipped(Clipped(jnp.array(3.0), jnp.array(0)))
    y, after = record.loss(2.0)
    assert (float(y), int(after.part.calls)) == (6.0, 1)
    (y, after), gradient = weft.value_and_grad(OfClipped.loss, argnums=1, has_aux=True)(record, 2.0)
    assert (float(y), int(after.part.calls), float(gradient)) == (6.0, 1, 10.0)


def test_custom_vjp_of_a_part_has_the_parts_name_and_signature():
    with weft.thread(OfClipped(Clipped(jnp.array(3.0), jnp.array(0)))) as t:
        function = weft.custom_vjp(t.part)
        assert str(inspect.signature(function)).startswith("(x")
        with pytest.raises(weft.errors.MissingRuleError, match=r"OfClipped\.part has no derivative rule yet"):
            function(2.0)
        t.done(None)


def test_custom_vjp_of_a_part_has_no_derivative_in_its_record_and_says_so():
    record = OfClipped(Clipped(jnp.array(3.0), jnp.array(0)))
    with pytest.raises(weft.errors.DifferentiationError, match=r"does not differentiate(.|\n)*OfClipped.part.weight"):
        weft.grad(OfClipped.loss, has_aux=True)(record, 2.0)


class Counted(Clipped):
    def __call__(self, x: Any) -> Any:
        return x * self.weight, self.replace(calls=self.calls + x)


def test_a_derivative_through_the_new_state_of_a_custom_vjp_is_not_lost():
    record = OfClipped(Counted(jnp.array(3.0), jnp.array(0.0)))

    def loss(x: Any, wanted: str) -> Any:
        y, after = record.loss(x)
        return y if wanted == "y" else after.part.calls

    assert float(weft.grad(loss)(2.0, "y")) == 10.0
    with pytest.raises(
        weft.errors.DifferentiationError, match=r"the new value of an argument(.|\n)*OfClipped.part.calls"
    ):
        weft.grad(loss)(2.0, "calls")


def test_a_forward_function_that_is_no_method_of_the_part_is_refused():
    with weft.thread(OfClipped(Clipped(jnp.array(3.0), jnp.array(0)))) as t:
        with pytest.raises(SuccessorError, match=r"would lose its successor(.|\n)*OfClipped.part"):
            weft.custom_vjp(t.part).defvjp(lambda x: (x, x), lambda x, g: (g,))
        t.done(None)


REFUSED = [
    ("associative_scan", "in no order", lambda t: weft.associative_scan(t.block, X)),
    ("custom_jvp", "a successor has none", lambda t: weft.custom_jvp(t.block)),
    ("jit", "objects", lambda t: weft.nnx.jit(t.block)(X)),
]


@pytest.mark.parametrize(("name", "why", "call"), REFUSED, ids=[name for name, _, _ in REFUSED])
def test_a_transform_that_cannot_hand_a_successor_back_says_why(name: str, why: str, call: Any):
    with weft.thread(net()) as t:
        with pytest.raises(SuccessorError, match=f"{name} cannot take a part of a threaded rec(.|\n)*{why}") as error:
            call(t)
        assert "peek(t.block)" in str(error.value)
        t.done(None)


def test_a_call_that_fails_leaves_the_block_as_it_was():
    record = net()
    with weft.thread(record) as t:
        for call in (lambda: weft.jit(t.block)(X[:2]), lambda: weft.grad(t.block)(X)):
            with pytest.raises((TypeError, weft.errors.DifferentiationError)):
                call()
        _, after = t.done(None)
    assert after is record


class Forgetful(weft.Module):
    norm: Norm

    def __call__(self, x: Any) -> Any:
        y, _ = self.norm(x)
        return y, self.replace(norm=self.norm.replace(mean=self.norm.mean * 2))


class Forgetting(weft.Module):
    part: Forgetful


def test_a_successor_that_is_lost_inside_of_a_part_is_found():
    @weft.jit
    def step(model: Forgetting, xs: Any, part: str) -> Any:
        with weft.thread(model) as t:
            return t.done(weft.vmap(t.part if part == "whole" else t.part.norm, axis_name="batch")(xs))

    xs, model = jnp.stack([X, X + 2]), Forgetting(Forgetful(net().norm))
    with weft.debug.debug_successors():
        step(model, xs, "norm")
        with pytest.raises(SuccessorError, match=r"a successor is lost(.|\n)*Forgetting.part.norm"):
            step(model, xs, "whole")


def open_blocks() -> list[Any]:
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is blocks.Block and one.record is not None]


def test_what_is_kept_of_a_call_that_failed_holds_no_record():
    before = {id(open_block) for open_block in open_blocks()}
    with weft.thread(net()) as t:
        with pytest.raises(SuccessorError, match=r"Net.norm.grow"):
            weft.jit(weft.jit(t.norm.grow))(jnp.stack([X]))
        t.done(None)
    assert [open_block for open_block in open_blocks() if id(open_block) not in before] == []


def test_parts_of_two_blocks_are_written_into_each():
    record, second = net(), net()
    with weft.thread(record) as t, weft.thread(second) as u:
        for flag in (True, False):
            weft.cond(flag, t.block, u.row[0], X)
        _, after = t.done(None)
        _, also = u.done(None)
    close(after.block.seen, record.block(X)[1].seen)
    close(also.row[0].seen, second.row[0](X)[1].seen)


def test_a_list_of_records_is_no_function_and_the_error_says_to_stack_them():
    with weft.thread(net()) as t:
        with pytest.raises(SuccessorError, match=r"a list of records cannot be called(.|\n)*stack"):
            weft.scan(t.row)(X)
        t.done(None)


def test_jaxs_own_transforms_say_to_use_wefts():
    with pytest.raises(TraceLevelError, match=r"weft.vmap\(t.block\)"), weft.thread(net()) as t:
        jax.vmap(t.block)(jnp.stack([X]))


def test_contracts_inside_see_one_example_and_one_layer():
    with weft.thread(net()) as t:
        with pytest.raises(TypeError, match=r"inside: scan\(length=4\)"):
            weft.scan(t.blocks)(jnp.arange(5.0))
        t.done(None)


def test_a_scanned_part_takes_arguments_by_name():
    class Scaled(weft.Module):
        weight: jax.Array

        def __call__(self, x: Any, scale: Any) -> Any:
            return x * self.weight * scale

    class Stacked(weft.Module):
        layers: Scaled

    with weft.thread(Stacked(Scaled(jnp.full(3, 2.0)))) as t:
        out = weft.scan(t.layers, in_axes=(weft.Carry, None))(jnp.array(1.0), scale=jnp.array(0.5))
        t.done(None)
    assert float(out) == 1.0
