"""Shape strings as data, and expressions over dims."""

from __future__ import annotations

import pytest
from jax import export
from weft.typecheck.errors import AnnotationError
from weft.typecheck.language.dims import AnyDim, FixedDim, NamedDim, Shape, SymbolicDim, UnboundDim, VariadicDim


@pytest.mark.parametrize(
    ("text", "dims"),
    [
        ("", ()),
        ("batch in", (NamedDim("batch"), NamedDim("in"))),
        ("3 rows=4", (FixedDim(3), FixedDim(4))),
        ("*batch n", (VariadicDim("batch"), NamedDim("n"))),
        ("... n", (VariadicDim(None), NamedDim("n"))),
        ("_ _time", (AnyDim(), AnyDim("time"))),
        ("#n *#batch", (NamedDim("n", broadcastable=True), VariadicDim("batch", broadcastable=True))),
        ("?n ?*batch", (NamedDim("n", per_leaf=True), VariadicDim("batch", per_leaf=True))),
        ("#3", (FixedDim(3, broadcastable=True),)),
    ],
)
def test_a_shape_is_read_dim_by_dim(text, dims):
    assert Shape.parse(text).dims == dims


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b", "cannot read the dim 'a,b': dims are separated by spaces, not commas"),
        ("n + 1", "cannot read the dim '+' in the shape 'n + 1': it is neither a name, a number nor an expression"),
        ("T 2K", "it is neither a name, a number nor an expression (a product is written 2*K)"),
        ("*a *b", "a shape has at most one variadic dim"),
        ("a **b", "cannot read the dim '**b' in the shape 'a **b': `*` is written twice"),
        ("*4", "`*` goes with a name only"),
        ("#_", "an anonymous dim matches any size, so `#` has no effect"),
        ("{self.width", "it is neither a name, a number nor an expression"),
        ("a...", "`...` stands on its own"),
    ],
)
def test_a_shape_that_cannot_be_read_gives_one_line(text, message):
    with pytest.raises(AnnotationError) as caught:
        Shape.parse(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sizes", "arguments", "size"),
    [
        ("2*n+1", {"n": 3}, {}, 7),
        ("in*2", {"in": 3}, {}, 6),  # a keyword of Python
        ("{heads}*d", {"d": 4}, {"heads": 2}, 8),
        ("{x.shape[0]}", {}, {"x": export.symbolic_args_specs}, None),
        ("min(a,b)", {"a": 2, "b": 5}, {}, 2),
        ("{name}*2", {"width": 3}, {"name": "width"}, 6),  # a string in a hole is part of the expression
    ],
)
def test_an_expression_reads_dims_and_arguments(text, sizes, arguments, size):
    (dim,) = Shape.parse(text).dims
    assert isinstance(dim, SymbolicDim)
    if size is None:
        with pytest.raises(AnnotationError, match="cannot be evaluated: AttributeError"):
            dim.evaluate(sizes, arguments)
    else:
        assert dim.evaluate(sizes, arguments) == size


def test_an_expression_takes_symbolic_dimensions():
    (n,) = export.symbolic_shape("n")
    (dim,) = Shape.parse("2*n+1").dims
    assert dim.evaluate({"n": n}, {}) == 2 * n + 1


def test_an_unbound_name_is_named():
    (dim,) = Shape.parse("n+k").dims
    assert dim.names == {"n", "k"}
    with pytest.raises(UnboundDim, match="the dim expression 'n\\+k' reads 'k', which nothing binds"):
        dim.evaluate({"n": 1}, {})


def test_leading_axes_go_in_front():
    assert str(Shape.parse("n m").under(Shape.parse("layers"))) == "layers n m"
    assert Shape.parse("*b n").under(Shape.parse("layers")).variadic == 1
    with pytest.raises(AnnotationError, match="each has a variadic dim"):
        Shape.parse("*b n").under(Shape.parse("*layers"))
