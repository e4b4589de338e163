"""Stacks of records: what `vmap` over a constructor makes goes everywhere, and is told from one record and a slip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
import weft
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Key
from weft import BatchStat, ContractError, Module
from weft.core.errors import AxisError
from weft.typecheck import Batched, Dims, contract, mode

from tests.made_on_use import MadeOnUse

KEY = jax.random.key(0)
SHARED = weft.axes({BatchStat: None, ...: 0})


class Block(Module):
    """Every way in which a field can hold arrays, with a variadic dim beside dims of one axis."""

    conv: weft.Conv
    norm: weft.BatchNorm
    scale: Float[Array, "c"]
    rate: float
    layers: list[weft.Linear]
    table: dict[str, Float[Array, "c"]]
    act: Any

    def __init__(self, c: int, *, key: Array):
        first, second = jax.random.split(key)
        self.conv, self.norm = weft.Conv(c, c, (3, 3), key=first), weft.BatchNorm(c)
        self.scale, self.rate, self.act = jnp.ones(c), 0.5, jax.nn.relu
        self.layers, self.table = [weft.Linear(c, c, key=second)], {"a": jnp.ones(c), "b": jnp.ones(c)}

    def __call__(self, x: Float[Array, "b h w c"]) -> tuple[Float[Array, "b h w c"], Block]:
        y, norm = self.norm(self.conv(x))
        return self.act(y) * self.scale + self.layers[0](x), self.replace(norm=norm)


class Model(Module):
    blocks: Block  # a stack of them, and nothing says so
    head: weft.Linear

    def __call__(self, x: Float[Array, "b h w c"]) -> tuple[Float[Array, "b h w out"], Model]:
        x, blocks = weft.scan(lambda x, block: block(x))(x, self.blocks)
        return self.head(x), self.replace(blocks=blocks)


def make(key: Array) -> Block:
    return Block(4, key=key)


def head(key: Array) -> weft.Linear:
    return weft.Linear(4, 2, key=key)


def keys(*shape: int) -> Array:
    return jax.random.split(KEY, shape)


STACKS = MadeOnUse[Any](
    {
        "mapped": lambda: weft.vmap(make)(keys(5)),
        "mapped twice": lambda: weft.vmap(weft.vmap(make))(keys(2, 5)),
        "shares statistics": lambda: weft.vmap(make, out_axes=SHARED)(keys(5)),
        "shares statistics inside": lambda: weft.vmap(weft.vmap(make, out_axes=SHARED))(keys(2, 5)),
        "shares statistics outside": lambda: weft.vmap(weft.vmap(make), out_axes=SHARED)(keys(2, 5)),
        "a convolution": lambda: weft.vmap(lambda key: weft.Conv(4, 4, (3, 3), key=key))(keys(5)),
        "a field of a model": lambda: Model(STACKS["mapped"], weft.Linear(4, 2, key=KEY)),
        "models with stacks": lambda: weft.vmap(
            lambda key: Model(weft.vmap(make)(jax.random.split(key, 3)), head(key))
        )(keys(2)),
    }
)
X = jnp.ones((2, 6, 6, 4))
MESH = Mesh(jax.devices()[:1], ("devices",))


def total(model: Any) -> Any:
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(weft.tree.select(model, weft.Param)))


CROSSINGS: dict[str, Callable[[Any], Any]] = {
    "jit": weft.jit(lambda m: m),
    "vmap": lambda m: weft.vmap(lambda m, x: x, in_axes=(None, 0))(m, jnp.ones(3)),
    "grad": weft.grad(total),
    "jvp": lambda m: weft.jvp(total, (m,), (m,)),
    "cond": lambda m: weft.jit(lambda p, m: weft.cond(p, lambda m: m, lambda m: m, m))(True, m),
    "while_loop": lambda m: weft.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1]), (0, m)),
    "fori_loop": lambda m: weft.fori_loop(0, 3, lambda i, m: m, m),
    "scan": lambda m: weft.scan(lambda m, x: (m, x))(m, jnp.ones(3)),
    "remat": lambda m: weft.remat(lambda m: m)(m),
    "eval_shape": lambda m: weft.eval_shape(lambda m: m, m),
    "make_jaxpr": lambda m: weft.make_jaxpr(lambda m: m)(m),
    "shard_map": lambda m: weft.shard_map(lambda m: m, mesh=MESH, in_specs=PartitionSpec(), out_specs=PartitionSpec())(
        m
    ),
    "split": lambda m: weft.jit(lambda *parts: parts)(*weft.tree.split(m, weft.Param, ...)[1:]),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("transform", CROSSINGS)
@pytest.mark.parametrize("stack", STACKS)
def test_stacks_cross_every_transform(stack: str, transform: str):
    CROSSINGS[transform](STACKS[stack])


def test_a_model_of_stacked_blocks_is_used_as_if_it_had_one():
    model = STACKS["a field of a model"]

    def loss(model: Model, x: Float[Array, "b h w c"]) -> tuple[Float[Array, ""], Model]:
        y, model = model(x)
        return y.sum(), model

    (_, after), gradient = weft.jit(weft.value_and_grad(loss, has_aux=True))(model, X)
    assert after.blocks.norm.mean.shape == (5, 4)
    assert gradient.blocks.conv.kernel.shape == (5, 3, 3, 4, 4)


def test_each_of_a_stack_is_a_whole_record_inside_of_vmap_and_scan():
    def apply(block: Block, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        return block(x)[0]

    assert weft.vmap(apply, in_axes=(0, None))(STACKS["mapped"], X).shape == (5, 2, 6, 6, 4)
    shared = STACKS["shares statistics"]
    assert weft.vmap(apply, in_axes=(SHARED, None))(shared, X).shape == (5, 2, 6, 6, 4)


def test_what_a_function_makes_may_be_a_stack():
    @contract
    def stack(keys: Key[Array, "n"]) -> Block:
        return weft.vmap(make)(keys)

    assert stack(keys(3)).scale.shape == (3, 4)


def test_a_declared_stack_may_have_fields_with_variadic_dims():
    @contract
    def deep(convs: Batched[weft.Conv, "depth"], x: Float[Array, "depth"]) -> Float[Array, "depth"]:
        return x

    @contract
    def grid(convs: Batched[weft.Conv, "*rows columns"], x: Float[Array, "*rows"]) -> Float[Array, "*rows"]:
        return x

    make_conv = lambda key: weft.Conv(4, 4, (3, 3), key=key)  # noqa: E731
    deep(weft.vmap(make_conv)(keys(5)), jnp.ones(5))
    with pytest.raises(ContractError, match=r"argument x of deep should be f32\[depth=5\], and is f32\[4\]"):
        deep(weft.vmap(make_conv)(keys(5)), jnp.ones(4))
    grid(weft.vmap(weft.vmap(make_conv))(keys(2, 5)), jnp.ones(2))
    with pytest.raises(ContractError, match=r"argument x of grid should be f32\[\*rows=\(2\)\], and is f32\[3\]"):
        grid(weft.vmap(weft.vmap(make_conv))(keys(2, 5)), jnp.ones(3))


def test_links_hold_between_the_records_of_a_stack_and_their_parent():
    class Layer(Module):
        conv: Annotated[weft.Conv, Dims("out=width")]
        scale: Float[Array, "width"]

    convs = STACKS["a convolution"]
    assert Layer(convs, jnp.ones(4)).conv is convs  # one layer, of which one part is a stack
    assert Layer(convs, jnp.ones((5, 4))).scale.shape == (5, 4)  # a stack of layers
    with pytest.raises(ContractError) as caught:
        Layer(convs, jnp.ones(3))
    assert caught.value.what == "field Layer.scale should be f32[width=4], and is f32[3]"
    assert "width = 4 from field Layer.conv.out, field Conv.kernel" in str(caught.value)


# ---- made by hand ---------------------------------------------------------------------------------------------------


class Affine(Module):
    weight: Float[Array, "in out"]
    bias: Float[Array, "out"]

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
        return x @ self.weight + self.bias


class Layer(Module):
    affine: Affine
    scale: Float[Array, "out"]


class Written(Module):
    weight: Float[Array, "in out"]

    def __init__(self, weight: Array):
        self.weight = weight


WEIGHT, BIAS = jnp.ones((4, 3)), jnp.ones(3)


def test_a_stack_is_made_by_giving_stacked_fields():
    layers = Affine(weight=jnp.stack([WEIGHT, WEIGHT]), bias=jnp.stack([BIAS, BIAS]))
    x, _ = weft.scan(lambda x, layer: (layer(jnp.ones(4)), x))(jnp.zeros(3), layers)
    assert x.shape == (3,)
    assert Layer(layers, jnp.ones((2, 3))).affine is layers


def test_a_written_constructor_makes_one_record():
    with pytest.raises(ContractError, match=r"field Written.weight should be f32\[in,out\], and is f32\[2,4,3\]"):
        Written(jnp.ones((2, 4, 3)))
    assert weft.vmap(Written)(jnp.ones((2, 4, 3))).weight.shape == (2, 4, 3)


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        ((2, 4, 3), (3,), "field Affine.weight should be f32[in,out], and is f32[2,4,3]"),
        ((2, 4, 3), (5, 3), "field Affine.weight should be f32[5,in,out], and is f32[2,4,3]"),
        ((2, 4, 3), (2, 4), "field Affine.bias should be f32[2,out=3], and is f32[2,4]"),
        ((4, 3), (4,), "field Affine.bias should be f32[out=3], and is f32[4]"),
        ((4, 3), (2, 3), "field Affine.bias should be f32[out=3], and is f32[2,3]"),
        ((3,), (3,), "field Affine.weight should be f32[in,out], and is f32[3]"),
    ],
)
def test_fields_that_are_no_stack_together_are_refused(weight, bias, message):
    with pytest.raises(ContractError) as caught:
        Affine(jnp.ones(weight), jnp.ones(bias))
    assert caught.value.what == message


# ---- not used as one ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", ["mapped", "mapped twice", "shares statistics", "a convolution"])
def test_a_stack_is_not_used_as_one_record(stack: str):
    name = type(STACKS[stack]).__name__
    with pytest.raises(ContractError) as caught:
        STACKS[stack](X)
    assert f"argument self of {name}.__call__ should be a single {name}, and is a stack" in str(caught.value)
    assert "mapping over it with weft.vmap or weft.scan" in str(caught.value)


def test_a_stack_without_biases_is_not_used_as_one_either():
    convs = weft.vmap(lambda key: weft.Conv(4, 4, (3, 3), use_bias=False, key=key))(keys(5))
    with pytest.raises(
        AxisError, match=r"this is a stack of layers, Conv with the leading axes \(5,\), called as one layer"
    ):
        convs(X)
    assert weft.vmap(lambda conv: conv(X))(convs).shape == (5, 2, 6, 6, 4)


def test_a_function_of_one_record_is_not_given_a_stack():
    def convolve(conv: weft.Conv, x: Float[Array, "b h w c"]) -> Float[Array, "b h w c"]:
        return conv(x)

    with pytest.raises(ContractError, match="argument conv of convolve should be a single Conv, and is a stack"):
        weft.jit(convolve)(STACKS["a convolution"], X)


# ---- slips are found ------------------------------------------------------------------------------------------------


def lost(array: Array) -> Array:
    return array[0]


def shorter(array: Array) -> Array:
    return array[:2]


def narrower(array: Array) -> Array:
    return array[..., :2]


@pytest.mark.parametrize(
    ("where", "change", "message"),
    [
        (lambda b: b.scale, narrower, "field Block.table.a should be f32[5,c=2], and is f32[5,4]"),
        (lambda b: b.scale, shorter, "field Block.scale should be f32[5,c], and is f32[2,4]"),
        (lambda b: b.scale, lambda a: a.astype(int), "field Block.scale should be Float[5,c], and is i32[5,4]"),
        (lambda b: b.table["b"], lost, "field Block.table.b should be f32[5,c=4], and is f32[4]"),
        (lambda b: b.conv.kernel, narrower, "field Conv.bias should be f32[5,out=2], and is f32[5,4]"),
        (lambda b: b.conv.bias, shorter, "field Conv.bias should be f32[5,out=4], and is f32[2,4]"),
        (lambda b: b.norm.mean, lost, "field BatchNorm.mean should be f32[5,features=4], and is f32[4]"),
        (lambda b: b.norm.var, narrower, "field BatchNorm.var should be f32[5,features=4], and is f32[5,2]"),
        (lambda b: b.layers[0].bias, lost, "field Linear.bias should be f32[5,out=4], and is f32[4]"),
        (lambda b: b.layers[0], lambda _: head(KEY), "field Linear.kernel should be"),
        (lambda b: b.conv, lambda conv: jax.tree.map(shorter, conv), "field Conv.kernel should be f32[5,*window"),
    ],
)
def test_a_field_that_is_not_like_the_others_of_its_stack_is_found(where, change, message):
    with mode("off"):
        broken = eqx.tree_at(where, STACKS["mapped"], change(where(STACKS["mapped"])))
    for call in (lambda: weft.jit(lambda m: m)(broken), lambda: weft.jit(depth)(Model(broken, head(KEY)))):
        with pytest.raises(ContractError) as caught:
            call()
        assert caught.value.what.startswith(message)


def depth(model: Model) -> int:
    return len(model.blocks.scale)


def test_the_error_says_what_the_stack_is_known_by():
    with mode("off"):
        broken = STACKS["mapped"].norm.replace(mean=jnp.ones(4))
    with pytest.raises(ContractError) as caught:
        weft.jit(lambda m: m)(broken)
    assert caught.value.bound[0].startswith(
        "the record is a stack with the leading axes (5), as shown by field BatchNorm.scale: "
    )
    assert "an array that its records share needs a kind of its own" in caught.value.fix
