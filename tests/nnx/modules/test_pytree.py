"""Objects and containers: data and static attributes, checks, versions, copies, against flax.nnx."""

import copy
import dataclasses
import functools
import pickle

import jax
import jax.numpy as jnp
import pytest
from weft import nnx
from weft.nnx.errors import AttributeKindError

ARRAY = jnp.array([1.0, 2.0])


def model(nnx):
    class Model(nnx.Module):
        table = nnx.data()

        def __init__(self):
            self.w = nnx.Param(ARRAY)
            self.size = 3
            self.scale = nnx.data(2.0)
            self.table = [1, 2]
            self.raw = ARRAY
            self.inner = nnx.Dict(a=nnx.BatchStat(1), f=jax.nn.relu)

    return Model()


def leaves(nnx):
    m = model(nnx)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(m)]
    return m, paths, jax.tree.map(lambda x: x + 1, m)


def reassigned(nnx):
    m = model(nnx)
    m.w = nnx.data(5)
    m.size = nnx.data(6)
    m.raw = nnx.static("s")
    m.scale = 7
    del m.inner
    return m


def explicit(nnx):
    class Point(nnx.Pytree):
        x: int = nnx.data()
        name: str = nnx.static()

        def __init__(self, x, name):
            self.x, self.name = x, name

    return jax.tree.leaves(Point(3, "n")), Point(3, "n")


def as_dataclass(nnx):
    @nnx.dataclass
    class Layer(nnx.Module):
        size: int
        w: object = nnx.data(default=None)
        tags: tuple = nnx.static(default=("a",))

        def __post_init__(self):
            self.w = nnx.Param(jnp.ones(self.size))

    return Layer(2), Layer(size=3).tags


def not_a_pytree(nnx):
    class Bag(nnx.Object):
        def __init__(self):
            self.items = [nnx.Param(ARRAY), 3]

    class Free(nnx.Module, pytree=False):
        def __init__(self):
            self.items = {"a": nnx.Param(ARRAY)}

    bag = Bag()
    bag.items.append(nnx.Param(2))
    return bag, len(jax.tree.leaves(bag)), Free()


def registered(nnx):
    @nnx.register_data_type
    @dataclasses.dataclass(frozen=True)
    class Mine:
        value: int

    class Foo(nnx.Pytree):
        def __init__(self):
            self.a = Mine(1)
            self.b = "x"

    foo = Foo()
    return nnx.is_data(foo.a), nnx.is_data(foo.b), [leaf.value for leaf in jax.tree.leaves(foo)]


def asking(nnx):
    values = [ARRAY, nnx.Param(1), nnx.Rngs(0), model(nnx), "x", 3, [ARRAY], None, jnp.float32, (nnx.Param(1),)]
    return [nnx.is_data(value) for value in values], [len(nnx.has_data(value)) for value in ([ARRAY, {"a": ARRAY}], 3)]


def copied(nnx):
    m = model(nnx)
    shallow, deep = copy.copy(m), copy.deepcopy(m)
    deep.w[...] = ARRAY * 5
    return shallow, deep, shallow.w is m.w, deep.w is m.w, m


def list_changes(nnx):
    xs = nnx.List([nnx.Param(0), "s", nnx.Param(2)])
    xs.append(nnx.Param(3))
    xs[0] = nnx.Param(10)
    xs[2:4] = [nnx.Param(20), nnx.Param(30)]
    middle = xs[1:3]
    last = xs.pop()
    negative = xs[-1]
    xs.reverse() if False else None
    return xs, len(xs), middle, last, negative, list(nnx.List()), [type(x).__name__ for x in xs]


def list_of_params(nnx):
    xs = nnx.List([nnx.Param(i) for i in range(12)])
    xs.insert(3, nnx.Param(100))
    del xs[0]
    del xs[2:5]
    xs.insert(-1, nnx.Param(200))
    xs.extend([nnx.Param(7), nnx.Param(8)])
    # flax.nnx leaves the last slot of a List behind when an element is deleted, so its state is not looked at here.
    return [x.get_value() for x in xs], len(xs)


def grown_list(nnx):
    xs = nnx.List([nnx.Param(i) for i in range(11)])
    xs.insert(3, nnx.Param(100))
    return xs, list(nnx.to_pure_dict(nnx.state(xs)))


def dict_changes(nnx):
    d = nnx.Dict({"a": nnx.Param(1)}, b="x")
    d["c"] = nnx.Param(2)
    d.e = 3
    del d["b"]
    return d, sorted(d), len(d), "a" in d, d.get("zz", 5), [d["c"].get_value()]


def sequential(nnx):
    add, pair = (lambda x: x + 1), (lambda x: (x, 2 * x))
    named = lambda x, y: {"x": x * y}  # noqa: E731
    with_rngs = lambda x, rngs: x + rngs  # noqa: E731
    return (
        nnx.Sequential(add, pair, named, lambda x: x)(3),
        nnx.Sequential()(1), nnx.Sequential()(1, 2), nnx.Sequential()(a=1), nnx.Sequential()(),
        nnx.Sequential(add, with_rngs)(1, rngs=10),
    )  # fmt: skip


PROGRAMS = [
    leaves, reassigned, explicit, as_dataclass, not_a_pytree, registered, asking, copied, list_changes, list_of_params,
    grown_list, dict_changes, sequential,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(agree, program):
    agree(program)


def _raising(nnx):
    m = model(nnx)

    def in_init(value, **kwargs):
        class Foo(nnx.Module, **kwargs):
            def __init__(self):
                self.a = value

        return Foo

    def appended():
        class Foo(nnx.Module):
            def __init__(self):
                self.xs = []
                self.xs.append(nnx.Param(1))

        Foo()

    def conflicting():
        class Base(nnx.Pytree):
            a: int = nnx.data()

        class Derived(Base):
            a: int = nnx.static()

    def slotted():
        class Foo(nnx.Module):
            __slots__ = ("a",)

    def object_as_pytree():
        class Foo(nnx.Object, pytree=True):
            pass

    return {
        "list of data": in_init([nnx.Param(1)]),
        "nested data": in_init({"a": (ARRAY,)}),
        "static data": in_init(nnx.static(ARRAY)),
        "annotation inside": in_init([nnx.data(1)]),
        "appended": appended,
        "data to static": lambda: setattr(m, "size", ARRAY),
        "conflicting": conflicting,
        "slots": slotted,
        "object as pytree": object_as_pytree,
        "value and options": lambda: nnx.data(1, init=False),
        "own static key": lambda: nnx.data(metadata={"static": True}),
        "check no pytree": lambda: nnx.check_pytree(3),
        "another level": lambda: jax.jit(lambda: setattr(m, "size", 4))(),
        "delete unknown": lambda: delattr(m, "nope"),
        "missing key": lambda: nnx.Dict(a=1)["b"],
        "delete missing key": lambda: nnx.Dict(a=1).__delitem__("b"),
        "out of bounds": lambda: nnx.List([1])[3],
        "bad index": lambda: nnx.List([1])["a"],
        "slice of another length": lambda: nnx.List([1, 2]).__setitem__(slice(0, 2), [1]),
        "slice of no iterable": lambda: nnx.List([1, 2]).__setitem__(slice(0, 2), 1),
        "delete out of bounds": lambda: nnx.List([1]).__delitem__(1),
        "not callable": lambda: nnx.Sequential(3)(1),
    }


@pytest.mark.parametrize("case", sorted(_raising(nnx)))
def test_errors_are_of_the_same_builtin(agree, case):
    agree(lambda library: _raising(library)[case](), expect=Exception)


def test_data_in_a_static_attribute_is_named():
    class Foo(nnx.Module):
        def __init__(self):
            self.layers = [nnx.Param(1)]

    with pytest.raises(AttributeKindError) as error:
        Foo()
    for part in ("Found data on value of type 'list' in static attribute: Param", "at: Foo.layers", "nnx.List"):
        assert part in str(error.value)


def test_moving_elements_of_a_list_keeps_them_data_or_static():
    xs = nnx.List(["s", nnx.Param(1)])
    xs.insert(0, nnx.Param(0))
    del xs[0]
    xs.insert(1, "t")
    assert [xs[0], xs[1]] == ["s", "t"]
    assert len(jax.tree.leaves(xs)) == 1


class Picklable(nnx.Module):
    def __init__(self):
        self.w = nnx.Param(ARRAY)
        self.xs = nnx.List([nnx.BatchStat(1)])
        self.again = self.w
        self.scale = nnx.data(2.0)


def test_pickle_keeps_sharing_and_data():
    twin = pickle.loads(pickle.dumps(Picklable()))
    assert twin.w is twin.again
    assert jax.tree.leaves(twin)[1] == 2.0
    twin.scale = 3.0
    twin.w[...] = ARRAY


@pytest.mark.parametrize(
    "change",
    [
        lambda m: setattr(m, "size", 4),
        lambda m: setattr(m, "w", nnx.Param(ARRAY)),
        lambda m: setattr(m, "new", 1),
        lambda m: delattr(m, "size"),
        lambda m: vars(m),
        lambda m: m.__setstate__({}),
        lambda m: functools.partial(nnx.pop, m)(nnx.Param),
        lambda m: nnx.update(m, {"newest": nnx.Param(1)}),
    ],
    ids=["static", "swap", "add", "delete", "vars", "setstate", "pop", "update"],
)
def test_structural_mutation_is_seen_by_the_next_split(change):
    m = model(nnx)
    for _ in range(3):
        nnx.split(m)
    change(m)
    # JAX makes a new object, whose structure nobody has remembered.
    fresh = jax.tree.map(lambda x: x, m)
    assert nnx.graphdef(m) == nnx.graphdef(fresh)
    assert jax.tree.all(jax.tree.map(lambda a, b: a is b, nnx.state(m), nnx.state(fresh)))


def test_values_do_not_change_the_structure_that_is_remembered():
    m = model(nnx)
    before = nnx.graphdef(m)
    m.w[...] = ARRAY * 2
    nnx.update(m, nnx.state(m, nnx.Variable))
    assert nnx.graphdef(m) is before


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda m: jax.tree.map(lambda x: x, m), nnx.clone])
def test_a_copy_is_not_taken_for_its_original(copied):
    m = model(nnx)
    nnx.split(m)
    twin = copied(m)
    nnx.split(twin)
    twin.new = nnx.Param(1)
    assert "new" in nnx.state(twin)
    assert "new" not in nnx.state(m)


def test_mixins_and_multiple_inheritance():
    class Mixin:
        def double(self):
            return self.x * 2

    class Left(nnx.Module):
        pass

    class Right(nnx.Module):
        pass

    class Both(Left, Right, Mixin):
        def __init__(self):
            self.x = 2

    assert Both().double() == 4


def test_cached_properties_work_and_are_seen():
    class Foo(nnx.Module):
        @functools.cached_property
        def heavy(self):
            return 7

    foo = Foo()
    nnx.split(foo)
    assert foo.heavy == 7
    assert "heavy" in str(nnx.graphdef(foo))
