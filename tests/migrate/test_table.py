"""The table of `weft migrate`: what is left to do, counted, the most work first."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Migrate = Callable[[Mapping[str, str]], tuple[dict[str, str], str]]
HEAD = "import equinox as eqx\n"


def rows(report: str) -> list[str]:
    """The table of a report, without the list of places before it and the summary behind it."""
    return report.split("\n\n")[1].splitlines()


def test_a_row_for_each_thing_to_do_with_the_most_work_first(migrate: Migrate):
    files = {
        "a.py": HEAD + "eqx.filter_vjp(f)\neqx.filter_jit(f)\neqx.filter_jit(g)\neqx.filter_grad(f)\n",
        "b.py": HEAD + "eqx.filter_vjp(f)\neqx.filter_jit(h)\nclass Net(eqx.Module): ...\n",
        "c.py": "import weft\ngetattr(weft, 'drop')\n",
        "d.py": "import flax.struct\nimport flax.nnx\nflax.nnx.Linear\n",
    }
    table = [line.split() for line in rows(migrate(files)[1]) if line[0] != " "]
    assert [row[:4] for row in table] == [
        ["work", "places", "files", "code"],
        ["rewrite", "1", "1", "eqx.Module"],
        ["check", "3", "2", "eqx.filter_jit"],
        ["check", "1", "1", "weft,"],
        ["check", "1", "1", "eqx.filter_grad"],
        ["rename", "2", "2", "eqx.filter_vjp"],
        ["none", "1", "1", "flax.struct"],
    ]


def test_a_row_says_what_to_do_within_the_width_of_a_page(migrate: Migrate):
    table = rows(migrate({"a.py": HEAD + "class Net(eqx.Module): ...\n" + f"{'x' * 60} = eqx.filter_jit\n"})[1])
    fix = "weft.Module, where no field is a leaf that is a number or a function; annotations are contracts then"
    text = " ".join(line.strip() for line in table)
    assert fix in text
    assert max(map(len, table)) <= 110


def test_nothing_to_do_has_no_table(migrate: Migrate):
    assert migrate({"a.py": "import weft\n"})[1] == "0 files changed, 0 places listed\n"
