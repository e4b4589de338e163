"""`nnx.view_info` says what the docstrings of `set_view` say."""

import pytest
from weft import nnx


def test_the_layers_say_what_their_views_take():
    assert nnx.view_info(nnx.Dropout(0.1)).splitlines() == [
        "Dropout:",
        "  deterministic: bool | None = None",
        "    whether to disable dropout.",
    ]


@pytest.mark.parametrize("indent", ["  ", "    "])
def test_a_docstring_may_indent_as_it_likes_and_name_types(indent):
    class Layer(nnx.Module):
        def set_view(self, rate=1, mode=None, other=2): ...

    lines = ["rate (float): how many", indent + "there are", "mode: which"]
    Layer.set_view.__doc__ = "\n".join(
        ["Sets.", "", "Args:", *(indent + line for line in lines), "Raises:", "  no: not"]
    )
    described = [line.strip() for line in nnx.view_info(Layer()).splitlines()]
    assert described[2:4] == ["how many", "there are"]
    assert described[5:] == ["which", "other: <class 'inspect._empty'> = 2"]
