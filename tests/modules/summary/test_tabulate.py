"""tabulate: a row for each call, with what goes in and out, what is held, and what it costs."""

from __future__ import annotations

import itertools
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
import weft

KEY = jax.random.key(0)


class Net(weft.Module):
    convs: tuple[weft.Conv2d, ...]
    norm: weft.BatchNorm
    head: weft.Linear

    def __init__(self):
        self.convs = (weft.Conv2d(1, 4, 3, key=KEY), weft.Conv2d(4, 4, 3, key=KEY), weft.Conv2d(4, 4, 3, key=KEY))
        self.norm = weft.BatchNorm(4, axis_name="batch")
        self.head = weft.Linear(4, 2, key=KEY)

    def __call__(self, x):
        with weft.thread(self) as t:
            for conv in t.convs:
                x = conv(x)
            return t.done(t.head(t.norm(x).mean((0, 1))))


class Batched(weft.Module):
    net: Net

    def __call__(self, x):
        y, net = weft.vmap(self.net, in_axes=0, out_axes=(0, None), axis_name="batch")(x)
        return y, self.replace(net=net)


def rows(*args, **options):
    """The cells of each row of the page, but for the total."""
    page = weft.tabulate(*args, format="html", **options).removeprefix("<!DOCTYPE html>")
    return [[cell.text or "" for cell in row] for row in ElementTree.fromstring(page).iterfind(".//tbody/tr")]


def test_each_call_has_a_row_through_transforms_and_threads():
    table = rows(Batched(Net()), jax.ShapeDtypeStruct((2, 4, 4, 1), jnp.float32), costs=False)
    assert [row[0] for row in table] == [
        "model",
        "model.net",
        *(f"model.net.convs[{i}]" for i in range(3)),
        "model.net.norm",
        "model.net.head",
    ]
    assert table[5] == [
        "model.net.norm", "BatchNorm", "float32[4,4,4]", "- float32[4,4,4]\n- BatchNorm", "8 (32 B)", "8 (32 B)",
    ]  # fmt: skip


def test_a_table_of_text_has_the_same_cells_and_the_total():
    model = weft.MLP(4, 8, 2, key=KEY)
    text = weft.tabulate(model, jnp.ones((3, 4)))
    for row in rows(model, jnp.ones((3, 4))):
        assert any(all(cell in line for cell in row) for line in text.splitlines())
    assert [line.split() for line in text.splitlines() if "total" in line] == [["total", "58", "(232", "B)"]]
    assert max(map(len, weft.tabulate(model, jnp.ones((3, 4)), width=70).splitlines())) <= 70


def test_costs_are_those_of_all_turns_of_a_loop():
    def linear(key):
        return weft.Linear(8, 8, use_bias=False, key=key)

    of_linear, of_stack = (
        rows(model, jnp.ones((4, 8)))[0][5:] for model in (linear(KEY), weft.Stack(linear, 10, key=KEY))
    )
    assert of_linear[0] == str(2 * 4 * 8 * 8)
    assert of_linear[1] == "1.02 k"  # by the input, and by the kernel
    assert float(of_stack[0].removesuffix(" k")) * 1e3 == pytest.approx(10 * 512, rel=0.05)
    assert float(of_stack[1].removesuffix(" k")) * 1e3 == pytest.approx(10 * 1024, rel=0.2)


@pytest.mark.parametrize(
    "collective",
    [
        lambda x: jax.lax.psum(x, "members"),
        lambda x: jax.lax.all_gather(x, "members").sum(0),
        lambda x: jax.lax.ppermute(x, "members", [(0, 1), (1, 2), (2, 0)]),
        lambda x: jax.lax.psum_scatter(x, "members", tiled=True),
    ],
)
def test_a_member_that_meets_the_others_costs_what_one_does(collective):
    class Member(weft.Module):
        linear: weft.Linear

        def __call__(self, x):
            return collective(self.linear(x))

    ensemble = weft.Ensemble(lambda key: Member(weft.Linear(6, 6, key=key)), 3, key=KEY, axis_name="members")
    of_linear, of_member = (
        {row[0]: row[5] for row in rows(ensemble, jnp.ones(6))}[f"model.members{at}"] for at in (".linear", "")
    )
    assert int(of_linear) <= int(of_member) <= int(of_linear) + 3 * 6


def test_a_program_without_inputs_has_a_cost():
    class Constant(weft.Module):
        def __call__(self, x):
            return jnp.ones((9, 9)) @ jnp.ones((9, 9))

    assert rows(Constant(), 1)[0][4] == "1.46 k"


def test_what_has_no_derivative_has_no_cost_of_one():
    class Loop(weft.Module):
        def __call__(self, x):
            return jax.lax.while_loop(lambda x: x[0] < 3, lambda x: x + 1, x)

    assert rows(Loop(), jnp.ones(2))[0][5] == rows(Loop(), jnp.ones(2))[0][7] == "-"


def test_layers_in_a_stack_and_an_abstract_model_have_rows():
    model = weft.init(lambda key: weft.Stack(lambda k: weft.MLP(4, 8, 4, key=k), 3, key=key), key=KEY, abstract=True)
    table = rows(model, jnp.ones(4), costs=False)
    assert [row[:2] for row in table] == [
        ["model", "Stack"],
        ["model.layers", "MLP"],
        ["model.layers.layers[0]", "Linear"],
        ["model.layers.layers[2]", "Linear"],
    ]
    assert [row[4] for row in table] == ["228 (912 B)", "228 (912 B)", "120 (480 B)", "108 (432 B)"]
    assert [row[0] for row in rows(model, jnp.ones(4), costs=False, depth=1)] == ["model", "model.layers"]


def test_another_method_and_the_same_call_again():
    class Tied(weft.Module):
        embed: weft.Embed

        def logits(self, ids):
            again = self.embed(ids) + self.embed(ids)
            return self.embed.attend(again)

    table = rows(Tied(weft.Embed(5, 3, key=KEY)), jnp.arange(2), method="logits", costs=False)
    assert [row[0] for row in table] == ["model.logits()", "model.embed", "model.embed.attend()"]


def test_the_model_and_its_classes_stay_as_they_are():
    model = Net()
    before, methods = jax.tree.leaves(model), dict(vars(Net))
    with pytest.raises((weft.errors.AxisError, TypeError)):
        weft.tabulate(model, jnp.ones((4, 4, 3)))
    assert all(a is b for a, b in zip(before, jax.tree.leaves(model), strict=True))
    assert dict(vars(Net)) == methods
    np.testing.assert_array_equal(weft.Linear(2, 2, key=KEY)(jnp.ones(2)).shape, (2,))


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_a_page_is_well_formed_and_escapes_what_it_shows():
    class Named(weft.Module):
        def __call__(self, x, name):
            return x

    page = weft.tabulate(Named(), jnp.ones(2), "<b>&[bold]", format="html")
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.seen[:4] == ["html", "head", "meta", "title"]
    assert "&lt;b&gt;&amp;[bold]" in page
    assert page.count("<th") - page.count("<thead") == 8


@pytest.mark.slow
def test_the_page_is_a_table_in_a_browser(visit, tmp_path):
    page, picture = tmp_path / "table.html", tmp_path / "table.png"
    page.write_text(weft.tabulate(Batched(Net()), jax.ShapeDtypeStruct((2, 4, 4, 1), jnp.float32), format="html"))
    script = """[...document.querySelectorAll('tbody tr')].map(row => [...row.cells].map(cell => {
        const box = cell.getBoundingClientRect();
        return [box.left, box.top, box.right, box.bottom, cell.scrollWidth - cell.clientWidth];
    }))"""
    (table,) = visit(page.as_uri(), script=script, picture=str(picture))
    assert len(table) == 7
    for row in table:
        # Each cell holds its text, and they stand side by side in the window.
        assert all(x0 < x1 <= 1280 and y0 < y1 and over <= 0 for x0, y0, x1, y1, over in row)
        assert all(one[2] <= other[0] for one, other in itertools.pairwise(row))
    assert all(above[0][3] <= below[0][1] for above, below in itertools.pairwise(table))
    shade = matplotlib.image.imread(picture)[..., :3].mean(-1)
    for row in table:
        x0, y0, x1, y1, _ = map(int, row[0])
        assert shade[y0:y1, x0:x1].min() < 0.5 < shade[y0:y1, x0:x1].mean()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((3,), {}, "tabulate is for records, and got a int"),
        ((weft.Dropout(0.0), jnp.ones(2)), {"format": "pdf"}, "tabulate has no format 'pdf'"),
    ],
)
def test_what_cannot_be_shown_is_refused(arguments, options, message):
    with pytest.raises(weft.errors.StructureError, match=message):
        weft.tabulate(*arguments, **options)


def test_without_rich_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.box", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'weft-jax\[display\]' \(treescope, rich\)"):
        weft.tabulate(weft.Dropout(0.0), jnp.ones(2))
