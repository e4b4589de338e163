"""After an edit, verdicts that are served are those of a run without stored verdicts, and few are judged anew."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from weft.typecheck.command.cache import Cache
from weft.typecheck.command.config import Settings
from weft.typecheck.command.lines import to_json
from weft.typecheck.command.process import Conversation
from weft.typecheck.command.running import judgement, parts_of
from weft.typecheck.command.units import units_of

pytestmark = pytest.mark.skipif(sys.version_info < (3, 12), reason="what ran is not noted there")

HEAD = "from jaxtyping import Array, Float\n"
# A file's pieces: a text, or the texts of which one stands there.
FILES: dict[str, list[str | list[str]]] = {
    "net/__init__.py": ["", ["", "# a remark\n", "from .helpers import twice as doubled\n"]],
    "net/helpers.py": [
        "import functools\nfrom pathlib import Path\n" + HEAD,
        ["WIDTH = 2\n", "WIDTH = 3\n", "# the width\nWIDTH = 2\n"],
        "REGISTRY = {}\n",
        "def register(function):\n",
        ["", "    # notes it\n", "    pass\n"],
        "    REGISTRY[function.__name__] = function\n",
        ["    return function\n", "    return lambda x: function(x)[..., :1]\n"],
        "def twice(x):\n",
        ["", "    pass\n\n\n", "    '''Doubles.'''\n"],
        ["    return x + x\n", "    return (x + x).T\n", "    return x.sum(0)\n"],
        ["", "\n\n", "def added(): pass\n"],
        "def by_name(name, x):\n    return REGISTRY['regis' + name](x)\n",
        "@register\n@functools.cache\ndef regiscount(n):\n",
        ["    return n\n", "    return 2 * n\n", "    pass\n    return n\n"],
        ["@register\n", "@register\n@functools.cache\n", "\n"],
        "def registered(x):\n",
        ["    return x\n", "    return x.T\n", "    pass\n    return x\n"],
        "@functools.cache\ndef power(n):\n",
        ["    return n\n", "    return n + 1\n", "    # n\n    return n\n"],
        "def read():\n    return int((Path(__file__).parent / 'size.txt').read_text())\n",
        "def at_import():\n",
        ["    return 1\n", "    return 2\n"],
        "AXES = at_import()\n",
        "def never(x):\n",
        ["    return x\n", "    return x + 1\n", "    pass\n    # not called\n    return x\n"],
    ],
    "net/model.py": [
        HEAD + "from . import helpers\nfrom .helpers import twice, WIDTH\n",
        ["", "\n\n", "# a remark\n"],
        "def ranked(x: Float[Array, '*batch']) -> Float[Array, '*batch']:\n",
        ["", "    pass\n"],
        "    if x.ndim == 0:\n        raise ValueError('no axes')\n    return x\n",
        "class Model:\n    def __init__(self, n: int):\n        self.n = n\n",
        "    def __call__(self, x: Float[Array, 'a b']) -> Float[Array, 'a b']:\n",
        ["", "        pass\n", "\n\n"],
        ["        return twice(x)\n", "        return x\n", "        return x.T\n"],
        ["", "    # between\n", "    def more(self): return 1\n"],
        "def doubled(x: Float[Array, 'a b']) -> Float[Array, 'a b']:",
        ["\n", "  # weft: ignore[known]\n", "  # weft: skip(known)\n"],
        "    return twice(x)\n",
        "def turned(x: Float[Array, 'a b']) -> Float[Array, 'b a']:\n",
        ["    return x\n", "    return x.T\n", "    y = x\n\n    return y\n"],
        "def wide(x: Float[Array, 'a 2']) -> Float[Array, 'a 2']:\n    return x[:, :WIDTH]\n",
        "def guarded(x: Float[Array, 'n']) -> Float[Array, 'n']:\n",
        ["", "    pass\n"],
        ["    if x.shape[0] % 2:\n        raise ValueError('odd')\n", "    assert x.shape[0] > 3\n", ""],
        "    return x\n",
        "def sized(x: Float[Array, 'n']) -> Float[Array, '1']:\n    return x[:helpers.read()]\n",
        "def powered(x: Float[Array, 'n']) -> Float[Array, '2']:\n    return x[:1].repeat(helpers.power(2))\n",
        "def repeated(x: Float[Array, 'n']) -> Float[Array, '1']:\n    return x[:1].repeat(helpers.AXES)\n",
        "def _private(x: Float[Array, 'n']) -> Float[Array, 'n']:\n",
        ["    return x\n", "    return x[:1]\n"],
        "def passed(x: Float[Array, 'n']) -> Float[Array, 'n']:\n    return _private(x)\n",
        "def named(x: Float[Array, 'a b']) -> Float[Array, 'a b']:\n    return helpers.by_name('tered', x)\n",
        "def counted(x: Float[Array, 'n']) -> Float[Array, '1']:\n    return x[:helpers.regiscount(1)]\n",
        "def recounted(x: Float[Array, 'n']) -> Float[Array, '1']:\n    return x[:helpers.by_name('count', 1)]\n",
    ],
    "net/kernels.py": [
        HEAD + "import abc\nimport equinox as eqx\n",
        "class Kernel(eqx.Module):\n    @abc.abstractmethod\n",
        "    def gram(self, x: Float[Array, 'n d']) -> Float[Array, 'n n']: ...\n",
        "def gram_of(kernel: Kernel, x: Float[Array, 'n d']) -> Float[Array, 'n n']:\n",
        [
            "    return kernel.gram(x)\n",
            "    # of x\n    return kernel.gram(x) * 2\n",
            "    return kernel.gram(x)[:1]\n",
        ],
    ],
    "net/linear.py": [
        HEAD + "from .kernels import Kernel\n",
        "class Linear(Kernel):\n    def gram(self, x: Float[Array, 'n d']) -> Float[Array, 'n n']:\n",
        ["        return x @ x.T\n", "        return x.T @ x\n", "        pass\n        return x @ x.T\n"],
        ["", "class Scaled(Linear):\n    def gram(self, x):\n        return x\n", "class Other(Linear): ...\n"],
    ],
    "net/size.txt": [["1", "2"]],
}


class Project:
    """A package whose pieces are edited, with a worker that stays alive and one that stores nothing."""

    def __init__(self, folder: Path):
        self.folder, self.chosen = folder, dict[tuple[str, int], int]()
        self.served, self.cold = (Conversation(Settings(), 4000) for _ in range(2))
        self.write()

    def write(self) -> None:
        for name, pieces in FILES.items():
            texts = [
                piece if isinstance(piece, str) else piece[self.chosen.get((name, number), 0)]
                for number, piece in enumerate(pieces)
            ]
            (self.folder / name).parent.mkdir(exist_ok=True)
            if not (self.folder / name).exists() or (self.folder / name).read_text() != "".join(texts):
                (self.folder / name).write_text("".join(texts))

    def choose(self, name: str, text: str) -> None:
        """Puts a text in place of the other one that stands there."""
        file = f"net/{name}"
        for number, piece in enumerate(FILES[file]):
            if isinstance(piece, list) and text in piece:
                self.chosen[file, number] = piece.index(text)
        self.write()

    def check(self) -> set[str]:
        """Judges the package, compares the outcomes with those of a cold run, and returns what was judged anew."""
        cache, anew = Cache(self.folder, Settings()), set[str]()
        units, _ = units_of(["net"])
        for unit in units:
            groups, is_whole = cache.find(unit)
            anew |= {""} if not is_whole else set()
            if not is_whole:
                judged = judgement(self.served, unit, groups)
                anew |= {name.rpartition(":")[2] for name in judged.groups.keys() - groups.keys()} - {""}
                groups = judged.groups
                cache.store(unit, groups, judged.reads, judged.carried)
            cold = parts_of(judgement(self.cold, unit, {}).groups)
            assert [to_json(part) for part in parts_of(groups)] == [to_json(part) for part in cold], (unit, self.chosen)
        return anew - {""}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path)
    yield project
    project.served.close()
    project.cold.close()


ALL = {
    *("Model", "doubled", "turned", "wide", "named", "guarded", "sized", "powered", "repeated", "passed"),
    *("counted", "recounted", "ranked"),
    *("Kernel", "Linear", "gram_of"),
}
# A file, the text that comes into it, and the definitions that are judged anew.
EDITS = [
    ("helpers.py", "    return x.sum(0)\n", {"Model", "doubled"}),
    ("helpers.py", "    pass\n\n\n", {"Model", "doubled"}),
    ("helpers.py", "    pass\n    # not called\n    return x\n", set()),
    ("helpers.py", "    return 2\n", ALL),
    ("helpers.py", "WIDTH = 3\n", ALL),
    ("helpers.py", "@register\n@functools.cache\n", ALL),
    ("size.txt", "2", ALL),
    ("model.py", "# a remark\n", {"ranked"}),  # "guard at model.py:8" is in its text
    ("model.py", "        pass\n", {"Model"}),
    ("model.py", "    y = x\n\n    return y\n", {"turned"}),
    ("model.py", "  # weft: skip(known)\n", {"doubled"}),
    ("model.py", "    assert x.shape[0] > 3\n", {"guarded"}),
    ("model.py", "    return x[:1]\n", {"passed"}),
    ("kernels.py", "    return kernel.gram(x)[:1]\n", {"gram_of"}),
    ("linear.py", "        return x.T @ x\n", {"Linear", "Kernel", "gram_of"}),
    ("linear.py", "class Other(Linear): ...\n", ALL),
]
# Edits of functions that no name leads to, or whose results are kept: they count for all that is judged later.
WIDER_EDITS = [
    ("helpers.py", "    return x.T\n", {"named"}),
    ("helpers.py", "    return 2 * n\n", {"counted", "recounted"}),
    ("helpers.py", "    return n + 1\n", {"powered"}),
]


@pytest.mark.slow
def test_an_edit_judges_anew_what_reaches_it_and_all_outcomes_are_those_of_a_cold_run(project: Project):
    assert project.check() >= ALL
    assert project.check() == set()
    for file, text, anew in EDITS:
        project.choose(file, text)
        assert project.check() & ALL == anew, (file, text)
    for file, text, anew in WIDER_EDITS:
        project.choose(file, text)
        assert project.check() >= anew, (file, text)


@pytest.mark.slow
def test_a_file_that_was_read_counts_although_a_later_worker_does_not_read_it(project: Project):
    project.check()
    for file, text, anew in (("model.py", "        pass\n", "Model"), ("size.txt", "2", "sized")):
        project.served.restart()
        project.choose(file, text)
        assert anew in project.check()


@pytest.mark.slow
def test_outcomes_after_random_edits_are_those_of_a_cold_run(project: Project):
    draw = random.Random(0)
    places = [(name, i) for name, pieces in FILES.items() for i, piece in enumerate(pieces) if isinstance(piece, list)]
    for _ in range(int(os.environ.get("WEFT_DRAWS", "10"))):
        for _ in range(draw.choice([1, 1, 1, 2])):
            name, number = draw.choice(places)
            project.chosen[name, number] = draw.randrange(len(FILES[name][number]))
        project.write()
        if draw.random() < 0.1:
            project.served.restart()
        project.check()
