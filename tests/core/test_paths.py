"""Paths, as written and as read from JAX's keys."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from weft.core.edge.trees import key_part
from weft.core.paths import format_path, parse_path

Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("path", "root", "text"),
    [
        ((), "", "<root>"),
        ((), "model", "model"),
        (("layers", 0, "weight"), "model", "model.layers[0].weight"),
        (("layers", 0), "", "layers[0]"),
        (("a b", "c"), "", "['a b'].c"),
        ((0, "x"), "", "[0].x"),
        ((-1,), "args", "args[-1]"),
        ((("a", 1),), "d", "d[('a', 1)]"),
        (("",), "d", "d['']"),
        (("args[0]", "x"), "", "['args[0]'].x"),
    ],
)
def test_paths_are_written_as_python(path: Any, root: str, text: str):
    assert format_path(path, root) == text


PARTS = st.one_of(st.integers(), st.text(max_size=4), st.booleans(), st.tuples(st.text(max_size=2), st.integers()))


@given(st.lists(PARTS, min_size=1, max_size=4).map(tuple))
def test_what_is_written_is_read_back(path: Any):
    assert parse_path(format_path(path)) == path


@pytest.mark.parametrize("text", ["", "a..b", ".a", "a[", "a[b]", "a]b", "a[0]b", "0", "a.", "a b"])
def test_what_is_no_path_is_refused(text: str):
    with pytest.raises(ValueError, match="not a path"):
        parse_path(text)


@pytest.mark.parametrize(
    ("tree", "parts"),
    [
        ({"a": 1}, ("a",)),
        ({3: 1}, (3,)),
        ([1], (0,)),
        (Pair(1, None), ("left",)),
        (OrderedDict(a=[1]), ("a", 0)),
        (jax.tree_util.Partial(print, 1), ("0", 0)),
    ],
)
def test_keys_of_every_container(tree: Any, parts: Any):
    ((path, _),) = jax.tree_util.tree_flatten_with_path(tree)[0]
    assert len(path) == len(parts)
    assert all(str(key_part(key)).strip("[]") == str(part) for key, part in zip(path, parts, strict=True))
