"""Fields at construction and on rebuilding, and the dims that they bind for this one instance."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import pytest
import weft
from jaxtyping import Array, Float, Int
from weft import ContractError, Module, static
from weft.errors import AnnotationError
from weft.typecheck import Batched, contract, mode

from ..layers import MLP, Deep, Linear, Projection, linear, stack


def test_fields_are_checked_at_construction():
    with pytest.raises(ContractError, match=r"field Linear.bias should be f32\[out=3\], and is f32\[5\]"):
        Linear(jnp.ones((3, 5)), jnp.ones(5))
    with pytest.raises(ContractError, match=r"field Linear.weight should be Float\[out,in\], and is i32\[3,5\]"):
        Linear(jnp.ones((3, 5), int))


def test_fields_are_checked_on_replacement():
    with pytest.raises(ContractError, match=r"field Linear.weight should be f32\[out,in\], and is f32\[3\]"):
        linear(3, 5).replace(weight=jnp.ones(3))


def test_fields_are_checked_when_a_transform_rebuilds_the_record():
    broken = jax.tree.map(lambda leaf: leaf[0], linear(3, 5))
    with pytest.raises(ContractError, match="Linear should be a whole Linear, and every array in it has an axis too"):
        weft.jit(lambda layer: layer.weight.sum())(broken)


def test_the_parts_of_a_split_record_pass():
    _, weights, rest = weft.tree.split(linear(3, 5), lambda path, kind, leaf: path == ("weight",), ...)
    total = weft.jit(lambda part: sum(leaf.sum() for leaf in jax.tree.leaves(part)))
    assert float(total(weights)) == 15.0
    assert float(total(rest)) == 3.0


def test_fields_bind_the_dims_of_methods():
    with pytest.raises(ContractError, match=r"argument x of Linear.__call__ should be f32\[\*batch,in=5\]"):
        linear(3, 5)(jnp.ones((2, 4)))


def test_two_instances_do_not_interfere():
    first, second = linear(3, 5), linear(5, 3)
    assert second(first(jnp.ones((2, 5)))).shape == (2, 5)


def test_links_hold_between_children():
    assert MLP(linear(8, 4), linear(4, 8))(jnp.ones((2, 4))).shape == (2, 4)
    with pytest.raises(ContractError) as caught:
        MLP(linear(8, 4), linear(4, 7))
    assert str(caught.value).splitlines()[0] == "field MLP.down: its in should be hidden=8, and is 7"
    with pytest.raises(ContractError, match=r"argument x of MLP.__call__ should be f32\[\*batch,width=4\]"):
        MLP(linear(8, 4), linear(4, 8))(jnp.ones((2, 3)))


def test_expressions_read_the_records_config():
    assert Projection(3, jnp.ones((3, 6)))(jnp.ones((2, 3))).shape == (2, 6)
    with pytest.raises(ContractError) as caught:
        Projection(3, jnp.ones((3, 5)))
    assert "should be f32[{self.width}=3,2*{self.width}=6], and is f32[3,5]" in str(caught.value)
    assert "where: {self.width} = 3 from config field Projection.width" in str(caught.value)


def test_a_whole_number_field_binds_the_dim_of_its_name():
    class Head(Module):
        width: int = static()

        def __call__(self, x: Float[Array, "n width"]) -> Float[Array, "n"]:
            return x.sum(-1)

    with pytest.raises(ContractError, match=r"width = 3 from config field Head\.width = 3"):
        Head(3)(jnp.ones((2, 4)))


def test_a_link_to_a_dim_that_does_not_exist_is_one_line():
    from typing import Annotated

    from weft.typecheck import Dims

    class Outer(Module):
        child: Annotated[Linear, Dims("inside=width")]

    with pytest.raises(AnnotationError) as caught:
        Outer(linear(2, 3))
    assert str(caught.value) == "child: Dims('inside=width') links 'inside', but the fields of Linear bind in, out"


def test_children_in_containers_are_checked_by_class():
    class Chain(Module):
        layers: list[Linear]
        table: dict[str, Float[Array, "n"]]

    Chain([linear(2, 3), linear(3, 2)], {"a": jnp.ones(2), "b": jnp.ones(2)})
    with pytest.raises(ContractError, match=r"field Chain.layers\[1\] should be Linear, and is int 3"):
        Chain([linear(2, 3), 3], {})
    with pytest.raises(ContractError, match=r"field Chain.table.b should be f32\[n=2\], and is f32\[3\]"):
        Chain([], {"a": jnp.ones(2), "b": jnp.ones(3)})


def test_a_stacked_record_has_a_type():
    assert Deep(stack(4, 3, 5)).layers.weight.shape == (4, 3, 5)
    with pytest.raises(
        ContractError, match=r"field Linear.weight should have the leading axes 'depth' in front of f32"
    ):
        Deep(linear(3, 5))
    with pytest.raises(ContractError, match=r"field Linear.bias should be f32\[out=3\], and is f32\[4,2\]"):
        Deep(unchecked(jnp.ones((4, 3, 5)), jnp.ones((4, 2))))


def unchecked(weight: Array, bias: Array) -> Linear:
    return jax.tree.unflatten(jax.tree.structure(linear(3, 5)), [weight, bias])


def test_a_stacked_record_is_replaced_as_such():
    layers = stack(4, 3, 5)
    assert layers.replace(bias=None).bias is None
    assert layers.replace(weight=jnp.zeros((4, 3, 2))).weight.shape == (4, 3, 2)
    with pytest.raises(ContractError, match=r"field Linear\.weight should be"):
        layers.replace(weight=jnp.zeros((3, 3, 2)))


def test_the_axes_of_a_batch_are_dims_like_others():
    @contract
    def apply(layers: Batched[Linear, "depth"], x: Float[Array, "depth in"]) -> Float[Array, "depth out"]:
        return weft.vmap(lambda layer, x: layer(x))(layers, x)

    assert apply(stack(4, 3, 5), jnp.ones((4, 5))).shape == (4, 3)
    with pytest.raises(ContractError, match=r"argument x of apply should be f32\[depth=4,in\], and is f32\[3,5\]"):
        apply(stack(4, 3, 5), jnp.ones((3, 5)))


def test_a_stacked_record_is_not_used_as_one():
    with pytest.raises(ContractError) as caught:
        stack(4, 3, 5)(jnp.ones((2, 5)))
    assert "argument self of Linear.__call__ should be a single Linear, and is a stack" in str(caught.value)
    assert 'annotate it Batched[Linear, "..."]' in str(caught.value)


def test_an_undeclared_stack_may_be_a_field():
    class Model(Module):
        layers: Linear
        scale: Float[Array, ""]

    @contract
    def depth(model: Model) -> int:
        return len(model.layers.weight)

    assert depth(Model(stack(4, 3, 3), jnp.ones(()))) == 4


class Batch(NamedTuple):
    x: Float[Array, "n d"]
    y: Int[Array, "n"]


class Options(TypedDict):
    scale: Float[Array, ""]


@dataclasses.dataclass
class Pair:
    left: Float[Array, "n"]
    right: Float[Array, "n"]


@contract
def use(batch: Batch, options: Options, pair: Pair) -> None: ...


BATCH, OPTIONS = Batch(jnp.ones((2, 3)), jnp.ones(2, int)), Options(scale=jnp.ones(()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((BATCH, OPTIONS, Pair(jnp.ones(2), jnp.ones(2))), None),
        ((BATCH._replace(y=jnp.ones(3, int)), OPTIONS, None), "field Batch.y should be i32[n=2], and is i32[3]"),
        ((BATCH, {"scale": jnp.ones(()), "more": 1}, Pair(jnp.ones(2), jnp.ones(2))), None),
        ((BATCH, {}, None), "argument options of use should have the keys of Options; missing: scale"),
        ((BATCH, {"scale": 1.0}, None), "field Options.scale should be Float[], and is float 1.0"),
        ((BATCH, OPTIONS, Pair(jnp.ones(2), jnp.ones(3))), "field Pair.right should be f32[n=2], and is f32[3]"),
        (((1, 2), OPTIONS, None), "argument batch of use should be Batch, and is tuple"),
    ],
)
def test_other_records_are_scopes_too(arguments, message):
    if message is None:
        use(*arguments)
        return
    with pytest.raises(ContractError) as caught:
        use(*arguments)
    assert message in str(caught.value)


def test_a_dataclass_is_checked_once_it_is_made():
    @contract
    @dataclasses.dataclass
    class Local:
        left: Float[Array, "n"]
        right: Float[Array, "n"]

    Local(jnp.ones(2), jnp.ones(2))
    with pytest.raises(ContractError, match=r"field Local.right should be f32\[n=2\], and is f32\[3\]"):
        Local(jnp.ones(2), jnp.ones(3))


def test_a_recursive_record_is_checked_at_every_level():
    class Node(Module):
        value: Float[Array, "n"]
        next: Node | None = None

    @contract
    def total(node: Node) -> Float[Array, "n"]:
        return node.value

    total(Node(jnp.ones(2), Node(jnp.ones(3))))
    with mode("off"):
        broken = Node(jnp.ones(2), Node(jnp.ones(2, int)))
    with pytest.raises(ContractError, match=r"field Node.value should be Float\[n\], and is i32\[2\]") as caught:
        total(broken)
    assert caught.value.at[1:] == ("inside field Node.next", "inside argument node of total")


def test_an_annotation_that_cannot_be_read_is_one_line():
    class Wrong(Module):
        weight: Float[Array, "a,b"]

    with pytest.raises(AnnotationError) as caught:
        Wrong(jnp.ones(2))
    assert str(caught.value).startswith(
        "test_an_annotation_that_cannot_be_read_is_one_line.<locals>.Wrong.weight: cannot read the annotation"
    )
    assert "\n" not in str(caught.value)
