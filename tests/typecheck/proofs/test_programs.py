"""The program that comes with a failure: short, without weft, and it shows the failure when it is run."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jaxtyping
import pytest
from jaxtyping import Array, Float
from weft.typecheck.proofs import tracing
from weft.typecheck.proofs.prover import verify
from weft.typecheck.proofs.report import Finding


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has this file count as one of an installed package."""
    monkeypatch.setattr(tracing, "is_users", lambda file, own=frozenset(): file in own)


def swapped(x: Float[Array, "b i"], w: Float[Array, "o i"]) -> Float[Array, "b o"]:
    return x @ w


def pooled(x: Float[Array, "b s d"]) -> Float[Array, "b d"]:
    return x.mean(axis=0)


class Linear(eqx.Module):
    weight: Float[Array, "o i"]

    def __init__(self, i: int, o: int, *, key: jaxtyping.PRNGKeyArray):
        self.weight = jax.random.normal(key, (o, i))

    def __call__(self, x: Float[Array, "i"]) -> Float[Array, "o"]:
        return self.weight.T @ x

    def passed_on(self, x: Float[Array, "i"]) -> Float[Array, "o"]:
        return x


def shown(failure: Finding) -> BaseException:
    assert "weft" not in failure.program.replace(__name__, "")
    assert len(failure.program.splitlines()) <= 10
    try:
        exec(failure.program, {})
    except Exception as raised:
        return raised
    pytest.fail("the program runs through")


def test_an_error_of_jax_is_shown_by_plain_jax():
    (failure,) = verify(swapped).failures
    assert isinstance(shown(failure), TypeError)
    assert failure.program.splitlines()[-1] == 'swapped(jnp.ones((1, 1), "float32"), jnp.ones((2, 1), "float32"))'


def test_a_broken_annotation_is_shown_by_jaxtyping_with_beartype():
    (failure,) = verify(pooled).failures
    assert isinstance(shown(failure), jaxtyping.TypeCheckError)


class Grid(eqx.Module):
    shape: tuple[int, ...]
    cells: Float[Array, "n d"]

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape
        self.cells = jnp.ones((int(jnp.sum(jnp.array(shape))), len(shape)))

    def turned(self, x: Float[Array, "a b"]) -> Float[Array, "a b"]:
        return x.T


class Hidden(Grid):
    def __init__(self, many: int, few: int):
        super().__init__((many, few))


def test_an_instance_is_made_as_its_class_makes_it_and_not_of_its_fields():
    (failure,) = verify(Grid((4, 6)).turned).failures
    assert "(Grid(shape=(4, 6)), jnp.ones(" in failure.program
    assert isinstance(shown(failure), jaxtyping.TypeCheckError)
    (unwritten,) = verify(Hidden(4, 6).turned).failures
    assert unwritten.program == ""


def test_records_are_constructed_as_the_failing_trial_did():
    error, _ = verify(Linear).failures
    assert isinstance(shown(error), TypeError)
    assert "Linear(1, 2, key=jax.random.key(0))" in error.program


def test_what_only_the_dims_of_an_instance_show_is_called_plainly_and_said():
    _, failure = verify(Linear).failures
    assert "Linear.passed_on(" in failure.program
    assert failure.program.endswith("o is 2, not 1")
    exec(failure.program, {})


def test_a_function_within_another_is_checked_by_the_import_hook():
    (failure,) = verify(outer).failures
    assert f'jaxtyping.install_import_hook("{__name__}", ' in failure.program


def outer(xs: Float[Array, "t n"]) -> Float[Array, "n"]:
    def step(carry: Float[Array, "n"], x: Float[Array, "n 1"]) -> tuple[Float[Array, "n"], None]:
        return carry + x, None

    return jax.lax.scan(step, jnp.zeros(xs.shape[1]), xs)[0]


def cut(x: Float[Array, "n d"], rows: slice = slice(None), scale: float = 1.0) -> Float[Array, "d n"]:
    return x[rows] * scale


def test_what_is_the_default_anyway_is_not_written():
    (failure,) = verify(cut).failures
    assert isinstance(shown(failure), jaxtyping.TypeCheckError)
    assert failure.program.splitlines()[-1].endswith('(cut)(jnp.ones((1, 2), "float32"))')


def frequencies(size: int) -> Float[Array, "size"]:
    return jnp.fft.rfftfreq(size)


def spectrum(x: Float[Array, "n"]) -> Float[Array, "k"]:
    return frequencies(x.shape[0])


def turned(x: Float[Array, "n d"]) -> Float[Array, "d n"]:
    return x


def gram(x: Float[Array, "n d"]) -> Float[Array, "n n"]:
    return turned(x) @ x.T


def test_what_users_call_is_seen_with_the_dims_that_weft_binds():
    assert [verify(one).verdict.name for one in (spectrum, gram)] == ["FAILS", "FAILS"]


@pytest.mark.usefixtures("installed")
def test_what_an_installed_package_calls_is_seen_as_jaxtyping_would():
    report = verify(spectrum)
    assert report.verdict.name == "UNDECIDED"
    assert "as weft lets them and jaxtyping does not" in str(report)
    assert verify(gram).verdict.name == "FAILS"


HOOKED = """
from jaxtyping import Array, Float

def turned(x: Float[Array, "n d"]) -> Float[Array, "d n"]:
    return x

def gram(x: Float[Array, "n d"]) -> Float[Array, "n n"]:
    return turned(x) @ x.T
"""


def test_the_import_hook_shows_what_another_function_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "hooked_gram.py").write_text(HOOKED)
    monkeypatch.syspath_prepend(str(tmp_path))
    (failure,) = verify(importlib.import_module("hooked_gram").gram).failures
    # A process of its own: the hook has to be there before the module is imported.
    ran = subprocess.run([sys.executable, "-c", failure.program], cwd=tmp_path, capture_output=True, text=True)
    assert "Type-check error whilst checking the return value of hooked_gram.turned" in ran.stderr


def test_two_classes_of_one_name_are_imported_under_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    imports = "import equinox as eqx\nfrom jaxtyping import Array, Float\n\n"
    scale = f"{imports}class Scale(eqx.Module):\n    by: Float[Array, 'k']\n"
    for name in ("scales_in", "scales_out"):
        (tmp_path / f"{name}.py").write_text(scale)
    (tmp_path / "scaled.py").write_text(
        "import scales_in, scales_out\nfrom jaxtyping import Array, Float\n\n"
        "def scaled(x: Float[Array, 'n'], one: scales_in.Scale, other: scales_out.Scale) -> Float[Array, 'm']:\n"
        "    return (x[:, None] * one.by) @ other.by[None]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (failure,) = verify(importlib.import_module("scaled").scaled).failures
    assert "from scales_in import Scale\nfrom scales_out import Scale as Scale2\n" in failure.program
    shown(failure)


def one_axis(x: Float[Array, "n d"]) -> Float[Array, "n"]:
    return x


class Picked(eqx.Module):
    picks: Float[Array, "k j"]
    picked: Float[Array, "k j d"]

    def __init__(self, picks: Float[Array, "k j"], rows: Float[Array, "n d"]):
        self.picks, self.picked = picks, rows[one_axis(picks)]

    def total(self) -> Float[Array, ""]:
        return jnp.sum(self.picked)


def test_what_breaks_on_the_way_to_a_users_arguments_fails():
    assert not verify(Picked).ok


@pytest.mark.usefixtures("installed")
def test_what_breaks_on_the_way_to_arguments_that_nobody_can_make_is_undecided():
    report = verify(Picked)
    assert not report.failures
    assert "making its arguments raises TypeError" in str(report)


def mapped(f: Callable[[Float[Array, "n"]], Float[Array, "n"]], x: Float[Array, "n d"]) -> Float[Array, "n d"]:
    return f(x)


def replaced(f: Callable[[Float[Array, "n"]], Float[Array, "k"]], x: Float[Array, "n"]) -> Float[Array, "n"]:
    return f(x)


def test_a_callable_that_is_called_with_something_else_is_one_that_jaxtyping_checks():
    (failure,) = verify(mapped).failures
    assert "stand_in" in str(shown(failure))
    assert 'def stand_in(x0: Float[Array, "n"]): return x0' in failure.program


def test_another_callable_returns_what_its_annotation_says():
    (failure,) = verify(replaced).failures
    assert isinstance(shown(failure), jaxtyping.TypeCheckError)
    assert "(replaced)(lambda *_: jnp.ones((" in failure.program
