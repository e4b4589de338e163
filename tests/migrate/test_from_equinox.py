"""`weft migrate` over equinox: nothing is rewritten, and each place is told with what to do there by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import equinox
import pytest
import weft
from weft.migrate.from_equinox import COUNTERPARTS

Migrate = Callable[[Mapping[str, str]], tuple[dict[str, str], str]]

HEAD = "import equinox as eqx\nfrom equinox import filter_grad as grad\n"


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (
            "@eqx.filter_jit\ndef f(x, n: int): ...\n",
            "a.py:3: eqx.filter_jit: it stays equinox's, and works together with weft's",
        ),
        (
            "f = eqx.filter_jit(f)\n",
            "do: weft.jit: name the arguments that are numbers or strings in static_arg",
        ),
        ("\ng = grad(f)\n", "a.py:4: grad: it stays equinox's"),
        ("g = grad(f)\n", "do: weft.grad: its first argument must be arrays or a module"),
        ("class Net(eqx.Module):\n    rate: float\n", "do: weft.Module, where no field is a leaf that is a number"),
        ("net, state = eqx.nn.make_with_state(Net)()\n", "do: a layer of weft's, which returns its successor"),
        ("eqx.tree_serialise_leaves('a', 1)\n", "do: weft.save_checkpoint, which has a file format of its own"),
    ],
)
def test_a_place_is_told_with_what_to_do_there_and_stays(migrate: Migrate, text: str, finding: str):
    after, report = migrate({"a.py": HEAD + text})
    assert finding in report
    assert after == {"a.py": HEAD + text}


@pytest.mark.parametrize(
    "text",
    [
        "def f(net: eqx.Module): return isinstance(net, eqx.Module)\n",
        "layer = eqx.nn.Linear(2, 3, key=key)\n",
        "model = eqx.combine(params, static)\n",
        '"""eqx.filter_jit in words."""\n',
    ],
)
def test_what_works_beside_weft_as_it_is_is_not_told(migrate: Migrate, text: str):
    assert migrate({"a.py": HEAD + text})[1] == "0 files changed, 0 places listed\n"


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_both_libraries_have_the_names_of_the_table(name: str):
    def part(root: object, dotted: str) -> object:
        for word in dotted.split("."):
            root = getattr(root, word)
        return root

    assert part(equinox, name)
    counterparts = COUNTERPARTS[name][1].partition(":")[0].replace(" and ", " ").replace(",", " ").split()
    for word in counterparts:
        if word.startswith("weft.") and word != "weft.jit":
            assert part(weft, word.removeprefix("weft.").partition("(")[0])
