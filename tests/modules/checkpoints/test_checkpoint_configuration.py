"""Configuration in checkpoints: what is no array is compared, and what differs is named by its path."""

import functools
import sys
from collections import OrderedDict
from types import FunctionType, ModuleType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import weft
from jaxtyping import Array, Float
from weft.modules import CheckpointError, Linear, Sequential, load_checkpoint, save_checkpoint
from weft.modules.checkpoints import checkpoint
from weft.modules.checkpoints.configuration import configuration, describe, difference, show


class Layer(weft.Module):
    weight: Float[Array, "..."]
    setting: Any
    declared: Any = weft.static(default=None)

    def method(self):
        return self.weight


class Twin(weft.Module):
    weight: Float[Array, "..."]
    setting: Any
    declared: Any = weft.static(default=None)


class Plain:
    def __init__(self, size):
        self.size = size


def layer(setting=None, declared=None, of=Layer):
    return of(jnp.ones(2), setting, declared)


def multiply(by):
    return lambda x: x * by


@pytest.fixture
def file(tmp_path):
    return tmp_path / "state.safetensors"


@pytest.fixture
def loaded(file):
    def load(saved, like, **options):
        save_checkpoint(file, saved)
        return load_checkpoint(file, like, **options)

    return load


DIFFERENT = [
    (100, 0, "100, not 0"),
    (1, True, "1, not True"),
    (1, 1.0, "1, not 1.0"),
    (0.5, 0.25, "0.5, not 0.25"),
    ("same", "valid", "'same', not 'valid'"),
    (None, 3, "None, not 3"),
    ((3, 3), (5, 5), "(3, 3), not (5, 5)"),
    ((1,), (True,), "(1,), not (True,)"),
    (jax.nn.relu, jax.nn.gelu, "jax._src.nn.functions:relu, not jax._src.nn.functions:gelu"),
    (jnp.tanh, jax.lax.tanh, "jax.numpy:tanh, not jax.lax:tanh"),
    (Linear, weft.Conv, "weft:Linear, not weft:Conv"),
    (jnp.float32, jnp.bfloat16, "dtype float32, not dtype bfloat16"),
    (jax.lax.Precision.HIGH, jax.lax.Precision.HIGHEST, "Precision.HIGH, not jax"),
    (multiply(2), multiply(3), "in by: 2, not 3"),
    (lambda x: x + 1, lambda x: x + 2, "<lambda>(code "),
    (functools.partial(jnp.sum, axis=0), functools.partial(jnp.sum, axis=1), "in keywords.'axis': 0, not 1"),
    (frozenset({1, 2}), frozenset({1, 3}), "in 1: 2, not 3"),
    (Plain(3), Plain(4), "in size: 3, not 4"),
    ("a" * 300, "b", "aaa..., not 'b'"),
]


@pytest.mark.parametrize("field", ["setting", "declared"])
@pytest.mark.parametrize(("saved", "like", "line"), DIFFERENT)
def test_configuration_that_differs_is_an_error_with_both_values(loaded, field, saved, like, line):
    with pytest.raises(CheckpointError, match="holds another tree") as error:
        loaded({"m": layer(**{field: saved})}, {"m": layer(**{field: like})})
    assert f"  at: m.{field}" in str(error.value)
    assert line in str(error.value)
    assert "strict=False" in str(error.value)


@pytest.mark.parametrize(("saved", "like", "line"), DIFFERENT)
def test_without_strict_the_configuration_of_like_is_taken(loaded, saved, like, line):
    restored = loaded(layer(saved, declared=saved), Layer(jnp.zeros(2), like, like), strict=False)
    assert restored.setting == restored.declared == like
    assert restored.weight.tolist() == [1, 1]


@pytest.mark.parametrize(("value", "line"), [(value, line) for value, _, line in DIFFERENT])
def test_configuration_that_is_alike_loads(loaded, value, line):
    restored = loaded(layer(value, value), layer(value, value))
    assert restored.setting == restored.declared == value


def test_functions_of_one_make_are_alike(loaded):
    assert loaded(layer(multiply(2)), layer(multiply(2))).setting(3) == 6
    assert difference(describe(lambda x: x + 1), describe(lambda x: x + 1)) is None
    assert difference(describe(jax.jit(lambda x: x + 1)), describe(jax.jit(lambda x: x + 1))) is None
    assert difference(describe(multiply(jnp.ones(2))), describe(multiply(jnp.zeros(2)))) is not None
    assert difference(describe(multiply(jnp.ones(2))), describe(multiply(np.ones(2, "f4")))) is None


def test_a_nan_is_a_nan(loaded):
    loaded(layer(float("nan")), layer(float("nan")))


@pytest.mark.parametrize(
    ("saved", "like", "lines"),
    [
        ({"m": layer()}, {"m": layer(of=Twin)}, ["m: ", ":Layer, not ", ":Twin"]),
        ([jnp.ones(1)], (jnp.ones(1),), ["<root>: list, not tuple"]),
        ({"a": [jnp.ones(1), None]}, {"a": [jnp.ones(1)]}, ["a[1]: None, not nothing"]),
        ({"a": {}}, {"a": []}, ["a: dict, not list"]),
        ({"a": "text"}, {"a": "other"}, ["a: 'text', not 'other'"]),
        (
            OrderedDict([("a", jnp.ones(1)), ("b", jnp.ones(1))]),
            OrderedDict([("b", jnp.ones(1)), ("a", jnp.ones(1))]),
            ["<root>, in own: ('a', 'b'), not ('b', 'a')"],
        ),
        ((optax.EmptyState(),), (optax.MaskedNode(),), ["[0]: optax:EmptyState, not optax:MaskedNode"]),
        (eqx.nn.Dropout(0.5, True), eqx.nn.Dropout(0.5, False), ["inference: True, not False"]),
    ],
)
def test_classes_and_containers_are_compared(loaded, saved, like, lines):
    with pytest.raises(CheckpointError) as error:
        loaded(saved, like)
    for line in lines:
        assert line in str(error.value)


def test_a_record_that_is_missing_is_named_once(loaded):
    first = Linear(2, 2, key=jax.random.key(0))
    with pytest.raises(CheckpointError) as error:
        loaded([first, first], [first])
    assert error.value.at == (
        "[1]: weft:Linear, not nothing",
        "[1].bias: float32[2], not nothing",
        "[1].kernel: float32[2,2], not nothing",
    )


def test_heads_that_differ_do_not_load_even_if_the_shapes_agree(loaded):
    class Attention(weft.Module):
        query: Float[Array, "dim dim"]
        heads: int

    with pytest.raises(CheckpointError, match=r"at: blocks\[0\].heads: 8, not 4"):
        loaded({"blocks": [Attention(jnp.ones((8, 8)), 8)]}, {"blocks": [Attention(jnp.ones((8, 8)), 4)]})


def test_numbers_outside_of_records_are_data_and_keep_their_type(loaded):
    saved = {"step": 100, "rate": 0.5, "on": True, "z": 2j, "huge": -(2**99), "epochs": [1, 2]}
    like = {"step": 0, "rate": 0.0, "on": False, "z": 0j, "huge": 0, "epochs": [0, 0]}
    restored = loaded(saved, like)
    assert restored == saved
    assert [type(value) for value in jax.tree.leaves(restored)] == [type(value) for value in jax.tree.leaves(saved)]
    with pytest.raises(CheckpointError, match="step: Python int, not Python float"):
        loaded({"step": 1}, {"step": 1.0})
    with pytest.raises(CheckpointError, match=r"step: Python int, not int32\[\]"):
        loaded({"step": 1}, {"step": jnp.array(1)})


def test_functions_in_chains_and_states_of_optimizers_load(loaded):
    chain = Sequential(Linear(2, 2, key=jax.random.key(0)), jax.nn.relu)
    state = optax.adam(optax.constant_schedule(1e-3)).init({"w": jnp.ones(2)})
    restored = loaded((chain, state), (chain, state))
    assert jax.tree.structure(restored) == jax.tree.structure((chain, state))


def test_an_optimizer_that_was_used_is_the_one_that_is_made_anew(loaded):
    def make(model, rate):
        return weft.Optimizer(model, optax.chain(optax.clip(1.0), optax.adamw(optax.cosine_decay_schedule(rate, 100))))

    model = Linear(2, 2, key=jax.random.key(0))
    optimizer = make(model, 0.1)
    model, optimizer = optimizer.update(model, jax.tree.map(jnp.ones_like, model))
    restored = loaded((model, optimizer), (model, make(model, 0.1)))[1]
    before, after = jax.tree.leaves(optimizer), jax.tree.leaves(restored)
    assert all(map(np.array_equal, before, after))
    with pytest.raises(CheckpointError, match=r"transformation, in .*init_value: 0\.1, not 0\.2"):
        loaded((model, optimizer), (model, make(model, 0.2)))


def test_one_array_at_two_paths_is_no_problem(loaded):
    shared = jnp.arange(3.0)
    restored = loaded({"a": shared, "b": shared}, {"a": jnp.zeros(3), "b": jnp.zeros(3)})
    assert restored["a"].tolist() == restored["b"].tolist() == [0, 1, 2]


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def module():
    """Makes modules that vanish again."""
    made = []

    def make(name, **contents):
        made.append(name)
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(contents)
        for value in contents.values():
            value.__module__ = name

    yield make
    for name in made:
        sys.modules.pop(name, None)


def net():
    class Net(weft.Module):
        weight: Float[Array, "n"]

    Net.__qualname__ = "Net"
    return Net


def test_a_script_and_an_import_of_it_have_the_same_classes(file, module):
    script, imported = net(), net()
    script.__module__ = "__main__"
    module("package_of_mine", Net=imported)
    save_checkpoint(file, script(jnp.ones(2)))
    assert type(load_checkpoint(file, imported(jnp.zeros(2)))) is imported
    save_checkpoint(file, imported(jnp.ones(2)))
    assert type(load_checkpoint(file, script(jnp.zeros(2)))) is script


def test_a_class_that_moved_loads_where_an_alias_was_left(file, module):
    old, new = net(), net()
    module("mine_old", Net=old)
    save_checkpoint(file, old(jnp.ones(2)))
    module("mine_new", Net=new)
    with pytest.raises(CheckpointError, match="<root>: mine_old:Net, not mine_new:Net"):
        load_checkpoint(file, new(jnp.zeros(2)))
    sys.modules["mine_old"].Net = new
    assert type(load_checkpoint(file, new(jnp.zeros(2)))) is new


def test_a_class_in_a_private_module_that_is_gone_has_moved(file, module):
    old, new = net(), net()
    module("theirs._src.nets", Net=old)
    save_checkpoint(file, old(jnp.ones(2)))
    module("theirs._src.networks", Net=new)
    with pytest.raises(CheckpointError, match=r"<root>: theirs\._src\.nets:Net, not theirs._src.networks:Net"):
        load_checkpoint(file, new(jnp.zeros(2)))
    del sys.modules["theirs._src.nets"]
    assert type(load_checkpoint(file, new(jnp.zeros(2)))) is new


def test_an_object_is_named_by_its_place_and_shown_by_the_package_that_offers_it():
    assert describe(Linear) == {"name": "weft.modules.dense.linear:Linear"}
    assert show(describe(Linear)) == "weft:Linear"
    assert show(describe(eqx.nn.Linear)) == "equinox.nn:Linear"


def test_the_code_of_a_lambda_is_compared_within_one_version_of_python():
    saved = describe(lambda x: x + 1)
    assert difference(saved, describe(lambda x: x + 2)) is not None
    older = {**saved, "code": f"cpython-30  {saved['code'].split(' ')[-1][::-1]}"}
    assert difference(older, describe(lambda x: x + 2)) is None
    assert difference({**older, "parts": {"by": "2"}}, describe(lambda x: x + 2)) is not None


def test_the_code_of_a_package_is_compared_within_one_version_of_it(module, monkeypatch):
    def function(number):
        made = eval(f"lambda x: x + {number}")
        made.__module__ = "theirs"
        return made

    module("theirs")
    monkeypatch.setattr(sys.modules["theirs"], "__version__", "1.0", raising=False)
    saved = describe(function(1))
    assert difference(saved, describe(function(2))) is not None
    monkeypatch.setattr(sys.modules["theirs"], "__version__", "1.1")
    assert difference(saved, describe(function(2))) is None


def test_a_function_that_another_one_wraps_is_told_from_it():
    assert describe(multiply) == {"name": f"{__name__}:multiply"}
    wrapper = functools.wraps(multiply)(lambda by: by)
    assert difference(describe(wrapper), describe(multiply)) is not None


def test_a_function_that_was_defined_again_as_it_was_is_the_same(monkeypatch):
    old = multiply
    again = FunctionType(old.__code__, old.__globals__, old.__name__, old.__defaults__)
    monkeypatch.setitem(globals(), "multiply", again)
    assert difference(describe(old), describe(again)) is None


def test_what_holds_itself_is_described():
    holder = Plain(3)
    holder.size = holder
    assert difference(describe(holder), describe(holder)) is None


def test_addresses_are_no_part_of_a_description():
    class Shown:
        def __repr__(self):
            return f"Shown at {hex(id(self))}"

    assert difference(describe(Shown()), describe(Shown())) is None


def test_a_file_from_before_a_field_was_there_loads_where_it_is_none(file, monkeypatch):
    conv = weft.Conv1d(2, 3, 2, key=jax.random.key(0))

    def without_the_mask(tree, data):
        return {path: told for path, told in configuration(tree, data).items() if path != "conv.mask"}

    with monkeypatch.context() as then:
        then.setattr(checkpoint, "configuration", without_the_mask)
        save_checkpoint(file, {"conv": conv})
    back = load_checkpoint(file, {"conv": jax.tree.map(jnp.zeros_like, conv)})["conv"]
    assert back.mask is None
    assert (back.kernel == conv.kernel).all()
    with pytest.raises(CheckpointError, match=r"conv\.mask: nothing, not float32\[2,2,3\]"):
        load_checkpoint(file, {"conv": weft.Conv1d(2, 3, 2, mask=jnp.ones((2, 2, 3)), key=jax.random.key(0))})


def test_none_that_is_no_field_of_a_record_is_still_compared(loaded):
    with pytest.raises(CheckpointError, match="b: nothing, not None"):
        loaded({"a": jnp.ones(2)}, {"a": jnp.ones(2), "b": None})


def test_a_file_that_tells_the_tables_dtype_as_that_of_an_embed_still_loads(loaded):
    # It was the default, which now is None.
    def tables(dtype=None):
        return {"a": weft.Embed(3, 2, dtype=dtype, key=jax.random.key(0)), "b": jnp.ones(1)}

    assert loaded(tables(jnp.float32), tables())["a"].dtype is None
    renamed = loaded(tables(jnp.float32)["a"], {"c": tables()["a"]}, rename={"": "c"})
    assert renamed["c"].dtype is None
    for saved, like in ((jnp.bfloat16, None), (jnp.float32, jnp.bfloat16), (None, jnp.float32)):
        with pytest.raises(CheckpointError, match=r"a\.dtype: "):
            loaded(tables(saved), tables(like))
