"""What `nnx.capture` returns is sorted by path, whichever order it was recorded in."""

import jax.numpy as jnp
import pytest
from flax import nnx as flax_nnx
from weft import nnx

LIBRARIES = {"weft": nnx, "flax": flax_nnx}


def recorded(library, **options):
    class Model(library.Module):
        def __init__(self):
            self.z, self.c = library.Linear(1, 1, rngs=library.Rngs(0)), library.Linear(1, 1, rngs=library.Rngs(0))

        def __call__(self, x):
            self.sow(library.Intermediate, "d", x)
            self.sow(library.Intermediate, "a", x)
            return self.c(self.z(x))

    state = library.capture(Model(), library.Intermediate, **options)(jnp.ones(1))[1]
    return [list(state), [path for path, _ in library.to_flat_state(state)]]


@pytest.mark.parametrize("methods", [False, True])
def test_the_order_is_that_of_flax(methods):
    records = {
        name: recorded(library, **({"method_outputs": library.Intermediate} if methods else {}))
        for name, library in LIBRARIES.items()
    }
    assert records["weft"] == records["flax"]


def test_elements_of_lists_are_in_their_order():
    class Model(nnx.Module):
        def __init__(self):
            self.layers = nnx.List([nnx.Linear(1, 1, rngs=nnx.Rngs(0)) for _ in range(11)])

        def __call__(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    _, state = nnx.capture(Model(), nnx.Intermediate, method_outputs=nnx.Intermediate)(jnp.ones(1))
    assert list(state["layers"]) == list(range(11))


class Sower(nnx.Module):
    def __call__(self, x):
        self.sow(nnx.Intermediate, "h", x)
        return x


def test_what_a_call_replaces_records_no_more():
    class Replaces(nnx.Module):
        def __init__(self):
            self.inner = Sower()

        def __call__(self, x):
            self.inner(x)
            self.inner = Sower()

    model = Replaces()
    replaced = model.inner
    nnx.capture(model, nnx.Intermediate)(1.0)
    assert list(vars(replaced)) == list(vars(Sower()))


def test_a_capture_inside_of_another_one_leaves_it_what_it_records():
    class Nested(nnx.Module):
        def __init__(self):
            self.inner = Sower()

        def __call__(self, x):
            self.inner(x)
            _, inside = nnx.capture(self.inner, nnx.Intermediate)(x + 1)
            self.inner(x + 2)
            return inside

    model = Nested()
    inside, around = nnx.capture(model, nnx.Intermediate)(1.0)
    assert (inside.h.get_value(), around.inner.h.get_value()) == ((2.0,), (1.0, 3.0))
    assert list(vars(model.inner)) == list(vars(Sower()))
