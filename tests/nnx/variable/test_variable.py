"""Variables: values, metadata, hooks, operators, modes and names, against flax.nnx."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from weft import nnx
from weft.core.records import kinds
from weft.nnx.errors import TraceContextError

ARRAY = jnp.array([1.0, 2.0])


def hooked(nnx):
    class Doubling(nnx.Variable):
        def on_get_value(self, value):
            return value * 2

        def on_set_value(self, value):
            return value + 1

    variable = Doubling(ARRAY)
    first = variable[...]
    variable.set_value(ARRAY)
    return first, variable.get_value(), variable.get_raw_value()


def overriding(nnx):
    class Doubling(nnx.Param):
        def create_value(self, value):
            return value * 10

        def get_value(self, **kwargs):
            return super().get_value(**kwargs) + 1

    return Doubling(ARRAY)[0], Doubling(ARRAY) + 1


def axes(nnx):
    told = []
    variable = nnx.Param(
        ARRAY,
        on_add_axis=lambda v, index, name: told.append(("add", index, name)),
        on_remove_axis=(lambda v, index, name: told.append(("remove", index, name)),),
    )
    variable.add_axis(0, "batch")
    variable.remove_axis(1, None)
    return told


def metadata_hooks(nnx):
    hooks = {"on_create_value": lambda v, x: x + 1, "on_get_value": [lambda v, x: x * 3]}
    make = nnx.with_metadata(lambda: ARRAY, **hooks, note="n")
    variable = nnx.Param(make())
    return variable[...], variable.get_raw_value(), variable.note


def set_and_get(nnx):
    variable = nnx.Param(ARRAY, a=1)
    variable[...] = jnp.array([3, 4])
    variable[0] = 9
    variable.set_metadata("b", 2)
    variable.set_metadata(c=3)
    variable.del_metadata("a")
    before = variable.get_metadata("b"), variable.get_metadata("z", 5), variable.has_metadata("a")
    variable.set_metadata({"only": 1})
    without = nnx.Param(ARRAY)
    without.del_metadata("eager_sharding")
    without.set_metadata(a=1)
    return before, variable, variable.get_metadata()["hijax"], without.get_metadata()


def copies(nnx):
    variable = nnx.Param(ARRAY, a=1)
    replaced = variable.replace(ARRAY + 1, b=2)
    third = variable.copy(a=5)
    same = nnx.Param(ARRAY * 7)
    same.copy_from(replaced)
    last = nnx.Param(ARRAY)
    last.update_from_state(third)
    return variable, replaced, third, same, last, variable.to_state() is variable


def containers(nnx):
    variable = nnx.Variable({"a": ARRAY, "b": [1, 2]})
    variable["a"] = ARRAY + 1
    copy = variable.get_value()
    copy["a"] = None
    del variable["b"]
    return variable, "a" in variable, len(variable), list(variable)


def refs(nnx):
    variable = nnx.Param(ARRAY, ref=True)
    variable[0] = 5.0
    twin = variable.copy()
    variable[...] = ARRAY * 2

    @jax.jit
    def f(ref):
        ref[...] = ref[...] + 1

    f(variable.get_raw_value())
    return variable[...], twin[...], variable.ref, variable + 1


def registry(nnx):
    class Mine(nnx.Variable):
        pass

    nnx.register_variable_name("mine_of_test", Mine, overwrite=True)
    nnx.register_variable_name("again_of_test", overwrite=True)(nnx.Cache)
    return (
        nnx.variable_name_from_type(nnx.Param),
        nnx.variable_type_from_name("mine_of_test"),
        nnx.variable_name_from_type(Mine),
        nnx.variable_type_from_name("new_of_test", allow_register=True),
        issubclass(nnx.variable_type_from_name("new2_of_test", base=nnx.Cache, allow_register=True), nnx.Cache),
    )


def as_pytree(nnx):
    variable = nnx.Param(ARRAY, a=1)
    mapped = jax.tree.map(lambda x: x + 1, variable)
    jitted = jax.jit(lambda v: v)(variable)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path({"v": variable})]
    return mapped, jitted, paths, jax.tree.map(jnp.shape, variable).get_raw_value()


def defaults(nnx):
    with nnx.var_defaults(ref=True):
        inside = nnx.Param(ARRAY).ref, dict(nnx.var_defaults())

    @nnx.var_defaults(ref=True)
    def f():
        return nnx.Param(ARRAY).ref

    return inside, f(), nnx.Param(ARRAY).ref, nnx.Param(ARRAY, ref=True).ref


def sharding(nnx):
    with nnx.use_eager_sharding(False):
        variable = nnx.Param(ARRAY, out_sharding=("a", None))
        return variable, nnx.using_eager_sharding()


def sharded(nnx):
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    variable = nnx.Param(ARRAY, out_sharding=("rows",), mesh=mesh, sharding_rules=(("rows", "data"),))
    return str(variable[...].sharding.spec), variable.out_sharding


PROGRAMS = [
    hooked, overriding, axes, metadata_hooks, set_and_get, copies, containers, refs, registry, as_pytree, defaults,
    sharding, sharded,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(agree, program):
    agree(program)


def _raising(nnx):
    def in_place():
        variable = nnx.Param(ARRAY)
        variable += 1

    @jax.jit
    def other_level():
        outside[...] = ARRAY * 0

    outside = nnx.Param(ARRAY)
    variable = nnx.Param(ARRAY, a=1)
    return {
        "in place": in_place,
        "another level": other_level,
        "metadata of another level": lambda: jax.jit(lambda: outside.set_metadata(a=1))(),
        "attribute": lambda: setattr(variable, "foo", 1),
        "delete attribute": lambda: delattr(variable, "a"),
        "unknown metadata": lambda: variable.get_metadata("nope"),
        "default without name": lambda: variable.get_metadata(default=1),
        "name and exclude": lambda: variable.get_metadata("a", exclude_required=True),
        "mode by keyword": lambda: variable.set_metadata(hijax=True),
        "mode by name": lambda: variable.set_metadata("ref", True),
        "mode by mapping": lambda: variable.set_metadata({"eager_sharding": False}),
        "delete mode": lambda: variable.del_metadata("ref"),
        "delete unknown": lambda: variable.del_metadata("nope"),
        "mixed": lambda: variable.set_metadata("a", b=1),
        "nothing": lambda: variable.set_metadata(),
        "other kind": lambda: variable.copy_from(nnx.Variable(1)),
        "ref as value": lambda: nnx.Param(jax.new_ref(ARRAY)),
        "two modes": lambda: nnx.Param(nnx.VariableMetadata(ARRAY, metadata={"ref": True}), ref=False),
        "no mesh": lambda: nnx.Param(ARRAY, out_sharding=("a",)),
        "unknown name": lambda: nnx.variable_type_from_name("never_registered"),
        "unregistered type": lambda: nnx.variable_name_from_type(type("Never", (nnx.Variable,), {})),
        "taken name": lambda: nnx.register_variable_name("params", nnx.Cache),
        "hash": lambda: hash(variable),
        "attribute of the value": lambda: variable.no_such_attribute,
    }


@pytest.mark.parametrize("case", sorted(_raising(nnx)))
def test_errors_are_of_the_same_builtin(agree, case):
    agree(lambda library: _raising(library)[case](), expect=Exception)


def test_writing_from_another_level_says_what_to_do():
    variable = nnx.Param(ARRAY)
    with pytest.raises(TraceContextError) as error:
        jax.jit(lambda: variable.set_value(ARRAY * 0))()
    assert str(error.value).startswith("Cannot mutate Param from a different trace level\n  at: variable, mutated in")
    assert "\n  fix: pass it to the transform as an argument" in str(error.value)
    assert variable[...] is ARRAY


BINARY = [
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "eq", "lshift", "rshift", "and_", "xor", "or_",
]  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_operators_are_those_of_the_value(name):
    act = getattr(operator, name)
    x, y = jnp.array([5, 7]), jnp.array([2, 3])
    expected = act(x, y)
    for result in (act(nnx.Param(x), y), act(nnx.Param(x), nnx.Param(y)), act(x, nnx.Param(y))):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("name", ["neg", "pos", "abs", "invert"])
def test_unary_operators_are_those_of_the_value(name):
    value = jnp.array([5, -7])
    np.testing.assert_array_equal(getattr(operator, name)(nnx.Param(value)), getattr(operator, name)(value))


def test_conversions():
    values = (
        int(nnx.Param(jnp.array(3))),
        float(nnx.Param(2.5)),
        complex(nnx.Param(jnp.array(1))),
        round(nnx.Param(2.4)),
    )
    assert values == (3, 2.5, 1 + 0j, 2)


@pytest.mark.parametrize("name", ["Param", "BatchStat", "Cache", "Intermediate", "Perturbation", "RngKey", "RngCount"])
def test_kinds_are_those_of_records(name):
    assert issubclass(getattr(nnx, name), getattr(kinds, name))


REPRS = [
    lambda nnx: nnx.Param(ARRAY),
    lambda nnx: nnx.Param(ARRAY, note="n", out=(1, 2)),
    lambda nnx: nnx.Variable(3),
    lambda nnx: nnx.Variable({"a": [1, 2.0, None, "x", True]}),
    lambda nnx: nnx.Param(jnp.zeros((1000, 1000))[:2, :2], ref=True),
    lambda nnx: nnx.State({"a": {"b": nnx.Param(ARRAY)}, "c": 1}),
    lambda nnx: nnx.to_flat_state(nnx.State({"a": {"b": 1}, "c": 2})),
    lambda nnx: nnx.List([1, nnx.Param(ARRAY), "x"]),
    lambda nnx: nnx.Dict(a=1, b=nnx.Param(ARRAY)),
    lambda nnx: nnx.Rngs(0, params=1),
    lambda nnx: nnx.All(nnx.Not("tag"), ..., None, nnx.PathContains("a")),
]


@pytest.mark.parametrize("make", REPRS, ids=range(len(REPRS)))
def test_representations_are_the_same_text(agree, make):
    agree(lambda library: repr(make(library)))
