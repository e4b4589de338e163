"""nnx.tabulate: flax's table, of any model, which it leaves as it is."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx as flax_nnx
from weft import nnx

PLAIN = {"force_terminal": False, "no_color": True, "width": 200}
X = jnp.ones((1, 4))


def model(lib):
    class Block(lib.Module):
        def __init__(self, size, rngs):
            self.linear = lib.Linear(size, 3, rngs=rngs)
            self.norm = lib.BatchNorm(3, rngs=rngs)
            self.dropout = lib.Dropout(0.2, rngs=rngs)

        def forward(self, x, act="relu", *, scale=None):
            return {"out": self.dropout(self.norm(self.linear(x)))}

    class Model(lib.Module):
        def __init__(self, rngs):
            self.first = Block(4, rngs)
            self.note = lib.Param(jnp.ones(2), text="free", pair=(1, "a"))

        def __call__(self, x):
            return self.first.forward(x, {})["out"]

    return Model(lib.Rngs(0))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"depth": 1},
        {"compute_flops": True},
        {"row_filter": lambda call: "first" in call.path},
    ],
    ids=["all", "depth", "costs", "filter"],
)
def test_the_table_is_flaxs(options):
    # Anew each time: flax's marks the model.
    tables = [lib.tabulate(model(lib), X, console_kwargs=PLAIN, **options) for lib in (nnx, flax_nnx)]
    assert tables[0] == tables[1]


class Scaled(nnx.Module):
    def __init__(self):
        self.calls = nnx.BatchStat(jnp.zeros(()))
        self.scale = nnx.Param(jnp.ones(4))
        self.shared = nnx.Linear(4, 4, rngs=nnx.Rngs(0))
        self.alias = self.shared

    def positive(self):
        return True

    def power(self, n, x):
        return x if n == 0 else self.power(n - 1, x * self.scale)

    def __call__(self, x):
        self.calls[...] += 1
        # What a method returns beside arrays stays a Python value.
        x = nnx.jit(lambda m, x: m.power(2, x))(self, x) if self.positive() else None
        return self.alias(self.shared(x))


def rows(table):
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]
    return [(path, *rest) for path, *rest in cells if rest[0]]


def test_the_model_stays_as_it_is():
    scaled = Scaled()
    before = nnx.graphdef(scaled)
    nnx.tabulate(scaled, X, console_kwargs=PLAIN)
    assert nnx.graphdef(scaled) == before
    assert int(scaled.calls[...]) == 0
    assert "power" in vars(Scaled)
    assert Scaled.power.__qualname__ == "Scaled.power"
    assert not hasattr(Scaled.power, "__wrapped__")


def test_transforms_and_recursion_are_seen_and_the_same_call_once():
    table = rows(nnx.tabulate(Scaled(), jax.ShapeDtypeStruct((1, 4), jnp.float32), console_kwargs=PLAIN))
    assert [row[0] for row in table] == ["", "positive", "power", "power", "power", "alias"]


def test_methods_run_once():
    runs = []

    class Block(nnx.Module):
        def __call__(self, x):
            runs.append(1)
            return x

    class Outer(nnx.Module):
        def __init__(self):
            self.blocks = nnx.List([Block() for _ in range(3)])

        def __call__(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    table = nnx.tabulate(Outer(), X, compute_flops=True, compute_vjp_flops=True, console_kwargs=PLAIN)
    assert len(runs) == 3
    assert [row[0] for row in rows(table)] == ["", "blocks/0", "blocks/1", "blocks/2"]


def test_an_error_in_the_model_puts_its_methods_back():
    class Bad(nnx.Module):
        def __call__(self, x):
            raise RuntimeError("inside")

    call = Bad.__call__
    with pytest.raises(RuntimeError, match="inside"):
        nnx.tabulate(Bad(), X)
    assert Bad.__call__ is call


def test_what_has_no_such_method_is_an_error():
    with pytest.raises(AttributeError, match="nothing"):
        nnx.tabulate(Scaled(), X, method="nothing")
    with pytest.raises(ValueError, match="tabulate takes an NNX object, got a Param"):
        nnx.tabulate(nnx.Param(X))


def test_functions_among_the_arguments_may_close_over_the_model():
    class Applied(nnx.Module):
        def __init__(self):
            self.scale = nnx.Param(jnp.ones(4))

        def apply(self, function, x):
            return function(x) + 1

        def __call__(self, x):
            return self.apply(lambda y: y * self.scale * x, x)

    table = nnx.tabulate(Applied(), X, compute_flops=True, compute_vjp_flops=True, console_kwargs=PLAIN)
    assert [row[0] for row in rows(table)] == ["", "apply"]


def test_options_of_rich_go_to_rich():
    options = {"table_kwargs": {"title": "Mine"}, "column_kwargs": {"justify": "right"}}
    assert "Mine" in nnx.tabulate(Scaled(), X, console_kwargs=PLAIN, **options).splitlines()[0]


def test_texts_that_look_like_markup_are_shown_as_they_are():
    class Named(nnx.Module):
        def tag(self, text, x):
            return x

        def __call__(self, x):
            return self.tag("[bold]", x)

    assert "[bold]" in nnx.tabulate(Named(), X, console_kwargs=PLAIN)
