"""`weft migrate` over programs of weft 0.2: names move to their places, and the program runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from weft.core.public_names import MOVED

Migrate = Callable[[Mapping[str, str]], tuple[dict[str, str], str]]
PROGRAM = Path(__file__).parent / "weft_0_2" / "main.py"
# As weft 0.2 printed it.
PRINTED = """\
2 4
True
ConfigError
AxisError
FilterError
MetricError
BranchError
[0, 2, 4] [0, 1]
3 16
ContractError True (1, 3, 1)
['inner/x']
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


@pytest.mark.slow
def test_a_program_of_0_2_runs_after_it(migrate: Migrate):
    before = PROGRAM.read_text()
    assert "it is weft.filters.All (`weft migrate` rewrites programs" in run(before).stderr
    after, report = migrate({"main.py": before})
    assert report.splitlines() == ["1 file changed, 0 places listed"]
    ran = run(after["main.py"])
    assert ran.stdout == PRINTED, ran.stderr


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import weft\nweft.split(1)\n", "import weft\nweft.tree.split(1)\n"),
        ("import weft as w\n(w . drop)(1)\n", "import weft as w\n(w.drop_successor)(1)\n"),
        ("import weft.core\nweft.core.AxisError\n", "import weft.core\nweft.errors.AxisError\n"),
        ("from weft import split\nsplit(1)\n", "from weft.tree import split\nsplit(1)\n"),
        ("from weft import training\n", "from weft import training_mode as training\n"),
        ("from weft import MLP, split\n", "from weft import MLP\nfrom weft.tree import split\n"),
        ("import weft\nweft.cond(pred=p, true_fun=f, false_fun=g)\n", "import weft\nweft.cond(p, f, g)\n"),
        ("import weft\nx: list[weft.Filter]\n", "import weft\nx: list[weft.filters.Filter]\n"),
    ],
)
def test_names_move_and_the_rest_stays(migrate: Migrate, before: str, after: str):
    assert migrate({"a.py": before})[0] == {"a.py": after}


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        (
            "import weft\nx: 'weft.Filter'\n",
            "a.py:2: 'weft.Filter': strings are not rewritten\n    do: weft.Filter is weft.",
        ),
        ("import weft\npatch('weft.core.AxisError.args', 1)\n", "do: weft.core.AxisError is weft.errors.AxisError"),
        (
            "import weft\nmonkeypatch.setattr(weft, 'split', f)\n",
            "a.py:2: weft, 'split': strings are not rewritten\n    do: weft.split is weft.tree.split",
        ),
        ("from weft import core\ngetattr(core, 'AxisError')\n", "do: weft.core.AxisError is weft.errors.AxisError"),
        ("import weft\nprint(f'see weft.split of {weft}')\n", "do: weft.split is weft.tree.split"),
        ("from weft import ops\nops.avg_pool(x)\n", "a.py:2: ops.avg_pool: the file has no name for weft itself here"),
        ("from weft import *\nsplit(tree.size(m))\n", "do: split is weft.tree.split; tree is weft.tree"),
        ("import weft\nweft.fori_loop(0, 3, init=0, body_fun=f)\n", "in this order: lower, upper, body_fun, init"),
    ],
)
def test_what_is_not_rewritten_is_told_with_what_to_do(migrate: Migrate, text: str, finding: str):
    after, report = migrate({"a.py": text})
    assert after == {"a.py": text}
    assert finding in report


@pytest.mark.parametrize(
    "text",
    [
        "import weft\nweft.jit(weft.tree.split)\n",
        "from weft import nnx\nnnx.split(model)\n",
        "from jax.numpy import split\nsplit(1)\n",
        "import other\nother.weft.split\n",
        "def f(weft):\n    return weft.split\n",
        "from . import weft\nweft.split\n",
        "import weft\nweft.cond(p, f, g, x)\n",
        "import weft\ngetattr(weft, 'jit')\ngetattr(weft.tree, 'split')\ngetattr(weft.nnx, 'weft.nnx.split')\n",
    ],
)
def test_what_means_something_else_stays(migrate: Migrate, text: str):
    after, report = migrate({"a.py": text})
    assert after == {"a.py": text}
    assert "0 places listed" in report


def test_one_file_moves_from_both_libraries(migrate: Migrate):
    text = "import weft\nfrom flax import nnx\nweft.select(nnx.Linear)\n"
    assert migrate({"a.py": text})[0] == {"a.py": "import weft\nfrom weft import nnx\nweft.tree.select(nnx.Linear)\n"}


@pytest.mark.parametrize("former", [name for name in MOVED if not name.startswith("weft.errors.")])
def test_every_former_name_is_rewritten(migrate: Migrate, former: str):
    assert migrate({"a.py": f"import weft\n{former}\n"})[0] == {"a.py": f"import weft\n{MOVED[former]}\n"}
