"""The language server as an editor meets it: a process that is spoken to over its pipes."""

from __future__ import annotations

import argparse
import sys

import pytest
from weft.typecheck.server.serving import serve

from .client import Client

PROGRAM = """\
import os
import jax, jax.numpy as jnp
import weft
from jaxtyping import Array, Float


def pooled(x: Float[Array, "b s d"]) -> Float[Array, "b d"]:
    π = 1.0; mean = x.mean(axis=0)
    return mean


class Attention(weft.Module):
    query: Float[Array, "dim head"]

    def __call__(self, x: Float[Array, "seq dim"]) -> Float[Array, "seq seq"]:
        q = x @ self.query
        def one(row):
            scores = q @ row
            return scores
        return jax.vmap(one)(q)
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "sibling.py").write_text("FACTOR = 2\n")
    client = Client(folder, "--undecided")
    yield client
    assert client.close() == 0


def told(diagnostics) -> list[tuple[int, int, str]]:
    return [(one["range"]["start"]["line"] + 1, one["severity"], one["message"]) for one in diagnostics]


@pytest.mark.slow
def test_what_fails_is_an_error_at_its_line_until_what_mends_it_is_saved(client: Client):
    ((line, severity, message),) = told(client.open("net.py", PROGRAM))
    assert (line, severity) == (7, 1)
    assert message.startswith('pooled: contract: pooled, return: expected Float[Array, "b d"], found f32[')
    assert client.hover("net.py", 7, 4).startswith("`pooled`: fails")
    assert told(client.change("net.py", PROGRAM.replace("axis=0", "axis=1"))) == []
    assert client.hover("net.py", 7, 4) == "`pooled`: proved"


@pytest.mark.slow
def test_shapes_stand_beside_names_inside_of_vmap_too(client: Client):
    client.open("shapes.py", PROGRAM)
    client.shapes()
    assert client.hints("shapes.py") == [
        *((8, "f32[s,d]"), (9, "-> f32[s,d]")),
        *((16, "f32[seq,head]"), (17, "f32[head]"), (18, "f32[seq]"), (19, "-> f32[seq]"), (20, "-> f32[seq,seq]")),
    ]
    line = PROGRAM.split("\n")[14]
    assert client.hover("shapes.py", 15, line.index("seq")) == (
        "dim `seq` of `Attention.__call__`: bound by argument x, axis 0"
    )
    assert client.hover("shapes.py", 13, PROGRAM.split("\n")[12].index("head")) == (
        "dim `head` of `Attention.__call__`: bound by field Attention.query, axis 1"
    )
    binds = "`x` of `Attention.__call__` binds `seq` (argument x, axis 0)"
    assert client.hover("shapes.py", 15, line.index("x:")) == binds
    assert client.hover("shapes.py", 16, 8) == "`q`: `f32[seq,head]`"
    assert client.hover("shapes.py", 1, 0) is None
    # What is edited has no shapes until it is saved; the other lines keep theirs.
    client.edit("shapes.py", PROGRAM.replace("return mean", "return mean * 2"))
    assert [line for line, _ in client.hints("shapes.py")] == [8, 16, 17, 18, 19, 20]


TURNED = """\
from jaxtyping import Array, Float


def turned(x: Float[Array, "n m"]) -> Float[Array, "n m"]:
    y = x + 1
    return y.T
"""


@pytest.mark.slow
def test_a_fix_is_a_code_action_and_so_is_a_marker_that_accepts_the_finding(client: Client):
    ((line, _, message),) = told(client.open("turned.py", TURNED))
    fix = "its axes look transposed: x.transpose(1, 0) fits"
    assert message.endswith(f"\nfix: {fix}")
    head = TURNED.split("\n")[line - 1]
    assert client.actions("turned.py", line) == {
        fix: "return y.T.transpose(1, 0)",
        "accept this finding of turned": f"{head}  # weft: ignore[reason]",
    }
    assert client.actions("turned.py", 1) == {}
    mended = TURNED.replace("return y.T", "return y.T.transpose(1, 0)")
    assert told(client.change("turned.py", mended)) == []
    client.change("turned.py", TURNED)
    client.edit("turned.py", TURNED.replace("return y.T", "return y"))  # the text of the fix is not there any more
    assert client.actions("turned.py", line).keys() == {"accept this finding of turned"}


@pytest.mark.slow
def test_what_ends_the_worker_costs_one_answer(client: Client):
    ends = PROGRAM.replace("π = 1.0", "os._exit(3)")
    diagnostics = told(client.open("ends.py", ends))
    assert diagnostics == [(7, 3, "pooled: undecided: the process ended, with exit code 3")]
    assert told(client.change("ends.py", PROGRAM.replace("axis=0", "axis=1"))) == []


@pytest.mark.slow
def test_other_documents_are_read_as_they_were_saved(client: Client):
    program = PROGRAM.replace("import weft\n", "import weft\nfrom sibling import FACTOR\n").replace("axis=0", "axis=1")
    program = program.replace("return mean", "return jnp.tile(mean, FACTOR)")
    assert [one[0] for one in told(client.open("uses.py", program))] == [8]
    client.open("sibling.py", "FACTOR = 1\n")
    assert told(client.change("uses.py", program + "\nPRINTED = 1\nprint(PRINTED)\n")) == []


@pytest.mark.slow
def test_what_cannot_be_imported_is_said(client: Client):
    ((line, severity, message),) = told(client.open("broken.py", PROGRAM.replace("import os", "import nothing_such")))
    assert (line, severity) == (1, 1)
    assert "nothing_such, which is not installed" in message


def test_without_pygls_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setitem(sys.modules, "pygls", None)
    assert serve(argparse.Namespace(undecided=False)) == 2
    assert "pip install 'weft-jax[lsp]' (pygls)" in capsys.readouterr().err
