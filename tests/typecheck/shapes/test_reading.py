"""What is shown beside the lines of small programs, by what makes the values there."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from weft.typecheck.command.config import Settings
from weft.typecheck.command.linter import Steps
from weft.typecheck.command.shaping import shaped
from weft.typecheck.command.units import Unit
from weft.typecheck.shapes.notes import Shapes, joined

HEAD = """
import jax, jax.numpy as jnp
import weft
from weft import nnx
from jaxtyping import Array, Float, Int
"""


@pytest.fixture
def read(tmp_path: Path):
    """What is told of a program, by name, and its notes as `line of the program: note`."""

    def read_program(program: str) -> tuple[dict[str, Shapes], list[str]]:
        text = HEAD + textwrap.dedent(program)
        name = f"program_{abs(hash(text))}"
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        functions = joined([*shaped(Unit(str(file), name, str(tmp_path)), Settings(trials=100), text, None, Steps())])
        sys.modules.pop(f"weft_check_{name}", None)
        lines = text.splitlines()
        notes = sorted(
            (note for function in functions for note in function.notes), key=lambda note: (note.line, note.column)
        )
        return {function.name: function for function in functions}, [
            f"{lines[note.line - 1].strip()[:12]} | {note}" for note in notes
        ]

    return read_program


def notes_of(read, program: str) -> list[str]:
    return [one.partition(" | ")[2] for one in read(program)[1]]


def test_dims_are_called_as_the_annotations_call_them(read):
    notes = notes_of(
        read,
        """
        def attend(q: Float[Array, "b t h*d"], k: Float[Array, "b s h*d"], h: int) -> Float[Array, "b h t s"]:
            b, t, width = q.shape
            qs = q.reshape(b, t, h, -1)
            ks = k.reshape(b, -1, h, width // h)
            scores = jnp.einsum("bthd,bshd->bhts", qs, ks)
            return jax.nn.softmax(scores)
        """,
    )
    assert notes == [
        "width h*d",
        "qs f32[b,t,h,d]",
        "ks f32[b,s,h,d]",
        "scores f32[b,h,t,s]",
        "-> f32[b,h,t,s]",
    ]


def test_of_one_example_in_vmap_and_of_one_slice_in_scan(read):
    notes = notes_of(
        read,
        """
        def run(xs: Float[Array, "time batch d"], w: Float[Array, "d e"]):
            def one(x):
                y = x @ w
                return y

            def step(carry, x):
                both = jnp.concatenate([carry, x], -1)
                ys = jax.vmap(one)(x)
                return both[:, ::2], ys

            return jax.lax.scan(step, xs[0], xs)
        """,
    )
    assert notes == [
        "x f32[d]",
        "y f32[e]",
        "-> f32[e]",
        "carry f32[batch,d]",
        "x f32[batch,d]",
        "both f32[batch,2*d]",
        "ys f32[batch,e]",
        "-> (f32[batch,d], f32[batch,e])",
        "-> (f32[batch,d], f32[time,batch,e])",
    ]


def test_a_function_of_the_file_is_read_where_it_is_called_and_in_its_own_names_if_it_has_any(read):
    notes = notes_of(
        read,
        """
        def outer(xs: Float[Array, "batch d"]) -> Float[Array, "batch d"]:
            return jax.vmap(inner)(xs)

        def inner(x):
            twice = jnp.tile(x, 2)
            return half(twice)

        def half(v: Float[Array, "2*n"]) -> Float[Array, "n"]:
            first = v[: v.shape[0] // 2]
            return first
        """,
    )
    assert notes == [
        *("-> f32[batch,d]", "x f32[d]", "twice f32[2*d]", "-> f32[d]"),
        *("first f32[n]", "-> f32[n]"),
    ]


def test_a_dim_of_the_callers_with_a_name_that_means_something_else_here_is_marked(read):
    notes = notes_of(
        read,
        """
        def outer(xs: Float[Array, "n m"]):
            def inner(x: Float[Array, "n"]):
                grown = xs @ x
                return grown
            return inner(xs[0])
        """,
    )
    assert notes[:1] == ["grown f32[n']"]


def test_a_loop_shows_its_last_pass_and_the_first_where_they_differ(read):
    notes = notes_of(
        read,
        """
        def grow(x: Float[Array, "n"]):
            for _ in range(3):
                x = jnp.concatenate([x, x])
                same = x[:2]
            return x
        """,
    )
    assert notes == ["x f32[8*n], at first f32[2*n]", "same f32[2]", "-> f32[8*n]"]


def test_records_are_classes_and_their_dims_hold_in_methods(read):
    functions, notes = read(
        """
        class Linear(weft.Module):
            weight: Float[Array, "out in"]

            def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch out"]:
                layer = self
                y = x @ layer.weight.T
                return y

        class Net(weft.Module):
            first: Linear

            def __call__(self, x: Float[Array, "b d"]):
                hidden = self.first(x)
                return {"hidden": hidden, "net": [self]}
        """
    )
    assert [one.partition(" | ")[2] for one in notes] == [
        *("layer Linear", "y f32[*batch,out]", "-> f32[*batch,out]"),
        *("hidden f32[b,out]", "-> {hidden: f32[b,out], net: [Net]}"),
    ]
    assert functions["Linear.__call__"].dims["Linear.__call__"] == {
        "out": "field Linear.weight, axis 0",
        "in": "field Linear.weight, axis 1",
        "*batch": "argument x, axis 0",
    }


def test_modules_of_nnx_and_what_their_constructors_assign(read):
    notes = notes_of(
        read,
        """
        class Mlp(nnx.Module):
            def __init__(self, din: int, dout: int, *, rngs: nnx.Rngs):
                self.w = nnx.Param(jax.random.normal(rngs.params(), (din, 4 * dout)))

            def __call__(self, x: Float[Array, "b din"]):
                y = x @ self.w
                return y
        """,
    )
    assert notes == ["self.w Param f32[din,4*dout]", "y f32[b,4*dout]", "-> f32[b,4*dout]"]


def test_what_cannot_be_symbolic_is_read_off_several_sizes(read):
    notes = notes_of(
        read,
        """
        def grid(image: Float[Array, "h w"]) -> Float[Array, "h*w"]:
            rows = jnp.stack([image[int(i)] for i in range(image.shape[0])])
            flat = rows.ravel()
            pairs = flat[: image.shape[0] * 2 + 1]
            odd = flat[: hash(image.shape) % 7 + 5]
            return flat
        """,
    )
    assert notes == ["rows f32[h,w]", "flat f32[h*w]", "pairs f32[2*h+1]", "odd f32[?]", "-> f32[h*w]"]


def test_what_fails_is_shown_as_far_as_it_comes(read):
    functions, notes = read(
        """
        def wrong(x: Float[Array, "n d"]):
            y = x[0]
            z = y @ x
            return z
        """
    )
    assert [one.partition(" | ")[2] for one in notes] == ["y f32[d]"]
    assert not functions["wrong"].traced
    assert functions["wrong"].reason.startswith("line 9: TypeError: dot_general requires")


def test_what_sizes_have_to_be_is_said_and_both_branches_of_a_flag_are_read(read):
    functions, notes = read(
        """
        def heads(x: Float[Array, "t d"], n: int, flat: bool = False):
            if flat:
                y = x.ravel()
            else:
                y = x.reshape(-1, n, x.shape[1] // n)
            return None
        """
    )
    assert [one.partition(" | ")[2] for one in notes] == ["y f32[t*d]", "y f32[t,n,d//n]"]
    assert functions["heads"].needs == ("n divides d",)


def test_decorators_and_a_with_around_what_is_returned(read):
    functions, notes = read(
        """
        @jax.jit
        @jax.named_scope("whole")
        def whole(x: Float[Array, "n"]):
            with jax.named_scope("inner"):
                return jnp.outer(x, x)
        """
    )
    assert [one.partition(" | ")[2] for one in notes] == ["-> f32[n,n]"]
    assert functions["whole"].line == 9


def test_parts_of_a_dim_that_something_divides(read):
    notes = notes_of(
        read,
        """
        def halves(x: Float[Array, "t d"]):
            angles = jnp.outer(x[:, 0], jnp.ones(x.shape[1] // 2))
            whole = jnp.concatenate([angles, angles], -1)
            return whole + x

        def patches(image: Float[Array, "h w"], p: int):
            h, w = image.shape
            grid = image.reshape(h // p, p, w // p, p).swapaxes(1, 2)
            return grid.reshape(h // p * (w // p), p * p)
        """,
    )
    assert notes == [
        *("angles f32[t,d//2]", "whole f32[t,d]", "-> f32[t,d]"),
        *("grid f32[h//p,w//p,p,p]", "-> f32[(h//p)*(w//p),p*p]"),
    ]
