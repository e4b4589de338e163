"""at: what it reaches, what it shares, and how it says that something is not there or does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import weft
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Array, Float
from weft import BatchStat, Cache, ContractError, Param, at
from weft.filters import Inside, InstanceOf, Maybe, PathContains


class Attention(weft.Module):
    kernel: Float[Array, "in out"]
    cache: Annotated[jax.Array, Cache] | None
    heads: int = 4

    def doubled(self) -> Any:
        return self.replace(kernel=2 * self.kernel)


class Block(weft.Module):
    attn: Attention
    act: Callable[..., Any]
    set: jax.Array


class Pair(NamedTuple):
    left: Any
    right: Any


class Model(weft.Module):
    blocks: list[Block]
    layers: tuple[Any, ...]
    table: dict[str, Any]
    pair: Pair
    norm: weft.BatchNorm
    plain: eqx.nn.Linear
    name: str = "m"

    def __call__(self, x: Any) -> Any:
        return x


def attention() -> Attention:
    return Attention(jnp.ones((2, 3)), None)


def model() -> Model:
    return Model(
        [Block(attention(), jax.nn.relu, jnp.array(float(i))) for i in range(4)],
        (attention(), jax.nn.relu, attention()),
        {"a": attention(), "b": jnp.arange(3.0)},
        Pair(attention(), jnp.zeros(2)),
        weft.BatchNorm(2),
        eqx.nn.Linear(2, 2, key=jax.random.key(0)),
    )


C = jnp.full(2, 7.0)

PLACES: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
    (lambda a: a.blocks[1].attn.cache, lambda m: [m.blocks[1].attn.cache]),
    (lambda a: a.blocks[-1].attn.cache, lambda m: [m.blocks[3].attn.cache]),
    (lambda a: a.blocks[1:3].attn.cache, lambda m: [m.blocks[i].attn.cache for i in (1, 2)]),
    (lambda a: a.blocks[::-2].attn.cache, lambda m: [m.blocks[i].attn.cache for i in (1, 3)]),
    (lambda a: a.blocks[0]["set"], lambda m: [m.blocks[0].set]),
    (lambda a: a.layers[2].cache, lambda m: [m.layers[2].cache]),
    (lambda a: a.table["b"], lambda m: [m.table["b"]]),
    (lambda a: a.table[:], lambda m: list(m.table.values())),
    (lambda a: a.pair.right, lambda m: [m.pair.right]),
    (lambda a: a.pair[-1], lambda m: [m.pair.right]),
    (lambda a: a.pair[:], lambda m: list(m.pair)),
    (lambda a: a.norm.mean, lambda m: [m.norm.mean]),
    (lambda a: a.plain.bias, lambda m: [m.plain.bias]),
]


@pytest.mark.parametrize(("place", "find"), PLACES)
def test_set_puts_a_value_in_each_place_and_shares_the_rest(place: Any, find: Any):
    before = model()
    after = place(at(before)).set(C)
    assert type(after) is Model
    assert all(value is C for value in find(after))
    changed = [path for path, was, now in zip_leaves(before, after) if was is not now]
    assert len(changed) <= len(find(after))
    assert all(value is not C for value in find(before))


def zip_leaves(before: Any, after: Any) -> list[Any]:
    old, new = (dict(jax.tree_util.tree_flatten_with_path(m)[0]) for m in (before, after))
    return [(path, old[path], new[path]) for path in old if path in new]


def test_configuration_is_reached_too():
    after = at(model()).blocks[:].attn.heads.set(8)
    assert [block.attn.heads for block in after.blocks] == [8] * 4
    assert at(model()).layers[1].set(jax.nn.tanh).layers[1] is jax.nn.tanh
    assert at(model()).norm.momentum.set(0.5).norm.momentum == 0.5
    assert at(model()).blocks[0].act.apply(lambda f: jax.nn.tanh).blocks[0].act is jax.nn.tanh


def test_apply_gives_each_part_to_the_function():
    before = model()
    after = at(before).blocks[1:]["set"].apply(lambda value: value * 10)
    assert [float(block.set) for block in after.blocks] == [0, 10, 20, 30]
    assert after.blocks[0] is before.blocks[0]


def test_replace_sets_fields_that_must_fit_each_other_together():
    after = at(model()).norm.replace(scale=jnp.ones(3), bias=jnp.ones(3), mean=jnp.ones(3), var=jnp.ones(3))
    assert after.norm.mean.shape == (3,)
    after = at(model()).blocks[2:].attn.replace(cache=C, heads=1)
    assert after.blocks[3].attn.heads == 1


def test_an_item_of_an_array_is_set_in_the_array():
    after = at(model()).table["b"][1].set(9.0)
    assert after.table["b"].tolist() == [0, 9, 2]
    assert at(model()).table["b"][1:].apply(lambda x: -x).table["b"].tolist() == [0, -1, -2]
    assert at(model()).blocks[:].attn.kernel[0, 0].set(5.0).blocks[3].attn.kernel[0].tolist() == [5, 1, 1]


def test_records_are_selected_by_class():
    for filter in (InstanceOf(Attention), Attention):
        after = at(model(), filter).replace(cache=C)
        attentions = [*(block.attn for block in after.blocks), after.layers[0], after.layers[2], after.table["a"]]
        assert all(one.cache is C for one in (*attentions, after.pair.left))
    after = at(model(), InstanceOf(Block)).attn.kernel.apply(jnp.zeros_like)
    assert [float(block.attn.kernel.sum()) for block in after.blocks] == [0] * 4
    assert after.layers[0].kernel.sum() == 6
    after = at(model(), [InstanceOf(weft.BatchNorm), InstanceOf(eqx.nn.Linear)]).bias.set(C)
    assert after.norm.bias is after.plain.bias is C


def test_of_nested_records_the_inner_ones_come_first():
    class Tree(weft.Module):
        children: list[Any]
        size: int = 1

    tree = Tree([Tree([]), Tree([Tree([])])])
    counted = at(tree, Tree).apply(lambda t: t.replace(size=1 + sum(child.size for child in t.children)))
    assert (counted.size, counted.children[1].size) == (4, 2)


def test_a_record_may_become_another():
    class Wrapped(weft.Module):
        inner: Any

    after = at(model().layers, InstanceOf(Attention)).apply(Wrapped)
    assert isinstance(after[0].inner, Attention)
    assert after[1] is jax.nn.relu


def test_arrays_are_selected_by_filter_and_parts_by_path():
    assert at(model(), BatchStat).apply(lambda s: s + 1).norm.var.tolist() == [2, 2]
    after = at(model(), weft.filters.All(Param, PathContains("kernel"))).apply(jnp.zeros_like)
    assert after.pair.left.kernel.sum() == 0
    assert at(model(), Inside("blocks[1].attn")).replace(heads=2).blocks[1].attn.heads == 2
    assert at(model(), Inside("blocks", 1)).attn.heads.set(2).blocks[1].attn.heads == 2


def test_a_method_of_a_part_gives_what_follows_it():
    after = at(model()).blocks[1:].attn.apply(lambda attn: attn.doubled())
    assert [float(block.attn.kernel[0, 0]) for block in after.blocks] == [1, 2, 2, 2]


def test_the_model_itself_is_a_part():
    assert at(model()).replace(name="n").name == "n"
    assert at(model(), Model).apply(lambda m: m.norm).mean.shape == (2,)  # type: ignore[attr-defined]
    assert at(jnp.zeros(2))[0].set(1.0).tolist() == [1, 0]


MISSING = [
    (lambda m: at(m).block, r"a Model has no field 'block'\n  at: Model\n  fix: its fields are blocks, layers, table"),
    (lambda m: at(m).blocks.attn, r"a list has no field 'attn'\n  at: Model.blocks\n  fix: go on by index, slice"),
    (lambda m: at(m).blocks[4], r"no part 4 in a list of 4\n  at: Model.blocks"),
    (lambda m: at(m).blocks["x"], r"no part 'x' in a list of 4"),
    (lambda m: at(m).blocks[7:].attn, r"nothing is selected by \[slice\(7, None, None\)\]\n  at: Model.blocks"),
    (lambda m: at(m).blocks[1:].attn.hedas, r"an Attention has no field 'hedas'\n  at: Model.blocks\[1\].attn"),
    (lambda m: at(m).table["c"], r"a dict has no part 'c'\n  at: Model.table\n  fix: its parts are 'a', 'b'"),
    (lambda m: at(m).norm.mean.T, r"an ArrayImpl has no field 'T'\n  at: Model.norm.mean\n  fix: nothing is below it"),
    (
        lambda m: at(m).pair.left.doubled,
        r"no field 'doubled'\n  at: Model.pair.left\n  fix: it is no field: .apply\(lambda",
    ),
    (lambda m: at(m).norm.replace(meen=1), r"a BatchNorm has no field 'meen'\n  at: Model.norm"),
    (lambda m: at(m).name[0], r"a str has no part 0\n  at: Model.name"),
]


@pytest.mark.parametrize(("reach", "message"), MISSING)
def test_what_is_not_there_is_named_by_path(reach: Any, message: str):
    with pytest.raises(weft.errors.SurgeryError, match=message):
        reach(model())


def test_a_filter_that_selects_nothing_is_an_error():
    for filter in (InstanceOf(weft.Conv), weft.Conv, Inside("blocks[9]"), weft.LoRAParam):
        with pytest.raises(weft.errors.FilterError, match=r"match no leaf|no part of this Model matches"):
            at(model(), filter)
    before = model()
    assert at(before, Maybe(InstanceOf(weft.Conv))).apply(lambda c: None).norm is before.norm


def test_contracts_are_checked_at_the_end_with_the_path():
    with pytest.raises(ContractError, match=r"(?s)kernel.*at: in Model.blocks\[2\].attn") as caught:
        at(model()).blocks[2].attn.kernel.set(jnp.ones(3))
    assert "f32[in,out], and is f32[3]" in str(caught.value)
    with pytest.raises(ContractError, match=r"at: in Model.norm"):
        at(model()).norm.mean.set(jnp.ones(3))


def test_it_works_under_transforms_and_keeps_the_structure():
    before = model()
    after = jax.eval_shape(lambda m: at(m).blocks[1:3].attn.kernel.apply(lambda k: 2 * k), before.replace(plain=None))
    assert jax.tree.structure(after) == jax.tree.structure(before.replace(plain=None))
    doubled = weft.jit(lambda m: at(m, Attention).kernel.apply(lambda k: 2 * k))(before)
    np.testing.assert_array_equal(doubled.table["a"].kernel, 2 * before.table["a"].kernel)


def test_a_selection_says_where_it_is():
    assert repr(at(model()).blocks[1:3].attn) == "<at Model.blocks[1].attn, Model.blocks[2].attn>"
    assert repr(at(model()).table["b"][0]) == "<at Model.table.b[0]>"


@given(st.lists(st.integers(0, 3), unique=True), st.slices(4))
def test_what_is_set_is_what_python_would_index(chosen: list[int], cut: slice):
    m = model()
    picked = range(4)[cut]
    if not picked:
        with pytest.raises(weft.errors.SurgeryError):
            at(m).blocks[cut]
        return
    after = at(m).blocks[cut]["set"].set(C)
    assert [block.set is C for block in after.blocks] == [i in picked for i in range(4)]
