"""The terminal that the README begins with shows what the commands in it print."""

from __future__ import annotations

import html
import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("rich")
PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"


def words(picture: str) -> list[str]:
    """The texts of a picture, without numbers, which another JAX may plan differently, and a traceback's carets."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    return re.sub(r"\d[\d.,]*|[~^]+", "#", html.unescape(" ".join(texts))).split()


@pytest.mark.slow
def test_the_commands_still_print_what_the_picture_shows():
    cast = runpy.run_path(str(PICTURES / "cast.py"))
    scenes = cast["played"]()
    assert words(cast["drawn"](scenes)) == words((PICTURES / "cast.svg").read_text())
    model, error, proof, plan = ([output for _, output in scene] for scene in scenes)
    line = model[0].splitlines().index("        return jax.nn.softmax(q.T @ k)")
    assert (
        "ContractError: return value of Attention.weights should be f32[seq=128,seq=128], and is f32[16,16]" in error[0]
    )
    assert f"model.py:{line - 1}: " in proof[0]  # where the annotation is that does not hold
    assert proof[-1] == "2 contracts: 2 proved, 0 hold, 0 fail\n"
    assert plan[0].startswith("plan for data=8 of h100: fits, ")


def test_the_picture_needs_nothing_else_and_names_no_place_of_a_machine():
    picture = (PICTURES / "cast.svg").read_text()
    assert set(re.findall(r"https?://[^\s\"'<]+", picture)) <= {
        "http://www.w3.org/2000/svg",
        "https://www.textualize.io",
    }
    assert not re.search(r"/(tmp|home|root|Users)/", picture)
    assert len(picture) < 300_000
